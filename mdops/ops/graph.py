"""Graphs of atoms: edges between neighbours, angles between the edges of one atom, and ops that gather rows from nodes
to edges and sum them back in a fixed order."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.errors import GraphOverflowError, InputError, NeighborOverflowError
from mdops.ops._register import (
    as_non_leaf,
    call,
    last_derivative,
    register_fake,
    register_fake_like,
    register_formula,
)
from mdops.ops.displacements import displacements
from mdops.ops.env_mat import no_mask
from mdops.ops.neighbor import NeighborList, neighbor_list, neighbor_matrix, one_batch, unpack_images

ALL = 2**31 - 1  # a slot for each neighbour


class EdgeIndex(NamedTuple):
    """Which node each of E rows belongs to, and where the rows of each node are.

    Attributes:
        nodes: (E,) int32, the node; -1: none.
        order: (E,) int32, the rows of node 0 rising, then those of node 1, ...; None: the rows are in this order.
        offsets: (M + 1,) int32, where in `order` those of each of M nodes begin.
    """

    nodes: torch.Tensor
    order: torch.Tensor | None
    offsets: torch.Tensor

    @classmethod
    def of(cls, nodes: torch.Tensor, count: int) -> "EdgeIndex":
        """The index of rows in any order.

        Args:
            nodes: (E,) int32 below `count`, or -1.
            count: M.
        """
        return cls(nodes, *torch.ops.mdops.edge_order(nodes, count))


def parts_of(index: EdgeIndex) -> EdgeIndex:
    """An op's index argument. Raises InputError for anything else, such as a tensor of nodes alone."""
    if not isinstance(index, EdgeIndex):
        raise InputError(
            f"a {type(index).__name__} is no index of edges: expected an mdops.ops.EdgeIndex, as `graph.of_center` or "
            "`EdgeIndex.of(nodes, count)`"
        )
    return index


class Angles(NamedTuple):
    """Ordered pairs of edges of one atom, also of an edge with itself, sorted by first edge.

    Attributes:
        first, second: (A,) int32, the edges; -1 after the last angle.
        mirror: (A,) int32, the angle of the same two edges in the other order.
        offsets: (E + 1,) int32, where the angles of each first edge begin.
        needed: (2,) int64, the number of angles, and -1. If there is no room for them, there are none here.
            On a GPU: -1 and the atom whose `counts` do not fit, if there is one.
    """

    first: torch.Tensor
    second: torch.Tensor
    mirror: torch.Tensor
    offsets: torch.Tensor
    needed: torch.Tensor

    @property
    def of_first(self) -> EdgeIndex:
        """From an angle to its first edge."""
        return EdgeIndex(self.first, None, self.offsets)

    @property
    def of_second(self) -> EdgeIndex:
        """From an angle to its second edge."""
        return EdgeIndex(self.second, self.mirror, self.offsets)


class AngleEdges(NamedTuple):
    """The edges that form angles, sorted by atom, as M separate rows.

    Attributes:
        of_edge: from such a row to its edge; -1 after the last.
        of_center: from such a row to its atom.
        angles: between these rows.
    """

    of_edge: EdgeIndex
    of_center: EdgeIndex
    angles: Angles


