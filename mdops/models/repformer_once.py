"""A layer of DPA-2 with its first derivatives written out, for simulations on a CPU: weights are constants there, and
autograd, which would record every operation, takes as long for a step of some hundred atoms as many of them."""

from typing import Any, NamedTuple

import torch

from mdops.ops import EdgeIndex
from mdops.ops.edge_layer import EdgeLayerWeights
from mdops.ops.node_layer import NodeLayerWeights

OPS = torch.ops.mdops


class NodesOnce(NamedTuple):
    """What nodes of C numbers get from edges of K numbers.

    Attributes:
        weights, packed: of `node_layer`. filters: (K, C), of the convolution; (0, C): there is none.
        product: (K, M), by which sums of edges are multiplied; None: they are as they are.
        sums_edges, sums_neighbors: whether symmetric sums of edges, and of neighbours, are there.
        takes_nodes, keep, axis: of `node_layer`.
    """

    weights: NodeLayerWeights
    packed: tuple[torch.Tensor, torch.Tensor]
    filters: torch.Tensor
    product: torch.Tensor | None
    sums_edges: bool
    sums_neighbors: bool
    takes_nodes: bool
    keep: float
    axis: int


class LayerOnce(NamedTuple):
    """A layer.

    Attributes:
        nodes: what it makes of nodes. edges: of edges, and the factor of the old numbers; None: edges go nowhere.
        activation: the code of f and its threshold.
        shift, gated, eps: of the attention of edges.
    """

    nodes: NodesOnce
    edges: tuple[float, EdgeLayerWeights] | None
    activation: tuple[int, float]
    shift: float
    gated: bool
    eps: float


class GraphOnce(NamedTuple):
    """Of the edges, what has no derivative.

    Attributes:
        of_neighbor, of_center: from an edge to its nodes. absent: (N,), places without a neighbour.
    """

    of_neighbor: EdgeIndex
    of_center: EdgeIndex
    absent: torch.Tensor


