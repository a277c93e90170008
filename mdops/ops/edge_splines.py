"""Functions of the lengths of edges, as splines."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula


def edge_splines(
    lengths: torch.Tensor, kinds: torch.Tensor, table: torch.Tensor, cutoff: float
) -> torch.Tensor:
    """The functions of each edge's kind at its length, as quintic splines with uniform knots. Differentiable once, in
    the lengths.

    Args:
        lengths: (E, 1), A, float32 or float64. Beyond the cutoff functions follow their tangents.
        kinds: (E,) int32, the table of an edge; -1: none, its results are zeros.
        table: (K, B, P), coefficients of the B - 5 intervals between 0 and the cutoff (`mdops.tables.spline`).
        cutoff: A.

    Returns:
        (E, P).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) a kind is out of range. A GPU answers NaN
            there.
    """
    return call("edge_splines", lengths, kinds, table, cutoff)


@register_fake("edge_splines")
def _(lengths: Any, kinds: Any, table: Any, cutoff: float) -> torch.Tensor:
    return lengths.new_empty(lengths.shape[0], table.shape[2])


register_fake_like("edge_splines_backward", 1)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (last_derivative("edge_splines_backward", grads[0], *args),)


register_formula("edge_splines", _formula, (0,))
