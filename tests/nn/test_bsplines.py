"""Inverses of matrices of B-splines, on uniform knots and on others."""

import pytest
import torch

from mdops.models.angles import AngleKnots
from mdops.nn.angle_splines import spline
from mdops.nn.bsplines import Collocation, basis
from mdops.tables.spline import basis_matrix, collocation


@pytest.mark.parametrize("intervals", [2, 3, 31, 32, 200])
def test_coefficients_give_the_values_at_the_points(intervals):
    x, matrix = collocation(intervals)
    unit = basis_matrix(x, intervals) @ matrix.solve(torch.eye(intervals + 5, dtype=torch.float64))
    torch.testing.assert_close(unit, torch.eye(intervals + 5, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("knots", [AngleKnots(0, 10, 4, 0.5, 0.0), AngleKnots(-8, 20, 6, 0.5, 0.0)])
def test_inverse_on_pieces_that_widen_a_thousandfold(knots):
    """Many blocks of it, of rows and columns of very different intervals."""
    found = spline(knots.grid)
    half = knots.grid.knots()
    breaks = torch.cat([-half.flip(0)[:-1], half])
    ends = torch.arange(1.0, 6.0, dtype=torch.float64) * (half[-1] - half[-2])
    every = torch.cat([breaks[0] - ends.flip(0), breaks, breaks[-1] + ends])
    interval = (torch.searchsorted(breaks, found.points, right=True) - 1).clamp(max=len(breaks) - 2)
    inverse = found.matrix.solve(torch.eye(len(found.points), dtype=torch.float64))
    near = inverse[interval[:, None] + torch.arange(6)]
    unit = (basis(found.points, interval, every)[..., None] * near).sum(1)
    torch.testing.assert_close(unit, torch.eye(len(unit), dtype=torch.float64), rtol=0, atol=1e-12)


def test_basis_on_uniform_knots_is_that_of_the_matrix():
    x = torch.tensor([0.0, 0.3, 1.0, 4.99, 6.0], dtype=torch.float64)
    interval = x.long().clamp(max=5)
    found = basis(x, interval, torch.arange(-5.0, 12.0, dtype=torch.float64))
    wanted = basis_matrix(x, 6).gather(1, interval[:, None] + torch.arange(6))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)
    torch.testing.assert_close(found.sum(1), torch.ones_like(x))


def test_inverse_on_knots_that_are_not_uniform():
    """The same from both ends, as the points are: an odd number and an even one."""
    breaks = torch.tensor([-7.0, -3.0, -1.0, 0.0, 1.0, 3.0, 7.0], dtype=torch.float64)
    for middle in (True, False):
        inner = breaks if middle else torch.cat([breaks[:3], breaks[4:]])
        width, more = inner[-1] - inner[-2], torch.arange(1.0, 6.0)
        knots = torch.cat([inner[0] - more.flip(0) * width, inner, inner[-1] + more * width])
        x = (
            torch.cat([inner, inner[0] + width * more[:2] / 3, inner[-1] - width * more[:2] / 3])
            .sort()
            .values
        )
        interval = (torch.searchsorted(inner, x, right=True) - 1).clamp(max=len(inner) - 2)
        inverse = Collocation(x, interval, knots).solve(torch.eye(len(x), dtype=torch.float64))
        assert len(inverse) == len(x) == len(inner) + 4
        unit = (basis(x, interval, knots)[..., None] * inverse[interval[:, None] + torch.arange(6)]).sum(1)
        torch.testing.assert_close(unit, torch.eye(len(x), dtype=torch.float64), rtol=0, atol=1e-12)