@dataclasses.dataclass(frozen=True)
class NeighborGraph:
    """The edges i -> j of N atoms to their neighbours, sorted by atom, then by distance; and the angles between them.
    Shapes follow from capacities: after the last edge everything is -1.

    Attributes:
        i, j: (E,) int32, the atom, which is a row of the pair list, and its neighbour.
        images: (E,) int32, the neighbour's packed periodic image, 0 after the last edge.
        slots: (E,) int32, n K + k of the pair list (N, K).
        offsets: (N + 1,) int32, where the edges of each atom begin.
        edge_of_slot: (N, K) int32, the edge, or -1.
        angle_neighbors: (N,) int32, how many of an atom's edges, from the first on, form angles.
        within: (N, 2) int32, the number of neighbours within the cutoff of edges and of angles, with or without
            slots.
        needed: (2,) int64, the number of edges, and -1. If there is no room for them, there are none here. On a GPU,
            for values that do not fit: -1 (a type or counts) or -2 (a neighbour), and the atom.
        of_neighbor: from an edge to its neighbour j, one of M nodes.
        pairs: the list from which it was made.
        angles: None if they were not asked for.
        listed: (2,) int64, `needed` of `neighbor_matrix`, before the host has read it.
    """

    i: torch.Tensor
    j: torch.Tensor
    images: torch.Tensor
    slots: torch.Tensor
    offsets: torch.Tensor
    edge_of_slot: torch.Tensor
    angle_neighbors: torch.Tensor
    within: torch.Tensor
    needed: torch.Tensor
    of_neighbor: EdgeIndex
    pairs: NeighborList
    angles: Angles | None = None
    listed: torch.Tensor | None = None

    @property
    def capacity(self) -> int:
        """E."""
        return self.i.shape[0]

    @property
    def shifts(self) -> torch.Tensor:
        """(E, 3) int32: the pair vector is x_j - x_i + shifts . cell."""
        return unpack_images(self.images)

    @property
    def reverse(self) -> torch.Tensor:
        """(E,) int32: the edge j -> i of the opposite shift; -1 if it is absent, as with too few slots. For graphs
        whose atoms are the nodes 0 to N - 1. It is looked up each time."""
        reverse: torch.Tensor = torch.ops.mdops.edge_reverse(self.i, self.j, self.images, self.offsets)
        return reverse

    @property
    def of_center(self) -> EdgeIndex:
        """From an edge to its atom i."""
        return EdgeIndex(self.i, None, self.offsets)

    def vectors(self, displacements: torch.Tensor) -> torch.Tensor:
        """(E, 3), the pair vectors of the edges, from those of the list (N, K, 3); zeros after the last edge."""
        rows = displacements.reshape(-1, 3)
        return call("edge_permute", rows, self.slots, self.edge_of_slot.reshape(-1))

    def angle_edges(self, capacity: int | None = None) -> AngleEdges:
        """The edges that form angles, fewer than all.

        Args:
            capacity: M, room for so many, E if nothing else is known; None: their number, which waits for the
                device.
        """
        assert self.angles is not None
        counts = self.angle_neighbors
        if capacity is None:
            capacity = int(counts.sum())
        begins = torch.cat([counts.new_zeros(1), counts.cumsum(0, dtype=torch.int32)])
        centers = self.i.long().clamp(min=0)
        rank = torch.arange(self.capacity, device=counts.device) - self.offsets[centers]
        inside = (self.i >= 0) & (rank < counts[centers])
        edges = torch.nonzero_static(inside, size=capacity, fill_value=-1)[:, 0]
        of_center = torch.where(edges >= 0, self.i[edges.clamp(min=0)], -1) if self.capacity else edges.int()
        before = torch.cat([counts.new_zeros(1), inside.cumsum(0, dtype=torch.int32)])
        found = torch.ops.mdops.edge_angles(begins, counts, capacity, self.angles.first.shape[0])
        return AngleEdges(
            EdgeIndex(edges.int(), None, before), EdgeIndex(of_center, None, begins), Angles(*found)
        )

    def check(self) -> None:
        """Waits for the device and raises the errors that `needed` reports.

        Raises:
            NeighborOverflowError: an atom has more neighbours than a row of the list has room for.
            GraphOverflowError: there are more edges or angles than there is room for.
            InputError: a value does not fit; a CPU says this at once.
        """
        if self.listed is not None:
            longest, atom = self.listed.tolist()
            if longest < 0:
                raise InputError(
                    f"neighbor_graph: refused with code {longest} at {atom} (docs/reference/ops.md, On a GPU)"
                )
            if longest > self.pairs.neighbors.shape[1]:
                raise NeighborOverflowError(longest, self.pairs.neighbors.shape[1], atom)
        edges, atom = self.needed.tolist()
        if edges < 0:
            raise InputError(
                f"neighbor_edges: {_REFUSED[edges]} of atom {atom} is out of range in the pair list"
            )
        if edges > self.capacity:
            raise GraphOverflowError("edge", edges, self.capacity)
        if self.angles is not None:
            angles = int(self.angles.needed[0])
            if angles > self.angles.first.shape[0]:
                raise GraphOverflowError("angle", angles, self.angles.first.shape[0])

    @classmethod
    def of_list(
        cls,
        pairs: NeighborList,
        displacements: torch.Tensor,
        types: torch.Tensor,
        cutoff: float,
        *,
        angle_cutoff: float = 0.0,
        edge_sel: int | None = None,
        angle_sel: int | None = None,
        pair_mask: torch.Tensor | None = None,
        nodes: int | None = None,
        edge_capacity: int | None = None,
        angle_capacity: int | None = None,
    ) -> "NeighborGraph":
        """The graph of a pair list, which may hold pairs beyond the cutoff.

        With both capacities no shape depends on the data and nothing waits for the device: such a call compiles with
        `fullgraph=True` and can be captured in a CUDA graph. Its caller asks `check` when it may wait.

        Args:
            pairs: (N, K), of `neighbor_list`, with a cutoff that is not below `cutoff`.
            displacements: (N, K, 3), its pair vectors, A; whether a pair is an edge is decided in their dtype.
            types: (N,) int32, of the atoms; -1 is a virtual atom.
            cutoff: of edges, A; a distance that is NaN counts as near.
            angle_cutoff: of the neighbours that form angles, A; 0: no angles.
            edge_sel: how many of an atom's nearest neighbours within the cutoff get slots; None: all. At equal
                distance the lower j goes first, then the lower packed image.
            angle_sel: how many of these, from the first on, may form angles; None: all.
            pair_mask: (ntypes, ntypes) bool: pairs of types that are not edges, but take slots; None: no pairs.
            nodes: M, if `j` may be more than the N atoms of the list; None: N.
            edge_capacity: E, room for so many edges; None: their number, which waits for the device.
            angle_capacity: A, the same for angles.

        Raises:
            InputError: the list's cutoff is shorter.
            GraphOverflowError: a capacity is too small, if the other is None.
            RuntimeError: a shape, dtype or device does not match, or (on a CPU) a value is out of range.
        """
        if pairs.cutoff < cutoff:
            raise InputError(f"the pair list ends at {pairs.cutoff:g} A, before the cutoff of {cutoff:g} A")
        mask = no_mask(pairs.counts) if pair_mask is None else pair_mask
        nodes = displacements.shape[0] if nodes is None else nodes
        places = (ALL if sel is None else sel for sel in (edge_sel, angle_sel))
        lists = pairs.neighbors, pairs.images, pairs.counts, types, mask
        given = displacements.detach(), *lists, float(cutoff), float(angle_cutoff), *places, nodes

        def edges(capacity: int | None) -> "NeighborGraph":
            room = lists[0].numel() if capacity is None else capacity
            i, j, *others = torch.ops.mdops.neighbor_edges(*given, room)
            images, slots, offsets, edge_of_slot, angle_neighbors, within, needed = others
            if capacity is None:  # rows after the last edge are removed
                count = max(0, int(needed[0]))
                i, j, images, slots = (own[:count] for own in (i, j, images, slots))
            first = i, j, images, slots, offsets, edge_of_slot
            return cls(*first, angle_neighbors, within, needed, EdgeIndex.of(j, nodes), pairs)

        def angles(graph: "NeighborGraph", capacity: int) -> Angles:
            counts = graph.angle_neighbors
            return Angles(*torch.ops.mdops.edge_angles(graph.offsets, counts, graph.capacity, capacity))

        waits = edge_capacity is None or (angle_cutoff > 0 and angle_capacity is None)
        graph = edges(edge_capacity)
        if angle_cutoff > 0:
            if angle_capacity is None:
                angle_capacity = max(0, int(angles(graph, 0).needed[0]))
            graph = dataclasses.replace(graph, angles=angles(graph, angle_capacity))
        if waits:
            graph.check()
        return graph


