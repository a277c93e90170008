"""Gates of an atom's rows, and a product of its scalars."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_formula


def scalar_gate(x: torch.Tensor, gate: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
    """y_rc = x_rc sigmoid(g_c), in the first row with silu(a_c) b_c added. One kernel forward, one backward, and one
    for second derivatives.

    Args:
        x: (N, R, C), float32 or float64.
        gate: g (N, C). scalars: a and b side by side, (N, 2 C).

    Returns:
        (N, R, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    return call("scalar_gate", x, gate, scalars)


def row_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """`scalar_gate` without scalars: y_rc = x_rc sigmoid(g_c).

    Args:
        x: (N, R, C), float32 or float64.
        gate: g (N, C).

    Returns:
        (N, R, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    return call("row_gate", x, gate)


def _register(name: str, count: int) -> None:
    """Registers an op of so many arguments: each has a gradient, and each gradient its own."""

    def forward(x: Any, *args: Any) -> torch.Tensor:
        return x.new_empty(x.shape)

    def backward(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(value.new_empty(value.shape) for value in args)

    def twice(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(value.new_empty(value.shape) for value in args[count:])

    def formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = getattr(torch.ops.mdops, f"{name}_backward")(grads[0], *args)
        return found

    def backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = last_derivative(f"{name}_backward_backward", *grads, *args)
        return found

    for end, fake in (("", forward), ("_backward", backward), ("_backward_backward", twice)):
        register_fake(f"{name}{end}")(fake)
    register_formula(name, formula, range(count))
    register_formula(f"{name}_backward", backward_formula, range(count + 1))


_register("scalar_gate", 3)
_register("row_gate", 2)
