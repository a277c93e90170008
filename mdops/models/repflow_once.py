"""A layer of DPA-3 with its first derivatives written out (`mdops.ops._once`)."""

from typing import Any, NamedTuple

import torch

from mdops.ops import EdgeIndex
from mdops.ops._once import OPS, once


class AnglesOnce(NamedTuple):
    """Messages from angles of A features to edges, and from edges to angles.

    Attributes:
        of_angle: (A, C), the messages' weights of an angle's features. first, second: (V, C), those of its edges'
            leading features.
        scale: (A,), of the angles' update; (0,): they stay as they are.
        product, bias: (K, K) and (K,), for an edge's sum of messages.
        weight: (K,), of that message. share: (1, K), the message to edges without angles.
    """

    of_angle: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    scale: torch.Tensor
    product: torch.Tensor
    bias: torch.Tensor
    weight: torch.Tensor
    share: torch.Tensor


class LayerOnce(NamedTuple):
    """A layer with nodes of N features and edges of K.

    Attributes:
        of_center: (N, ..) and (..,), weights and biases of a node as the centre: in messages along edges, in its own
            message, and in messages along angles; of_neighbor: (N, C), as the neighbour in messages along edges.
        of_edge: (K, C), the weights of an edge in messages along edges.
        scale: (K,), of the edges' update; (0,): they stay as they are.
        symmetric: the product of symmetric sums, weight and bias.
        weights: (3, N), of a node's messages: its own, that of symmetric sums, and that of its edges.
        angles: None: there are none.
        keep: factors of new nodes, edges and angles.
        axis: the number of columns of symmetric products. width: V, the features of an edge that angles read.
        activation: the code of f and its threshold.
    """

    of_center: tuple[torch.Tensor, torch.Tensor]
    of_neighbor: torch.Tensor
    of_edge: torch.Tensor
    scale: torch.Tensor
    symmetric: tuple[torch.Tensor, torch.Tensor]
    weights: torch.Tensor
    angles: AnglesOnce | None
    keep: tuple[float, float, float]
    axis: int
    width: int
    activation: tuple[int, float]


class GraphOnce(NamedTuple):
    """The indices of edges and angles.

    Attributes:
        of_center, of_neighbor: from an edge to its nodes.
        of_inner: from the edges that form angles to all edges. center_of_inner: to their nodes.
        of_first, of_second: from an angle to these edges.
    """

    of_center: EdgeIndex
    of_neighbor: EdgeIndex
    of_inner: EdgeIndex
    center_of_inner: EdgeIndex
    of_first: EdgeIndex
    of_second: EdgeIndex


