"""Spline moments: the sum over neighbours, taken before the embedding net."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.env_mat import no_mask


def spline_moment(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    sel: torch.Tensor,
    *,
    cutoff: float,
    cutoff_smooth: float,
    s_max: float,
    intervals: int,
    protection: float = 0.0,
    grading: float = 0.0,
    radial: bool = False,
    pair_mask: torch.Tensor | None = None,
    zeroed: torch.Tensor | None = None,
    padding: torch.Tensor | None = None,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A_t[b, a] = sum over the neighbours j of type t of phi_b(s_j) R_j[a].

    phi_b are the quintic B-splines on [0, s_max], s = w(r)/(r+p) and R the row of `env_mat`. Their knots are uniform
    in s, or with a `grading` in sqrt(s + grading); beyond s_max the basis follows its tangent there. With the spline
    coefficients C_t of an embedding net G_t, A_t^T C_t is the sum of R_j (x) G_t(s_j) over the neighbours
    (mathematics.md). As in DeePMD-kit each row is padded to `sel` neighbours with w = 0, and a neighbour beyond the
    cutoff is padding, too; the padding is negative if an atom has more neighbours than `sel`. Differentiable twice in
    `displacements`.

    Descriptors of mixed types have `sel` slots for neighbours of all types; the remaining slots, if any, are absent
    neighbours of the type in `padding`.

    Args:
        displacements, counts, types, mean, std, cutoff, cutoff_smooth, protection, radial, pair_mask:
            as for `env_mat`.
        sel: (ntypes,) int32, or (1,) with `padding`.
        s_max: the last knot, 1/A.
        grading: 0, or > 0 for knots that are closer to each other towards s = 0, 1/A.
        intervals: pieces of [0, s_max]; there are B = intervals + 5 basis functions.
        zeroed: (ntypes, ntypes) bool, the pairs in `pair_mask` that still take slots; None: none do.
        padding: (N,) int32, the type of the absent neighbours of each atom, if all types share slots.
        gated: give the sums of w(r_j) phi_b(s_j) R_j[a] instead, to which absent neighbours add nothing.

    Returns:
        moments (N, ntypes, B, 4), or (N, ntypes, B, 1) when radial;
        within (N, ntypes) int32, the neighbours within the cutoff, masked ones too: more than `sel` is an
        overflow in DeePMD-kit's terms;
        nearest (N,), the distance to the nearest neighbour, A; the cutoff of an atom without neighbours.
    """
    mask, zeroed = (no_mask(counts) if pairs is None else pairs for pairs in (pair_mask, zeroed))
    given = displacements, counts, types, mean, std, mask, zeroed
    places, switch = (sel, sel[:0] if padding is None else padding), (cutoff, cutoff_smooth, protection)
    return call("spline_moment", *given, *places, *switch, s_max, grading, intervals, radial, gated)


def _moments_like(displacements: Any, counts: Any, intervals: int, radial: bool) -> torch.Tensor:
    n, ntypes = counts.shape
    return displacements.new_empty((n, ntypes, intervals + 5, 1 if radial else 4))


@register_fake("spline_moment")
def _(displacements: Any, counts: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    *_, intervals, radial, _ = args
    return (
        _moments_like(displacements, counts, intervals, radial),
        counts.new_empty(counts.shape),
        displacements.new_empty(displacements.shape[:1]),
    )


register_fake_like("spline_moment_backward", 1)


@register_fake("spline_moment_jvp")
def _(tangent: Any, displacements: Any, counts: Any, *args: Any) -> torch.Tensor:
    *_, intervals, radial, _ = args
    return _moments_like(displacements, counts, intervals, radial)


register_fake_like("spline_moment_hvp", 2)


def _formula(needs: Any, grads: Any, args: Any) -> Any:
    d, counts, types, mean, std, mask, _, _, _, *scalars, _, radial, gated = args
    lists = (d, counts, types, mean, std, mask)
    return (call("spline_moment_backward", grads[0], *lists, *scalars, radial, gated),)


def _backward_formula(needs: Any, grads: Any, args: Any) -> Any:
    """The backward op is linear in g: d<v, backward(g, d)> is the moments' derivative along v for g, and a Hessian
    product for d."""
    (v,) = grads
    g, d, *lists, radial, gated = args
    scalars = lists[5:]
    moments = pairs = None
    if needs[0]:
        moments = last_derivative(
            "spline_moment_jvp", v, d, *lists[:5], *scalars, g.shape[2] - 5, radial, gated
        )
    if needs[1]:
        pairs = last_derivative("spline_moment_hvp", v, g, d, *lists, radial, gated)
    return moments, pairs


register_formula("spline_moment", _formula, (0,), constant=(1, 2))
register_formula("spline_moment_backward", _backward_formula, (0, 1))
