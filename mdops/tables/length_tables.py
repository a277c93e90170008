"""Splines of the edges' features in all layers, if these depend on length alone: few functions represent all."""

import math
from collections.abc import Sequence

import torch

from mdops.models.length_basis import EdgesByLength, LengthBasis
from mdops.tables import spline

_FIRST, _MOST = 32, 1024  # intervals
_SAMPLED = 128  # intervals at whose points functions are chosen
_VECTOR = 64  # bytes; kernels read functions in whole vectors
# Share of the tolerance, which is for forces: far less than the rounding of layers in float32.
_ROOM = {torch.float32: 0.05, torch.float64: 1e-3}


@torch.no_grad()
def length_basis(
    descriptor: EdgesByLength, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> LengthBasis | None:
    """For systems of these types, by default all, with atoms at least r_min (A) apart; None if edges do not depend on
    their lengths alone, or if the tolerance needs as many functions as an edge has features."""
    if not descriptor.edges_go_by_length:
        return None
    like, tolerance = descriptor.mean, tolerance * _ROOM[descriptor.mean.dtype]
    first, last = descriptor.edge_range(r_min, types)
    width = last - first
    if not 0 < width < math.inf:
        return None

    def both(x: torch.Tensor) -> torch.Tensor:
        """The features of all layers between x (P, 2), and their slopes: (2, P, all)."""
        y = torch.cat(descriptor.edge_functions(x.reshape(-1, 1)), 1)
        return torch.stack(spline.value_and_slope(y.unflatten(0, (-1, 2)), x))

    sampled = both(first + width / _SAMPLED * spline.beside(torch.arange(_SAMPLED)))
    size = sampled.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    rows = (sampled / size).flatten(0, 1)
    if not bool(rows.isfinite().all()):
        return None
    directions = torch.linalg.svd(rows, full_matrices=False).Vh
    numbers = descriptor.edge_functions(rows.new_zeros(1, 1))[0].shape[1]
    block = _VECTOR // like.element_size()
    for count in range(block, numbers + 1, block):
        basis = directions[:count]
        if (rows - rows @ basis.T @ basis).abs().max() <= 0.5 * tolerance:
            break
    else:
        return None

    def table(intervals: int) -> torch.Tensor:
        points, matrix = spline.collocation(intervals)
        values = torch.cat(descriptor.edge_functions(first + (points * (width / intervals))[:, None]), 1)
        return matrix.solve((values @ basis.T)[None])

    def error(intervals: int, looks: int | None = None) -> float:
        made, step = table(intervals)[0], width / intervals
        looked = (
            torch.arange(intervals) if looks is None else spline.glanced_at(spline.bends(made).amax(1), looks)
        )
        x = first + step * spline.beside(looked)
        splines = torch.stack(spline.value_and_slope(spline.splines_beside(made, looked), x)) @ basis
        return float(((splines - both(x)) / size).abs().max())

    # Errors of slopes fall with the fifth power of the step, once it is fine enough.
    tried = range(_FIRST, _MOST + 1, 8)
    intervals, found = spline.fewest_intervals(
        lambda n: error(n, spline.GLANCED_AT), error, tried, 5, tolerance
    )
    if not found <= tolerance:
        return None
    products = [one.T.contiguous().to(like) for one in basis.T.split(numbers)]
    return LengthBasis(table(intervals).to(like).contiguous(), first, width, tuple(products))