def layer_once(
    layer: LayerOnce,
    graph: GraphOnce,
    nodes: torch.Tensor,
    own: torch.Tensor | None,
    e: torch.Tensor,
    a: torch.Tensor,
    frame: torch.Tensor,
    switch: torch.Tensor,
    angle_switch: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The new features of nodes, edges and angles, differentiable once; None: they stay as they are.

    Args:
        nodes: (M, N), of all atoms. own: of those that edges begin at; None: of all.
        e: (E, K). a: (A, ..), of edges and angles.
        frame, switch, angle_switch: as `mdops.models.repflow.Edges` has them.
    """
    centers = nodes if own is None else own
    found: Any = once(_Layer(layer, graph), centers, nodes, e, a, frame, switch, angle_switch)
    new: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] = found
    return new


class _Layer(NamedTuple):
    layer: LayerOnce
    graph: GraphOnce

    def forward(self, *given: torch.Tensor) -> Any:
        centers, nodes, e, a, frame, switch, angle_switch = given
        layer, graph = self
        weight, bias = layer.of_center
        z = torch.addmm(bias, centers, weight)
        p, own, of_angles = self._parts(z)
        q = nodes @ layer.of_neighbor
        sent, new_e, moments, inner = OPS.framed_message(e, *self._of_edges(p, q, switch, frame))
        sums = OPS.row_moments(frame, nodes, graph.of_center.offsets, False, *graph.of_neighbor)
        axes = OPS.axis_product(sums, layer.axis, OPS.axis_product(moments, layer.axis, None))
        product, added = layer.symmetric
        u = torch.addmm(added, axes, product)
        first, second, third = layer.weights.unbind()
        new = torch.addcmul(centers, first, self._f(own))
        new.addcmul_(second, self._f(u)).addcmul_(third, sent)
        kept = z, q, u, sums, moments
        keep = layer.keep
        if layer.angles is None:
            made = new_e if len(layer.scale) else None
            return (_times(new, keep[0]), _times(made, keep[1]), None), kept
        angles = layer.angles
        along = inner @ angles.first
        along = OPS.edge_gather(of_angles, *graph.center_of_inner, along, along.shape[1])
        beyond = inner @ angles.second
        received, new_a = OPS.message(a, *self._of_angles(along, beyond, angle_switch))
        z_of_edges = torch.addmm(angles.bias, received, angles.product)
        message = torch.addcmul(-angles.share, angles.weight, self._f(z_of_edges))
        new_e = OPS.edge_scatter(message, *graph.of_inner, new_e, angles.share, e.shape[1])
        made_a = new_a if len(angles.scale) else None
        found = _times(new, keep[0]), _times(new_e, keep[1]), _times(made_a, keep[2])
        return found, (*kept, along, beyond, z_of_edges)

    def backward(self, given: Any, kept: Any, by_new: Any, by_e: Any, by_a: Any) -> Any:
        _, nodes, e, a, frame, switch, angle_switch = given
        z, q, u, sums, moments, *of_angles = kept
        layer, graph = self
        p, own, _ = self._parts(z)
        by_new, by_e, by_a = map(_times, (by_new, by_e, by_a), layer.keep)
        first, second, third = layer.weights.unbind()
        by_u, by_own = self._by_f(by_new * second, u), self._by_f(by_new * first, own)
        by_axes = by_u @ layer.symmetric[0].T
        by_moments = OPS.axis_product_backward(by_axes[:, sums.shape[2] * layer.axis :], moments, layer.axis)
        by_sums = OPS.axis_product_backward(by_axes, sums, layer.axis)
        rest = graph.of_center.offsets, False, *graph.of_neighbor
        by_frame, by_rows = OPS.row_moments_backward(by_sums, frame, nodes, *rest)
        by_nodes = OPS.edge_scatter(by_rows, *graph.of_neighbor, None, None, nodes.shape[1])
        by_inner, by_angle_switch, by_parts = e.new_empty(0, layer.width), None, [by_own]
        if layer.angles is not None:
            found = self._by_angles(by_e, by_a, a, angle_switch, *of_angles)
            by_inner, by_atoms, by_a, by_angle_switch = found
            by_parts.append(by_atoms)
        by_kept = e.new_empty(len(e), 0) if by_e is None else by_e
        grads = by_new * third, by_kept, by_moments, by_inner
        by_edges = OPS.framed_message_backward(*grads, e, *self._of_edges(p, q, switch, frame))
        by_e, by_p, by_q, by_switch, by_frames = by_edges
        by_centers = torch.addmm(by_new, torch.cat([by_p, *by_parts], 1), layer.of_center[0].T)
        by_nodes.addmm_(by_q, layer.of_neighbor.T)
        return by_centers, by_nodes, by_e, by_a, by_frame.add_(by_frames), by_switch, by_angle_switch

    def _by_angles(
        self, by_e: Any, by_a: Any, a: Any, angle_switch: Any, along: Any, beyond: Any, z: Any
    ) -> tuple[torch.Tensor, ...]:
        """The gradients by the edges that form angles, by the nodes' terms in messages along angles, by angles, and by
        their switch."""
        layer, graph = self
        angles = layer.angles
        assert angles is not None
        by_message = OPS.edge_gather(by_e, *graph.of_inner, None, by_e.shape[1])
        by_received = self._by_f(by_message * angles.weight, z) @ angles.product.T
        by_kept = a.new_empty(len(a), 0) if by_a is None else by_a
        given = by_received, by_kept, a, *self._of_angles(along, beyond, angle_switch), False
        new_a, _, by_along, by_beyond, by_switch, _ = OPS.message_backward(*given)
        by_inner = (by_along @ angles.first.T).addmm_(by_beyond, angles.second.T)
        by_atoms = OPS.edge_scatter(by_along, *graph.center_of_inner, None, None, by_along.shape[1])
        return by_inner, by_atoms, new_a, by_switch

    def _parts(self, z: torch.Tensor) -> Any:
        """Splits the centres' terms: of messages along edges, of their own message, and of messages along angles."""
        messages, nodes = self.layer.of_edge.shape[1], self.layer.weights.shape[1]
        return z.split([messages, nodes, z.shape[1] - messages - nodes], 1)

    def _of_edges(self, p: Any, q: Any, switch: Any, frame: Any) -> tuple[Any, ...]:
        """The arguments of messages along edges after the edges' features."""
        layer, (of_center, of_neighbor, taken, *_) = self
        ends = of_center.nodes, of_center.offsets, *of_neighbor, taken.nodes, taken.offsets
        return (
            layer.of_edge, p, q, switch, layer.scale, frame, *ends, layer.width, *layer.activation, "float32"
        )  # fmt: skip

    def _of_angles(self, along: Any, beyond: Any, switch: Any) -> tuple[Any, ...]:
        """The arguments of messages along angles after the angles' features."""
        (_, _, _, center, of_first, of_second), angles = self.graph, self.layer.angles
        assert angles is not None
        ends = of_first.nodes, of_first.offsets, *of_second, center.offsets
        return angles.of_angle, along, beyond, switch, angles.scale, *ends, *self.layer.activation, "float32"

    def _f(self, z: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = OPS.layer_output(z, z[:, :0], *self.layer.activation)
        return found

    def _by_f(self, grad: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = OPS.layer_output_backward(grad, z, 0, *self.layer.activation)[0]
        return found


def _times(x: torch.Tensor | None, factor: float) -> torch.Tensor | None:
    return x if x is None or factor == 1 else x * factor
