"""Time of a full neighbour list against vesin (if installed), for water's density and a cutoff of 7 A.

    python benchmarks/neighbor.py [--atoms 1536 12288 98304] [--repeat 7] [--json FILE]

Prints medians of runs taken in turn, in microseconds per atom. `rows` is the form with a fixed, known
capacity, as a Verlet list uses it; `list` counts first; `pairs` is (i, j, shifts), as in vesin;
`check` is a Verlet list that need not be rebuilt.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdops import ops
from mdops.verlet import VerletList

try:
    import vesin
except ImportError:
    vesin = None

DENSITY = 0.1  # atoms/A^3
CUTOFF = 7.0  # A


def water_like(n: int) -> dict[str, Any]:
    """A jittered lattice of the density of water in a cube, two types, atoms in random order."""
    rng = np.random.default_rng(0)
    edge = (n / DENSITY) ** (1 / 3)
    side = int(np.ceil(n ** (1 / 3)))
    lattice = rng.permutation(np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3))[:n]
    positions = lattice * (edge / side) + rng.normal(scale=0.35, size=(n, 3))
    return {
        "positions": torch.tensor(positions),
        "cell": edge * torch.eye(3, dtype=torch.float64)[None],
        "pbc": torch.ones(1, 3, dtype=torch.bool),
        "batch": torch.zeros(n, dtype=torch.int32),
        "types": torch.tensor(np.arange(n) % 3 > 0, dtype=torch.int32),
    }


def medians(functions: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Seconds of each, run in turn so that a busy machine slows them equally."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def measure(n: int, repeat: int) -> dict[str, float]:
    system = water_like(n)
    capacity = ops.neighbor_list(**system, cutoff=CUTOFF).neighbors.shape[1] + 8
    verlet = VerletList(CUTOFF - 1, 1.0)
    verlet.update(**system)
    functions = {
        "rows": lambda: ops.neighbor_matrix(**system, cutoff=CUTOFF, ntypes=2, capacity=capacity),
        "list": lambda: ops.neighbor_list(**system, cutoff=CUTOFF, ntypes=2),
        "pairs": lambda: ops.neighbor_pairs(**system, cutoff=CUTOFF),
        "check": lambda: verlet.update(**system),
    }
    if vesin is not None:
        calculator = vesin.NeighborList(cutoff=CUTOFF, full_list=True)
        positions, cell = system["positions"].numpy(), system["cell"][0].numpy()
        functions["vesin"] = lambda: calculator.compute(positions, cell, True, "PS")
        found = len(calculator.compute(positions, cell, True, "PS")[0])
        assert found == len(ops.neighbor_pairs(**system, cutoff=CUTOFF)[0])
    return {name: 1e6 * seconds / n for name, seconds in medians(functions, repeat).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--atoms", type=int, nargs="+", default=[1, 192, 1536, 12288, 98304])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = ["rows", "list", "pairs", "check"] + ["vesin", "vesin/rows", "vesin/pairs"] * (vesin is not None)
    print(f"{torch.get_num_threads()} threads, {torch.ops.mdops.cpu_isa()}; us/atom, and ratios")
    print(f"{'atoms':>8}" + "".join(f"{name:>13}" for name in names))
    results = []
    for n in arguments.atoms:
        row = measure(n, arguments.repeat)
        if vesin is not None:
            row |= {f"vesin/{form}": row["vesin"] / row[form] for form in ("rows", "pairs")}
        results.append({"atoms": n} | row)
        print(f"{n:>8}" + "".join(f"{row[name]:>13.3f}" for name in names), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"unit": "us/atom", "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
