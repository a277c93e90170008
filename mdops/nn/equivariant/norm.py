"""Equivariant norms of rows (N, D, F, C): they divide by an invariant length. `eps` keeps it from zero."""

from collections.abc import Sequence

import torch
from torch import nn

from mdops.nn.equivariant.checks import check_rows
from mdops.nn.equivariant.indices import by_order, coefficients, degree_index, degree_table, of_each
from mdops.ops import degree_norm


class ScalarNorm(nn.Module):
    """x / sqrt(mean of x^2 + eps) times trained factors, (..., F, C), or (..., C) of one group or none."""

    def __init__(self, channels: int, groups: int | None = 1, eps: float = 1e-7) -> None:
        """`groups`: None: the factors are (C,); else they are (F, C)."""
        super().__init__()
        shape = (channels,) if groups is None else (groups, channels)
        self.eps, self.adam_scale = eps, nn.Parameter(torch.ones(shape, dtype=torch.float64))
        self.register_buffer("_share", torch.tensor([1 / channels], dtype=torch.float64), persistent=False)
        self.register_buffer("_no_bias", torch.zeros(channels, dtype=torch.float64), persistent=False)

    _share: torch.Tensor
    _no_bias: torch.Tensor

    @property
    def constants(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]:
        """The arguments of `degree_norm` after rows of one group, with ones as factors."""
        ones = torch.ones_like(self._no_bias)[None]
        return ones, self._no_bias, self._share, self.eps, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        has_groups = self.adam_scale.numel() > self.adam_scale.shape[-1]
        shape = self.adam_scale.shape if has_groups else self.adam_scale.shape[-1:]
        check_rows("ScalarNorm", x, shape, self.adam_scale, 0)
        return (
            self.unscaled(x) * self.adam_scale if has_groups else self._normed(x, self.adam_scale.view(1, -1))
        )

    def unscaled(self, x: torch.Tensor) -> torch.Tensor:
        """The result without the factors."""
        return self._normed(x, torch.ones_like(self._no_bias)[None])

    def _normed(self, x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        given = x.reshape(-1, 1, x.shape[-1]), factors, self._no_bias, self._share
        return degree_norm(*given, eps=self.eps, centered=False).view(x.shape)


class _TurningNorm(nn.Module):
    """Subtracts the first coefficient's mean over channels, and divides all by the root mean square, in which all
    degrees have equal weight. Then come factors of each degree, and a bias of the first coefficient."""

    balance_weight: torch.Tensor

    def __init__(self, chosen: Sequence[tuple[int, int]], channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        degrees = [ell for ell, _ in chosen]
        weights = [1 / (degrees.count(ell) * (max(degrees) + 1) * channels) for ell in degrees]
        self.register_buffer("balance_weight", torch.tensor(weights, dtype=torch.float64))
        self.register_buffer("_table", degree_table(chosen), persistent=False)

    _table: torch.Tensor

    def normalized(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """The result for (N, D, F, C), with factors (D, F, C) and a bias (F, C)."""
        check_rows(type(self).__name__, x, scale.shape, scale)
        if x.shape[2] == 1:
            given = x.squeeze(2), scale.squeeze(1), bias.squeeze(0), self.balance_weight
            return degree_norm(*given, eps=self.eps, centered=True)[:, :, None]
        first = x[:, :1] - x[:, :1].mean(-1, keepdim=True)
        x = torch.cat([first, x[:, 1:]], 1)
        square = (x.square() * self.balance_weight[:, None, None]).sum((1, 3), keepdim=True)
        x = x * (torch.rsqrt(square + self.eps) * scale)
        return torch.cat([x[:, :1] + bias, x[:, 1:]], 1)


class DegreeNorm(_TurningNorm):
    """The norm of all coefficients up to degree lmax, in packed order."""

    expand_index: torch.Tensor

    def __init__(self, lmax: int, channels: int, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__(coefficients(lmax), channels, eps)
        self.adam_scale = nn.Parameter(torch.ones(lmax + 1, groups, channels, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(groups, channels, dtype=torch.float64))
        self.register_buffer("expand_index", degree_index(coefficients(lmax)))

    @property
    def constants(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]:
        """The arguments of `degree_norm` after the rows, for one group."""
        factors = of_each(self.adam_scale, self._table).squeeze(1)
        return factors, self.bias.squeeze(0), self.balance_weight, self.eps, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalized(x, of_each(self.adam_scale, self._table), self.bias)


class OrderNorm(_TurningNorm):
    """The norm of coefficients of |m| up to mmax, in the order of `by_order`."""

    degree_index_m: torch.Tensor

    def __init__(self, lmax: int, mmax: int, channels: int, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__(by_order(lmax, mmax), channels, eps)
        self.adam_scale = nn.Parameter(torch.ones(groups, lmax + 1, channels, dtype=torch.float64))
        self.bias0 = nn.Parameter(torch.zeros(groups, channels, dtype=torch.float64))
        self.register_buffer("degree_index_m", degree_index(by_order(lmax, mmax)))

    def constants_of(self, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]:
        """The arguments of `degree_norm` after the rows, for one group."""
        factors = of_each(self.adam_scale[group], self._table)
        return factors, self.bias0[group], self.balance_weight, self.eps, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalized(x, of_each(self.adam_scale.transpose(0, 1), self._table), self.bias0)
