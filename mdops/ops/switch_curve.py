"""Curves that fall from 1 to 0 towards a cutoff, and their derivatives."""

import math
from collections.abc import Callable
from typing import Any

import torch

from mdops.ops._register import call, register_fake_like, register_formula


def switch_curve(r: torch.Tensor, cutoff_smooth: float, cutoff: float, order: int = 0) -> torch.Tensor:
    """w(r), which falls from 1 at `cutoff_smooth` to 0 at `cutoff` with two derivatives of zero at both
    (mathematics.md), or its derivative of that order. Differentiable any number of times, each of them one pass.

    Args:
        r: (..., K), distances, A, float32 or float64.
        cutoff_smooth, cutoff: A.
        order: 0 for w itself.

    Returns:
        As r, 1/A^order.

    Raises:
        RuntimeError: the cutoffs are out of order, or the dtype is wrong.
    """
    return call("switch_curve", _rows(r), cutoff_smooth, cutoff, order).view(r.shape)


def fade_curve(r: torch.Tensor, cutoff: float, exponent: int, order: int = 0) -> torch.Tensor:
    """w(r) = (1 - x)^4 sum_k C(k + 3, 3) x^k, k below the exponent, x = r/cutoff, and 0 beyond, or its derivative of
    that order: w and three derivatives are 0 at the cutoff, and so are `exponent` - 1 derivatives of 1 - w at 0.
    Differentiable any number of times, each derivative in one pass.

    Args:
        r: (..., K), distances, A, float32 or float64.
        cutoff: A.
        exponent: 1 to 1000. order: 0 for w itself, up to 1000.

    Returns:
        As r, 1/A^order.

    Raises:
        RuntimeError: a number is out of range, or the dtype is wrong.
    """
    return call("fade_curve", _rows(r), cutoff, exponent, order).view(r.shape)


def _rows(r: torch.Tensor) -> torch.Tensor:
    return r.reshape(math.prod(r.shape[:-1]), r.shape[-1])


def _register(name: str, curve: Callable[..., torch.Tensor]) -> None:
    def formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
        *given, order = args
        return (grads[0] * curve(*given, order + 1),)

    register_fake_like(name, 0)
    register_formula(name, formula, (0,))


_register("switch_curve", switch_curve)
_register("fade_curve", fade_curve)
