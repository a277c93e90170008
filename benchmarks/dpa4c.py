"""Energies and forces of DPA-4C models of DeePMD-kit's sizes: mdops with splines and with nets, beside DeePMD-kit.

    python benchmarks/dpa4c.py [--deepmd PYTHON] [--out FILE]
    python benchmarks/dpa4c.py --device cuda --repeats 15 [--profile] [--commit HASH] [--out FILE]

Diamond with 158 neighbours within 6 A, random weights, float32, one thread. Times are processor times, because other
programs may share the machine. Each is the smallest of several, in turn in one run. DeePMD-kit's is that of
its exportable PyTorch backend: the model as it is trained, with its own list. On a GPU, `kernels` are those of a step
with a given list, in a CUDA graph, and `step` is an NVT step in the engine.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.build import bulk
from descriptors import on_gpu
from machine import machine

import mdops
from mdops.models.registry import find
from mdops.system import from_atoms
from mdops.train.config.read import parse_config

# channels, lmax, radial_modes, and the width of the fitting net's layers.
SIZES = {
    "Nano": (8, 2, 0, 96),
    "Mini": (32, 2, 0, 192),
    "Neo": (64, 2, 0, 256),
    "Air": (64, 3, 4, 256),
    "Plus": (128, 3, 4, 384),
}
DEEPMD = """
import sys, time
import numpy as np, torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt_expt.model.model import BaseModel
torch.set_num_threads(1)
model = BaseModel.deserialize(load_dp_model(sys.argv[1])["model"]).eval()
given = np.load(sys.argv[2])
best = float("inf")
for _ in range(int(sys.argv[3]) + 1):
    x = torch.tensor(given["positions"][None], requires_grad=True)
    start = time.process_time()
    out = model(x, torch.tensor(given["types"][None]), box=torch.tensor(given["cell"].reshape(1, 9)))
    out["force"].sum().item()
    best = min(best, time.process_time() - start)
np.save(sys.argv[4], out["force"][0].detach().numpy())
print("seconds", best)
"""


def random_model(size: str, basis: str) -> mdops.Potential:
    channels, lmax, modes, width = SIZES[size]
    descriptor = {
        "type": "dpa4c",
        "channels": channels,
        "lmax": lmax,
        "radial_modes": modes,
        "basis_type": basis,
    }
    net = {"neuron": 3 * [width], "activation_function": "silu", "resnet_dt": False, "precision": "float32"}
    model = {"type_map": ["C"], "descriptor": descriptor, "fitting_net": net}
    config = parse_config({"model": model, "training": {"training_data": {"systems": "none"}}})
    return mdops.Potential(find("model", "standard").random(config.model, 1, torch.float32))


def least(run: Any, rounds: int) -> float:
    """Processor time, s."""
    found = float("inf")
    for _ in range(rounds + 1):
        start = time.process_time()
        run()
        found = min(found, time.process_time() - start)
    return found


def measure(size: str, basis: str, repeats: int, rounds: int, python: str | None) -> dict[str, Any]:
    atoms = bulk("C", cubic=True) * (repeats, repeats, repeats)
    atoms.rattle(0.03, seed=0)
    potential = random_model(size, basis)
    system = from_atoms([atoms], ["C"])
    pairs = int(potential.neighbor_list(system).counts.sum())
    found: dict[str, Any] = {
        "size": size,
        "basis": basis,
        "atoms": len(atoms),
        "neighbours": pairs / len(atoms),
    }

    def step() -> dict[str, torch.Tensor]:
        return potential.evaluate(system)

    seconds = {"nets": least(step, 1)}
    exact = step()["forces"]
    potential.use_spline()
    error = float((step()["forces"] - exact).abs().max() / exact.abs().max())
    seconds["splines"] = least(step, rounds)
    if python:
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(Path(folder) / name) for name in ("model.dp", "given.npz", "forces.npy")]
            potential.save(paths[0])
            np.savez(
                paths[1], positions=atoms.positions, types=np.zeros(len(atoms), int), cell=atoms.cell.array
            )
            command = [python, "-c", DEEPMD, *paths[:2], "3", paths[2]]
            told = subprocess.run(
                command, check=True, capture_output=True, text=True, env=_environment()
            ).stdout
            seconds["DeePMD-kit"] = float(told.split("seconds")[-1])
            off = np.abs(np.load(paths[2]) - exact.numpy()).max() / np.abs(exact.numpy()).max()
            found["nets' forces from DeePMD-kit's"] = float(off)
    found["splines' forces from the nets'"] = error
    found["us/atom"] = {name: round(1e6 * s / len(atoms), 2) for name, s in seconds.items()}
    found["ns/pair"] = {name: round(1e9 * s / pairs, 1) for name, s in seconds.items()}
    return found


def measure_gpu(size: str, basis: str, repeats: int, profiled: bool) -> dict[str, Any]:
    atoms = bulk("C", cubic=True) * (repeats, repeats, repeats)
    atoms.rattle(0.03, seed=0)
    potential = random_model(size, basis).to("cuda").eval()
    potential.use_spline()
    found = on_gpu(potential, atoms, profiled)
    us = {name.removesuffix("_us"): found[name] / len(atoms) for name in ("kernels_us", "step_us")}
    rates = {name: 1e3 / value for name, value in us.items()}
    more = {name: found[name] for name in ("gib", "kernels") if name in found}
    return {"size": size, "basis": basis, "atoms": len(atoms), "us/atom": us, "atoms/ms": rates, **more}


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--deepmd", metavar="PYTHON", help="a Python with DeePMD-kit and its PyTorch backends"
    )
    parser.add_argument("--repeats", type=int, default=4, help="cells of 8 atoms along each axis")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", action="store_true", help="on a GPU, time each kernel of a step, too")
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for size in args.sizes:
        if args.device == "cuda":
            rows.append(measure_gpu(size, "bessel", args.repeats, args.profile))
        else:
            rows.append(measure(size, "bessel", args.repeats, args.rounds, args.deepmd))
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        args.out.write_text(
            json.dumps({"machine": machine(args.device, args.commit), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
