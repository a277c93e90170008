"""LayerNorm of rows or of a sum, with written-out first and second derivatives."""

from typing import Any

import torch
import torch.nn.functional as F

from mdops.ops._register import (
    call,
    is_by_pytorch,
    last_derivative,
    register_fake,
    register_fake_like,
    register_formula,
)

_WIDEST = 512  # kWidestNorm of source/op/rowwise/gpu_add_norm.h


def add_norm(
    x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """LayerNorm of x + y, or of x, along the last axis, in one pass, as are both derivatives. Twice differentiable.

    Args:
        x, y: (N, M), float32 or float64.
        weight, bias: (M,), of x's dtype.
        eps: added to the variances.

    Returns:
        (N, M). On a GPU rows wider than 512 use PyTorch's own operations.

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    is_by_others = x.shape[-1] > _WIDEST if x.is_cuda else y is None and is_by_pytorch()
    if is_by_others:
        return F.layer_norm(x if y is None else x + y, weight.shape, weight, bias, eps)
    return call("add_norm", x, y, weight, bias, eps)


register_fake_like("add_norm", 0)


@register_fake("add_norm_backward")
def _(grad: Any, x: Any, y: Any, weight: Any, eps: float) -> tuple[torch.Tensor, ...]:
    return x.new_empty(x.shape), x.new_empty(weight.shape), x.new_empty(weight.shape)


@register_fake("add_norm_backward_backward")
def _(direction: Any, along_weight: Any, along_bias: Any, grad: Any, x: Any, *args: Any) -> tuple[Any, ...]:
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(along_weight.shape)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    x, y, weight, _, eps = args
    of_sum, *of_vectors = call("add_norm_backward", grads[0], x, y, weight, eps)
    return of_sum, None if y is None else of_sum, *of_vectors


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    by_grad, of_sum, by_weight = last_derivative("add_norm_backward_backward", *grads, *args)
    return by_grad, of_sum, None if args[2] is None else of_sum, by_weight


register_formula("add_norm", _formula, (0, 1, 2, 3))
register_formula("add_norm_backward", _backward_formula, (0, 1, 2, 3))
