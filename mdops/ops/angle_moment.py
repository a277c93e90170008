"""Moments of the angles between neighbours: the sum over pairs of neighbours, taken before the embedding net."""

from typing import Any, NamedTuple

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.env_mat import no_mask

POWERS, ROW = 6, 8  # of x on a piece; numbers of a piece in tables


class AngleGrid(NamedTuple):
    """The pieces of the axis of theta. On either side of zero, octave o reaches from 2^exponent (2^o - 1) to
    2^exponent (2^(o+1) - 1) and has 2^fineness pieces of equal width; the piece after the last octave has no end."""

    exponent: int
    octaves: int
    fineness: int

    @property
    def is_possible(self) -> bool:
        """Whether the ops support it."""
        return -40 <= self.exponent <= 40 and 1 <= self.octaves <= 60 and 0 <= self.fineness <= 12

    @property
    def side(self) -> int:
        """The number of pieces on either side of zero."""
        return (self.octaves << self.fineness) + 1

    @property
    def pieces(self) -> int:
        """The number of pieces: those of theta >= 0, with |theta| rising, come before those of theta < 0."""
        return 2 * self.side

    @property
    def end(self) -> float:
        """|theta| where the piece without an end begins."""
        return 2.0**self.exponent * (2.0**self.octaves - 1)

    def knots(self) -> torch.Tensor:
        """(side,) float64: |theta| where each piece begins."""
        steps = torch.arange(1 << self.fineness, dtype=torch.float64) / (1 << self.fineness)
        octaves = [2.0**o * (1 + steps) - 1 for o in range(self.octaves)]
        return 2.0**self.exponent * torch.cat(
            [*octaves, torch.tensor([2.0**self.octaves - 1], dtype=torch.float64)]
        )


def angle_moment(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    std: torch.Tensor,
    grid: AngleGrid,
    *,
    cutoff: float,
    cutoff_smooth: float,
    protection: float = 0.0,
    pair_mask: torch.Tensor | None = None,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A_tu[piece, k] = sum over the neighbours j of type t and l of type u of theta_jl x_jl^k, for t <= u.

    theta_jl = R_j . R_l of x, y and z of the rows of `env_mat`; the sum is over the pairs whose theta is on the piece,
    and x is the place there: (|theta| - knot) / width. Both (j, l) and (l, j) count where t = u, and j = l too. So with
    a function G_tu that is a polynomial of degree 5 on each piece, with coefficients C in x, the sum of theta
    G_tu(theta) over pairs is the sum of A_tu C (mathematics.md). On the pieces without an end, which are for
    functions that are linear there, only k = 0 and 1 are not zero. Differentiable twice in `displacements`.

    Args:
        displacements, counts, types, std, cutoff, cutoff_smooth, protection, pair_mask: as for `env_mat`; at most 1000
            types.
        grid: the pieces, Q in all.
        gated: give the sums of w(r_j) w(r_l) theta_jl x_jl^k instead, with the switch w.

    Returns:
        moments (N, ntypes (ntypes + 1) / 2, Q, 6), types t <= u at u (u + 1) / 2 + t; within and nearest as of
        `spline_moment`.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    scalars = (cutoff, cutoff_smooth, protection, *grid, gated)
    return call("angle_moment", displacements, counts, types, std, mask, *scalars)


def angle_features(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    std: torch.Tensor,
    tables: torch.Tensor,
    grid: AngleGrid,
    *,
    cutoff: float,
    cutoff_smooth: float,
    protection: float = 0.0,
    pair_mask: torch.Tensor | None = None,
    gates: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """D[m] = sum over t <= u, pieces and k of A_tu[piece, k] tables_tu[piece, m, k], with the A of `angle_moment`; and
    the same sum of the gated moments and `gates` added to it. Moments are never in memory.

    Differentiable once, in `displacements`: for simulation.

    Args:
        displacements to pair_mask: as for `angle_moment`.
        tables, gates: (ntypes (ntypes + 1) / 2, Q, M, 8), the dtype of `displacements`: coefficients of x^0 .. x^5, and
            two zeros; contiguous, or they are copied.

    Returns:
        features (N, M); within and nearest as of `spline_moment`.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    gates = tables[:0] if gates is None else gates
    scalars = (cutoff, cutoff_smooth, protection, *grid)
    return call("angle_features", displacements, counts, types, std, mask, tables, gates, *scalars)


def _moments_like(displacements: Any, counts: Any, octaves: int, fineness: int) -> torch.Tensor:
    n, ntypes = counts.shape
    pieces = AngleGrid(0, octaves, fineness).pieces
    return displacements.new_empty((n, ntypes * (ntypes + 1) // 2, pieces, POWERS))


@register_fake("angle_moment")
def _(displacements: Any, counts: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    *_, octaves, fineness, _ = args
    moments = _moments_like(displacements, counts, octaves, fineness)
    return moments, counts.new_empty(counts.shape), displacements.new_empty(displacements.shape[:1])


register_fake_like("angle_moment_backward", 1)


@register_fake("angle_moment_jvp")
def _(tangent: Any, displacements: Any, counts: Any, *args: Any) -> torch.Tensor:
    *_, octaves, fineness, _ = args
    return _moments_like(displacements, counts, octaves, fineness)


register_fake_like("angle_moment_hvp", 2)


@register_fake("angle_features")
def _(
    displacements: Any, counts: Any, types: Any, std: Any, mask: Any, tables: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    features = displacements.new_empty((displacements.shape[0], tables.shape[2]))
    return features, counts.new_empty(counts.shape), displacements.new_empty(displacements.shape[:1])


register_fake_like("angle_features_backward", 1)


def _formula(needs: Any, grads: Any, args: Any) -> Any:
    return (call("angle_moment_backward", grads[0], *args),)


def _backward_formula(needs: Any, grads: Any, args: Any) -> Any:
    """As of spline_moment: d<v, backward(g, d)> is the moments' derivative along v for g, and a Hessian product for
    d."""
    (v,), (g, *others) = grads, args
    moments = pairs = None
    if needs[0]:
        moments = last_derivative("angle_moment_jvp", v, *others)
    if needs[1]:
        pairs = last_derivative("angle_moment_hvp", v, g, *others)
    return moments, pairs


def _features_formula(needs: Any, grads: Any, args: Any) -> Any:
    return (last_derivative("angle_features_backward", grads[0], *args),)


register_formula("angle_moment", _formula, (0,), constant=(1, 2))
register_formula("angle_moment_backward", _backward_formula, (0, 1))
register_formula("angle_features", _features_formula, (0,), constant=(1, 2))