_REFUSED = {-1: "the type or a count", -2: "a neighbour"}


def neighbor_graph(
    positions: torch.Tensor,
    cell: torch.Tensor | None,
    pbc: torch.Tensor | bool | Sequence[bool] | None,
    types: torch.Tensor,
    cutoff: float,
    *,
    angle_cutoff: float = 0.0,
    edge_sel: int | None = None,
    angle_sel: int | None = None,
    pair_mask: torch.Tensor | None = None,
    batch: torch.Tensor | None = None,
    ntypes: int | None = None,
    capacity: int | None = None,
    edge_capacity: int | None = None,
    angle_capacity: int | None = None,
) -> NeighborGraph:
    """The edges between the atoms of one system or a batch, and the angles between the edges of each atom.

    >>> positions = torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.0, 1.5, 0.0]], dtype=torch.float64)
    >>> types = torch.tensor([0, 1, 1], dtype=torch.int32)
    >>> graph = neighbor_graph(positions, None, None, types, 1.6, angle_cutoff=1.2)
    >>> graph.i.tolist(), graph.j.tolist(), graph.reverse.tolist()
    ([0, 0, 1, 2], [1, 2, 0, 0], [2, 3, 0, 1])
    >>> graph.angles.first.tolist(), graph.angles.second.tolist()
    ([0, 2], [0, 2])

    Args:
        positions, cell, pbc, types, cutoff, batch, ntypes: as for `neighbor_list`.
        capacity: room for so many neighbours in a row of the pair list; None: for their number.
        angle_cutoff, edge_sel, angle_sel, pair_mask, edge_capacity, angle_capacity: as for `NeighborGraph.of_list`.
            With these capacities, `capacity` and `ntypes` no shape depends on the data, nothing waits for the device,
            and the caller asks `NeighborGraph.check`.

    Raises:
        NeighborOverflowError, GraphOverflowError: a capacity is too small, if another is None.
        InputError, RuntimeError: an argument that does not fit; the message names it.
    """
    cell, pbc, batch = one_batch(positions, cell, pbc, batch)
    listed = None
    if capacity is None or edge_capacity is None or (angle_cutoff > 0 and angle_capacity is None):
        pairs = neighbor_list(
            positions, cell, pbc, types, cutoff, batch=batch, ntypes=ntypes, capacity=capacity
        )
    else:
        if ntypes is None:
            ntypes = max(1, int(types.max()) + 1) if types.numel() else 1
        found = positions.detach(), cell.detach(), pbc, batch, types, float(cutoff), ntypes
        neighbors, images, counts, listed = neighbor_matrix(*found, capacity)
        pairs = NeighborList(neighbors, images, counts, float(cutoff))
    d = displacements(positions.detach(), cell.detach(), batch, pairs.neighbors, pairs.images)
    graph = NeighborGraph.of_list(
        pairs,
        d,
        types,
        cutoff,
        angle_cutoff=angle_cutoff,
        edge_sel=edge_sel,
        angle_sel=angle_sel,
        pair_mask=pair_mask,
        edge_capacity=edge_capacity,
        angle_capacity=angle_capacity,
    )
    if listed is not None:
        return dataclasses.replace(graph, listed=listed)
    graph.check()
    return graph