def layer_once(
    layer: LayerOnce,
    graph: GraphOnce,
    nodes: torch.Tensor,
    e: torch.Tensor,
    r: torch.Tensor,
    weight: torch.Tensor,
    mean_weight: torch.Tensor,
    turning: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The new numbers of nodes (N, C) and of edges (E, K), differentiable once.

    Args:
        nodes: (N, C). e: (E, K). r: (E, 3), of the attention of edges.
        weight, mean_weight: (E, 1), the switch, and what means are weighed with.
        turning: (E, 3), the edges' vectors, weighed for the symmetric sums.
    """
    found: tuple[torch.Tensor, torch.Tensor | None] = _Layer.apply(
        layer, graph, nodes, e, r, weight, mean_weight, turning
    )
    return found


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: LayerOnce, graph: GraphOnce, *given: torch.Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            new, of_nodes = _nodes(layer, graph, *given)
            made, of_edges = (None, ()) if layer.edges is None else _edges(layer, graph, *given)
        ctx.layer, ctx.graph = layer, graph
        ctx.save_for_backward(*given, *of_nodes, *of_edges)
        return new, made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_new: torch.Tensor, by_made: torch.Tensor | None) -> Any:
        kept = ctx.saved_tensors
        given, of_nodes, of_edges = kept[:6], kept[6:10], kept[10:]
        _, e, r, weight, _, _ = given
        with torch._C._AutoDispatchBelowAutograd():
            by_nodes, by_e, by_mean, by_turning = _by_nodes(ctx.layer, ctx.graph, by_new, *given, *of_nodes)
            by_r = by_weight = None
            if by_made is not None and ctx.layer.edges is not None:
                args = _edge_arguments(ctx.layer, ctx.graph, e, r, weight)
                own, *of_attention = OPS.edge_layer_backward(by_made.contiguous(), *of_edges, *args)
                by_e = own if by_e is None else by_e.add_(own)
                if len(ctx.layer.edges[1].queries):
                    by_r, by_weight = of_attention[0], of_attention[1][:, None]
        return None, None, by_nodes, by_e, by_r, by_weight, by_mean, by_turning


def _edge_arguments(
    layer: LayerOnce, graph: GraphOnce, e: torch.Tensor, r: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    assert layer.edges is not None
    keep, weights = layer.edges
    scalars = (keep, layer.shift, layer.gated, layer.eps, *layer.activation)
    return e, r, weight[:, 0], graph.absent, graph.of_center.offsets, *weights, *scalars


def _edges(
    layer: LayerOnce, graph: GraphOnce, nodes: Any, e: Any, r: Any, weight: Any, *_: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
    made, saved = OPS.edge_layer(*_edge_arguments(layer, graph, e, r, weight))
    return made, (saved,)


def _of_neighbors(nodes: NodesOnce, e: Any, turning: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What `edge_convolution` takes of edges: their numbers, and vectors, or no columns."""
    return (e if len(nodes.filters) else e[:, :0]), (turning if nodes.sums_neighbors else turning[:, :0])


def _node_arguments(layer: LayerOnce) -> tuple[Any, ...]:
    own = layer.nodes
    return *own.weights, own.takes_nodes, own.keep, own.axis, *layer.activation


def _nodes(
    layer: LayerOnce,
    graph: GraphOnce,
    nodes: Any,
    e: Any,
    r: Any,
    weight: Any,
    mean_weight: Any,
    turning: Any,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The new nodes, and what their gradients need of the way: sums over neighbours and over edges, and what f is
    taken of."""
    own = layer.nodes
    sums, of_edges = nodes.new_empty(len(nodes), 0, nodes.shape[1]), e.new_empty(len(nodes), 0, e.shape[1])
    if len(own.filters) or own.sums_neighbors:
        numbers, vectors = _of_neighbors(own, e, turning)
        ends = *graph.of_neighbor, *graph.of_center
        sums = OPS.edge_convolution(nodes, numbers, mean_weight[:, 0], vectors, own.filters, *ends)
    if own.sums_edges:
        of_edges = OPS.row_moments(turning, e, graph.of_center.offsets, False, None, None, None)
        if own.product is not None:
            of_edges = of_edges @ own.product
    new, *inner = OPS.node_layer(nodes, sums, of_edges, *_node_arguments(layer), own.packed[0])
    return new, (sums, of_edges, *inner)


def _by_nodes(
    layer: LayerOnce,
    graph: GraphOnce,
    grad: Any,
    nodes: Any,
    e: Any,
    r: Any,
    weight: Any,
    mean_weight: Any,
    turning: Any,
    sums: Any,
    of_edges: Any,
    z: Any,
    z_own: Any,
) -> tuple[Any, ...]:
    """The gradients by nodes, e, mean_weight and turning."""
    own, by_e, by_mean, by_turning = layer.nodes, None, None, None
    given = nodes, sums, of_edges, *_node_arguments(layer)
    by_nodes, by_sums, by_edges = OPS.node_layer_backward(grad.contiguous(), z, z_own, *given, own.packed[1])
    if own.product is not None and own.sums_edges:
        by_edges = by_edges @ own.product.T
    numbers, vectors = _of_neighbors(own, e, turning)
    known, ends = mean_weight[:, 0], (*graph.of_center, *graph.of_neighbor)
    if sums.shape[1]:
        by_nodes.add_(OPS.edge_convolution_nodes(by_sums, numbers, known, vectors, own.filters, *ends))
    if own.sums_edges and own.sums_neighbors and len(own.filters):
        edges = by_edges, nodes, e, known, turning, own.filters
        by_e, by_w, by_turning = OPS.edge_convolution_own(by_sums, *edges, *ends)
        return by_nodes, by_e, by_w[:, None], by_turning
    if own.sums_edges:
        rest = graph.of_center.offsets, False, None, None, None
        by_turning, by_e = OPS.row_moments_backward(by_edges, turning, e, *rest)
    if not sums.shape[1]:
        return by_nodes, by_e, by_mean, by_turning
    by_b, by_w, by_t = OPS.edge_convolution_edges(by_sums, nodes, numbers, known, own.filters, *ends)
    if len(own.filters):
        by_e = by_b if by_e is None else by_e.add_(by_b)
        by_mean = by_w[:, None]
    if own.sums_neighbors:
        by_turning = by_t if by_turning is None else by_turning.add_(by_t)
    return by_nodes, by_e, by_mean, by_turning
