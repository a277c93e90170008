"""A layer of DPA-2 with its first derivatives written out, for simulations on a CPU: weights are constants there, and
autograd, which would record every operation, takes as long for a step of some hundred atoms as many of them."""

from typing import Any, NamedTuple

import torch

from mdops.ops import EdgeIndex
from mdops.ops.edge_layer import EdgeLayerWeights

OPS = torch.ops.mdops


class NodeWeights(NamedTuple):
    """What nodes of C numbers get from edges of K numbers; None or empty for what the layer has not.

    Attributes:
        keep: the factor of the old numbers.
        own, own_bias, own_factor: (C, C), (C,), (C,), of the node's own message.
        filters, filters_factor: (K, C), (C,), of the convolution.
        of_nodes, of_edges, of_neighbors: the rows of the product of all that multiply the node (C, C), and the
            symmetric sums of edges (K axis, C) and of neighbours (axis C, C).
        bias, factor: (C,), of the product of all.
        axis: columns of the symmetric sums.
    """

    keep: float
    own: torch.Tensor | None
    own_bias: torch.Tensor | None
    own_factor: torch.Tensor | None
    filters: torch.Tensor
    filters_factor: torch.Tensor | None
    of_nodes: torch.Tensor | None
    of_edges: torch.Tensor | None
    of_neighbors: torch.Tensor | None
    bias: torch.Tensor
    factor: torch.Tensor
    axis: int


class LayerOnce(NamedTuple):
    """A layer.

    Attributes:
        nodes: what it makes of nodes. edges: of edges, and the factor of the old numbers; None: edges go nowhere.
        activation: the code of f and its threshold.
        shift, gated, eps: of the attention of edges.
    """

    nodes: NodeWeights
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


def _of_neighbors(weights: NodeWeights, e: Any, turning: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What `edge_convolution` takes of edges: their numbers, and vectors, or no columns."""
    filters = weights.filters_factor is not None
    return (e if filters else e[:, :0]), (turning if weights.of_neighbors is not None else turning[:, :0])


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
    """The new nodes, and what their gradients need of the way: sums over neighbours, over edges, the product
    of all and the own one; empty for what there is not."""
    w, axis, none = layer.nodes, layer.nodes.axis, nodes.new_empty(0)
    sums = of_edges = z_own = none
    z = w.bias.expand(len(nodes), -1) if w.of_nodes is None else torch.addmm(w.bias, nodes, w.of_nodes)
    if w.filters_factor is not None or w.of_neighbors is not None:
        numbers, vectors = _of_neighbors(w, e, turning)
        ends = *graph.of_neighbor, *graph.of_center
        sums = OPS.edge_convolution(nodes, numbers, mean_weight[:, 0], vectors, w.filters, *ends)
    if w.of_edges is not None:
        of_edges = OPS.row_moments(turning, e, graph.of_center.offsets, False)
        z = torch.addmm(z, OPS.axis_product(of_edges, axis, None), w.of_edges)
    if w.of_neighbors is not None:
        t = sums[:, 1:]
        z = torch.addmm(z, torch.bmm(t[:, :, :axis].mT, t).flatten(1), w.of_neighbors)
    f = OPS.layer_output(z, z[:, :0], *layer.activation)
    new = torch.addcmul(nodes if w.keep == 1 else nodes * w.keep, f, w.factor)
    if w.filters_factor is not None:
        new.addcmul_(sums[:, 0], w.filters_factor)
    if w.own is not None:
        assert w.own_bias is not None and w.own_factor is not None
        z_own = torch.addmm(w.own_bias, nodes, w.own)
        new.addcmul_(OPS.layer_output(z_own, z_own[:, :0], *layer.activation), w.own_factor)
    return new, (sums, of_edges, z, z_own)


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
    w, axis = layer.nodes, layer.nodes.axis
    by_nodes = grad if w.keep == 1 else grad * w.keep
    if w.own is not None:
        by_z = OPS.layer_output_backward(grad * w.own_factor, z_own, 0, *layer.activation)[0]
        by_nodes = torch.addmm(by_nodes, by_z, w.own.mT)
    by_z = OPS.layer_output_backward(grad * w.factor, z, 0, *layer.activation)[0]
    if w.of_nodes is not None:
        by_nodes = torch.addmm(by_nodes, by_z, w.of_nodes.mT)
    by_e = by_mean = by_turning = None
    if w.of_edges is not None:
        by_sums = OPS.axis_product_backward(torch.mm(by_z, w.of_edges.mT), of_edges, axis)
        by_turning, by_e = OPS.row_moments_backward(by_sums, turning, e, graph.of_center.offsets, False)
    if not sums.numel():
        return by_nodes, by_e, by_mean, by_turning
    by_all = torch.empty_like(sums)
    if w.filters_factor is None:
        by_all[:, 0] = 0
    else:
        torch.mul(grad, w.filters_factor, out=by_all[:, 0])
    if w.of_neighbors is not None:
        t, by_t = sums[:, 1:], by_all[:, 1:]
        by_product = torch.mm(by_z, w.of_neighbors.mT).view(len(nodes), axis, -1)
        by_t.copy_(torch.bmm(t[:, :, :axis], by_product))
        by_t[:, :, :axis].add_(torch.bmm(t, by_product.mT))
    numbers, vectors = _of_neighbors(w, e, turning)
    known = mean_weight[:, 0]
    ends = *graph.of_center, *graph.of_neighbor
    by_nodes = OPS.edge_convolution_nodes(by_all, numbers, known, vectors, w.filters, *ends).add_(by_nodes)
    by_b, by_w, by_t = OPS.edge_convolution_edges(by_all, nodes, numbers, known, w.filters, *ends)
    if w.filters_factor is not None:
        by_e = by_b if by_e is None else by_e.add_(by_b)
        by_mean = by_w[:, None]
    if w.of_neighbors is not None:
        by_turning = by_t if by_turning is None else by_turning.add_(by_t)
    return by_nodes, by_e, by_mean, by_turning
