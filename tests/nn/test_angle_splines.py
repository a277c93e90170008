"""Splines by polynomials on the pieces of an `AngleGrid`."""

import torch

from mdops.nn import angle_splines
from mdops.ops import AngleGrid, angle_moment

GRID = AngleGrid(-1, 4, 2)


def test_quintic_polynomials_are_found():
    """On every piece, with their tangents on those without an end."""
    factors = torch.tensor([0.3, -1.0, 0.5, 0.2, -0.07, 0.011], dtype=torch.float64)

    def function(theta):
        return (theta[:, None] ** torch.arange(6) @ factors)[:, None]

    table = angle_splines.polynomials(function(angle_splines.points(GRID, factors)), GRID)
    knots = GRID.knots()
    assert knots[-1] == GRID.end and len(knots) == GRID.side and table.shape == (GRID.pieces, 6, 1)
    for x in (0.0, 0.3, 1.0):
        value, slope = angle_splines.evaluate(table, x)[:, 0], angle_splines.evaluate(table, x, 1)[:, 0]
        theta = knots[:-1] + x * knots.diff()
        for first, sign in ((0, 1), (GRID.side, -1)):
            own = slice(first, first + GRID.side - 1)
            torch.testing.assert_close(value[own], function(sign * theta)[:, 0], atol=1e-9, rtol=1e-11)
            end = first + GRID.side - 1
            assert value[end] == value[end].detach() and torch.all(table[end, 2:] == 0)
            step = x * knots.diff()[-1]
            line = (
                angle_splines.evaluate(table, 1.0)[end - 1, 0]
                + x * angle_splines.evaluate(table, 1.0, 1)[end - 1, 0]
            )
            torch.testing.assert_close(value[end], line)
            assert step >= 0 and torch.isfinite(slope).all()


def test_pieces_meet_with_four_derivatives():
    table = angle_splines.polynomials(
        torch.tanh(angle_splines.points(GRID, torch.zeros(0).double()))[:, None], GRID
    )[..., 0]
    widths, k = GRID.knots().diff(), torch.arange(6, dtype=torch.float64)
    for order in range(5):
        factor = torch.ones(6, dtype=torch.float64)
        for lower in range(order):
            factor = factor * (k - lower)
        at_end = (table[: GRID.side - 1] * factor).sum(1) / widths**order
        at_start = (table[: GRID.side - 1] * factor * (k == order)).sum(1) / widths**order
        torch.testing.assert_close(at_end[:-1], at_start[1:], rtol=1e-6, atol=1e-8)
        other = table[GRID.side : 2 * GRID.side - 1]
        mirrored = (other * factor * (k == order)).sum(1)[0] / (-widths[0]) ** order
        torch.testing.assert_close(mirrored, at_start[0], rtol=1e-6, atol=1e-8)


def test_moments_are_sums_over_pairs():
    """Against plain loops over the pairs, on both sides of zero and beyond the last octave."""
    random = torch.Generator().manual_seed(0)
    d = 1.5 * torch.randn(1, 6, 3, generator=random, dtype=torch.float64)
    counts, types = torch.tensor([[4, 2]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    std = torch.tensor([[0.3, 0.2], [0.4, 0.15]], dtype=torch.float64)
    cutoff = {"cutoff": 6.0, "cutoff_smooth": 5.9}
    moments, within, nearest = angle_moment(d, counts, types, std, GRID, **cutoff)
    r = d[0].norm(dim=1)
    assert within.tolist() == [[4, 2]] and nearest[0] == r.min()
    rows, knots = d[0] / r[:, None] ** 2 / std[1, 1], GRID.knots()
    wanted, kind = torch.zeros_like(moments), [0, 0, 0, 0, 1, 1]
    for j in range(6):
        for k in range(6):
            t, u = kind[j], kind[k]
            if t > u:
                continue
            theta = float(rows[j] @ rows[k])
            piece = int((knots <= abs(theta)).sum()) - 1
            is_last = piece == GRID.side - 1
            width = knots[-1] - knots[-2] if is_last else knots[piece + 1] - knots[piece]
            x = float((abs(theta) - knots[piece]) / width)
            powers = [theta * x**m if m < 2 or not is_last else 0.0 for m in range(6)]
            wanted[0, u * (u + 1) // 2 + t, piece + (GRID.side if theta < 0 else 0)] += torch.tensor(
                powers, dtype=d.dtype
            )
    assert (wanted[:, :, GRID.side - 1] != 0).any() and (wanted[:, :, GRID.side :] != 0).any()
    torch.testing.assert_close(moments, wanted, rtol=1e-11, atol=1e-11)
