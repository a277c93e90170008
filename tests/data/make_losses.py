"""Makes tests/data/losses.npz: trainings of a model of tests/data with keys of DeePMD-kit's loss "ener".

Needs deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_losses.py
"""

import json
from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt.loss import EnergyStdLoss
from deepmd.pt.model.model import EnergyModel

HERE = Path(__file__).resolve().parent
CASES = json.loads((HERE / "losses.json").read_text())
RATES = [1e-3, 5e-4, 2e-4]
NAMES = {"energy": "energy", "force": "force", "atom_pref": "atom_pref", "coefficients": "atom_ener_coeff"}


def frames():
    """Two frames of five atoms, and labels that no model gave."""
    generator = np.random.default_rng(3)
    sites = 2.0 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)[:5]
    return {
        "positions": sites + generator.uniform(-0.3, 0.3, (2, 5, 3)),
        "cell": np.stack([np.diag([7.0, 8.0, 9.0])] * 2),
        "types": np.array([0, 1, 1, 0, 1]),
        "energy": generator.normal(size=(2, 1)),
        "force": generator.normal(size=(2, 5, 3)),
        "atom_pref": generator.uniform(0, 3, (2, 5)),
        "coefficients": generator.uniform(-1, 2, (2, 5)),
    }


def train(given, keys):
    """The root of the loss, and errors, before each step; energies and forces after the last."""
    model = EnergyModel.deserialize(load_dp_model(str(HERE / "reference/base/model.dp"))["model"]).double()
    loss = EnergyStdLoss(starter_learning_rate=RATES[0], **keys)
    optimizer = torch.optim.Adam(model.parameters())
    labels = {name: torch.from_numpy(given[ours]) for ours, name in NAMES.items()}
    labels |= {"find_energy": 1.0, "find_force": 1.0}
    # Without its file, DeePMD-kit's reader gives ones, and `find_atom_pref` is 0.
    implied = keys.get("use_default_pf", False)
    labels["atom_pref"] = torch.ones(2, 15) if implied else labels["atom_pref"].repeat_interleave(3, 1)
    labels["find_atom_pref"] = 0.0 if implied else 1.0
    inputs = {
        "coord": torch.from_numpy(given["positions"]).requires_grad_(),
        "atype": torch.from_numpy(given["types"]).expand(2, -1),
        "box": torch.from_numpy(given["cell"]).reshape(2, 9),
    }
    curve = []
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        _, value, errors = loss(inputs, model, labels, 5, rate)
        value.backward()
        optimizer.step()
        found = [errors.get(name, np.nan) for name in ("rmse", "rmse_e", "rmse_f", "rmse_pf")]
        curve.append([float(error) for error in found])
    after = model(**inputs)
    return {
        "curve": np.array(curve),
        "energies": after["energy"].detach().numpy()[:, 0],
        "forces": after["force"].detach().numpy(),
    }


def main():
    arrays = frames()
    for name, keys in CASES.items():
        arrays |= {f"{name}_{key}": value for key, value in train(arrays, keys).items()}
    np.savez_compressed(HERE / "losses.npz", **arrays)


if __name__ == "__main__":
    main()
