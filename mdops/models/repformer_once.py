"""Layers of DPA-2 with their first derivatives written out (`mdops.ops._once`)."""

from typing import Any, NamedTuple

import torch

from mdops.models.length_basis import LengthBasis
from mdops.ops import EdgeIndex
from mdops.ops._once import OPS, added, once
from mdops.ops.edge_layer import EdgeLayerWeights
from mdops.ops.node_layer import NodeLayerWeights


class NodesOnce(NamedTuple):
    """The messages to nodes of C features from edges of K features.

    Attributes:
        weights, packed: of `node_layer`. filters: (K, C), of the convolution; (0, C): there is none.
        product: (K, M), multiplies the sums of edges; None: nothing does.
        sums_edges, sums_neighbors: whether there are symmetric sums of edges, and of neighbours.
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


class AttentionOnce(NamedTuple):
    """The attention of nodes to neighbours with H heads; `layer_once` does not add it.

    Attributes:
        wanted: (C, H C), from a node to the factors of a neighbour's features in each head's logit. joined: (H C, C),
            and bias: (C,), for the means of neighbours' features.
    """

    wanted: torch.Tensor
    joined: torch.Tensor
    bias: torch.Tensor


class LayerOnce(NamedTuple):
    """A layer.

    Attributes:
        nodes: weights of nodes. edges: the factor of the old edges, and weights; None: new edges are not read.
        attention: of nodes; None: there is none.
        activation: the code of f and its threshold.
        shift, gated, eps: of the attention of edges.
    """

    nodes: NodesOnce
    edges: tuple[float, EdgeLayerWeights] | None
    attention: AttentionOnce | None
    activation: tuple[int, float]
    shift: float
    gated: bool
    eps: float


class GraphOnce(NamedTuple):
    """The indices of the edges.

    Attributes:
        of_neighbor, of_center: from an edge to its nodes. absent: (N,), places without a neighbour.
    """

    of_neighbor: EdgeIndex
    of_center: EdgeIndex
    absent: torch.Tensor


def layer_once(
    layer: LayerOnce,
    graph: GraphOnce,
    own: torch.Tensor,
    nodes: torch.Tensor,
    e: torch.Tensor,
    r: torch.Tensor,
    weight: torch.Tensor,
    mean_weight: torch.Tensor,
    turning: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The new nodes (N, C) and edges (E, K), differentiable once.

    Args:
        own: (N, C), of the atoms. nodes: (M, C), to which indices of neighbours refer; often the same tensor.
        e: (E, K). r: (E, 3), of the attention of edges.
        weight, mean_weight: (E, 1), the switch, and the weights of means.
        turning: (E, 3), the edges' vectors, weighted for the symmetric sums.
    """
    found: tuple[torch.Tensor, torch.Tensor | None] = once(
        _Layer(layer, graph, own is nodes), own, nodes, e, r, weight, mean_weight, turning
    )
    return found


class _Layer(NamedTuple):
    layer: LayerOnce
    graph: GraphOnce
    is_alike: bool  # the first two arguments are one tensor

    def forward(self, *given: torch.Tensor) -> Any:
        (own, nodes, e, r, weight, mean_weight, turning), to = given, (self.layer, self.graph)
        sums = _sums_of_edges(*to, own, e, turning)
        new, of_nodes = _nodes(*to, own, nodes, e, mean_weight, turning, sums)
        made, of_edges = (None, ()) if self.layer.edges is None else _edges(*to, e, r, weight)
        return (new, made), (*of_nodes, *of_edges)

    def backward(self, given: Any, kept: Any, by_new: Any, by_made: Any) -> Any:
        (own, nodes, e, r, weight, *rest), of_nodes, of_edges = given, kept[:4], kept[4:]
        to = self.layer, self.graph
        by_own, by_nodes, by_sums, by_edges = _by_nodes(*to, by_new, own, nodes, e, *rest, *of_nodes)
        if self.is_alike:
            by_own, by_nodes = added(by_own, by_nodes), None
        by_e, by_mean, by_turning = _by_edges(*to, by_sums, by_edges, nodes, e, *rest)
        by_r = by_weight = None
        if by_made is not None and self.layer.edges is not None:
            args = _edge_arguments(*to, e, r, weight)
            alone, *of_attention = OPS.edge_layer_backward(by_made.contiguous(), *of_edges, *args)
            by_e = added(by_e, alone)
            if len(self.layer.edges[1].queries):
                by_r, by_weight = of_attention[0], of_attention[1][:, None]
        return by_own, by_nodes, by_e, by_r, by_weight, by_mean, by_turning


