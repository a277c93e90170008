"""Makes tests/data/dipole_charge.npz: what DeePMD-kit's modifier "dipole_charge" gives of models in tests/data/outputs.

Needs deepmd-kit 3.2.0 with its exportable PyTorch backend:

    python tests/data/make_dipole_charge.py
"""

from pathlib import Path

import numpy as np
import torch
from deepmd.pt_expt.modifier.dipole_charge import DipoleChargeModifier

HERE = Path(__file__).resolve().parent
CASES = {
    "dipole": {"model_charge_map": [-8.0], "sys_charge_map": [6.0, 1.0]},
    "dipole_dpa3": {
        "model_charge_map": [-2.0, 0.5],
        "sys_charge_map": [1.0, -0.25],
        "ewald_h": 0.8,
        "ewald_beta": 0.6,
    },
}


def main():
    arrays = {}
    for name, keys in CASES.items():
        modifier = DipoleChargeModifier(str(HERE / "outputs" / f"{name}.dp"), **keys).double().eval()
        with np.load(HERE / "outputs" / f"{name}.npz") as found:
            given = {key: found[key] for key in ("positions", "types", "cell")}
        found = modifier(
            torch.from_numpy(given["positions"]).requires_grad_(),
            torch.from_numpy(given["types"]).expand(2, -1),
            torch.from_numpy(given["cell"]),
        )
        arrays |= {f"{name}_{key}": value.detach().numpy() for key, value in found.items()}
    np.savez_compressed(HERE / "dipole_charge.npz", **arrays)


if __name__ == "__main__":
    main()
