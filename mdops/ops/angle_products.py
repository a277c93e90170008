"""Products of the rows of two nodes, such as the two edges of an angle: cosines and weights."""

from typing import Any

import torch

from mdops.ops._register import call, register_fake, register_fake_like, register_formula
from mdops.ops.graph import EdgeIndex


def angle_products(u: torch.Tensor, first: EdgeIndex, second: EdgeIndex) -> tuple[torch.Tensor, torch.Tensor]:
    """For pairs of a first and a second node, the dot product <u_f, u_s> of their first three numbers, and the product
    u_f u_s of their last: with directions and weights of edges, the cosines of angles and their weights. Sums of its
    gradients have a fixed order. Differentiable any number of times.

    Args:
        u: (M, 4), float32 or float64.
        first: of R rows and M nodes, without an order. second: of the same.

    Returns:
        (R,) and (R,), zeros in rows without a first or a second.

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) an index is wrong. A GPU answers NaN there.
    """
    found: tuple[torch.Tensor, torch.Tensor] = call("angle_products", u, first.nodes, first.offsets, *second)
    return found


@register_fake("angle_products")
def _(u: Any, first: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return u.new_empty(first.shape), u.new_empty(first.shape)


@register_fake("angle_products_along")
def _(v: Any, u: Any, first: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return u.new_empty(first.shape), u.new_empty(first.shape)


register_fake_like("angle_products_backward", 2)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("angle_products_backward", *grads, *args),)


def _along_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    v, u, *indices = args
    return tuple(
        call("angle_products_backward", *grads, other, *indices) if need else None
        for other, need in zip((u, v), needs, strict=True)
    )


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (along,), (*given, u) = grads, args[:3]
    indices = args[3:]
    by_u = call("angle_products_backward", *given, along, *indices) if needs[2] else None
    return *call("angle_products_along", along, u, *indices), by_u


register_formula("angle_products", _formula, (0,))
register_formula("angle_products_along", _along_formula, (0, 1))
register_formula("angle_products_backward", _backward_formula, (0, 1, 2))