def _edge_arguments(
    layer: LayerOnce, graph: GraphOnce, e: torch.Tensor, r: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    assert layer.edges is not None
    keep, weights = layer.edges
    scalars = (keep, layer.shift, layer.gated, layer.eps, *layer.activation)
    return e, r, weight[:, 0], graph.absent, graph.of_center.offsets, *weights, *scalars


def _edges(
    layer: LayerOnce, graph: GraphOnce, e: Any, r: Any, weight: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
    made, saved = OPS.edge_layer(*_edge_arguments(layer, graph, e, r, weight))
    return made, (saved,)


def _of_neighbors(nodes: NodesOnce, e: Any, turning: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The edges' features and vectors for `edge_convolution`, or no columns."""
    return (e if len(nodes.filters) else e[:, :0]), (turning if nodes.sums_neighbors else turning[:, :0])


def _node_arguments(layer: LayerOnce) -> tuple[Any, ...]:
    own = layer.nodes
    return *own.weights, own.takes_nodes, own.keep, own.axis, *layer.activation


def _sums_of_edges(layer: LayerOnce, graph: GraphOnce, nodes: Any, e: Any, turning: Any) -> torch.Tensor:
    """(N, 3, K), or no rows."""
    if not layer.nodes.sums_edges:
        return e.new_empty(len(nodes), 0, e.shape[1])
    return OPS.row_moments(turning, e, graph.of_center.offsets, False, None, None, None)


def _nodes(
    layer: LayerOnce,
    graph: GraphOnce,
    of_atoms: Any,
    nodes: Any,
    e: Any,
    mean_weight: Any,
    turning: Any,
    of_edges: torch.Tensor,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The new nodes, and what their gradients need: sums over neighbours and over edges, and the inputs of f."""
    own = layer.nodes
    sums = nodes.new_empty(len(of_atoms), 0, nodes.shape[1])
    if len(own.filters) or own.sums_neighbors:
        numbers, vectors = _of_neighbors(own, e, turning)
        ends = *graph.of_neighbor, *graph.of_center
        sums = OPS.edge_convolution(nodes, numbers, mean_weight[:, 0], vectors, own.filters, *ends)
    if own.product is not None:
        of_edges = of_edges @ own.product
    new, *inner = OPS.node_layer(of_atoms, sums, of_edges, *_node_arguments(layer), own.packed[0])
    return new, (sums, of_edges, *inner)


def _by_nodes(
    layer: LayerOnce,
    graph: GraphOnce,
    grad: Any,
    of_atoms: Any,
    nodes: Any,
    e: Any,
    mean_weight: Any,
    turning: Any,
    sums: Any,
    of_edges: Any,
    z: Any,
    z_own: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """The gradients by an atom's own node, by its neighbours' nodes, by the sums over neighbours and over edges."""
    own, by_nodes = layer.nodes, None
    given = of_atoms, sums, of_edges, *_node_arguments(layer)
    by_own, by_sums, by_edges = OPS.node_layer_backward(grad.contiguous(), z, z_own, *given, own.packed[1])
    if sums.shape[1]:
        numbers, vectors = _of_neighbors(own, e, turning)
        edges = numbers, mean_weight[:, 0], vectors, own.filters
        ends = *graph.of_center, *graph.of_neighbor
        by_nodes = OPS.edge_convolution_nodes(by_sums, *edges, *ends)
    return by_own, by_nodes, by_sums, by_edges if own.product is None else by_edges @ own.product.T


def _by_edges(
    layer: LayerOnce,
    graph: GraphOnce,
    by_sums: torch.Tensor,
    by_edges: torch.Tensor | None,
    nodes: Any,
    e: Any,
    mean_weight: Any,
    turning: Any,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients by e, mean_weight and turning, from `_by_nodes`; by_edges None: edges' sums count elsewhere."""
    own, by_e, by_mean, by_turning = layer.nodes, None, None, None
    ends, known = (*graph.of_center, *graph.of_neighbor), mean_weight[:, 0]
    if by_edges is not None and own.sums_edges and own.sums_neighbors and len(own.filters):
        edges = by_edges, nodes, e, known, turning, own.filters
        by_e, by_w, by_turning = OPS.edge_convolution_own(by_sums, *edges, *ends)
        return by_e, by_w[:, None], by_turning
    if by_edges is not None and own.sums_edges:
        rest = graph.of_center.offsets, False, None, None, None
        by_turning, by_e = OPS.row_moments_backward(by_edges, turning, e, *rest)
    if not by_sums.shape[1]:
        return by_e, by_mean, by_turning
    numbers, _ = _of_neighbors(own, e, turning)
    by_b, by_w, by_t = OPS.edge_convolution_edges(by_sums, nodes, numbers, known, own.filters, *ends)
    if len(own.filters):
        by_e, by_mean = added(by_e, by_b), by_w[:, None]
    return by_e, by_mean, added(by_turning, by_t) if own.sums_neighbors else by_turning


class StepsOnce(NamedTuple):
    """All layers, with edges that have few functions of one number instead of features.

    Attributes:
        basis: these functions. layers: with their `product`.
    """

    basis: LengthBasis
    layers: tuple[LayerOnce, ...]


def steps_once(
    steps: StepsOnce, graph: GraphOnce, environment: tuple[Any, ...], nodes: torch.Tensor, d: torch.Tensor
) -> torch.Tensor:
    """The nodes (N, C) after all layers, differentiable once in the first nodes and in d (N, K, 3), the pair vectors;
    `environment` are the other arguments of the op `edge_environment`."""
    found: torch.Tensor = once(_Steps(steps, graph, environment), nodes, d)
    return found


class _Steps(NamedTuple):
    steps: StepsOnce
    graph: GraphOnce
    environment: tuple[Any, ...]

    def forward(self, *given: torch.Tensor) -> Any:
        (nodes, d), (basis, layers), graph, environment = given, *self
        x, _, _, means, turning = OPS.edge_environment(d, *environment)
        e, kept = basis.functions(x), []
        first = next((layer for layer in layers if layer.nodes.sums_edges), layers[0])
        sums = _sums_of_edges(first, graph, nodes, e, turning)
        for layer in layers:
            kept.append(nodes)
            nodes, of_nodes = _nodes(layer, graph, nodes, nodes, e, means, turning, sums)
            kept += of_nodes
        return nodes, (x, e, means, turning, *kept)

    def backward(self, given: Any, kept: Any, grad: Any) -> Any:
        (basis, layers), graph, environment = self
        x, e, means, turning, *of_layers = kept
        by_e = by_means = by_turning = by_sums_of_edges = None
        for k, layer in reversed(list(enumerate(layers))):
            nodes, *of_nodes = of_layers[5 * k : 5 * k + 5]
            given_to = nodes, nodes, e, means, turning
            grad, by_nodes, by_sums, by_edges = _by_nodes(layer, graph, grad, *given_to, *of_nodes)
            grad = added(grad, by_nodes)
            by_sums_of_edges = added(by_sums_of_edges, by_edges)
            all_edges = None if k else by_sums_of_edges
            found = _by_edges(layer, graph, by_sums, all_edges, nodes, e, means, turning)
            by_e, by_means, by_turning = map(added, (by_e, by_means, by_turning), found)
        by_x = torch.zeros_like(x) if by_e is None else basis.gradient(by_e, x)
        made = by_x, None, None, by_means, by_turning
        likes = x, turning, x, x, turning
        grads = (
            torch.zeros_like(like) if one is None else one for one, like in zip(made, likes, strict=True)
        )
        return grad, OPS.edge_environment_backward(*grads, given[1], *environment)
