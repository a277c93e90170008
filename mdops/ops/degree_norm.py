"""Norms of rows of coefficients, by a length that is invariant to rotations."""

from typing import Any

import torch

from mdops.ops._register import as_non_leaf, call, last_derivative, register_fake_like, register_formula


def degree_norm(
    x: torch.Tensor,
    factors: torch.Tensor,
    bias: torch.Tensor,
    shares: torch.Tensor,
    *,
    eps: float,
    centered: bool,
) -> torch.Tensor:
    """y_dc = x_dc f_dc / sqrt(sum_d v_d sum_c x_dc^2 + eps), with a bias in the first row. One kernel forward, one
    backward, and one for second derivatives; gradients by factors and bias are separate sums over atoms.

    Args:
        x: (N, D, C), float32 or float64.
        factors: f (D, C). bias: (C,). shares: v (D,), constant.
        eps: above 0.
        centered: whether the first row's mean over the channels is subtracted from it.

    Returns:
        (N, D, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    given = as_non_leaf(factors), as_non_leaf(bias), shares
    return call("degree_norm", x, *given, eps, centered)


register_fake_like("degree_norm", 0)
register_fake_like("degree_norm_backward", 1)
register_fake_like("degree_norm_terms", 1)


register_fake_like("degree_norm_backward_backward", 2, 2, 2)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (grad,), (x, _, _, *shape) = grads, args
    by_x = call("degree_norm_backward", grad, *args) if needs[0] else None
    by_factors = call("degree_norm_terms", grad, x, *shape).sum(0) if needs[1] else None
    return by_x, by_factors, grad[:, 0].sum(0) if needs[2] else None


def _terms_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (direction,), (grad, x, *shape) = grads, args
    by_grad = call("degree_norm_terms", direction, x, *shape) if needs[0] else None
    by_x = None
    if needs[1]:
        constant = x.new_ones(x.shape[1:]), x.new_zeros(x.shape[2])
        by_x = call("degree_norm_backward", direction * grad, x, *constant, *shape)
    return by_grad, by_x


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    grad, x, factors, _, *shape = args
    found = last_derivative("degree_norm_backward_backward", grads[0], grad, x, factors, *shape)
    by_grad, by_x, terms = found
    return by_grad, by_x, terms.sum(0) if needs[2] else None


register_formula("degree_norm", _formula, (0, 1, 2))
register_formula("degree_norm_terms", _terms_formula, (0, 1))
register_formula("degree_norm_backward", _backward_formula, (0, 1, 2))
