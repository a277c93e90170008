"""Sums over neighbours of splines of the distance times harmonics of the direction."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.env_mat import no_mask

_LANES, _SUPPORT = 8, 6


def harmonic_sums(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    tables: Sequence[torch.Tensor],
    *,
    cutoff: float,
    intervals: int,
    degree: int,
    seconds: int,
    pair_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums over neighbours of spline functions F of the distance, for each pair of types: chi F, and, with the first G
    functions, chi^2 F B_lm(d / r) for all components but the first.

    The splines are the uniform quintic ones of r on [0, cutoff], b = 0 to intervals + 4; rows end with zeros up to a
    multiple of eight (`padded_basis`). B are 1, (x, y, z), and solid harmonics of the degrees from 2 on as of
    `harmonic_rows`. chi falls from 1 to 0 at the cutoff: (1 - x)^4 (1 + 4 x + 10 x^2 + 20 x^3 + 35 x^4), x = r/cutoff.
    A pair at distance 0 has no direction and adds only to degree 0. Differentiable once, in `displacements`.

    Args:
        displacements, counts, types, pair_mask: as for `env_mat`.
        cutoff: A.
        intervals: pieces of [0, cutoff].
        degree: 2 to 4.
        tables: coefficients (ntypes, ntypes B, F) of each type of centre; transposed, (ntypes, F, ntypes B); those of
            the slopes (`knot_slopes`), transposed; and the polynomials of the intervals (`spline_pieces`), (ntypes,
            ntypes, intervals, 6, F or G).
        seconds: G, 4, 8, 16 or 32.

    Returns:
        (N, F + 2), with the sums of chi^2 and chi^4 after those of F; (N, (degree + 1)^2, G), whose first component
        is zero; (N,) int32, the number of neighbours within the cutoff, including those of `pair_mask`; and (N,), the
        distance of the nearest, or the cutoff if there is none.

    Raises:
        RuntimeError: a shape, dtype, device or number does not match, or a type or count is out of range.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    listed = displacements, counts, types, mask, *tables
    first, second, within, nearest = call("harmonic_sums", *listed, cutoff, intervals, degree, seconds)
    return first, second, within, nearest


def harmonic_forces(
    by_first: torch.Tensor,
    by_second: torch.Tensor,
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    tables: Sequence[torch.Tensor],
    most: torch.Tensor,
    nearest: torch.Tensor,
    batch: torch.Tensor,
    neighbors: torch.Tensor,
    num_systems: int,
    *,
    cutoff: float,
    intervals: int,
    degree: int,
    seconds: int,
    pair_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`pair_forces` of the gradient of `harmonic_sums` by the pair vectors, without atomic virials. On a GPU the
    gradients of pairs are added to forces when they are computed, in float32, and need no memory.

    Args:
        by_first, by_second: gradients by the results of `harmonic_sums`, eV.
        displacements, counts, types, tables, cutoff, intervals, degree, seconds, pair_mask: as it got.
        most: (2, F), bounds of the size of each function and of its slope (`largest_functions`).
        nearest: as `harmonic_sums` gave it. A gradient above the bound from both is answered with NaN.
        batch, neighbors, num_systems: as for `pair_forces`.

    Not differentiable.

    Returns:
        forces (N, 3) and virial (S, 3, 3), float64, eV/A and eV.

    Raises:
        RuntimeError: a shape, dtype, device or number does not match, or a type, count or index is out of range.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    lists = nearest, batch, neighbors, num_systems, displacements, counts, types, mask
    found: tuple[torch.Tensor, torch.Tensor] = torch.ops.mdops.harmonic_forces(
        by_first, by_second, most, *lists, *tables, cutoff, intervals, degree, seconds
    )
    return found


def largest_functions(rows: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """(2, F): the largest coefficients of functions and slopes (ntypes, F, ntypes B), which bound the splines."""
    return torch.stack([part.abs().amax((0, 2)) for part in (rows, slopes)])


def padded_basis(intervals: int) -> int:
    """B, the padded number of coefficients."""
    return -(-(intervals + 5 + _LANES - _SUPPORT) // _LANES) * _LANES


@register_fake("harmonic_sums")
def _(displacements: Any, counts: Any, types: Any, mask: Any, table: Any, *args: Any) -> Any:
    n, (degree, seconds) = len(counts), args[-2:]
    return (
        displacements.new_empty(n, table.shape[2] + 2),
        displacements.new_empty(n, (degree + 1) ** 2, seconds),
        counts.new_empty(n),
        displacements.new_empty(n),
    )


register_fake_like("harmonic_sums_backward", 2)


@register_fake("harmonic_forces")
def _(
    by_first: Any, second: Any, most: Any, near: Any, batch: Any, lists: Any, systems: int, *args: Any
) -> Any:
    double = torch.float64
    return (
        by_first.new_empty((len(by_first), 3), dtype=double),
        by_first.new_empty((systems, 3, 3), dtype=double),
    )


def knot_slopes(rows: torch.Tensor, cutoff: float, intervals: int) -> torch.Tensor:
    """(..., B): the coefficients of the slope of splines with coefficients (..., B), 1/A; also for `rows` of moments'
    gradients."""
    inside = rows[..., : intervals + 5].diff(dim=-1) * (intervals / cutoff)
    return torch.nn.functional.pad(inside, (0, rows.shape[-1] - inside.shape[-1]))


# The six splines of an interval in powers of t in [0, 1], times 120 (source/op/spline_moment/spline.h).
_POWERS = (
    (1, 26, 66, 26, 1, 0),
    (-5, -50, 0, 50, 5, 0),
    (10, 20, -60, 20, 10, 0),
    (-10, 20, 0, -20, 10, 0),
    (5, -20, 30, -20, 5, 0),
    (-1, 5, -10, 10, -5, 1),
)


def spline_pieces(rows: torch.Tensor, intervals: int) -> torch.Tensor:
    """(..., intervals, 6, F): the polynomials of splines with coefficients (..., F, B), in powers of t in [0, 1]."""
    powers = torch.tensor(_POWERS, dtype=rows.dtype, device=rows.device) / 120
    six = rows[..., : intervals + 5].unfold(-1, _SUPPORT, 1)  # (..., F, intervals, 6)
    return (six @ powers.mT).movedim(-3, -1).contiguous()


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (last_derivative("harmonic_sums_backward", *grads[:2], *args),)


register_formula("harmonic_sums", _formula, (0,), constant=(2, 3))
