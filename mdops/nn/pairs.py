"""The neighbours of every atom with their pair vectors, and what to do when they are too many or too near."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mdops.errors import InputError
from mdops.nn.moments import Moments


class Pairs(NamedTuple):
    """One row an atom (docs/ops.md, Conventions).

    Attributes:
        neighbors: (N, K) int32, -1 where a slot is empty.
        counts: (N, ntypes) int32.
        displacements: (N, K, 3), A, the compute dtype.
    """

    neighbors: torch.Tensor
    counts: torch.Tensor
    displacements: torch.Tensor


def overflows(moments: Moments, sel: Sequence[int]) -> torch.Tensor:
    """(N, ntypes) bool: where an atom has more neighbours of a type than the model has places for."""
    return moments.within > torch.tensor(sel, device=moments.within.device)


def refuse_overflow(moments: Moments, sel: Sequence[int], type_map: Sequence[str]) -> None:
    """Raises InputError, naming the first atom that has too many neighbours; returns if there is none."""
    too_many = overflows(moments, sel)
    if not bool(too_many.any()):
        return
    atom, kind = torch.nonzero(too_many)[0].tolist()
    raise InputError(
        f"atom {atom} has {int(moments.within[atom, kind])} neighbours of type {type_map[kind]} within the "
        f"cutoff, and the model's sel is {sel[kind]} ({int(too_many.any(1).sum())} atoms overflow). "
        'DeePMD-kit would drop the farthest: overflow="truncate" does too, overflow="extend" keeps all'
    )


def refuse_coincident(moments: Moments, pairs: Pairs) -> None:
    """Raises InputError, naming two atoms at the same place; returns if there are none."""
    at_zero = moments.nearest == 0
    if not bool(at_zero.any()):
        return
    atom = int(torch.nonzero(at_zero)[0])
    real = pairs.neighbors[atom] >= 0
    slot = torch.nonzero(real & (pairs.displacements[atom] == 0).all(-1))[0]
    raise InputError(f"atoms {atom} and {int(pairs.neighbors[atom, slot])} are at the same place")


LOADING_ADVICE = (
    "Load the model with a smaller r_min, or with spline=False (of the commands: --r-min, --no-spline)"
)


def warn_close(moments: Moments, r_min: float, advice: str = LOADING_ADVICE) -> None:
    """Warns of atoms that have a neighbour nearer than r_min (A)."""
    if bool((moments.nearest < r_min).any()):
        warn_extrapolated(r_min, advice)


def warn_extrapolated(r_min: float, advice: str = LOADING_ADVICE) -> None:
    """Always the same words from the same line: by Python's own filter a process says them once."""
    warnings.warn(
        f"atoms have a neighbour nearer than {r_min:g} A, where the splines are extrapolated: the forces there are "
        f"smooth but not the model's. {advice}",
        stacklevel=1,
    )


def keep_nearest(pairs: Pairs, sel: Sequence[int], cutoff: float) -> Pairs:
    """What DeePMD-kit keeps: of all neighbours the nearest sum(sel), then of each type the nearest sel_t."""
    squared = pairs.displacements.detach().square().sum(-1)
    slot = torch.arange(squared.shape[1], device=squared.device)
    kind = (slot[None, :, None] >= pairs.counts.cumsum(1)[:, None, :]).sum(-1)
    squared = squared.masked_fill((pairs.neighbors < 0) | (squared >= cutoff**2), torch.inf)
    keep = squared.isfinite() & (_rank(squared) < sum(sel))
    for t, places in enumerate(sel):
        others = squared.masked_fill(kind != t, torch.inf)
        keep &= (kind != t) | (_rank(others) < places)
    order = torch.argsort((~keep).int(), dim=1, stable=True)
    kept = keep.gather(1, order)
    return Pairs(
        pairs.neighbors.gather(1, order).masked_fill(~kept, -1),
        torch.stack([(keep & (kind == t)).sum(1) for t in range(len(sel))], dim=1).int(),
        pairs.displacements.gather(1, order[..., None].expand(-1, -1, 3)) * kept[..., None],
    )


def _rank(values: torch.Tensor) -> torch.Tensor:
    """(N, K): the place of each value in its row, sorted."""
    return torch.argsort(torch.argsort(values, dim=1, stable=True), dim=1, stable=True)
