"""Time of a step of many molecules in TorchSim with MDOpsModel, beside BatchEngine's.

    python benchmarks/torchsim.py --model model.dp [--system deepmd_folder] [--molecules 1024] [--device cuda]
                                  [--json FILE]

Clusters of 24 atoms (as in benchmarks/cuda_md.py), Langevin dynamics at 300 K, 0.5 fs, all in one batch.
`forward` is the model alone, called again with atoms that move (lists are rebuilt if necessary); `integrate` is
TorchSim's whole step; `engine` is that of `mdops.md.BatchEngine`. The three take turns, medians of several rounds.
TorchSim 0.4 or later.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch_sim as ts
from ase import units
from cuda_inference import add_model, structure
from cuda_md import molecules
from machine import machine

import mdops
from mdops.md import BatchEngine, EnsembleSettings
from mdops.md.motion import set_velocities
from mdops.torchsim import MDOpsModel


def timed(work: Callable[[], object], device: str) -> float:
    """Time, s."""
    begin = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model(parser)
    parser.add_argument("--molecules", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    device, steps = arguments.device, arguments.steps
    potential = mdops.load(arguments.model, overflow="extend", device=device)
    frames = molecules(
        structure(potential.type_map, arguments.structure, arguments.system), arguments.molecules
    )
    physics, random = EnsembleSettings("nvt", 300, 0.5, "langevin"), np.random.default_rng(0)
    for atoms in frames:
        set_velocities(atoms, physics, random, anew=True)
    n = sum(map(len, frames))

    model = MDOpsModel(potential)
    state = ts.io.atoms_to_state(frames, model.device, model.dtype)
    velocity = np.concatenate([atoms.get_velocities() for atoms in frames]) * 0.5 * units.fs
    shift = torch.as_tensor(velocity, device=device)

    def forward() -> None:
        for _ in range(steps):
            state.positions += shift
            model(state)
        shift.neg_()

    init, step = ts.INTEGRATOR_REGISTRY[ts.Integrator.nvt_langevin]
    kT, dt = (torch.tensor(x, device=device, dtype=model.dtype) for x in (300 * units.kB, 0.5 * units.fs))
    own = MDOpsModel(potential)
    md = [init(ts.io.atoms_to_state(frames, model.device, model.dtype), own, kT=kT)]

    def integrate() -> None:
        for _ in range(steps):
            md[0] = step(md[0], own, dt=dt, kT=kT)

    engine = BatchEngine(frames, potential, physics)
    works: dict[str, Callable[[], object]] = {
        "forward": forward,
        "integrate": integrate,
        "engine": lambda: list(engine.run(steps)),
    }
    for work in works.values():  # makes lists, graphs, memory
        timed(work, device)
    times: dict[str, list[float]] = {name: [] for name in works}
    builds = own._list.builds
    for _ in range(arguments.rounds):
        for name, work in works.items():
            times[name].append(timed(work, device) / steps)
    found = {name: 1e6 * median(values) / n for name, values in times.items()}
    every = steps * arguments.rounds / max(own._list.builds - builds, 1)
    print(
        f"{len(frames)} molecules, {n} atoms, us/atom/step: "
        + ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        + f"; integrate / engine {found['integrate'] / found['engine']:.2f}; a list in {every:.0f} steps"
    )
    if arguments.json:
        about = {
            "machine": machine(device),
            "torch_sim": ts.__version__,
            "molecules": len(frames),
            "atoms": n,
        }
        arguments.json.write_text(
            json.dumps(about | {"us_per_atom": found, "steps_per_list": every}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
