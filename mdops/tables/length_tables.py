"""Splines of what edges have in all layers, where that follows from their length alone: few functions stand for all."""

import math
from collections.abc import Sequence

import torch

from mdops.models.length_basis import EdgesByLength, LengthBasis
from mdops.tables.spline import collocation, evaluate, fewest_intervals, value_and_slope

_BETWEEN = (0.125, 0.375, 0.625, 0.875)  # of an interval, where errors are looked at
_FIRST, _MOST = 32, 1024  # intervals
_SAMPLED = 512  # places by which functions are chosen
_VECTOR = 64  # bytes; kernels take functions in whole vectors
# Of the tolerance, which is that of forces: far less than layers round by in float32.
_ROOM = {torch.float32: 0.05, torch.float64: 1e-3}


@torch.no_grad()
def length_basis(
    descriptor: EdgesByLength, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> LengthBasis | None:
    """For systems of these types, by default all, whose atoms are r_min (A) apart or more; None where edges do not go
    by their lengths alone, or no fewer functions than an edge has numbers are within the tolerance."""
    if not descriptor.edges_go_by_length:
        return None
    like, tolerance = descriptor.mean, tolerance * _ROOM[descriptor.mean.dtype]
    first, last = descriptor.edge_range(r_min, types)
    width = last - first
    if not 0 < width < math.inf:
        return None

    def both(x: torch.Tensor, h: float) -> torch.Tensor:
        """The numbers of all layers at x (P,), and their slopes: (2, P, all)."""
        value, slope = value_and_slope(
            lambda s: torch.cat(descriptor.edge_functions(s[:, None]), 1)[None, None], x, h
        )
        return torch.stack([value[0, 0], slope[0, 0]])

    step = width / _SAMPLED
    sampled = both(first + step * torch.arange(_SAMPLED + 1, dtype=torch.float64), step / 4)
    size = sampled.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    rows = (sampled / size).flatten(0, 1)
    if not bool(rows.isfinite().all()):
        return None
    found = torch.linalg.svd(rows, full_matrices=False).Vh
    numbers = descriptor.edge_functions(rows.new_zeros(1, 1))[0].shape[1]
    block = _VECTOR // like.element_size()
    for count in range(block, numbers + 1, block):
        basis = found[:count]
        if (rows - rows @ basis.T @ basis).abs().max() <= 0.5 * tolerance:
            break
    else:
        return None

    def table(intervals: int) -> torch.Tensor:
        points, matrix = collocation(intervals)
        values = torch.cat(descriptor.edge_functions(first + (points * (width / intervals))[:, None]), 1)
        return matrix.solve((values @ basis.T)[None])

    def error(_: Sequence[int], intervals: int) -> float:
        made, step, most = table(intervals), width / intervals, 0.0
        for fraction in _BETWEEN:
            x = first + step * (torch.arange(intervals, dtype=torch.float64) + fraction)
            splines = [evaluate(made, fraction, order)[0] / step**order @ basis for order in (0, 1)]
            most = max(most, float(((torch.stack(splines) - both(x, step / 32)) / size).abs().max()))
        return most

    # Errors of slopes fall with the fifth power of the step, once it is fine enough.
    enough = fewest_intervals(error, [0], tolerance, range(_FIRST, _MOST + 1), 5)
    if enough is None:
        return None
    products = [one.T.contiguous().to(like) for one in basis.T.split(numbers)]
    return LengthBasis(table(enough[0]).to(like).contiguous(), first, width, tuple(products))
