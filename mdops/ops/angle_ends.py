"""The two edges' terms in messages along angles."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_formula
from mdops.ops.graph import EdgeIndex


def angle_ends(
    x: torch.Tensor, of_atom: torch.Tensor, weight: torch.Tensor, of: EdgeIndex
) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q of `message` along angles: p_r = x_r U + N of the atom of r, and q_r = x_r V. On a GPU with tensor cores
    there is one kernel forward and one backward for float32, I of 32 or 64, and C a multiple of 16. The weights are
    constants. Differentiable once, in the others.

    Args:
        x: (R, I), float32 or float64, of edges that form angles.
        of_atom: N (A, C).
        weight: (I, 2 C), U and V side by side.
        of: of R rows and A atoms, without an order. Rows of no atom come after all others and are zeros.

    Returns:
        p and q, (R, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) an index is wrong. A GPU answers NaN there.
    """
    p, q = call("angle_ends", x, of_atom, weight, of.nodes, of.offsets)
    return p, q


@register_fake("angle_ends")
def _(x: Any, of_atom: Any, weight: Any, index: Any, offsets: Any) -> tuple[torch.Tensor, ...]:
    shape = x.shape[0], weight.shape[1] // 2
    return x.new_empty(shape), x.new_empty(shape)


@register_fake("angle_ends_backward")
def _(grad_p: Any, grad_q: Any, weight: Any, index: Any, offsets: Any) -> tuple[torch.Tensor, ...]:
    rows, columns = grad_p.shape
    return grad_p.new_empty(rows, weight.shape[0]), grad_p.new_empty(offsets.shape[0] - 1, columns)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("angle_ends_backward", *grads, *args[2:])
    return found


register_formula("angle_ends", _formula, (0, 1))
