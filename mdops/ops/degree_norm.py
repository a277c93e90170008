"""Norms of rows of coefficients, by a length that does not turn."""

import torch

from mdops.ops._register import as_non_leaf, register_fake_like, register_formulas_by


def degree_norm(
    x: torch.Tensor,
    factors: torch.Tensor,
    bias: torch.Tensor,
    shares: torch.Tensor,
    *,
    eps: float,
    centered: bool,
) -> torch.Tensor:
    """y_dc = x_dc f_dc / sqrt(sum_d v_d sum_c x_dc^2 + eps), with a bias in the first row. One kernel each way; second
    derivatives, and those by factors and bias, go by PyTorch's operations.

    Args:
        x: (N, D, C), float32 or float64.
        factors: f (D, C). bias: (C,). shares: v (D,), constant.
        eps: above 0.
        centered: whether the first row is taken less its mean over the channels.

    Returns:
        (N, D, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    given = as_non_leaf(factors), as_non_leaf(bias), shares
    y: torch.Tensor = torch.ops.mdops.degree_norm(x, *given, eps, centered)
    return y


def _by_pytorch(
    x: torch.Tensor,
    factors: torch.Tensor,
    bias: torch.Tensor,
    shares: torch.Tensor,
    eps: float,
    centered: bool,
) -> torch.Tensor:
    first, others = x.split([1, x.shape[1] - 1], 1)
    if centered:
        x = torch.cat([first - first.mean(2, keepdim=True), others], 1)
    square = (x.square() * shares[:, None]).sum((1, 2), keepdim=True)
    y = x * (torch.rsqrt(square + eps) * factors)
    return torch.cat([y[:, :1] + bias, y[:, 1:]], 1)


register_fake_like("degree_norm", 0)
register_fake_like("degree_norm_backward", 1)


register_formulas_by("degree_norm", _by_pytorch, range(3))
