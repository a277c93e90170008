"""The features T^T T_< of a descriptor from its T, differentiable any number of times."""

from typing import Any

import torch
import torch.nn.functional as F

from mdops.ops._register import call, register_fake, register_fake_like, register_formula


def axis_product(t: torch.Tensor, axis: int, behind: torch.Tensor | None = None) -> torch.Tensor:
    """D[n, k * axis + l] = sum_a t[n, a, k] t[n, a, l] for l < axis: products of T with its first columns.

    Args:
        t: (N, rows, M), float32 or float64.
        axis: M2, 1 to M.
        behind: (N, E), further features of each row, or None.

    Returns:
        (N, M * axis), of t's dtype; with `behind` (N, M * axis + E), those last.

    Raises:
        RuntimeError: `axis` is out of range, or a shape or dtype is wrong.
    """
    return call("axis_product", t, axis, behind)


@register_fake("axis_product")
def _(t: Any, axis: int, behind: Any) -> torch.Tensor:
    more = 0 if behind is None else behind.shape[1]
    return t.new_empty(t.shape[0], t.shape[2] * axis + more)


register_fake_like("axis_product_backward", 1)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (grad,), (t, axis, _) = grads, args
    by_t = call("axis_product_backward", grad, t, axis) if needs[0] else None
    return by_t, grad[:, t.shape[2] * axis :] if needs[1] else None


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    """The gradients of <u, dT>; dT is linear in G and in T. By G it is the change of D along u, by T dT at u."""
    (u,), (grad, t, axis) = grads, args
    change = (axis_product(t + u, axis) - axis_product(t - u, axis)) / 2  # exact: D is quadratic
    change = F.pad(change, (0, grad.shape[1] - change.shape[1]))
    return change, call("axis_product_backward", grad, u, axis)


register_formula("axis_product", _formula, (0, 2))
register_formula("axis_product_backward", _backward_formula, (0, 1))
