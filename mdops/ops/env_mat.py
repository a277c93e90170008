"""DeePMD-kit's smooth environment matrix."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula


def env_mat(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    *,
    cutoff: float,
    cutoff_smooth: float,
    protection: float = 0.0,
    radial: bool = False,
    pair_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The normalised environment matrix, a row for every slot of the pair list.

    With r = |d|, the switch w(r) and the protection p:
    R = ((w/(r+p) - m)/d0, w x/((r+p)^2 d1), w y/((r+p)^2 d1), w z/((r+p)^2 d1)), with the mean m and deviations
    d0, d1 of the centre's type (Zhang et al., NeurIPS 2018, eq. 5). A slot with no neighbour, one beyond
    the cutoff and a masked pair have w = 0. Differentiable twice in `displacements`.

    Args:
        displacements: (N, K, 3) float32 or float64, A.
        counts: (N, ntypes) int32, neighbours of each type in a row.
        types: (N,) int32; a row of type -1 is zero.
        mean: (ntypes,), 1/A, the dtype of `displacements`.
        std: (ntypes, 2), 1/A: the deviation of the radial and of the three angular columns.
        cutoff, cutoff_smooth: the switch falls from 1 at `cutoff_smooth` to 0 at `cutoff`, A.
        protection: p, A.
        radial: compute only the first column.
        pair_mask: (ntypes, ntypes) bool, True for [centre, neighbour] pairs to treat as absent.

    Returns:
        (N, K, 4), or (N, K, 1) when radial.
    """
    mask = no_mask(counts) if pair_mask is None else pair_mask
    given = displacements, counts, types, mean, std, mask
    return call("env_mat", *given, cutoff, cutoff_smooth, protection, radial)


def no_mask(counts: torch.Tensor) -> torch.Tensor:
    """The pair mask that excludes no pair."""
    ntypes = counts.shape[-1]
    return counts.new_zeros((ntypes, ntypes), dtype=torch.bool)


@register_fake("env_mat")
def _(displacements: Any, *args: Any) -> torch.Tensor:
    return displacements.new_empty((*displacements.shape[:2], 1 if args[-1] else 4))


register_fake_like("env_mat_backward", 1)
register_fake_like("env_mat_backward_backward", 1, 2)


def _formula(needs: Any, grads: Any, args: Any) -> Any:
    d, counts, types, _, std, *rest = args
    return (call("env_mat_backward", grads[0], d, counts, types, std, *rest),)


def _backward_formula(needs: Any, grads: Any, args: Any) -> Any:
    return last_derivative("env_mat_backward_backward", grads[0], *args)


register_formula("env_mat", _formula, (0,))
register_formula("env_mat_backward", _backward_formula, (0, 1))