def edge_gather(
    x: torch.Tensor, of: EdgeIndex, base: torch.Tensor | None = None, width: int | None = None
) -> torch.Tensor:
    """The row of each edge's node: y[e] = base[e] + x[nodes[e]], zeros in the place of x where that is -1. The
    transpose of `edge_scatter`; differentiable any number of times.

    Args:
        x: (M, W) float32 or float64.
        of: of E edges and M nodes.
        base: (E, V); None: zeros.
        width: V, the number of columns, from the first on; None: W.

    Returns:
        (E, V).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) `of` does not name each row once under its
            own node. A GPU answers NaN in rows whose index is out of range.
    """
    return call("edge_gather", x, *parts_of(of), base, x.shape[1] if width is None else width)


def edge_scatter(
    y: torch.Tensor,
    of: EdgeIndex,
    base: torch.Tensor | None = None,
    more: torch.Tensor | None = None,
    width: int | None = None,
) -> torch.Tensor:
    """The sum of the edges of each node: x[m] = base[m] + more[m] + sum of y[e] over the edges of m, in the order of
    `of`, so that the bits are the same in every run. The transpose of `edge_gather`; differentiable any number of
    times.

    Args:
        y: (E, V) float32 or float64.
        of: of E edges and M nodes.
        base: (M, W); None: zeros.
        more: (M, W), or (1, W), the same for all nodes; None: zeros.
        width: W; y has the first V of its columns, then come zeros; None: V.

    Returns:
        (M, W).

    Raises:
        RuntimeError: as for `edge_gather`. A GPU answers NaN in rows of nodes for which `of` names other edges.
    """
    return call("edge_scatter", y, *parts_of(of), base, more, y.shape[1] if width is None else width)


