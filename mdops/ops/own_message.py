"""The message of rows to themselves, as one op."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake_like, register_formula
from mdops.ops.activation import kernel_code


def has_fused_message(x: torch.Tensor) -> bool:
    """Whether `own_message` of rows such as x takes less time than PyTorch's operations: only on a GPU's tensor cores,
    for 32 columns of float32."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[1] == 32


def own_message(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    factor: torch.Tensor,
    *,
    keep: float,
    activation: str,
) -> torch.Tensor:
    """keep x + factor f(x weight + bias). Differentiable once, in x; the weights are constants.

    Args:
        x: (R, C), float32 or float64.
        weight: (C, C). bias, factor: (C,).
        keep: the factor of x.
        activation: f, by DeePMD-kit's name.

    Returns:
        (R, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    fixed = weight.detach(), bias.detach(), factor.detach()
    return call("own_message", x, *fixed, float(keep), *kernel_code(activation))


register_fake_like("own_message", 0)
register_fake_like("own_message_backward", 1)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (last_derivative("own_message_backward", grads[0], *args),)


register_formula("own_message", _formula, (0,))
