"""Equivariant nonlinearities of rows of coefficients: functions of their scalars alone."""

from collections.abc import Sequence

import torch
from torch import nn

from mdops.nn.equivariant.checks import check_all_degrees, check_rows
from mdops.nn.equivariant.indices import degree_index, runs
from mdops.nn.equivariant.linear import GroupLinear
from mdops.ops.activation import activation
from mdops.ops.linear import linear
from mdops.ops.scalar_gate import row_gate


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(a) b of the two halves a, b of the channels."""
    first, second = x.chunk(2, -1)
    return nn.functional.silu(first) * second


class Gate(nn.Module):
    """x_0 -> f(x_0), and x_lm -> x_lm sigmoid(x_0 W_l): rows (N, D, F, C).

    With a gate g of the same shape: x_0 f(g_0), and x_lm sigmoid(g_0 W_l).
    """

    expand_index: torch.Tensor

    def __init__(
        self,
        chosen: Sequence[tuple[int, int]],
        channels: int,
        groups: int = 1,
        function: str = "silu",
        bias: bool = False,
    ) -> None:
        """`chosen`: the (l, m) of the coefficients, (0, 0) first."""
        super().__init__()
        check_all_degrees("Gate", chosen)
        self.lmax, self.channels, self.groups = max(ell for ell, _ in chosen), channels, groups
        self.count, self.function, self.is_silu = len(chosen), activation(function), function == "silu"
        self.register_buffer("expand_index", degree_index(chosen[1:]) - 1)
        self.runs = runs([degree - 1 for degree, _ in chosen[1:]])
        if self.lmax:
            self.gate_linear = GroupLinear(channels, self.lmax * channels, groups, bias, deviation=0.01)

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        like = self.gate_linear.weight if self.lmax else x
        for rows in (x,) if gate is None else (x, gate):
            check_rows("Gate", rows, (self.count, self.groups, self.channels), like)
        first = x[:, :1]
        scalars = first if gate is None else gate[:, :1]
        first = self.function(first) if gate is None else first * self.function(scalars)
        if not self.lmax:
            return first
        gates = self.gate_linear(scalars[:, 0]).sigmoid().view(-1, self.groups, self.lmax, self.channels)
        gates, rows = gates.transpose(1, 2), x[:, 1:].split([count for count, _, _ in self.runs], 1)
        gated = [own * gates[:, at : at + size] for own, (_, at, size) in zip(rows, self.runs, strict=True)]
        return torch.cat([first, *gated], 1)

    def added(
        self, rows: Sequence[torch.Tensor], x: Sequence[torch.Tensor], group: int = 0
    ) -> list[torch.Tensor]:
        """rows + self(x) of one group, by blocks of equal |m|, (E, R_m, C) in the order of `by_order`.

        Only with silu and no bias: then all factors are sigmoids, and one product gives their logits.
        """
        assert self.is_silu and (not self.lmax or self.gate_linear.bias is None)
        width, scalars = self.channels, x[0][:, 0]
        gates = [scalars]
        if self.lmax:
            of_degrees = linear(scalars, self.gate_linear.weight_of(group))
            gates = [torch.cat([scalars, of_degrees], 1), of_degrees][: len(x)]
            gates += [of_degrees[:, m * width :] for m in range(1, len(x) - 1)]
        found = []
        for m, (own, other, gate) in enumerate(zip(rows, x, gates, strict=True)):
            parts = 1 if m == 0 else 2
            gated = row_gate(other.view(own.shape[0], parts, own.shape[1:].numel() // parts), gate)
            found.append(own + gated.view(own.shape))
        return found
