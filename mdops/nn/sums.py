"""Sums over the atoms of each system that have the same bits in every run."""

from typing import Any

import torch

from mdops.tracing import is_exported


def sum_systems(values: torch.Tensor, batch: torch.Tensor, systems: int) -> torch.Tensor:
    """(S, *): the sums of `values` (N, *), float64, over the atoms of each system; differentiable to any order.

    batch: (N,) int32. On the CPU terms are added in the order of the atoms, on a GPU in no order.
    """
    if not values.is_cuda:
        return values.new_zeros(systems, *values.shape[1:]).index_add(0, batch.long(), values)
    if values.dim() > 1:
        components = [sum_systems(one, batch, systems) for one in values.flatten(1).unbind(1)]
        return torch.stack(components, 1).view(systems, *values.shape[1:])
    return values.sum()[None] if systems == 1 else _OrderlessSum.apply(values, batch.long(), systems)


class _OrderlessSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, batch: torch.Tensor, systems: int) -> torch.Tensor:
        ctx.save_for_backward(batch)
        return fixed_point_sum(values, batch, systems)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (batch,) = ctx.saved_tensors
        return grad[batch], None, None


def fixed_point_sum(values: torch.Tensor, batch: torch.Tensor, systems: int) -> torch.Tensor:
    """(S,): terms are scaled by a power of two and added as 64-bit integers, so that their order does not matter.

    N terms of at most m are rounded at m 2^(log2 N - 62), and their sums cannot overflow. A term that is not
    finite makes its system's sum so.
    """
    if values.numel() == 0:
        return values.new_zeros(systems)
    finite = torch.isfinite(values)
    terms = torch.where(finite, values, 0.0)
    # |m| < 2^exponent, so |m| 2^power <= 2^(62 - bits of N).
    _, exponent = torch.frexp(terms.abs().max())
    # An exported program supports any number of terms and counts them when it runs.
    bits = torch.frexp(torch.ones_like(terms).sum())[1] if is_exported() else values.numel().bit_length()
    power = (62 - bits - exponent).clamp(-1000, 1000)
    scale = torch.exp2(power.double())
    integers = (terms * scale).round().to(torch.int64)
    whole = integers.new_zeros(systems).index_add(0, batch, integers)
    others = values.new_zeros(systems).index_add(0, batch, torch.where(finite, 0.0, values))
    return whole.double() / scale + others
