"""Equivariant linear layers that mix channels: by degree l, or by blocks of equal |m|.

Rows are (N, D, F, C): N nodes or edges, D coefficients, F groups with their own weights, C channels. Weights begin
as zeros; `reset` draws new ones.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mdops.nn.equivariant.checks import check_degrees, check_rows
from mdops.nn.equivariant.indices import coefficients, degree_index, degree_table, of_each
from mdops.ops._register import as_non_leaf, is_transformed, is_wanted
from mdops.ops.layer_output import layer_output
from mdops.ops.linear import degree_linear, has_degree_kernel, linear
from mdops.tracing import is_exported


def zeros(*shape: int) -> nn.Parameter:
    """New weights."""
    return nn.Parameter(torch.zeros(*shape, dtype=torch.float64))


@torch.no_grad()
def draw(weight: torch.Tensor, random: np.random.Generator, deviation: float) -> None:
    """Fills with normal numbers of this deviation."""
    weight.copy_(torch.from_numpy(random.normal(0, deviation, tuple(weight.shape))))


@torch.no_grad()
def draw_truncated(weight: torch.Tensor, random: np.random.Generator, inputs: int, outputs: int) -> None:
    """Fills with normal numbers of deviation 1 / sqrt(inputs + outputs), none beyond three deviations."""
    found = random.normal(0, 1, tuple(weight.shape))
    while (np.abs(found) > 3).any():
        found = np.where(np.abs(found) > 3, random.normal(0, 1, found.shape), found)
    weight.copy_(torch.from_numpy(found / math.sqrt(inputs + outputs)))


@torch.no_grad()
def draw_uniform(weight: torch.Tensor, random: np.random.Generator, inputs: int) -> None:
    """Fills with uniform numbers between -1 / sqrt(inputs) and 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(inputs)
    weight.copy_(torch.from_numpy(random.uniform(-bound, bound, tuple(weight.shape))))


def draw_weights(module: nn.Module, random: np.random.Generator) -> None:
    """Calls `reset(random)` of all parts that have it: inner parts first."""
    for part in reversed(list(module.modules())):
        reset: Any = getattr(part, "reset", None)
        if reset is not None:
            reset(random)


