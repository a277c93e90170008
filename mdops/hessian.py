"""Second derivatives of the energy by positions, by autograd through the model's operations."""

from dataclasses import replace

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.context import EvaluationContext
from mdops.ops import NeighborList
from mdops.system import System


def hessians(
    potential: EvaluationContext,
    system: System,
    neighbors: NeighborList,
    fparam: torch.Tensor | None = None,
    aparam: torch.Tensor | None = None,
) -> torch.Tensor:
    """(P, 3, 3) float64, eV/A^2: d^2E/dx_i dx_j for all pairs (i, j) of atoms in a system, ordered by system, i, j.

    The atoms of a system must be consecutive. Takes 3 n passes for systems of up to n atoms. The results are not
    differentiable: the ops of mdops have no third derivatives. Virtual atoms move with theirs, and do not count."""
    step = 2 if system.paired else 1  # rows of an atom
    with torch.enable_grad():
        old = system.positions.detach().view(-1, step, 3)
        positions = old[:, 0].clone().requires_grad_()
        moved = replace(system, positions=(positions[:, None] + (old - old[:, :1])).flatten(0, 1))
        answers, _ = Autograd(potential)(moved, neighbors, fparam, aparam, create_graph=True)
        forces = answers["forces"].view(-1, step, 3).sum(1)
        sizes = torch.bincount(system.batch[::step].long(), minlength=system.count).tolist()
        first = torch.tensor([sum(sizes[:k]) for k in range(len(sizes))])
        rows = []
        for k in range(3 * max(sizes, default=0)):
            there = [int(start) + k // 3 for start, n in zip(first, sizes, strict=True) if k // 3 < n]
            slope = -forces[there, k % 3].sum()
            rows.append(torch.autograd.grad(slope, positions, retain_graph=True)[0])
    return by_pairs(rows, sizes)


def by_pairs(rows: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    """(P, 3, 3): the blocks of all systems' matrices. `rows[3 a + c]` (N, 3) is for coordinate c of atom a."""
    if not rows:
        return torch.empty(0, 3, 3, dtype=torch.float64)
    every, found, start = torch.stack(rows), [], 0
    for n in sizes:
        own = every[: 3 * n, start : start + n].reshape(n, 3, n, 3)
        found.append(own.transpose(1, 2).reshape(n * n, 3, 3))
        start += n
    return torch.cat(found)
