"""Makes tests/data/lkf.npz: steps of DeePMD-kit's optimizer LKF with a model of tests/data, by sets of options.

Needs deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_lkf.py

The frames are those of losses.npz. `drawn` (steps, 4, 6) has the atoms whose forces each step takes in. `<set>/curve`
has the errors of energies and forces that a step reports, `<set>/energies` and `<set>/forces` the answers at the end.
"""

import json
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt.model.model import EnergyModel
from deepmd.pt.optimizer import KFOptimizerWrapper, LKFOptimizer
from make_losses import frames

HERE = Path(__file__).resolve().parent
STEPS = 3
SETS = {
    "default": {},
    "blocks": {"kf_blocksize": 50, "kf_start_pref_e": 2.0, "kf_limit_pref_e": 0.5, "kf_start_pref_f": 3.0},
}


def train(given, drawn, options):
    model = EnergyModel.deserialize(load_dp_model(str(HERE / "reference/base/model.dp"))["model"]).double()
    ends = [[options.get(f"kf_{end}_pref_{of}", 1.0) for end in ("start", "limit")] for of in "ef"]
    optimizer = LKFOptimizer(model.parameters(), 0.98, 0.9987, options.get("kf_blocksize", 5120))
    inputs = {
        "coord": torch.from_numpy(given["positions"]),
        "atype": torch.from_numpy(given["types"]).expand(2, -1),
        "box": torch.from_numpy(given["cell"]).reshape(2, 9),
    }
    energy, force = torch.from_numpy(given["energy"]), torch.from_numpy(given["force"])
    curve = []
    for step in range(STEPS):
        wrapper = KFOptimizerWrapper(
            lambda skip_loss, **parts: (model(**parts), None, None), optimizer, 24, 6
        )
        wrapper._KFOptimizerWrapper__sample = lambda *_, step=step: drawn[step]
        pref_e, pref_f = (start * (limit / start) ** (step / STEPS) for start, limit in ends)
        wrapper.update_energy(inputs, energy, pref_e)
        energies, forces = wrapper.update_force(inputs, force, pref_f)
        curve.append(
            [
                float(((energies - energy) / 5).square().mean().sqrt()),
                float((forces - force).square().mean().sqrt()),
            ]
        )
    after = model(**inputs)
    return {
        "curve": np.array(curve),
        "energies": after["energy"].detach().numpy()[:, 0],
        "forces": after["force"].detach().numpy(),
    }


def main():
    given = frames()
    drawn = np.random.default_rng(0).choice(5, (STEPS, 4, 6))
    arrays = {"drawn": drawn, "options": json.dumps(SETS)}
    for name, options in SETS.items():
        arrays |= {f"{name}/{key}": value for key, value in train(given, drawn, options).items()}
    np.savez_compressed(HERE / "lkf.npz", **arrays)


if __name__ == "__main__":
    main()
