"""Functions of theta as quintic splines, by polynomials on the pieces of an `AngleGrid` (mathematics.md)."""

from functools import cache, lru_cache
from typing import NamedTuple

import torch

from mdops.nn.bsplines import AROUND as _AROUND
from mdops.nn.bsplines import DEGREE as _DEGREE
from mdops.nn.bsplines import Collocation, basis
from mdops.ops import AngleGrid
from mdops.tracing import is_recorded


class Spline(NamedTuple):
    """The map from values at points to polynomials, in float64.

    Attributes:
        points: (B,) theta, rising.
        matrix: from the values there to the B-splines' coefficients.
        powers: (I, 6, 6), for the intervals between -end and end in rising order: from the coefficients of the six
            B-splines there to those of the powers of x.
        order: (pieces - 2,) int64, the interval of each piece, except those without an end.
    """

    points: torch.Tensor
    matrix: Collocation
    powers: torch.Tensor
    order: torch.Tensor


@lru_cache(maxsize=8)
def spline(grid: AngleGrid) -> Spline:
    """The points are the pieces' ends, and two more at either end within the last intervals."""
    half = grid.knots()
    breaks = torch.cat([-half.flip(0)[:-1], half])
    intervals = len(breaks) - 1
    more = torch.arange(1, _DEGREE + 1, dtype=torch.float64)
    first, last = breaks[1] - breaks[0], breaks[-1] - breaks[-2]
    knots = torch.cat([breaks[0] - more.flip(0) * first, breaks, breaks[-1] + more * last])
    quarter = torch.tensor([0.25, 0.5], dtype=torch.float64)
    points = torch.cat([breaks, breaks[0] + quarter * first, breaks[-1] - quarter * last]).sort().values
    where = (torch.searchsorted(breaks, points, right=True) - 1).clamp(0, intervals - 1)
    # Polynomials through six points of each interval. x runs from the end nearer to zero.
    x = torch.linspace(0.0, 1.0, _AROUND, dtype=torch.float64)
    middle = intervals // 2
    start, end = breaks[:-1].clone(), breaks[1:].clone()
    start[:middle], end[:middle] = breaks[1 : middle + 1], breaks[:middle]
    places = start[:, None] + (end - start)[:, None] * x
    every = torch.arange(intervals)[:, None].expand_as(places)
    values = basis(places.flatten(), every.flatten(), knots).view(intervals, _AROUND, _AROUND)
    powers = torch.linalg.solve(x[:, None] ** torch.arange(_AROUND, dtype=torch.float64), values)
    order = torch.cat([torch.arange(middle, intervals), torch.arange(middle).flip(0)])
    return Spline(points, Collocation(points, where, knots), powers, order)


class _SplineOn(NamedTuple):
    """The same in a dtype and on a device, with the inverse (B, B) of the matrix."""

    points: torch.Tensor
    inverse: torch.Tensor
    powers: torch.Tensor
    order: torch.Tensor


@cache  # CUDA graphs read it
def _spline_on(grid: AngleGrid, device: torch.device, dtype: torch.dtype) -> _SplineOn:
    found = spline(grid)
    inverse = found.matrix.solve(torch.eye(len(found.points), dtype=torch.float64))
    points, inverse, powers = (x.to(device, dtype) for x in (found.points, inverse, found.powers))
    return _SplineOn(points, inverse, powers, found.order.to(device))


def points(grid: AngleGrid, like: torch.Tensor) -> torch.Tensor:
    """(B,): the points where `polynomials` needs the functions, on the device and of the dtype of `like`."""
    if _is_plain(like):
        return spline(grid).points.to(like)
    return _spline_on(grid, like.device, like.dtype).points


def _is_plain(like: torch.Tensor) -> bool:
    """Whether no graph is needed on a CPU: then no inverse is computed, which has thousands of knots."""
    return like.device.type == "cpu" and not torch.is_grad_enabled() and not is_recorded(like)


def polynomials(values: torch.Tensor, grid: AngleGrid) -> torch.Tensor:
    """(..., pieces, 6, M): the splines' coefficients in x on every piece, from their values (..., B, M) at `points`;
    pieces without an end get the tangent at the last knot. Linear, so differentiable in `values`."""
    if _is_plain(values):
        plain = spline(grid)
        coefficients = plain.matrix.solve(values.double())
        return _pieces(coefficients, plain.powers, plain.order, grid).to(values.dtype)
    s = _spline_on(grid, values.device, values.dtype)
    columns = values.movedim(-2, 0)
    coefficients = (s.inverse @ columns.flatten(1)).view(columns.shape).movedim(0, -2)
    return _pieces(coefficients, s.powers, s.order, grid)


def _pieces(
    coefficients: torch.Tensor, matrices: torch.Tensor, order: torch.Tensor, grid: AngleGrid
) -> torch.Tensor:
    """The polynomials of splines with these coefficients (..., B, M)."""
    around = coefficients.unfold(-2, _AROUND, 1)  # (..., I, M, 6)
    inner = (matrices @ around.transpose(-1, -2))[..., order, :, :]
    half = grid.side - 1
    sides = []
    for side in (inner[..., :half, :, :], inner[..., half:, :, :]):
        last = side[..., -1:, :, :]
        rise = torch.arange(_AROUND, device=last.device, dtype=last.dtype)[:, None]
        tangent = torch.cat(
            [
                last.sum(-2, keepdim=True),
                (last * rise).sum(-2, keepdim=True),
                torch.zeros_like(last)[..., 2:, :],
            ],
            -2,
        )
        sides += [side, tangent]
    return torch.cat(sides, -3)


def evaluate(table: torch.Tensor, x: float, derivative: int = 0) -> torch.Tensor:
    """(..., pieces, M): the polynomials (..., pieces, 6, M), or their derivative by x, at the same x of every piece."""
    factors = [k * x ** (k - 1) if derivative and k else 0.0 if derivative else x**k for k in range(_AROUND)]
    return torch.einsum("...pkm,k->...pm", table, torch.tensor(factors, dtype=torch.float64).to(table))
