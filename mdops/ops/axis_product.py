"""The features T^T T_< of a descriptor from its T, differentiable any number of times."""

from typing import Any

import torch

from mdops.ops._register import register_fake, register_formula


def axis_product(t: torch.Tensor, axis: int) -> torch.Tensor:
    """D[n, k * axis + l] = sum_a t[n, a, k] t[n, a, l] for l < axis: products of T with its first columns.

    Args:
        t: (N, rows, M), float32 or float64.
        axis: M2, 1 to M.

    Returns:
        (N, M * axis), of t's dtype.

    Raises:
        RuntimeError: `axis` is out of range, or a shape or dtype is wrong.
    """
    return torch.ops.mdops.axis_product(t, axis)


@register_fake("axis_product")
def _(t: Any, axis: int) -> torch.Tensor:
    return t.new_empty(t.shape[0], t.shape[2] * axis)


@register_fake("axis_product_backward")
def _(grad: Any, t: Any) -> torch.Tensor:
    return t.new_empty(t.shape)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (torch.ops.mdops.axis_product_backward(grads[0], args[0]),)


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    """Of <u, dT>, in which dT is linear in G and in T. By G it is the change of D along u, by T dT at u."""
    (u,), (grad, t) = grads, args
    axis = grad.shape[1] // t.shape[2]
    change = (axis_product(t + u, axis) - axis_product(t - u, axis)) / 2  # exact: D is quadratic
    return change, torch.ops.mdops.axis_product_backward(grad, u)


register_formula("axis_product", _formula, (0,))
register_formula("axis_product_backward", _backward_formula, (0, 1))
