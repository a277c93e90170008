"""Makes tests/data/dipole_charge.npz: what DeePMD-kit's modifier "dipole_charge" gives of models in tests/data/outputs.

Needs deepmd-kit 3.2.0 with its exportable PyTorch backend:

    python tests/data/make_dipole_charge.py
"""

import json
from pathlib import Path

import numpy as np
import torch
from deepmd.pt_expt.modifier.dipole_charge import DipoleChargeModifier

HERE = Path(__file__).resolve().parent
# That of water is a model with random weights that mdops made (dipole_models.py), for LAMMPS.
CASES = json.loads((HERE / "dipole_charge.json").read_text())


def water(seed, tilt):
    """27 molecules in a cell: positions (81, 3) and cell (3, 3), oxygens first."""
    random = np.random.default_rng(seed)
    cell = np.diag([9.6, 9.3, 9.9]) + tilt * np.tril(random.uniform(-1.2, 1.2, (3, 3)), -1)
    grid = np.stack(np.meshgrid(*(np.arange(3) / 3,) * 3, indexing="ij"), -1).reshape(-1, 3)
    oxygen = (grid + 0.15) @ cell + random.uniform(-0.2, 0.2, (27, 3))
    u, v = random.normal(size=(2, 27, 3))
    u /= np.linalg.norm(u, axis=1)[:, None]
    v -= (u * v).sum(1)[:, None] * u
    v /= np.linalg.norm(v, axis=1)[:, None]
    hydrogens = [oxygen + 0.96 * (np.cos(0.912) * u + sign * np.sin(0.912) * v) for sign in (1, -1)]
    return np.concatenate([oxygen, *hydrogens]), cell


def write_water():
    frames = [water(0, False), water(1, True)]
    positions, cell = (np.stack(values) for values in zip(*frames, strict=True))
    types = np.repeat([0, 1], (27, 54))
    np.savez_compressed(HERE / "outputs/dipole_water.npz", positions=positions, cell=cell, types=types)


def main():
    write_water()
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
