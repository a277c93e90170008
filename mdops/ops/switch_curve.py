"""The switch from 1 to 0 between two cutoffs, and its derivatives."""

import math
from typing import Any

import torch

from mdops.ops._register import register_fake_like, register_formula


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
    rows = r.reshape(math.prod(r.shape[:-1]), r.shape[-1])
    w: torch.Tensor = torch.ops.mdops.switch_curve(rows, cutoff_smooth, cutoff, order)
    return w.view(r.shape)


register_fake_like("switch_curve", 0)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    r, cutoff_smooth, cutoff, order = args
    return (grads[0] * switch_curve(r, cutoff_smooth, cutoff, order + 1),)


register_formula("switch_curve", _formula, (0,))
