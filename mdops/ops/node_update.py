"""Nodes after their messages."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.activation import kernel_code


def node_update(
    x: torch.Tensor,
    z: torch.Tensor,
    u: torch.Tensor,
    m: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """x + a f(z) + b f(u) + c m, with a, b and c the rows of the weights, which are constants. Differentiable once, in
    the others.

    Args:
        x, z, u, m: (N, W), float32 or float64.
        weights: (3, W).
        activation: f, by DeePMD-kit's name (`mdops.ops.activation`).

    Returns:
        (N, W).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    found: torch.Tensor = call("node_update", x, z, u, m, weights, *kernel_code(activation))
    return found


register_fake_like("node_update", 0)


@register_fake("node_update_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(grad.new_empty(grad.shape) for _ in range(3))


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    _, z, u, _, *others = args
    found: tuple[Any, ...] = last_derivative("node_update_backward", grads[0], z, u, *others)
    return grads[0], *found


register_formula("node_update", _formula, (0, 1, 2, 3))
