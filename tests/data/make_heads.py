"""Makes tests/data/heads/{several.pt,one.pth,answers.npz}: a multi-task training of DeePMD-kit, and its answers.

A training of a few steps with three heads: two share descriptor and fitting, and tell themselves apart by
`dim_case_embd`; one has a fitting of dipoles of its own. The frozen file has one head. Needs deepmd-kit 3.2.0 with its
PyTorch backend:

    python tests/data/make_heads.py
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from deepmd.infer import DeepPot
from deepmd.infer.deep_dipole import DeepDipole
from make_checkpoints import without_code

DATA = Path(__file__).resolve().parent
HERE, EMT = DATA / "heads", DATA / "training" / "emt"
FITTING = {"neuron": [5, 5], "dim_case_embd": 3}
TYPES = ["Cu", "Al"]


def training(folder: Path) -> dict:
    model = {
        "shared_dict": {
            "types": TYPES,
            "descriptor": {
                "type": "dpa1",
                "sel": 60,
                "rcut": 4.5,
                "rcut_smth": 0.5,
                "neuron": [3, 6],
                "axis_neuron": 3,
                "tebd_dim": 4,
                "attn_layer": 0,
            },
            "fitting": FITTING,
        },
        "model_dict": {
            "Metals": {
                "type_map": "types",
                "descriptor": "descriptor",
                "fitting_net": "fitting",
                "model_branch_alias": ["alloys", "CuAl"],
            },
            "Oxides": {"type_map": "types", "descriptor": "descriptor", "fitting_net": "fitting"},
            "Moments": {
                "type_map": "types",
                "descriptor": "descriptor",
                "fitting_net": {"type": "dipole", **FITTING},
            },
        },
    }
    energies = {"type": "ener", "start_pref_e": 1, "limit_pref_e": 1, "start_pref_f": 1, "limit_pref_f": 1}
    dipoles = {"type": "tensor", "pref": 1.0, "pref_atomic": 0.0}
    data = {"training_data": {"systems": [str(EMT)], "batch_size": 1}}
    moments = {"training_data": {"systems": [str(folder / "moments")], "batch_size": 1}}
    return {
        "model": model,
        "learning_rate": {"type": "exp", "start_lr": 0.01, "stop_lr": 0.001, "decay_steps": 5},
        "loss_dict": {"Metals": energies, "Oxides": energies, "Moments": dipoles},
        "training": {
            "model_prob": {"Metals": 1, "Oxides": 1, "Moments": 1},
            "data_dict": {"Metals": data, "Oxides": data, "Moments": moments},
            "numb_steps": 20,
            "seed": 3,
            "disp_freq": 20,
            "save_freq": 20,
        },
    }


def moments(folder: Path) -> None:
    """Two frames of EMT with random dipoles."""
    (source,) = EMT.glob("set.*")
    target = folder / "moments" / "set.000"
    target.mkdir(parents=True)
    for name in ("type.raw", "type_map.raw"):
        (folder / "moments" / name).write_text((EMT / name).read_text())
    for name in ("coord", "box"):
        np.save(target / f"{name}.npy", np.load(source / f"{name}.npy")[:2])
    np.save(target / "dipole.npy", np.random.default_rng(1).normal(size=(2, 3)))


def main() -> None:
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        moments(folder)
        (folder / "input.json").write_text(json.dumps(training(folder)))
        dp = [sys.executable, "-m", "deepmd", "--pt"]
        subprocess.run([*dp, "train", "input.json", "--skip-neighbor-stat"], check=True, cwd=folder)
        checkpoint = torch.load(folder / "model.ckpt-20.pt", weights_only=True)
        torch.save({"model": checkpoint["model"]}, HERE / "several.pt")
        one = ["--head", "Oxides", "-o", str(HERE / "one.pth")]
        subprocess.run([*dp, "freeze", "-c", "model.ckpt-20.pt", *one], check=True, cwd=folder)
    without_code(HERE / "one.pth")
    answers()


def answers() -> None:
    """Of each head, for a cube of eight atoms."""
    generator = np.random.default_rng(2)
    sites = 2.6 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)
    coord = (sites + generator.uniform(-0.2, 0.2, (8, 3)))[None]
    cell, types = 5.2 * np.eye(3)[None], np.array([0, 1] * 4)
    found = {"positions": coord, "cell": cell, "types": types}
    for head in ("Metals", "Oxides"):
        energy, force, virial = DeepPot(str(HERE / "several.pt"), head=head).eval(coord, cell, types)
        found |= {
            f"{head}/energy": energy,
            f"{head}/forces": force,
            f"{head}/virial": virial.reshape(-1, 3, 3),
        }
    moments_of = DeepDipole(str(HERE / "several.pt"), head="Moments")
    found["Moments/dipole"] = moments_of.eval(coord, cell, types, atomic=False)
    np.savez_compressed(HERE / "answers.npz", **found)


if __name__ == "__main__":
    main()
