"""Products of an edge's rows with small matrices, one for each |m|, that mix their degrees."""

from typing import Any

import torch

from mdops.ops._register import call, register_fake, register_fake_like, register_formula


def order_mix(
    numbers: torch.Tensor, x: torch.Tensor, degree: int, *, transposed: bool = False
) -> torch.Tensor:
    """y[o] = sum_k K[k, o] x[k] within the rows of each m, where K is one matrix of the edge for both signs of m. Its
    gradients are `order_mix_outer` and itself; differentiable any number of times.

    Args:
        numbers: (E, Q) float32 or float64, the K[k, o] of m = 0, then of |m| = 1, ... up to the largest |m|.
        x: (E, R, D): rows of m = 0 (l = 0 to the degree), of m = -1 (l = 1 to the degree), of m = 1, of m = -2, ...
        degree: the largest l, at most 64.
        transposed: y[k] = sum_o K[k, o] x[o].

    Returns:
        (E, R, D).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    return call("order_mix", numbers, x, degree, transposed)


def order_mix_outer(x: torch.Tensor, y: torch.Tensor, degree: int) -> torch.Tensor:
    """K[k, o] = the sum of x[k] y[o] over the columns and over both signs of m: the gradient of `order_mix` by its
    numbers. Differentiable any number of times.

    Args:
        x, y: (E, R, D), float32 or float64, as for `order_mix`.
        degree: the largest l, at most 64.

    Returns:
        (E, Q).

    Raises:
        RuntimeError: as for `order_mix`.
    """
    return call("order_mix_outer", x, y, degree)


register_fake_like("order_mix", 1)


@register_fake("order_mix_outer")
def _(x: Any, y: Any, degree: int) -> torch.Tensor:
    rows, count, m = degree + 1, (degree + 1) ** 2, 0
    while rows < x.shape[1]:
        m += 1
        rows, count = rows + 2 * (degree + 1 - m), count + (degree + 1 - m) ** 2
    return x.new_empty(x.shape[0], count)


def _mix_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    numbers, x, degree, transposed = args
    pair = (grads[0], x) if transposed else (x, grads[0])
    by_numbers = order_mix_outer(*pair, degree) if needs[0] else None
    return by_numbers, order_mix(numbers, grads[0], degree, transposed=not transposed) if needs[1] else None


def _outer_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    x, y, degree = args
    by_x = order_mix(grads[0], y, degree, transposed=True) if needs[0] else None
    return by_x, order_mix(grads[0], x, degree) if needs[1] else None


register_formula("order_mix", _mix_formula, (0, 1))
register_formula("order_mix_outer", _outer_formula, (0, 1))
