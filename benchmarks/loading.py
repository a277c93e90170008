"""The time to load a model, and the additional time of its first step: processor time of one thread.

    python benchmarks/loading.py MODEL [MODEL ...] [--dtypes float64 float32] [--repeats 3] [--json FILE]

64 atoms of a model's first two types, near the sites of a cubic lattice. "load" is `mdops.load`. "first" is the
difference between the first and the second step: tables of the types in the system. Smallest times of the repeats; they
depend less on other programs than wall times do.
"""

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from machine import machine, parser_of, report

import mdops
from mdops.calculator import MDOps

_EDGE, _DISTANCE, _DISPLACED = 4, 2.2, 0.1  # atoms along an edge, A, A


def atoms_of(type_map: list[str]) -> Atoms:
    random = np.random.default_rng(0)
    places = np.stack(np.meshgrid(*[np.arange(_EDGE)] * 3, indexing="ij"), -1).reshape(-1, 3) * _DISTANCE
    names = [type_map[k % min(2, len(type_map))] for k in range(len(places))]
    moved = places + random.normal(0, _DISPLACED, places.shape)
    return Atoms(names, moved, cell=np.eye(3) * _EDGE * _DISTANCE, pbc=True)


def times(path: Path, dtype: str) -> tuple[dict[str, float], mdops.Potential]:
    """Seconds, and the model."""
    begin = time.process_time()
    model = mdops.load(path, dtype=dtype)
    loaded = time.process_time()
    atoms = atoms_of(model.type_map)
    atoms.calc = MDOps(model)
    steps = []
    for _ in range(3):
        before = time.process_time()
        atoms.get_forces()
        steps.append(time.process_time() - before)
        atoms.positions += 1e-3
    return {"load": loaded - begin, "first": max(steps[0] - min(steps[1:]), 0.0)}, model


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    times(arguments.models[0], arguments.dtypes[0])  # for imports at the first use
    rows: list[dict[str, Any]] = []
    for path in arguments.models:
        for dtype in arguments.dtypes:
            found = [times(path, dtype) for _ in range(arguments.repeats)]
            least = {name: round(min(one[name] for one, _ in found), 3) for name in found[0][0]}
            name = path.name if path.parent.name == "" else f"{path.parent.name}/{path.name}"
            rows.append({"model": name, "dtype": dtype, **least, "splines": str(found[0][1].splines())})
    report({"machine": machine(), "seconds": rows}, arguments.json)


if __name__ == "__main__":
    main()
