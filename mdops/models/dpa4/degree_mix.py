"""Mixes degrees by radial features, the first step of DPA-4's messages."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mdops.nn.equivariant.indices import by_order
from mdops.nn.equivariant.linear import draw_truncated, zeros
from mdops.ops import EdgeIndex, edge_rotate, order_mix
from mdops.ops._once import once


class DegreeMix(nn.Module):
    """y_lm = sum_l' K_ll'|m| x_l'm in blocks of equal |m|. K is linear in the edge's radial features: one for all
    channels, one for each, or a sum of `rank` ones with trained factors of the channels."""

    channel_basis: torch.Tensor | None

    def __init__(self, lmax: int, mmax: int, channels: int, by_channel: bool, rank: int) -> None:
        super().__init__()
        sizes = [lmax + 1 - m for m in range(mmax + 1)]
        self.lmax, self.channels, self.sizes = lmax, channels, sizes
        self.each = channels if by_channel and not rank else rank if by_channel else 1
        kernels = sum(size * size for size in sizes)
        self.weight = zeros((lmax + 1) * channels, kernels * self.each)
        self.channel_basis = zeros(rank, channels) if by_channel and rank else None
        self.folds = not by_channel or rank > 0
        compact, dense, begin, at, width = [], [], 0, 0, len(by_order(lmax, mmax))
        for m, size in enumerate(sizes):
            for _ in range(1 if m == 0 else 2):
                compact += [begin + k for k in range(size * size)]
                dense += [(at + out) * width + at + k for k in range(size) for out in range(size)]
                at += size
            begin += size * size
        self.register_buffer("kernel_compact_index", torch.tensor(compact))
        self.register_buffer("kernel_dense_index", torch.tensor(dense))

    kernel_compact_index: torch.Tensor
    kernel_dense_index: torch.Tensor

    def forward(
        self, turn: torch.Tensor, x: torch.Tensor, numbers: torch.Tensor, of: EdgeIndex, is_once: bool
    ) -> torch.Tensor:
        """Rotates rows x (N, D, C) of nodes by `turn` (E, R, D) and mixes them by `numbers`, in the order of
        `by_order`; `is_once`: differentiable once."""
        if not self.folds:
            rows = edge_rotate(turn, x, of)
            return once(_ByChannel(self.sizes), rows, numbers) if is_once else self._by_channel(rows, numbers)
        if self.each == 1:
            return edge_rotate(*self.folded(turn, x, numbers), of)
        each = numbers.unflatten(1, (-1, self.each)).unbind(2)
        turns = torch.stack([order_mix(own, turn, self.lmax) for own in each], 2).flatten(1, 2)
        mixed = edge_rotate(turns, x, of).unflatten(1, (-1, self.each))
        return (mixed * self.channel_basis).sum(2)

    def numbers(self, radial: torch.Tensor) -> torch.Tensor:
        """(E, entries of all K), from radial features (E, L + 1, C)."""
        return radial.flatten(1) @ self.weight

    def folded(
        self, turn: torch.Tensor, x: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Matrices (E, R, D) and rows of nodes whose product is the mixture, if it is one for all channels."""
        # The mixture goes into the rotation, as that has fewer columns than x has channels; the factors go into the
        # rows of nodes, which are fewer than edges.
        return order_mix(numbers, turn, self.lmax), self.scaled(x)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of nodes times the factors of the channels, if there are any."""
        return x if self.channel_basis is None else x * self.channel_basis

    def _by_channel(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        kernels = numbers.split([size**2 * self.each for size in self.sizes], 1)
        found, at = [], 0
        for m, (size, flat) in enumerate(zip(self.sizes, kernels, strict=True)):
            orders = 1 if m == 0 else 2
            rows = x[:, at : at + orders * size].unflatten(1, (orders, size))
            kernel = flat.view(-1, 1, size, size, self.each)  # from the first degree to the second
            found.append((kernel * rows[:, :, :, None]).sum(2).flatten(1, 2))
            at += orders * size
        return torch.cat(found, 1)

    def reset(self, random: np.random.Generator) -> None:
        draw_truncated(self.weight, random, *self.weight.shape)
        if self.channel_basis is not None:
            draw_truncated(self.channel_basis, random, *self.channel_basis.shape)


class _ByChannel(NamedTuple):
    """A mixture for each channel, with few passes over memory.

    Attributes:
        sizes: how many degrees each |m| has.
    """

    sizes: list[int]

    def forward(self, *given: torch.Tensor) -> Any:
        (x, y), kernels = (given[0], torch.empty_like(given[0])), self._kernels(*given)
        for out, terms in self._places():
            for n, (k, place) in enumerate(terms):
                if n == 0:
                    torch.mul(x[:, k], kernels[:, place], out=y[:, out])
                else:
                    y[:, out].addcmul_(x[:, k], kernels[:, place])
        return y, []

    def backward(self, given: Sequence[torch.Tensor], kept: Sequence[Any], *grads: Any) -> Any:
        (x, _), (grad,), kernels = given, grads, self._kernels(*given)
        by_x, by_kernels = torch.zeros_like(x), torch.zeros_like(kernels)
        for out, terms in self._places():
            for k, place in terms:
                by_x[:, k].addcmul_(grad[:, out], kernels[:, place])
                by_kernels[:, place].addcmul_(grad[:, out], x[:, k])
        return by_x, by_kernels.flatten(1)

    def _kernels(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.unflatten(1, (-1, x.shape[2]))

    def _places(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Each row of y, with the rows of x that it sums and the places of their factors."""
        at = begin = 0
        for m, size in enumerate(self.sizes):
            for _ in range(1 if m == 0 else 2):
                for out in range(size):
                    yield at + out, [(at + k, begin + k * size + out) for k in range(size)]
                at += size
            begin += size * size