def plus_scalar(x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """x (N, D, F, C) with something added to its first coefficient, the invariant one."""
    first, others = x.split([1, x.shape[1] - 1], 1)
    return torch.cat([first + added, others], 1)


class _ByCoefficient(torch.autograd.Function):
    """y[n, d] = x[n, d] W[d]. One batched product reads and writes rows in place, without copies."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        y = x.new_empty(*x.shape[:2], weight.shape[2])
        torch.bmm(x.transpose(0, 1), weight, out=y.transpose(0, 1))
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, weight = ctx.saved_tensors
        by_x = by_weight = None
        if ctx.needs_input_grad[0]:
            by_x = product_of_each(grad, weight.transpose(1, 2))
        if ctx.needs_input_grad[1] and is_wanted(ctx.next_functions[1][0]):
            by_weight = torch.bmm(x.permute(1, 2, 0), grad.transpose(0, 1))
        return by_x, by_weight


def product_of_each(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies each coefficient by its matrix: (N, D, inputs) and (D, inputs, outputs) to (N, D, outputs)."""
    if torch.compiler.is_compiling() or is_exported() or is_transformed():
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
    found: torch.Tensor = _ByCoefficient.apply(x, as_non_leaf(weight))
    return found


def product_of_degrees(x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The same for all coefficients of degrees up to L, with one matrix per degree, (L + 1, inputs, outputs), and their
    `degree_table`."""
    by_pytorch = torch.compiler.is_compiling() or is_exported() or is_transformed()
    if not by_pytorch and has_degree_kernel(x, weight):  # depends on the number of rows
        return degree_linear(x, weight)
    return product_of_each(x, of_each(weight, table))


class Dense(nn.Module):
    """f(x W + b), (N, inputs) to (N, outputs); b only with `bias`."""

    def __init__(self, inputs: int, outputs: int, activation: str = "none", bias: bool = False) -> None:
        super().__init__()
        self.activation = activation
        self.matrix = zeros(inputs, outputs)
        self.bias = zeros(outputs) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = linear(x, self.matrix, self.bias)
        return z if self.activation == "none" else layer_output(z, None, self.activation)

    def reset(self, random: np.random.Generator) -> None:
        draw(self.matrix, random, 1 / math.sqrt(sum(self.matrix.shape)))
        if self.bias is not None:
            draw(self.bias, random, 1.0)


class ChannelLinear(nn.Module):
    """x W + b, (..., inputs) to (..., outputs)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False, zero: bool = False) -> None:
        """`zero`: new weights are zeros."""
        super().__init__()
        self.zero = zero
        self.weight = zeros(inputs, outputs)
        self.bias = zeros(outputs) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_rows("ChannelLinear", x, (self.weight.shape[0],), self.weight, 0)
        rows = linear(x.reshape(-1, x.shape[-1]), self.weight)
        found = rows.view(*x.shape[:-1], self.weight.shape[1])
        return found if self.bias is None else found + self.bias

    def reset(self, random: np.random.Generator) -> None:
        if not self.zero:
            draw_uniform(self.weight, random, self.weight.shape[0])


class GroupLinear(nn.Module):
    """x W_f + b_f in each group f of channels, (N, F, inputs) to (N, F, outputs)."""

    def __init__(
        self, inputs: int, outputs: int, groups: int = 1, bias: bool = False, deviation: float | None = None
    ) -> None:
        """`deviation`: of new normal weights; None: they are uniform."""
        super().__init__()
        self.inputs, self.outputs, self.groups, self.deviation = inputs, outputs, groups, deviation
        self.weight = zeros(inputs, groups * outputs)
        self.bias = zeros(groups * outputs) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_rows("GroupLinear", x, (self.groups, self.inputs), self.weight)
        if self.groups == 1:
            found = linear(x.flatten(1), self.weight)[:, None]
        else:
            weight = self.weight.view(self.inputs, self.groups, self.outputs)
            found = torch.einsum("nfi,ifo->nfo", x, weight)
        return found if self.bias is None else found + self.bias.view(self.groups, self.outputs)

    def weight_of(self, group: int) -> torch.Tensor:
        """(inputs, outputs)."""
        return self.weight.view(self.inputs, self.groups, -1)[:, group] if self.groups > 1 else self.weight

    def reset(self, random: np.random.Generator) -> None:
        if self.deviation is None:
            draw_uniform(self.weight, random, self.inputs)
        else:
            draw(self.weight, random, self.deviation)


class DegreeLinear(nn.Module):
    """x_lm W_l, with a bias of l = 0: (N, (lmax + 1)^2, F, inputs) in packed order to (.., outputs)."""

    expand_index: torch.Tensor

    def __init__(
        self, lmax: int, inputs: int, outputs: int, groups: int = 1, bias: bool = False, zero: bool = False
    ) -> None:
        """`zero`: new weights are zeros."""
        super().__init__()
        check_degrees("DegreeLinear", lmax)
        self.inputs, self.outputs, self.groups, self.zero = inputs, outputs, groups, zero
        self.weight = zeros(lmax + 1, inputs, groups * outputs)
        self.bias = zeros(groups * outputs) if bias else None
        self.register_buffer("expand_index", degree_index(coefficients(lmax)))
        self.register_buffer("_table", degree_table(coefficients(lmax)), persistent=False)

    _table: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_rows("DegreeLinear", x, (len(self._table), self.groups, self.inputs), self.weight)
        if self.groups == 1:
            found = self.product(x.squeeze(2), self.weight)[:, :, None]
        else:
            weight = self.of_each().view(-1, self.inputs, self.groups, self.outputs)
            found = torch.einsum("ndfi,difo->ndfo", x, weight)
        return found if self.bias is None else plus_scalar(found, self.bias.view(self.groups, -1))

    def of_each(self, weight: torch.Tensor | None = None) -> torch.Tensor:
        """(D, ..), the matrix of each coefficient, from its own or other weights, (lmax + 1, ..)."""
        return of_each(self.weight if weight is None else weight, self._table)

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiplies each coefficient by the matrix of its degree, (N, D, inputs) to (N, D, outputs).

        Args:
            weight: (lmax + 1, inputs, outputs).
        """
        return product_of_degrees(x, weight, self._table)

    def reset(self, random: np.random.Generator) -> None:
        if not self.zero:
            draw_truncated(self.weight, random, *self.weight.shape[1:])


class OrderLinear(nn.Module):
    """Linear layers equivariant under rotations about z: they mix coefficients of equal |m| over l and channels,

        y_0 = x_0 W_0,   y_-m = x_-m U_m - x_m V_m,   y_m = x_-m V_m + x_m U_m,

    and l = 0 has a bias. Rows (E, R, F, inputs) are in the order of `by_order`; F groups have their own weights.

    V breaks mirror symmetry: with it, y_m of true vectors and tensors are no true tensors.
    """

    def __init__(
        self,
        lmax: int,
        mmax: int,
        inputs: int,
        outputs: int,
        groups: int = 1,
        bias: bool = False,
        parity: bool = False,
    ) -> None:
        """`parity`: without V, so that mirror images give mirror images."""
        super().__init__()
        check_degrees("OrderLinear", lmax, mmax)
        self.parity = parity
        self.lmax, self.inputs, self.outputs, self.groups = lmax, inputs, outputs, groups
        sizes = [lmax + 1 - m for m in range(mmax + 1)]
        self.sizes = [sizes[0], *(2 * size for size in sizes[1:])]
        self.weight_m0 = zeros(sizes[0] * inputs, groups * sizes[0] * outputs)
        self.bias0 = zeros(groups * outputs) if bias else None
        self.weight_m = nn.ParameterList(
            zeros(size * inputs, groups * (1 if parity else 2) * size * outputs) for size in sizes[1:]
        )
        negative: list[int] = []
        positive: list[int] = []
        at = sizes[0]
        for size in sizes[1:]:
            negative += range(at, at + size)
            positive += range(at + size, at + 2 * size)
            at += 2 * size
        for name, index in (
            ("m0_idx", range(sizes[0])),
            ("pos_indices", positive),
            ("neg_indices", negative),
        ):
            self.register_buffer(name, torch.tensor(list(index), dtype=torch.int64))

    def _blocks(self, group: int | None = None) -> list[torch.Tensor]:
        """(F, size inputs, size outputs) for each |m|, without F for one group. Both orders are side by side, but with
        `parity` they share one."""

        def own(weight: torch.Tensor) -> torch.Tensor:
            whole = weight.view(weight.shape[0], self.groups, -1)
            return whole.transpose(0, 1) if group is None else whole[:, group]

        found = [own(self.weight_m0)]
        for whole in map(own, self.weight_m):
            if self.parity:
                found.append(whole)
                continue
            u, v = whole.chunk(2, -1)
            found.append(torch.cat([torch.cat([u, v], -1), torch.cat([-v, u], -1)], -2))
        return found

    def by_blocks(self, blocks: Sequence[torch.Tensor], group: int = 0) -> list[torch.Tensor]:
        """The outputs for one group's rows (E, R_m, inputs) of each |m|, without the bias."""
        found = []
        for rows, weight in zip(blocks, self._blocks(group), strict=True):
            y = linear(rows.reshape(-1, weight.shape[0]), weight)
            found.append(y.view(-1, rows.shape[1], self.outputs))
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_rows("OrderLinear", x, (sum(self.sizes), self.groups, self.inputs), self.weight_m0)
        blocks, found = x.split(self.sizes, 1), []
        if self.groups == 1:
            found = [y[:, :, None] for y in self.by_blocks([rows.squeeze(2) for rows in blocks])]
        else:
            for rows, weight in zip(blocks, self._blocks(), strict=True):
                own = rows.permute(2, 0, 1, 3).reshape(self.groups, -1, weight.shape[1])
                y = torch.bmm(own, weight).view(self.groups, -1, rows.shape[1], self.outputs)
                found.append(y.permute(1, 2, 0, 3))
        every = torch.cat(found, 1)
        return every if self.bias0 is None else plus_scalar(every, self.bias0.view(self.groups, -1))

    def reset(self, random: np.random.Generator) -> None:
        for m, weight in enumerate([self.weight_m0, *self.weight_m]):
            inputs, outputs = weight.shape[0], weight.shape[1] // self.groups
            draw_truncated(weight, random, inputs, outputs)
            if m and not self.parity:
                with torch.no_grad():
                    weight.mul_(1 / math.sqrt(2))
