"""Makes tests/data/hessian.npz: DeePMD-kit's Hessians of some models of tests/data.

Of layers of attention DeePMD-kit's are NaN.

Needs deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_hessian.py
"""

from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt.model.model import EnergyModel

HERE = Path(__file__).resolve().parent
CASES = {
    "base": "reference/base",
    "dpa1": "reference_kinds/dpa1_attn0_strip",
    "dpa2": "reference_kinds/dpa2_base",
    "dpa3": "reference_kinds/dpa3_base",
}


def main():
    generator = np.random.default_rng(3)
    sites = 2.0 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)[:5]
    coord = sites + generator.uniform(-0.3, 0.3, (2, 5, 3))
    cell = np.stack([np.diag([7.0, 8.0, 9.0])] * 2)
    types = np.array([0, 1, 1, 0, 1])
    arrays = {"positions": coord, "cell": cell, "types": types}
    for name, folder in CASES.items():
        model = (
            EnergyModel.deserialize(load_dp_model(str(HERE / folder / "model.dp"))["model"]).double().eval()
        )
        model.enable_hessian()
        found = model(
            torch.from_numpy(coord).requires_grad_(),
            torch.from_numpy(types).expand(2, -1),
            box=torch.from_numpy(cell).reshape(2, 9),
        )
        arrays[name] = found["hessian"].detach().numpy().reshape(2, 15, 15)
    np.savez_compressed(HERE / "hessian.npz", **arrays)


if __name__ == "__main__":
    main()
