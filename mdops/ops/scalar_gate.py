"""Gates of an atom's rows, and a product of its scalars."""

from typing import Any

import torch

from mdops.ops._register import last_derivative, register_fake, register_formula


def scalar_gate(x: torch.Tensor, gate: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
    """y_rc = x_rc sigmoid(g_c), in the first row with silu(a_c) b_c added. One kernel each way, and for
    second derivatives.

    Args:
        x: (N, R, C), float32 or float64.
        gate: g (N, C). scalars: a and b side by side, (N, 2 C).

    Returns:
        (N, R, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    y: torch.Tensor = torch.ops.mdops.scalar_gate(x, gate, scalars)
    return y


@register_fake("scalar_gate")
def _(x: Any, *args: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@register_fake("scalar_gate_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args)


@register_fake("scalar_gate_backward_backward")
def _(along_x: Any, along_gate: Any, along_scalars: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = torch.ops.mdops.scalar_gate_backward(grads[0], *args)
    return found


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("scalar_gate_backward_backward", *grads, *args)
    return found


register_formula("scalar_gate", _formula, (0, 1, 2))
register_formula("scalar_gate_backward", _backward_formula, (0, 1, 2, 3))
