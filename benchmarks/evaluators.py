"""The time of each evaluator for a step of simulation and of training, as ratios to the fastest.

python benchmarks/evaluators.py [MODEL] [--atoms 192 1536] [--device cpu] [--out FILE]

Without a MODEL: the standard net for water. All in turn in one process, medians. The evaluators' texts about the cost
of not using them (`Potential.explain`) come from here.
"""

import argparse
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine

import mdops
from mdops.cli.sample_model import water_model
from mdops.evaluators import SIMULATE, TRAIN, Autograd
from mdops.jit.sample_box import sample_box
from mdops.ops import NeighborList
from mdops.system import System, from_atoms


def training_step(evaluator: Any, system: System, pairs: NeighborList) -> Callable[[], None]:
    """A step with its backward pass, for squares of forces and a sum of energies."""
    options = {"create_graph": True} if isinstance(evaluator, Autograd) else {}

    def step() -> None:
        answers, _ = evaluator(system, pairs, check=False, **options)
        (answers["forces"].square().sum() + answers["atom_energy"].sum()).backward()
        evaluator.potential.zero_grad()

    return step


def median_times(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, after a round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn, (name, run) in itertools.product(range(rounds + 1), runs.items()):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if turn:
            found[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in found.items()}


def measure(potential: mdops.Potential, atoms: int, rounds: int) -> dict[str, dict[str, float]]:
    system = from_atoms([sample_box(atoms, potential.type_map)], potential.type_map, potential.device)
    pairs = potential.neighbor_list(system)

    def simulation(kind: type) -> Callable[[], None]:
        evaluator = kind(potential)
        return torch.no_grad()(lambda: evaluator(system, pairs, check=False))

    def training(kind: type) -> Callable[[], None]:
        return training_step(kind(potential), system, pairs)

    kinds = {"simulation": (SIMULATE, simulation), "training": (TRAIN, training)}
    return {
        use: median_times({k.name: make(k) for k in order if k.why_not(potential) is None}, rounds)
        for use, (order, make) in kinds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.model:
        potential = mdops.load(args.model, device=args.device, overflow="extend")
    else:
        potential = water_model(torch.float32).to(args.device)
    results = {}
    for atoms in args.atoms:
        results[str(atoms)] = found = measure(potential, atoms, args.rounds)
        for use, times in found.items():
            first = next(iter(times.values()))
            shown = ", ".join(f"{name} {ms:.2f} ms ({ms / first:.1f})" for name, ms in times.items())
            print(f"{atoms} atoms, {use}: {shown}", flush=True)
    if args.out:
        args.out.write_text(
            json.dumps({"machine": machine(args.device), "milliseconds": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
