"""Sums over an atom's edges of the inputs of a product by blocks of equal |m|, which is then computed once per
atom."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_formula
from mdops.ops.graph import EdgeIndex, parts_of


def has_order_moments(x: torch.Tensor, degree: int, channels: int) -> bool:
    """Whether moments of rows on x's device take less time than a layer for each edge: on a GPU for some sizes."""
    if not x.is_cuda:
        return True
    widths = (32, 64, 96, 128) if x.dtype == torch.float32 else (32, 64)
    return channels in widths and 0 < degree <= 3


def order_moments(turn: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, of: EdgeIndex) -> torch.Tensor:
    """Moments of rows of m = 0, -1 and 1. For each column d of degree l, with t_m = turn[e, row of (l, m), d], or 0
    where l < |m|, and sums over the edges e of a node:

        A_0[d, l'] = sum of weight t_0 y_0[l']
        A_u[d, l'] = sum of weight (t_- y_-[l'] + t_+ y_+[l'])
        A_v[d, l'] = sum of weight (t_+ y_-[l'] - t_- y_+[l'])

    With the weights of `so2_layer` A_0 W + A_u U + A_v V, with only the outputs of its degree for each column, is
    `edge_rotate_back` of the layer's products. Differentiable once.

    Args:
        turn: (E, 3 L + 1, (L + 1)^2) float32 or float64, as those of `edge_frames` with |m| up to 1. Columns of
            another degree than the row's are not read.
        y: (E, 3 L + 1, C), rows as in `so2_layer`.
        weight: (E, G), of G equal groups of channels.
        of: of E edges and M nodes.

    Returns:
        (M, (L + 1)^2, (3 L + 1) C): for each column A_0 (l' = 0 .. L), A_u and A_v (l' = 1 .. L) side by side.

    Raises:
        RuntimeError: as for `edge_scatter`, or G does not divide C.
    """
    return call("order_moments", turn, y, weight, *parts_of(of))


@register_fake("order_moments")
def _(turn: Any, y: Any, weight: Any, index: Any, order: Any, offsets: Any) -> torch.Tensor:
    return y.new_empty(offsets.shape[0] - 1, turn.shape[2], y.shape[1] * y.shape[2])


@register_fake("order_moments_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args[:3])


def _moments_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("order_moments_backward", grads[0], *args)
    return found


register_formula("order_moments", _moments_formula, range(3))
