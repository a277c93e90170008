"""Hessians of a batch as a loss needs them: differentiable in the weights."""

import torch

from mdops.data.batch import Batch
from mdops.hessian import by_pairs
from mdops.potential import Potential
from mdops.system import System

# A. Errors of the difference of four points fall with the step's fourth power, those of rounding grow with its inverse.
_STEP = {torch.float32: 5e-3, torch.float64: 5e-4}
# A distance in steps, and the weight of the forces there in minus their slope times the step.
_POINTS = ((-2, -1 / 12), (-1, 8 / 12), (1, -8 / 12), (2, 1 / 12))
_ATOMS = 4096  # of frames that are evaluated together


def differences(potential: Potential, batch: Batch) -> torch.Tensor:
    """(P, 3, 3) float64, eV/A^2: as `mdops.hessian.hessians`, of forces at four points along each
    coordinate.

    The ops' forces have gradients by the weights but no higher ones: differences need no others."""
    system, sizes, dtype = batch.system, batch.sizes.tolist(), potential.dtype
    first = torch.cumsum(batch.sizes, 0) - batch.sizes
    place = torch.arange(system.atoms, device=first.device) - first[system.batch.long()]
    rows: list[torch.Tensor] = []
    count = max(1, _ATOMS // (len(_POINTS) * system.atoms))  # coordinates at a time
    for start in range(0, 3 * max(sizes), count):
        chosen = torch.arange(start, min(start + count, 3 * max(sizes)), device=first.device)
        forces = _forces(potential, batch, place, chosen, _STEP[dtype])
        weights = torch.tensor([weight for _, weight in _POINTS], dtype=torch.float64, device=first.device)
        rows += (torch.einsum("p,cpna->cna", weights, forces) / _STEP[dtype]).unbind(0)
    return by_pairs(rows, sizes)


def _forces(
    potential: Potential, batch: Batch, place: torch.Tensor, chosen: torch.Tensor, step: float
) -> torch.Tensor:
    """(C, points, N, 3) float64: forces with the coordinates (C,) of each frame moved; `place` (N,) is an atom's index
    in its frame."""
    system, points = batch.system, len(_POINTS)
    copies, atoms = points * len(chosen), system.atoms
    moves = torch.tensor([number * step for number, _ in _POINTS], dtype=torch.float64, device=place.device)
    is_moved = (place == chosen[:, None] // 3)[..., None] & (
        torch.arange(3, device=place.device) == chosen[:, None, None] % 3
    )
    positions = system.positions + moves[:, None, None] * is_moved[:, None]
    systems = torch.arange(copies, device=place.device, dtype=torch.int32) * system.count
    moved = System(
        positions.reshape(-1, 3),
        system.types.repeat(copies),
        system.cell.repeat(copies, 1, 1),
        system.pbc.repeat(copies, 1),
        (systems[:, None] + system.batch).reshape(-1),
        charge_spin=None if system.charge_spin is None else system.charge_spin.repeat(copies, 1),
    )
    taken = [
        None if value is None else value.repeat(copies, 1) if value.dim() > 1 else value
        for value in (batch.fparam, batch.aparam)
    ]
    found = potential.predict(moved, potential.neighbor_list(moved), *taken, check=False)
    return found["forces"].double().view(len(chosen), points, atoms, 3)
