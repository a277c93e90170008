"""The product of a dense layer and its derivatives, and products of coefficients with a matrix for each degree."""

from typing import Any

import torch

from mdops._library import has_hopper_kernels
from mdops.ops._register import as_non_leaf, call, is_by_pytorch, register_fake, register_formula


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W + b. Differentiable any number of times, by products of the same kind (`linear_input`, `linear_weight`).

    On a GPU small products of float32, and large ones on Hopper, multiply two parts of each number, in TF32 or (large
    ones alone) in float16 times powers of two. They are as accurate as PyTorch's in float32, and do not follow its
    settings for TF32. Numbers beyond 2^114 become NaN there, and in float16 rows and columns with only numbers below
    2^-88 lose digits. Other products are PyTorch's.

    Args:
        x: (N, I), float32 or float64. weight: (I, O), of x's dtype. bias: (O,).

    Returns:
        (N, O).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    if x.device.type == "cpu" and is_by_pytorch():
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    added = x.new_empty(0) if bias is None else as_non_leaf(bias)
    return call("linear", x, as_non_leaf(weight), added)


def linear_input(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """grad W^T, (N, O) and (I, O) to (N, I): `linear`'s gradient by x. Everything else as there."""
    return call("linear_input", grad, weight)


def linear_weight(
    x: torch.Tensor, grad: torch.Tensor, sums: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """x^T grad and grad's sums over its rows, (N, I) and (N, O) to (I, O) and (O,), or (0,) without `sums`: `linear`'s
    gradients by weight and bias. Everything else as there."""
    by_weight, by_bias = call("linear_weight", x, grad, sums)
    return by_weight, by_bias


_SMALL = 1 << 25  # multiply-adds: as kSmallProduct of source/op/linear/gpu_small.h


def has_degree_kernel(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `degree_linear` of these and its gradient by x take less time than PyTorch's products with the matrix of
    each coefficient: on a GPU for small products, and on Hopper for many rows that are not narrow (linear.md)."""
    if not x.is_cuda or x.dtype != torch.float32:
        return False
    if x.numel() * weight.shape[2] < _SMALL:
        return True
    return has_hopper_kernels(x.device) and len(x) >= 1000 and max(weight.shape[1:]) >= 64


def degree_linear(x: torch.Tensor, weight: torch.Tensor, transposed: bool = False) -> torch.Tensor:
    """y_lm = x_lm W_l: rows of coefficients times the matrix of their degree. Differentiable any number of times, by x
    with itself, and by the weights with PyTorch's products. Its own products are those of `linear`.

    Args:
        x: (N, (L + 1)^2, I), the coefficients in packed order, float32 or float64.
        weight: (L + 1, I, O), of x's dtype; (L + 1, O, I) where it is `transposed`, for x_lm W_l^T.

    Returns:
        (N, (L + 1)^2, O).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    y: torch.Tensor = call("degree_linear", x, as_non_leaf(weight), transposed)
    return y


@register_fake("degree_linear")
def _(x: Any, weight: Any, transposed: bool = False) -> torch.Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[1 if transposed else 2])


def _degree_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    x, weight, transposed = args
    by_x = degree_linear(grads[0], weight, not transposed) if needs[0] else None
    if not needs[1]:
        return by_x, None
    of_each = torch.bmm(x.permute(1, 2, 0), grads[0].transpose(0, 1))
    by_weight = torch.stack([of_each[ell**2 : (ell + 1) ** 2].sum(0) for ell in range(len(weight))])
    return by_x, by_weight.mT if transposed else by_weight


@register_fake("linear")
def _(x: Any, weight: Any, bias: Any) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@register_fake("linear_input")
def _(grad: Any, weight: Any) -> torch.Tensor:
    return grad.new_empty(grad.shape[0], weight.shape[0])


@register_fake("linear_weight")
def _(x: Any, grad: Any, sums: bool = True) -> tuple[torch.Tensor, ...]:
    return x.new_empty(x.shape[1], grad.shape[1]), x.new_empty(grad.shape[1] if sums else 0)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    x, weight, bias = args
    by_x = linear_input(grads[0], weight) if needs[0] else None
    sums = needs[2] and bias.numel() > 0
    by_weight, by_bias = linear_weight(x, grads[0], sums) if needs[1] or sums else (None, None)
    return by_x, by_weight, by_bias if sums else None


def _input_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    grad, weight = args
    by_grad = linear(grads[0], weight) if needs[0] else None
    return by_grad, linear_weight(grads[0], grad, False)[0] if needs[1] else None


def _weight_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    x, grad, sums = args
    by_x = linear_input(grad, grads[0]) if needs[0] else None
    return by_x, linear(x, grads[0], grads[1] if sums else None) if needs[1] else None


register_formula("linear", _formula, (0, 1, 2))
register_formula("linear_input", _input_formula, (0, 1))
register_formula("linear_weight", _weight_formula, (0, 1))
register_formula("degree_linear", _degree_formula, (0, 1))
