"""A step of the C core beside that of the op in PyTorch, in turn in one run: ms and their ratio.

python benchmarks/core.py --model MODEL --structure water.xyz --repeat 2 2 2
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import ase.io
import numpy as np
import torch
from machine import parser_of

import mdops
from mdops import system as systems

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "core"))
from core_library import EXTEND, List, Model


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--structure", required=True)
    parser.add_argument("--repeat", type=int, nargs=3, default=(1, 1, 1))
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--steps", type=int, default=40, help="of each kind")
    args = parser.parse_args()
    atoms = ase.io.read(args.structure).repeat(args.repeat)
    potential = mdops.load(args.model, dtype=args.dtype, overflow="extend")
    system = systems.from_atoms([atoms], potential.type_map, potential.device)
    near = potential.neighbor_list(system)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        mdops.load(args.model, dtype="float64", spline=False).save(path, core=[args.dtype])
        core = Model(path, args.dtype, overflow=EXTEND, threads=torch.get_num_threads())
    # Every atom with its images in the list's own order, so that both do the same work.
    positions, types, rows = ghosts_of(system, near)
    neighbors = List(types, len(atoms), rows, len(potential.type_map))
    cell, pbc = atoms.cell.array, atoms.pbc.astype(np.int32)
    own, kinds = atoms.get_positions(), system.types.numpy()
    ways = {
        "op": lambda: potential.evaluate(system, near),
        "core": lambda: core.compute(positions, near=neighbors, atom_virial=False),
        "search and op": lambda: potential.evaluate(system),
        "core, which searches": lambda: core.compute(own, kinds, cell, pbc, atom_virial=False),
    }
    wanted = ways["op"]()["energy"].item()
    for name in ("core", "core, which searches"):
        assert abs(ways[name]()["energy"] - wanted) < 1e-5 * abs(wanted), name
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.steps):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(t) for name, t in times.items()}
    print(f"{len(atoms)} atoms, {args.dtype}, {torch.get_num_threads()} threads, median of {args.steps}")
    for name, median in medians.items():
        print(f"{name:<22}{median:8.2f} ms {1e3 * median / len(atoms):8.2f} us/atom")
    for mine, theirs in (("core", "op"), ("core, which searches", "search and op")):
        ratio = statistics.median(a / b for a, b in zip(times[mine], times[theirs], strict=True))
        print(f"{mine} / {theirs}: {ratio:.3f}")


def ghosts_of(
    system: mdops.system.System, near: mdops.ops.NeighborList
) -> tuple[np.ndarray, np.ndarray, list]:
    """Positions and types of atoms and ghosts, and the neighbours of each atom among them."""
    names, images = near.neighbors.numpy(), near.images.numpy()
    x, cell, types = system.positions.numpy(), system.cell[0].numpy(), system.types.numpy()
    shifts = np.stack([(images >> k & 1023 ^ 512) - 512 for k in (0, 10, 20)], -1)
    places: dict[tuple, int] = {}
    more, rows = [], []
    for i in range(len(x)):
        row = []
        for j, image, shift in zip(names[i], images[i], shifts[i], strict=True):
            if j < 0:
                break
            if image == 0:
                row.append(j)
                continue
            if (j, image) not in places:
                places[j, image] = len(x) + len(more)
                more.append((x[j] + shift @ cell, types[j]))
            row.append(places[j, image])
        rows.append(row)
    positions = np.concatenate([x, np.array([p for p, _ in more]).reshape(-1, 3)])
    return positions, np.concatenate([types, np.array([t for _, t in more], np.int32)]), rows


if __name__ == "__main__":
    main()
