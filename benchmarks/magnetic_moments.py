"""Steps of models with magnetic moments on a GPU: NVE in the engine, and trainings, with and without CUDA graphs.

    python benchmarks/magnetic_moments.py [--noise] [--json FILE] [--commit HASH]

DPA-4 of degree 2 with 32 channels, two blocks and three layers a message, and DPA-4C with 64 channels, both with
random weights and a cutoff of 6 A, in float32. The crystal is nickel oxide with displaced atoms and moments in random
directions. The engine moves 64 and 512 atoms and makes the neighbour lists that it needs, the median of five times 40
steps. A training step is on four frames of 8 atoms, whose labels are random numbers.

--noise: instead, training steps of that DPA-4 without moments, on four frames of 8 and of 64 atoms, with the loss ener,
and with the loss dens where every second step displaces atoms, and where all do.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from machine import machine

from mdops import Potential
from mdops.md import Engine, EnsembleSettings
from mdops.md.motion import set_velocities
from mdops.models.registry import find
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer

SECTIONS = {
    "dpa4": {"type": "dpa4", "rcut": 6.0, "channels": 32, "n_radial": 16, "lmax": 2, "n_blocks": 2, "mixing_layers": 3},
    "dpa4c": {"type": "dpa4c", "rcut": 6.0, "channels": 64, "n_radial": 8},
}  # fmt: skip


NOISE = {"ener": None, "dens": 0.5, "dens, noise in all steps": 1.0}  # losses, and their `dens_prob`


def crystal(seed: int) -> Atoms:
    random = np.random.default_rng(seed)
    atoms = bulk("NiO", "rocksalt", a=4.2, cubic=True)
    atoms = atoms[np.argsort(-atoms.numbers, kind="stable")]
    atoms.positions += random.normal(0, 0.1, atoms.positions.shape)
    moments = random.normal(0, 1, atoms.positions.shape)
    atoms.set_initial_magnetic_moments(1.2 * moments / np.linalg.norm(moments, axis=1, keepdims=True))
    return atoms


def tree_of(kind: str, system: str) -> dict[str, Any]:
    nets = {"neuron": [64, 64], "precision": "float32"}
    return {
        "model": {
            "type_map": ["Ni", "O"],
            "descriptor": {**SECTIONS[kind], "precision": "float32"},
            "fitting_net": nets,
            "spin": {"scheme": "native", "use_spin": ["Ni"]},
            **({"type": "dpa4"} if kind == "dpa4" else {}),
        },
        "loss": {"type": "ener_spin"},
        "training": {
            "training_data": {"systems": [system], "batch_size": 4},
            "numb_steps": 10**6,
            "seed": 1,
        },
    }


def noisy_tree(system: str, probability: float | None = None) -> dict[str, Any]:
    tree = tree_of("dpa4", system)
    del tree["model"]["spin"]
    tree["loss"] = {"type": "ener"} if probability is None else {"type": "dens", "dens_prob": probability}
    return tree


def potential_of(kind: str) -> Potential:
    options = parse_config(tree_of(kind, "none")).model
    return Potential(find("model", options.KIND).random(options, 1, torch.float32), overflow="extend")


def milliseconds(work: Callable[[], Any], count: int) -> float:
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / count)
    return statistics.median(times[1:])


def engine_step(potential: Potential, repeats: int, graphs: bool) -> float:
    atoms, settings = crystal(0).repeat((repeats,) * 3), EnsembleSettings("nve", 300, 0.5)
    set_velocities(atoms, settings, np.random.default_rng(0), anew=True)
    engine = Engine(atoms, potential, settings, graphs=graphs)
    return milliseconds(lambda: list(engine.run(40)), 40)


def write_frames(path: Path, repeats: int) -> None:
    """Eight frames with random labels."""
    random = np.random.default_rng(0)
    frames = [crystal(seed).repeat((repeats,) * 3) for seed in range(8)]
    for atoms in frames:
        forces, atoms.arrays["force_mag"] = random.normal(size=(2, len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=random.normal(), forces=forces)
    ase.io.write(path, frames)


def training_step(make: Callable[[str], dict[str, Any]], graphs: bool, repeats: int = 1) -> float:
    """`make`: the input, for data in this file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "frames.extxyz")
        write_frames(path, repeats)
        trainer = Trainer(parse_config(make(str(path))), Path(folder, "run"), device="cuda")
        branch = trainer.branches[""]
        assert branch._graphs is not None
        if not graphs:
            branch._graphs = None

        def steps() -> None:
            for _ in range(20):
                branch.step(trainer.frames.share(0, trainer.processes), 1e-9, 1.0)

        return milliseconds(steps, 20)


def rows_of_moments() -> Iterator[dict[str, Any]]:
    for kind in SECTIONS:
        potential = potential_of(kind).eval().to("cuda")
        for graphs in (False, True):
            row: dict[str, Any] = {"model": kind, "graphs": graphs}
            row |= {f"engine, {8 * n**3} atoms, ms": engine_step(potential, n, graphs) for n in (2, 4)}
            yield row | {"training step, ms": training_step(partial(tree_of, kind), graphs)}


def noisy_rows() -> Iterator[dict[str, Any]]:
    for loss, probability in NOISE.items():
        make = partial(noisy_tree, probability=probability)
        for graphs in (False, True):
            row: dict[str, Any] = {"loss": loss, "graphs": graphs}
            yield row | {f"{8 * n**3} atoms a frame, ms": training_step(make, graphs, n) for n in (1, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--noise", action="store_true", help="training steps with the loss dens")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="of the measured source, recorded as it is")
    arguments = parser.parse_args()
    rows = []
    for row in noisy_rows() if arguments.noise else rows_of_moments():
        rows.append(row)
        print(row, flush=True)
    if arguments.json:
        found = {"machine": machine("cuda", arguments.commit), "steps": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