class _SharedRows(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor, width: int, *of: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.view_as(x), x.view_as(x), torch.ops.mdops.edge_gather(x, *of, None, width)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        base, more, rows = (grad.contiguous() for grad in grads)
        by_x = edge_scatter(rows, EdgeIndex(*ctx.saved_tensors), base, more, base.shape[1])
        return by_x, None, None, None, None


def shared_rows(
    x: torch.Tensor, of: EdgeIndex, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, x and the first `width` columns of `edge_gather(x, of)`, for three readers: their gradients are added in one
    pass."""
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _SharedRows.apply(x, width, *of)
    return found


def edge_product(x: torch.Tensor, of_x: EdgeIndex, y: torch.Tensor, of_y: EdgeIndex) -> torch.Tensor:
    """The product of the rows of each edge's two nodes, number by number: z[e] = x[of_x[e]] y[of_y[e]], zeros where
    one is -1. Its gradients are `edge_weighted_sum`; differentiable any number of times.

    Args:
        x, y: (M, W), (M', W) float32 or float64.
        of_x, of_y: of E edges and M nodes, or M'.

    Returns:
        (E, W).

    Raises:
        RuntimeError: as for `edge_gather`.
    """
    return call("edge_product", x, *parts_of(of_x), y, *parts_of(of_y))


def edge_weighted_sum(weight: torch.Tensor, x: torch.Tensor, of_x: EdgeIndex, of: EdgeIndex) -> torch.Tensor:
    """The sum over the edges of each node of their weights times the rows of other nodes, number by number:
    z[m] = sum of weight[e] x[of_x[e]] over the edges of m, in the order of `of`; edges with -1 in `of_x` add nothing.
    Its gradients are `edge_product` and `edge_weighted_sum`; differentiable any number of times.

    Args:
        weight: (E, W) float32 or float64.
        x: (M', W).
        of_x, of: of E edges and M' nodes, or M.

    Returns:
        (M, W).

    Raises:
        RuntimeError: as for `edge_scatter`.
    """
    return call("edge_weighted_sum", weight, x, *parts_of(of_x), *parts_of(of))


def edge_permute(x: torch.Tensor, index: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Rows in another order, some of them left out: y[e] = x[index[e]], zeros where that is -1. Differentiable any
    number of times, by `edge_permute` with the two indices exchanged. `graph.reverse` is its own inverse.

    Args:
        x: (M, W) float32 or float64.
        index: (E,) int32, each row of x at most once; or -1.
        inverse: (M,) int32, where each row went to, or -1: index[inverse[m]] = m.

    Returns:
        (E, W).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) one is not the inverse of the other. A GPU
            answers NaN in such rows.
    """
    return call("edge_permute", x, index, inverse)


def segment_softmax(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """exp(x) over its sum in each segment, separately for each column: over the edges of an atom by `graph.offsets`,
    over the angles of an edge by `graph.angles.offsets`. Twice differentiable.

    Args:
        x: (E, H) float32 or float64.
        offsets: (S + 1,) int32, where the rows of each segment begin, from 0 on; rows after the last segment are in
            none.

    Returns:
        (E, H), zeros in rows of no segment.

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) `offsets` falls or goes beyond E. A GPU
            answers NaN in rows of such segments.
    """
    return call("segment_softmax", x, offsets)


def segment_weights(
    x: torch.Tensor, weight: torch.Tensor, nothing: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """w exp(x) over its sum in each segment plus n, the term of no row, separately for each column: `segment_softmax`
    of x + log w with one more row of log n. Twice differentiable.

    Args:
        x: (E, H) float32 or float64.
        weight: w (E, 1), not negative. nothing: n (H,), positive.
        offsets: (S + 1,) int32, as there.

    Returns:
        (E, H), zeros in rows of no segment and where w is zero.

    Raises:
        RuntimeError: as there.
    """
    return call("segment_weights", x, weight, as_non_leaf(nothing), offsets)


@register_fake("neighbor_edges")
def _(displacements: Any, neighbors: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    atoms, edges = displacements.shape[0], args[-1]
    shapes = [(edges,)] * 4 + [(atoms + 1,), neighbors.shape, (atoms,), (atoms, 2)]
    made = [displacements.new_empty(shape, dtype=torch.int32) for shape in shapes]
    return *made, displacements.new_empty(2, dtype=torch.int64)


register_fake_like("edge_reverse", 0)


@register_fake("edge_order")
def _(index: Any, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return index.new_empty(index.shape), index.new_empty(rows + 1)


@register_fake("edge_angles")
def _(offsets: Any, counts: Any, edges: Any, capacity: Any) -> tuple[torch.Tensor, ...]:
    made = (offsets.new_empty(size) for size in (capacity, capacity, capacity, edges + 1))
    return *made, offsets.new_empty(2, dtype=torch.int64)


@register_fake("edge_gather")
def _(x: Any, index: Any, order: Any, offsets: Any, base: Any, width: Any) -> torch.Tensor:
    return x.new_empty(index.shape[0], width)


@register_fake("edge_scatter")
def _(y: Any, index: Any, order: Any, offsets: Any, base: Any, more: Any, width: Any) -> torch.Tensor:
    return y.new_empty(offsets.shape[0] - 1, width)


@register_fake("edge_product")
def _(x: Any, x_index: Any, *args: Any) -> torch.Tensor:
    return x.new_empty(x_index.shape[0], x.shape[1])


@register_fake("edge_weighted_sum")
def _(weight: Any, *args: Any) -> torch.Tensor:
    return weight.new_empty(args[-1].shape[0] - 1, weight.shape[1])


@register_fake("edge_permute")
def _(x: Any, index: Any, inverse: Any) -> torch.Tensor:
    return x.new_empty(index.shape[0], x.shape[1])


register_fake_like("segment_softmax", 0)
register_fake_like("segment_softmax_backward", 1)
register_fake_like("segment_softmax_backward_backward", 2, 2)


register_fake_like("segment_weights", 0)


@register_fake("segment_weights_backward")
def _(grad: Any, x: Any, weight: Any, nothing: Any, offsets: Any) -> tuple[torch.Tensor, ...]:
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(offsets.shape[0] - 1, x.shape[1])


@register_fake("segment_weights_backward_backward")
def _(along_x: Any, along_weight: Any, along_nothing: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    made = along_x, along_x, along_x, along_nothing
    return tuple(value.new_empty(value.shape) for value in made)


def _gather_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    by_x = edge_scatter(grads[0], EdgeIndex(*args[1:4]), width=args[0].shape[1]) if needs[0] else None
    return by_x, grads[0] if needs[1] else None


def _scatter_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    grad, of, more = grads[0], EdgeIndex(*args[1:4]), args[5]
    by_more = grad.sum(0, keepdim=True) if needs[2] and len(more) == 1 != len(grad) else grad
    return edge_gather(grad, of, width=args[0].shape[1]) if needs[0] else None, *(
        by if need else None for by, need in zip((grad, by_more), needs[1:], strict=True)
    )


def _product_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (x, y), (of_x, of_y) = (args[0], args[4]), (EdgeIndex(*args[1:4]), EdgeIndex(*args[5:]))
    by_x = edge_weighted_sum(grads[0], y, of_y, of_x) if needs[0] else None
    by_y = edge_weighted_sum(grads[0], x, of_x, of_y) if needs[1] else None
    return by_x, by_y


def _weighted_sum_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (weight, x), (of_x, of) = args[:2], (EdgeIndex(*args[2:5]), EdgeIndex(*args[5:]))
    by_weight = edge_product(grads[0], of, x, of_x) if needs[0] else None
    by_x = edge_weighted_sum(weight, grads[0], of, of_x) if needs[1] else None
    return by_weight, by_x


def _permute_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    _, index, inverse = args
    return (edge_permute(grads[0], inverse, index),)


def _softmax_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("segment_softmax_backward", grads[0], *args),)


def _softmax_backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return last_derivative("segment_softmax_backward_backward", grads[0], *args)


def _of_all(by_weight: torch.Tensor, by_nothing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients by weights and by `nothing`, from those of each column and of each segment."""
    return by_weight if by_weight.shape[1] == 1 else by_weight.sum(1, keepdim=True), by_nothing.sum(0)


def _weights_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    by_x, by_weight, by_nothing = call("segment_weights_backward", grads[0], *args)
    return by_x, *_of_all(by_weight, by_nothing)


def _weights_backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    by_grad, by_x, by_weight, by_nothing = last_derivative("segment_weights_backward_backward", *grads, *args)
    return by_grad, by_x, *_of_all(by_weight, by_nothing)


register_formula("segment_weights", _weights_formula, (0, 1, 2))
register_formula("segment_weights_backward", _weights_backward_formula, (0, 1, 2, 3))
register_formula("edge_gather", _gather_formula, (0, 4))
register_formula("edge_scatter", _scatter_formula, (0, 4, 5))
register_formula("edge_product", _product_formula, (0, 4))
register_formula("edge_weighted_sum", _weighted_sum_formula, (0, 1))
register_formula("edge_permute", _permute_formula, (0,))
register_formula("segment_softmax", _softmax_formula, (0,))
register_formula("segment_softmax_backward", _softmax_backward_formula, (0, 1))
