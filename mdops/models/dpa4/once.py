"""Blocks of DPA-4 as one node of autograd each (`mdops.ops._once`), for usual options: one group of channels, one head
of attention, |m| up to 1, and products on grids of rotations."""

from typing import NamedTuple

import torch

from mdops.ops import EdgeIndex
from mdops.ops._once import Trace


class NormOnce(NamedTuple):
    """The constants of `degree_norm`, in their order."""

    factors: torch.Tensor
    bias: torch.Tensor
    shares: torch.Tensor
    eps: float
    centered: bool


class GridOnce(NamedTuple):
    """A product of two functions, computed from rows of D coefficients in C channels.

    Attributes:
        left, right: (D, C, K C'), weights of both functions' coefficients in K frames.
        to, back, by_angles: of `grid_product`.
        mixed: (C', C), mixes channels after the product; None: nothing does.
        gate: (2 C, C), for the scalars.
        last: (D, K C, C), from the gated product to rows.
    """

    left: torch.Tensor
    right: torch.Tensor
    to: torch.Tensor
    back: torch.Tensor
    by_angles: bool
    mixed: torch.Tensor | None
    gate: torch.Tensor
    last: torch.Tensor


class ForwardOnce(NamedTuple):
    """A layer of each atom alone; scalars: (C, 2 C'), for the scalars of both functions."""

    before: NormOnce | None
    grid: GridOnce
    scalars: torch.Tensor
    after: NormOnce | None


class MessagesOnce(NamedTuple):
    """Messages of C channels, degrees up to L.

    Attributes:
        before, after: norms, or None.
        first, last: (D, C, C), weights of the first and the last product.
        norm, ends, gates: of scalars; (C, 2 C), for queries and keys; and (C, C), for gates of the sums.
        nothing, scale: of `edge_softmax`.
        channels: (C,), factors of the rows of nodes; None: ones.
        layers: arguments of `so2_messages`. rescale: (D, 1), factors of the sums.
        output: (D, C, C), after the gates; None: nothing.
        grid: the product of the sums and the atom's own rows; None: nothing.
    """

    before: NormOnce | None
    after: NormOnce | None
    first: torch.Tensor
    last: torch.Tensor
    norm: NormOnce
    ends: torch.Tensor
    gates: torch.Tensor
    nothing: torch.Tensor
    scale: float
    channels: torch.Tensor | None
    layers: tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]
    rescale: torch.Tensor
    output: torch.Tensor | None
    grid: GridOnce | None


class BlockOnce(NamedTuple):
    messages: MessagesOnce
    forwards: tuple[ForwardOnce, ...]

    def rows(
        self,
        of_center: EdgeIndex,
        of_neighbor: EdgeIndex,
        trace: Trace,
        x: torch.Tensor,
        *of_edges: torch.Tensor,
    ) -> torch.Tensor:
        """Maps rows x (N, D, C) to rows of that shape.

        Args:
            of_edges: vectors (E, 3); mixtures (E, ..), as in `order_mix`; logits (E, 1), their biases by lengths and
                types; envelopes (E, 1).
        """
        ends = of_center, of_neighbor
        found = _received(trace, self.messages, ends, x, *of_edges)
        x = trace.sum(x, found)
        for own in self.forwards:
            rows = _normed(trace, own.before, x)
            found = _on_grid(trace, own.grid, rows, rows, trace.product(trace.first(rows), own.scalars))
            x = trace.sum(x, _normed(trace, own.after, found))
        return x


def _received(
    trace: Trace,
    own: MessagesOnce,
    ends: tuple[EdgeIndex, EdgeIndex],
    x: torch.Tensor,
    vectors: torch.Tensor,
    mixtures: torch.Tensor,
    logits: torch.Tensor,
    envelope: torch.Tensor,
) -> torch.Tensor:
    of_center, of_neighbor = ends
    x = trace.product_of_each(_normed(trace, own.before, x), own.first)
    scalars = trace.first(x)
    normed = _normed(trace, own.norm, trace.shaped(scalars, len(x), 1, scalars.shape[1]))
    normed = trace.shaped(normed, *scalars.shape)
    width = own.ends.shape[1] // 2
    queries, keys = (trace.product(normed, part) for part in own.ends.split(width, 1))
    given = queries, keys, logits, envelope, own.nothing, of_center.nodes, of_center.offsets
    weights = trace.op("edge_softmax", *given, *of_neighbor, own.scale)
    nodes = x if own.channels is None else trace.scaled(x, own.channels)
    of_edges = vectors, mixtures, nodes, weights, *of_neighbor, *of_center
    found, _ = trace.op("so2_messages", *of_edges, *own.layers, "float32")
    found = trace.scaled(found, own.rescale)
    found = trace.op("row_gate", found, trace.product(normed, own.gates))
    if own.output is not None:
        found = trace.product_of_each(found, own.output)
    if own.grid is not None:
        both = trace.beside(trace.first(found), scalars)
        found = trace.sum(found, _on_grid(trace, own.grid, found, x, both))
    return _normed(trace, own.after, trace.product_of_each(found, own.last))


def _normed(trace: Trace, own: NormOnce | None, x: torch.Tensor) -> torch.Tensor:
    if own is None:
        return x
    found: torch.Tensor = trace.op("degree_norm", x, *own)
    return found


def _on_grid(
    trace: Trace, own: GridOnce, x: torch.Tensor, y: torch.Tensor, scalars: torch.Tensor
) -> torch.Tensor:
    """The product of two functions, linear in x and y (N, D, C), gated by scalars (N, 2 C')."""
    count, degrees, coefficients = len(x), x.shape[1], own.to.shape[1]
    shape = count, coefficients, degrees * own.left.shape[2] // coefficients
    left = trace.shaped(trace.product_of_each(x, own.left), *shape)
    right = trace.shaped(trace.product_of_each(y, own.right), *shape)
    found = trace.op("grid_product", own.to, own.to, own.back, left, right, own.by_angles)
    if own.mixed is not None:
        found = trace.product(found, own.mixed)
    found = trace.op("scalar_gate", found, trace.product(scalars, own.gate), scalars)
    return trace.product_of_each(trace.shaped(found, count, degrees, own.last.shape[1]), own.last)
