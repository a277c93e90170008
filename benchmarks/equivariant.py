"""Times of examples/equivariant.py with mdops' ops, and with PyTorch's operations instead.

    python benchmarks/equivariant.py [--cells 2 4] [--json FILE] [--commit HASH]

Energy, forces and virial of Cu-Al with random weights, on one core: processor time of the fastest of several runs.
Without the ops, arrays of edges hold the coefficients of neighbours, frames come from quaternions, and functions on
the sphere are evaluated at points.
"""

import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ase import Atoms
from ase.build import bulk
from machine import machine, parser_of, report

from mdops.models import DescriptorFitting
from mdops.nn.equivariant import GridNet, by_order, frame_quaternions, spherical_harmonics, wigner_rows
from mdops.ops import EdgeIndex
from mdops.potential import Potential
from mdops.train import parse_config

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import equivariant as example

RUNS = 15
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def frames(vectors: torch.Tensor, degree: int, order: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = by_order(degree, order)
    return spherical_harmonics(vectors, degree), wigner_rows(frame_quaternions(vectors), degree, rows)


def rotate(turn: torch.Tensor, x: torch.Tensor, of: EdgeIndex) -> torch.Tensor:
    return torch.bmm(turn, x[of.nodes.long()])


def rotate_sum(turn: torch.Tensor, y: torch.Tensor, of: EdgeIndex) -> torch.Tensor:
    sums = y.new_zeros(len(of.offsets) - 1, turn.shape[2], y.shape[2])
    return sums.index_add(0, of.nodes.long(), torch.bmm(turn.mT, y))


def product(grid: GridNet, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return grid.from_points(grid.to_points(left) * grid.to_points(right))


def microseconds(potential: Potential, atoms: Atoms) -> float:
    """Time per atom."""
    potential.compute(atoms)
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        potential.compute(atoms)
        times.append(time.process_time() - start)
    return 1e6 * min(times) / len(atoms)


def measured(cells: int, dtype: str) -> dict[str, Any]:
    options = parse_config(example.training_input(1)).model
    potential = Potential(DescriptorFitting.random(options, 1, DTYPES[dtype]))
    atoms = bulk("Cu", cubic=True) * (cells, cells, cells)
    atoms.symbols[::3] = "Al"
    atoms.rattle(0.1)
    ops = microseconds(potential, atoms)
    names = {"edge_frames": frames, "edge_rotate": rotate, "edge_rotate_sum": rotate_sum}
    with mock.patch.multiple(example, **names), mock.patch.object(GridNet, "product", product):
        pytorch = microseconds(potential, atoms)
    return {"atoms": len(atoms), "dtype": dtype, "ops_us_per_atom": ops, "pytorch_us_per_atom": pytorch}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(cells, dtype) for cells in arguments.cells for dtype in DTYPES]
    report({**machine(commit=arguments.commit), "rows": rows}, arguments.json)


if __name__ == "__main__":
    main()
