"""Sums over neighbours of splines of the distance times harmonics of the direction."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.ops._register import last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.env_mat import no_mask

_LANES, _SUPPORT = 8, 6


def harmonic_moment(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    *,
    cutoff: float,
    intervals: int,
    degree: int,
    pair_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """A[lm, t, b] = sum over the neighbours j of type t of chi(r_j) phi_b(r_j) B_lm(d_j / r_j).

    phi_b are the uniform quintic B-splines of r on [0, cutoff], b = 0 to intervals + 4; rows end with zeros up to a
    multiple of eight (`padded_basis`). B are 1, (x, y, z), and solid harmonics of the degrees from 2 on as of
    `harmonic_rows`. chi falls from 1 to 0 at the cutoff: (1 - x)^4 (1 + 4 x + 10 x^2 + 20 x^3 + 35 x^4), x = r/cutoff.
    A pair without a distance has no direction, and adds to degree 0 alone. Differentiable once, in `displacements`.

    Args:
        displacements, counts, types, pair_mask: as for `env_mat`.
        cutoff: A.
        intervals: pieces of [0, cutoff].
        degree: 2 to 4.

    Returns:
        (N, (degree + 1)^2, ntypes, B).

    Raises:
        RuntimeError: a shape, dtype, device or number does not match, or a type or count is out of range.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    return torch.ops.mdops.harmonic_moment(displacements, counts, types, mask, cutoff, intervals, degree)


def harmonic_sums(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    tables: Sequence[torch.Tensor],
    *,
    cutoff: float,
    intervals: int,
    degree: int,
    pair_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products of `harmonic_moment` with coefficients of each type of centre, without writing it: sums over neighbours
    of functions of the distance times harmonics. Differentiable once, in `displacements`.

    Args:
        displacements, counts, types, pair_mask, cutoff, intervals, degree: as for `harmonic_moment`.
        tables: of degree 0 (ntypes, ntypes B, F), and of the others (ntypes, ntypes B, G), G 4, 8, 16 or 32; both
            transposed, (ntypes, F or G, ntypes B); and the slopes of both (`knot_slopes`), transposed.

    Returns:
        (N, F); and (N, (degree + 1)^2, G), whose first component is zero.

    Raises:
        RuntimeError: as of `harmonic_moment`.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    found = torch.ops.mdops.harmonic_sums(
        displacements, counts, types, mask, *tables, cutoff, intervals, degree
    )
    return found[0], found[1]


def padded_basis(intervals: int) -> int:
    """B."""
    return -(-(intervals + 5 + _LANES - _SUPPORT) // _LANES) * _LANES


@register_fake("harmonic_moment")
def _(displacements: Any, counts: Any, *args: Any) -> torch.Tensor:
    intervals, degree = args[-2:]
    n, ntypes = counts.shape
    return displacements.new_empty(n, (degree + 1) ** 2, ntypes, padded_basis(intervals))


register_fake_like("harmonic_moment_backward", 2)


@register_fake("harmonic_sums")
def _(displacements: Any, counts: Any, types: Any, mask: Any, first: Any, second: Any, *args: Any) -> Any:
    n, degree = len(counts), args[-1]
    return (
        displacements.new_empty(n, first.shape[2]),
        displacements.new_empty(n, (degree + 1) ** 2, second.shape[2]),
    )


register_fake_like("harmonic_sums_backward", 2)


def knot_slopes(rows: torch.Tensor, cutoff: float, intervals: int) -> torch.Tensor:
    """(..., B): the coefficients of the slope of splines with coefficients (..., B), 1/A; for `rows` of moments'
    gradients as for those of functions."""
    inside = rows[..., : intervals + 5].diff(dim=-1) * (intervals / cutoff)
    return torch.nn.functional.pad(inside, (0, rows.shape[-1] - inside.shape[-1]))


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    cutoff, intervals, _ = args[-3:]
    slope = knot_slopes(grads[0], cutoff, intervals)
    return (last_derivative("harmonic_moment_backward", grads[0], slope, *args),)


def _sums_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (last_derivative("harmonic_sums_backward", *grads, *args),)


register_formula("harmonic_moment", _formula, (0,))
register_formula("harmonic_sums", _sums_formula, (0,))
