"""Layers of DPA-3 (repflow): nodes are atoms, edges point to neighbours, and angles are pairs of an atom's edges."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.errors import ConfigError
from mdops.models import schema
from mdops.models.contract import Tree
from mdops.models.environment import automatic_sel_ratio, places_of
from mdops.models.graph import RESIDUAL, UPDATE_STYLES, new_residuals
from mdops.models.keys import places_key, residual_init_key, residual_key, switch_key
from mdops.models.repflow_once import AnglesOnce, GraphOnce, LayerOnce, layer_once
from mdops.nn.net import Layer, array, tensor
from mdops.nn.watch import NamedOfWeights
from mdops.ops import (
    AngleEdges,
    EdgeIndex,
    NeighborGraph,
    angle_ends,
    edge_gather,
    edge_scatter,
    edge_update,
    framed_message,
    message,
    node_update,
    outer_message,
    row_moments,
)
from mdops.ops._register import is_by_pytorch
from mdops.ops.activation import activation, kernel_code
from mdops.ops.axis_product import axis_product
from mdops.ops.graph import shared_rows
from mdops.ops.layer_output import layer_output
from mdops.ops.linear import linear
from mdops.ops.switch_curve import switch_curve
from mdops.options import Most, Options, key
from mdops.tracing import is_exported

T = TypeVar("T")
FIXED_DEVIATION = 0.3  # of the environment matrix, unless it is from data
_MANY_EDGES = 16384  # in angles: with fewer, other products are faster than `angle_ends`
# The products along edges and along angles. Of each, the first is sent and the second kept.
_TO_NODES, _TO_EDGES = "node_edge_linear", "edge_self_linear"
_FROM_ANGLES, _TO_ANGLES = "edge_angle_linear1", "angle_self_linear"


@dataclass(kw_only=True)
class RepflowOptions(Options):
    """The section `repflow` of an input; `repflow_args` of a file."""

    KIND = "repflow"

    n_dim: int = key(128, "width of the features of a node", low=1)
    e_dim: int = key(64, "width of the features of an edge", low=1)
    a_dim: int = key(64, "width of the features of an angle", low=1)
    nlayers: int = key(6, "number of layers", low=0)
    e_rcut: float = key(6.0, "the cutoff of edges", unit="A", above=0, implied=..., absent=...)
    e_rcut_smth: float = switch_key(5.0, "edges", above=0)
    e_sel: int | str = places_key("edges of an atom")
    a_rcut: float = key(4.0, "the cutoff of the edges of angles", unit="A", above=0, implied=..., absent=...)
    a_rcut_smth: float = switch_key(3.5, "angles", above=0)
    a_sel: int | str = places_key("edges of an atom that form angles")
    axis_neuron: int = key(4, "number of columns that the symmetric sums are multiplied with", low=1)
    a_compress_rate: int = key(
        0, "c: angles get a_dim/c numbers of nodes and a_dim/(2 c) numbers of edges; 0: all", low=0
    )
    a_compress_e_rate: int = key(1, "factor of the number of edge features that angles get", low=1)
    a_compress_use_split: bool = key(
        False, "angles get the first numbers of nodes and edges, not a product of all"
    )
    n_multi_edge_message: int = key(1, "number of messages that an edge sends to its node", low=1)
    update_angle: bool = key(True, "use angles, not only nodes and edges")
    update_style: str = key(
        RESIDUAL,
        "messages are added with trained weights, averaged with the old features, or added "
        "divided by the square root of their number",
        choices=UPDATE_STYLES,
    )
    update_residual: float = residual_key(0.1)
    update_residual_init: str = residual_init_key("const")
    fix_stat_std: float = key(
        FIXED_DEVIATION,
        "standard deviation of the environment matrix; 0: that of the data",
        low=0,
        of="training",
    )
    skip_stat: bool = key(False, "the old name of fix_stat_std: true is 0.3", where="input", of="training")
    optim_update: bool = key(
        True,
        "order of products in DeePMD-kit; no effect in mdops, the numbers are the same",
        of="training",
    )
    smooth_edge_update: bool = key(
        False, "edges without angles get no message from angles (otherwise one from their own numbers)"
    )
    edge_init_use_dist: bool = key(
        False, "edges begin with their lengths, not with the inverse lengths", alias=["edge_use_dist"]
    )
    use_exp_switch: bool = key(
        False, "the switch is exp(-exp(20 (r - smth) / smth)), not a polynomial", alias=["use_env_envelope"]
    )
    use_dynamic_sel: bool = key(False, "divide sums by sel / sel_reduce_factor")
    sel_reduce_factor: float = key(10.0, "see use_dynamic_sel", above=0)
    sequential_update: bool = key(
        False, "in each layer, update edges, angles, edges by angles, and nodes one after the other"
    )

    def __post_init__(self) -> None:
        if self.skip_stat:
            self.fix_stat_std, self.skip_stat = FIXED_DEVIATION, False

    @property
    def edge_scale(self) -> float:
        """The divisor of sums over the edges of an atom."""
        return float(self.e_sel) / (self.sel_reduce_factor if self.use_dynamic_sel else 1.0)

    @property
    def angle_scale(self) -> float:
        """The square of the divisor of sums over the angles of an edge."""
        return float(self.a_sel) / (self.sel_reduce_factor if self.use_dynamic_sel else 1.0)

    @property
    def compresses(self) -> bool:
        """Whether angles read products of the features of nodes and edges."""
        return self.update_angle and bool(self.a_compress_rate) and not self.a_compress_use_split

    @property
    def angle_inputs(self) -> tuple[int, int]:
        """How many features of the node and of each edge an angle reads."""
        if not self.a_compress_rate:
            return self.n_dim, self.e_dim
        half = self.a_dim // (2 * self.a_compress_rate)
        return self.a_dim // self.a_compress_rate, half * self.a_compress_e_rate

    @property
    def inner_width(self) -> int:
        """How many features of an edge are read for angles."""
        return self.e_dim if self.compresses else self.angle_inputs[1]

    @property
    def parts(self) -> dict[str, tuple[list[int], int]]:
        """The widths of the concatenated inputs of each product of a layer, and its number of outputs."""
        n, e, a = self.n_dim, self.e_dim, self.a_dim
        found = {
            "node_self_mlp": ([n], n),
            "node_sym_linear": ([e] * self.axis_neuron + [n] * self.axis_neuron, n),
            "node_edge_linear": ([n, n, e], n * self.n_multi_edge_message),
            "edge_self_linear": ([n, n, e], e),
        }
        if self.update_angle:
            of_node, of_edge = self.angle_inputs
            inputs = [a, of_node, of_edge, of_edge]
            found |= {"edge_angle_linear1": (inputs, e), "edge_angle_linear2": ([e], e)}
            found |= {"angle_self_linear": (inputs, a)}
            if self.compresses:
                found |= {"a_compress_n_linear": ([n], of_node), "a_compress_e_linear": ([e], of_edge)}
        return found

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The inputs and outputs of each product of a layer."""
        return {name: (sum(inputs), outputs) for name, (inputs, outputs) in self.parts.items()}

    @property
    def messages(self) -> dict[str, tuple[int, int]]:
        """The number and width of messages to nodes, edges and angles in a layer."""
        angles = int(self.update_angle)
        counts = {"n": 2 + self.n_multi_edge_message, "e": 1 + angles, "a": angles}
        return {name: (count, getattr(self, f"{name}_dim")) for name, count in counts.items()}

    @property
    def residuals(self) -> dict[str, tuple[int, int]]:
        """The number and width of the messages' weights of nodes, edges and angles."""
        weighed = self.update_style == RESIDUAL
        return {
            f"{name}_residual": (count * weighed, width) for name, (count, width) in self.messages.items()
        }

    @property
    def rows_of_messages(self) -> list[tuple[int, int]]:
        """How many features edges and angles have, and how many they send."""
        edges = self.e_dim, self.n_dim * self.n_multi_edge_message
        return [edges, *([(self.a_dim, self.e_dim)] if self.update_angle else [])]

    def wide(self, widths: Sequence[int]) -> "RepflowOptions":
        """The options with the next of these sorted widths for edges and angles. They are unchanged if there is none,
        or if angles would read more features than exist."""

        def next_to(width: int) -> int:
            return min((one for one in widths if one >= width), default=width)

        found = dataclasses.replace(self, e_dim=next_to(self.e_dim), a_dim=next_to(self.a_dim))
        of_node, of_edge = found.angle_inputs
        fits = found.compresses or (of_node <= found.n_dim and of_edge <= found.e_dim)
        return found if fits or not self.update_angle else self

    def check(self, place: str, type_map: Sequence[str]) -> None:
        require = self.requirement(place)
        for name, sel in (("e_sel", self.e_sel), ("a_sel", self.a_sel)):
            if isinstance(sel, str):
                automatic_sel_ratio(sel, f"{place}.{name}")
        require(self.e_rcut_smth < self.e_rcut, "e_rcut_smth", "less than e_rcut")
        require(self.a_rcut_smth < self.a_rcut, "a_rcut_smth", "less than a_rcut")
        require(self.a_rcut <= self.e_rcut, "a_rcut", f"e_rcut, {self.e_rcut:g}, or less")
        self._check_places(place)
        narrow = min(self.n_dim, self.e_dim)
        require(self.axis_neuron <= narrow, "axis_neuron", f"n_dim and e_dim, {narrow}, or less")
        sequential = not self.sequential_update or (self.update_style == RESIDUAL and self.update_angle)
        require(sequential, "sequential_update", f"false without update_angle or update_style {RESIDUAL!r}")
        smooth = self.smooth_edge_update or not self.use_dynamic_sel
        require(smooth, "use_dynamic_sel", "false without smooth_edge_update")
        if self.update_angle and self.a_compress_rate:
            of_node, of_edge = self.angle_inputs
            fits = 2 * of_edge == self.a_compress_e_rate * of_node > 0
            require(fits, "a_compress_rate", f"a divisor of half of a_dim, which is {self.a_dim}")
            there = of_node <= self.n_dim and of_edge <= self.e_dim
            wanted = f"more: n_dim and e_dim are below the {of_node} and {of_edge} numbers to split off"
            require(there or not self.a_compress_use_split, "a_compress_rate", wanted)

    def _check_places(self, place: str) -> None:
        """Raises ConfigError for fewer places of edges than of angles."""
        if isinstance(self.e_sel, int) and isinstance(self.a_sel, int) and self.a_sel > self.e_sel:
            raise ConfigError(f"{place}.a_sel: is {self.a_sel}, expected e_sel, {self.e_sel}, or less")

    def resolve_sel(self, most: Most, place: str) -> Self:
        """The options with both `sel` as numbers. Raises ConfigError for fewer places of edges than of angles."""
        edges = places_of(self.e_sel, self.e_rcut, most, f"{place}.e_sel")
        angles = places_of(self.a_sel, self.a_rcut, most, f"{place}.a_sel")
        found = dataclasses.replace(self, e_sel=edges, a_sel=angles)
        found._check_places(place)
        return found


def switch(r: torch.Tensor, smooth: float, cutoff: float, exponential: bool) -> torch.Tensor:
    """Falls from 1 to 0 at the cutoff, for distances below it; the exponential one is not quite 0 there."""
    if exponential:
        return torch.exp(-torch.exp(20 / smooth * (r.clamp(0, cutoff) - smooth)))
    return switch_curve(r, smooth, cutoff)


class Edges(NamedTuple):
    """The graph that all layers read.

    Attributes:
        graph: with E edges and A angles.
        types: (N,) int64, of the atoms.
        lengths: (E, 1), the edges' first input: A, or the first column of the environment matrix.
        frame: (E, 3), x, y and z of that matrix, times the switch.
        switch: (E,), over the divisor of sums over edges; zero after the last edge.
        inner: the edges that form angles.
        cosines: (A, 1), of angles, over the root of pi: the angles' first input.
        angle_vector: (1, a_dim), which cosines multiply to give angles, if layers take cosines instead of these rows,
            by `outer_message`, as with `at_once`; None: they do not.
        wide: the options of layers whose edges and angles are padded with zeros to widths that kernels support; None:
            they are not padded.
        angle_switch: (A,), the product of both edges' switches, over the divisor of sums over angles.
        condition: (N, n_dim) or (1, n_dim), added to the embedding of types; None: nothing.
        matmul: the least accuracy of products of edges and angles.
        once: whether results are differentiated at most once, and not by weights.
        at_once: whether `framed_message` computes edges' messages, sums of frames and rows for angles together, and
            `edge_update` adds the angles' messages to edges: with `once`, if the former has kernels.
    """

    graph: NeighborGraph
    types: torch.Tensor
    lengths: torch.Tensor
    frame: torch.Tensor
    switch: torch.Tensor
    inner: AngleEdges
    cosines: torch.Tensor
    angle_switch: torch.Tensor
    condition: torch.Tensor | None
    matmul: str = "float32"
    once: bool = False
    at_once: bool = False
    angle_vector: torch.Tensor | None = None
    wide: RepflowOptions | None = None


class Ends(NamedTuple):
    """The nodes (N, n_dim) at which edges begin, and those (M, n_dim) that `of_neighbor` of their graph refers to."""

    centers: torch.Tensor
    neighbors: torch.Tensor


class Part(NamedTuple):
    """Several products of one input: their weights (I, C), and their biases (C,), or none."""

    weights: list[torch.Tensor]
    biases: list[torch.Tensor]

    @property
    def width(self) -> int:
        return sum(weight.shape[1] for weight in self.weights)


class Joined(NamedTuple):
    """Several parts as one product: weight (I, C), bias (C,), and the parts' columns."""

    weight: torch.Tensor
    bias: torch.Tensor
    widths: list[int]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Self:
        weight = torch.cat([weight for part in parts for weight in part.weights], 1)
        biases = [part.biases or [weight.new_zeros(part.width)] for part in parts]
        return cls(
            weight, torch.cat([bias for own in biases for bias in own]), [part.width for part in parts]
        )

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The products of x with each of the parts."""
        return [own.contiguous() for own in linear(x, self.weight, self.bias).split(self.widths, 1)]


# Features of edges (E, e_dim) and of angles (A, a_dim), or the latter's cosines.
Local = tuple[torch.Tensor, torch.Tensor]


def symmetric_sums(rows: torch.Tensor, edges: Edges, scale: float) -> torch.Tensor:
    """(N, 3, M): the sums over the edges of an atom of their frames times `rows` (E, M)."""
    return row_moments(edges.frame, rows, edges.graph.offsets) / math.sqrt(scale)


class RepflowLayer(nn.Module):
    """Adds messages to nodes n_i, edges e_ij and angles a_ijk:

        n_i:   f(A n_i), f(B [sums of e_ij and n_j with the frames of the edges]), sum_j w_ij f(C [n_i, n_j, e_ij])
        e_ij:  f(D [n_i, n_j, e_ij]), f(F sum_k w_ij w_ik f(E [a_ijk, n_i, e_ik, e_ij]))
        a_ijk: f(G [a_ijk, n_i, e_ik, e_ij])

    A product of concatenated inputs is the sum of the inputs' products: those of nodes are computed once per atom,
    those of edges once per edge, and gathered where they are added.

    Attributes:
        is_last: whether its new edges and angles are not read; then it returns the old ones.
        makes_angles: whether a later layer reads its new angles; else it returns the old ones.
    """

    is_last = False
    makes_angles = True

    def __init__(
        self,
        options: RepflowOptions,
        activation_name: str,
        products: Mapping[str, Layer],
        residuals: Mapping[str, Sequence[torch.Tensor]],
    ) -> None:
        """Takes the layers of `options.shapes`, without activation functions, and `options.residuals`."""
        super().__init__()
        self.options, self.activation_name = options, activation_name
        self._kept: NamedOfWeights[Any] = NamedOfWeights()
        self.products = nn.ModuleDict(products)
        self.n_residual, self.e_residual, self.a_residual = (
            nn.ParameterList(residuals[f"{name}_residual"]) for name in "nea"
        )

    def forward(
        self, nodes: torch.Tensor, local: Local, edges: Edges, own: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Local]:
        """The new features of nodes, and of edges and angles.

        Args:
            nodes: (M, n_dim), of all atoms.
            own: (N, n_dim), of those whose edges and angles these are; None: of all.
        """
        e, a = local
        if edges.wide is not None and edges.wide != self.options:
            wide = edges.wide
            layer = self._of_weights(
                edges, ("wide", self.is_last, self.makes_angles), lambda: self.widened(wide)
            )
            found: tuple[torch.Tensor, Local] = layer(nodes, local, edges, own)
            return found
        if edges.once and self.goes_once and nodes.device.type == "cpu" and is_by_pytorch():
            return self._once(nodes, local, edges, own)
        at = Ends(nodes if own is None else own, nodes)
        if self.options.sequential_update:
            p, q, of_own = self._ends([_TO_EDGES], at, edges, self._own_part())
            _, e = self._along_edges([_TO_EDGES], p, q, e, edges)
            inner = edge_gather(e, edges.inner.of_edge, width=self.options.inner_width)
            for name in (_TO_ANGLES, _FROM_ANGLES):
                part, weights = self._angle_parts([name], edges)
                (of_node,) = Joined.of([part])(at.centers)
                keeps = name == _TO_ANGLES
                received, a = self._along_angles(weights, a, of_node, inner, edges, keeps=keeps)
            e = self._after_angles(e, e, received, edges)
            p, q = self._ends([_TO_NODES], at, edges)
            received, _ = self._along_edges([_TO_NODES], p, q, e, edges)
            moments = row_moments(edges.frame, e, edges.graph.offsets)
            return self._nodes(at, of_own, moments, received, edges), (e, a)
        names = self._names_along_edges()
        if self.is_last:
            p, q, of_own = self._ends(names, at, edges, self._own_part())
            received, _, moments, _ = self._with_frames(names, p, q, e, edges, takes_inner=False)
            return self._nodes(at, of_own, moments, received, edges), local
        parts, takes_inner = [self._own_part()], self.options.update_angle
        if takes_inner:
            part, weights = self._angle_parts(self._names_along_angles(), edges)
            parts.append(part)
        p, q, of_own, *of_angles = self._ends(names, at, edges, *parts)
        given = names, p, q, e, edges
        received, updated, moments, inner = self._with_frames(*given, takes_inner=takes_inner)
        nodes_now = self._nodes(at, of_own, moments, received, edges)
        if self.options.update_angle:
            (of_node,), keeps = of_angles, self.makes_angles
            received, a = self._along_angles(weights, a, of_node, inner, edges, keeps=keeps)
            updated = self._after_angles(updated, e, received, edges)
            a = self._ended("a", a)
        return nodes_now, (self._ended("e", updated), a)

    def widened(self, options: RepflowOptions) -> "RepflowLayer":
        """The same layer with features of edges and angles padded with zeros, which stay zero; its weights are
        constants."""
        products = {}
        for name, (inputs, outputs) in options.parts.items():
            own, (old, _) = self._product(name), self.options.parts[name]
            rows = [
                F.pad(part, (0, 0, 0, width - part.shape[0]))
                for part, width in zip(own.weight.split(old), inputs, strict=True)
            ]
            more = (0, outputs - own.weight.shape[1])
            bias = None if own.bias is None else F.pad(own.bias, more)
            products[name] = Layer(F.pad(torch.cat(rows), more), bias, None, "none", False)
        residuals = {
            name: [F.pad(one, (0, width - one.shape[0])) for one in getattr(self, name)]
            for name, (_, width) in options.residuals.items()
        }
        found = RepflowLayer(options, self.activation_name, products, residuals).requires_grad_(False)
        found.is_last, found.makes_angles = self.is_last, self.makes_angles
        return found

    @property
    def goes_once(self) -> bool:
        """Whether `mdops.models.repflow_once` has its first derivatives."""
        o = self.options
        is_smooth = self.is_last or o.smooth_edge_update or not o.update_angle
        return is_smooth and not o.sequential_update and o.n_multi_edge_message == 1

    def _once(
        self, nodes: torch.Tensor, local: Local, edges: Edges, own: torch.Tensor | None
    ) -> tuple[torch.Tensor, Local]:
        """`forward`, differentiable once."""
        (e, a), graph, inner = local, edges.graph, edges.inner
        layer = self._of_weights(edges, ("once", self.is_last, self.makes_angles), self.constants)
        of_inner = inner.of_edge
        if layer.angles is None:
            none = graph.i.new_empty(0)
            of_inner = EdgeIndex(none, None, graph.i.new_zeros(graph.capacity + 1))
        ends = graph.of_center, graph.of_neighbor, of_inner, inner.of_center
        given = GraphOnce(*ends, inner.angles.of_first, inner.angles.of_second), nodes, own, e, a
        new, new_e, new_a = layer_once(layer, *given, edges.frame, edges.switch, edges.angle_switch)
        return new, (e if new_e is None else new_e, a if new_a is None else new_a)

    def constants(self) -> LayerOnce:
        """The weights for `layer_once`."""
        o, names = self.options, self._names_along_edges()
        p, q = self._end_parts(names)
        parts, angles = [p, self._own_part()], None
        if o.update_angle and not self.is_last:
            part, angles = self._angle_constants()
            parts.append(part)
        joined, nothing = Joined.of(parts), p.weights[0].new_empty(0)
        factors = [
            (o.messages[name][0] + 1) ** -0.5 if o.update_style == "res_avg" else 1.0 for name in "nea"
        ]
        return LayerOnce(
            (joined.weight, joined.bias),
            torch.cat(q.weights, 1),
            self._of_edge(names),
            nothing if self.is_last else self._weights("e")[0],
            (self._ordered(), self._product("node_sym_linear").added),
            torch.stack(self._weights("n")),
            angles,
            (factors[0], factors[1], factors[2]),
            o.axis_neuron,
            o.inner_width,
            kernel_code(self.activation_name),
        )

    def _angle_constants(self) -> tuple[Part, AnglesOnce]:
        """The nodes' part of messages along angles, and the other constants of these."""
        names = self._names_along_angles()
        node, (of_angle, second, first) = self._angle_weights(names)
        if self.options.compresses:
            compressed = self._product("a_compress_e_linear").weight
            first, second = compressed @ first, compressed @ second
        product, weight = self._product("edge_angle_linear2"), self._weights("e")[1]
        share = weight * activation(self.activation_name)(product.added)
        scale = self._weights("a")[0] if self.makes_angles else weight.new_empty(0)
        own = AnglesOnce(of_angle, first, second, scale, product.weight, product.added, weight, share[None])
        return Part([node], [layer.added for layer in self._layers(names)]), own

    def _names_along_edges(self) -> list[str]:
        return [_TO_NODES] if self.is_last else [_TO_NODES, _TO_EDGES]

    def _names_along_angles(self) -> list[str]:
        return [_FROM_ANGLES, *([_TO_ANGLES] if self.makes_angles else [])]

    def _nodes(
        self, at: Ends, of_own: torch.Tensor, moments: torch.Tensor, received: torch.Tensor, edges: Edges
    ) -> torch.Tensor:
        """The nodes after all their messages. `of_own`: the product for the first message; `moments`: the sums over an
        atom's edges of their frames times their features."""
        symmetric = self._symmetric(at, moments, edges)
        if edges.at_once and self.options.n_multi_edge_message == 1:
            weights = self._of_weights(edges, "nodes", lambda: torch.stack(self._weights("n")))
            given = at.centers, of_own, symmetric, received, weights, self.activation_name
            return self._ended("n", node_update(*given))
        messages = [
            self._f(of_own),
            self._f(symmetric),
            *received.chunk(self.options.n_multi_edge_message, dim=1),
        ]
        nodes = at.centers
        for weight, received in zip(self._weights("n"), messages, strict=True):
            nodes = torch.addcmul(nodes, weight, received)
        return self._ended("n", nodes)

    def _symmetric(self, at: Ends, of_edges: torch.Tensor, edges: Edges) -> torch.Tensor:
        """The product of the symmetric sums of edges and of neighbours."""
        o, offsets = self.options, edges.graph.offsets
        of_nodes = row_moments(edges.frame, at.neighbors, offsets, of=edges.graph.of_neighbor)
        made = axis_product(of_nodes, o.axis_neuron, axis_product(of_edges, o.axis_neuron))
        weight = self._of_weights(edges, "symmetric", self._ordered)
        return linear(made, weight, self._product("node_sym_linear").added)

    def _ordered(self) -> torch.Tensor:
        """The weights of symmetric sums, over the sums' divisor, with rows in the order of `axis_product`."""
        o, weight = self.options, self._product("node_sym_linear").weight
        parts = weight.split([o.e_dim * o.axis_neuron, o.n_dim * o.axis_neuron])
        turned = [part.unflatten(0, (o.axis_neuron, -1)).transpose(0, 1) for part in reversed(parts)]
        return torch.cat(turned).flatten(0, 1) / (3 * o.edge_scale)

    def _f(self, z: torch.Tensor) -> torch.Tensor:
        return layer_output(z, None, self.activation_name)

    def _after(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._f(self._product(name)(x))

    def _product(self, name: str) -> Layer:
        found = self.products[name]
        assert isinstance(found, Layer)
        return found

    def _layers(self, names: Sequence[str]) -> list[Layer]:
        return [self._product(name) for name in names]

    def _of_weights(self, edges: Edges, name: Hashable, make: Callable[[], T]) -> T:
        """make(), which depends on weights alone. If these are constants, it is cached while they stay the same."""
        if not edges.once or is_exported():
            return make()
        made: T = self._kept(self, name, make, edges.frame, of=edges.frame)
        return made

    def _own_part(self) -> Part:
        """The nodes' part for the first of their messages."""
        own = self._product("node_self_mlp")
        return Part([own.weight], [own.added])

    def _ends(self, names: Sequence[str], at: Ends, edges: Edges, *parts: Part) -> list[torch.Tensor]:
        """The terms of n_i and of n_j in products along edges, and other products of n_i. If both are the same nodes,
        they are multiplied once."""
        p, q = self._end_parts(names)

        def products(x: torch.Tensor, *of: Part) -> list[torch.Tensor]:
            widths = tuple(part.width for part in of)
            return self._of_weights(edges, ("ends", *names, *widths, of[0] is p), lambda: Joined.of(of))(x)

        if at.neighbors is at.centers:
            return products(at.centers, p, q, *parts)
        of_p, *others = products(at.centers, p, *parts)
        return [of_p, *products(at.neighbors, q), *others]

    def _end_parts(self, names: Sequence[str]) -> tuple[Part, Part]:
        """The weights of n_i and of n_j in products along edges."""
        n, layers = self.options.n_dim, self._layers(names)
        p = Part([layer.weight[:n] for layer in layers], [layer.added for layer in layers])
        return p, Part([layer.weight[n : 2 * n] for layer in layers], [])

    def _of_edge(self, names: Sequence[str]) -> torch.Tensor:
        """The weights of e_ij."""
        return torch.cat([layer.weight[2 * self.options.n_dim :] for layer in self._layers(names)], 1)

    def _along_edges(
        self, names: Sequence[str], p: torch.Tensor, q: torch.Tensor, e: torch.Tensor, edges: Edges
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The messages f(W [n_i, n_j, e_ij] + b) of these products; p and q are the terms of n_i and n_j. Returns their
        sums for nodes, and the updated edges."""
        ends = edges.graph.of_center, edges.graph.of_neighbor
        given = e, *self._weights_along_edges(names, p, q, edges), *ends, self.activation_name
        received, kept = message(*given, matmul=edges.matmul)
        return received, e if kept is None else kept

    def _weights_along_edges(
        self, names: Sequence[str], p: torch.Tensor, q: torch.Tensor, edges: Edges
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The arguments of messages along edges after the edges' features."""
        of_edge = self._of_weights(edges, ("edges", *names), lambda: self._of_edge(names))
        return of_edge, p, q, edges.switch, self._weights("e")[0] if _TO_EDGES in names else None

    def _with_frames(
        self,
        names: Sequence[str],
        p: torch.Tensor,
        q: torch.Tensor,
        e: torch.Tensor,
        edges: Edges,
        *,
        takes_inner: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The results of `_along_edges`, the sums over an atom's edges of their frames times their features, and the
        features of the edges that form angles."""
        graph, of_inner, width = edges.graph, edges.inner.of_edge, self.options.inner_width
        if edges.at_once:
            ends, taken = (graph.of_center, graph.of_neighbor), of_inner if takes_inner else None
            weights = *self._weights_along_edges(names, p, q, edges), edges.frame, *ends
            given = e, *weights, taken, width, self.activation_name, edges.matmul
            received, kept, moments, inner = framed_message(*given)
            return received, e if kept is None else kept, moments, inner
        along, of_nodes, inner = shared_rows(e, of_inner, width) if takes_inner else (e, e, e)
        received, updated = self._along_edges(names, p, q, along, edges)
        return received, updated, row_moments(edges.frame, of_nodes, graph.offsets), inner

    def _angle_parts(self, names: Sequence[str], edges: Edges) -> tuple[Part, list[torch.Tensor]]:
        """The node's part in products along angles, and the weights of an angle, and of its second and its first
        edge."""
        node, weights = self._of_weights(edges, ("angles", *names), lambda: self._angle_weights(names))
        return Part([node], [layer.added for layer in self._layers(names)]), weights

    def _angle_weights(self, names: Sequence[str]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The weights of a node, and those of an angle, and of its second and its first edge."""
        o, (of_node, of_edge) = self.options, self.options.angle_inputs
        weight = torch.cat([layer.weight for layer in self._layers(names)], 1)
        of_angle, node, *of_edges = weight.split([o.a_dim, of_node, of_edge, of_edge])
        if o.compresses:
            node = linear(self._product("a_compress_n_linear").weight, node)
        else:
            node = F.pad(node, (0, 0, 0, o.n_dim - of_node))
        return node, [of_angle, *of_edges]

    def _along_angles(
        self,
        weights: Sequence[torch.Tensor],
        a: torch.Tensor,
        of_node: torch.Tensor,
        inner: torch.Tensor,
        edges: Edges,
        *,
        keeps: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The messages f(W [a_ijk, n_i, e_ik, e_ij] + b), with the weights of `_angle_parts` and the term `of_node` of
        n_i. Returns their sums for the edges that form angles, and the updated angles.

        Args:
            inner: the features of the edges that form angles; the leading ones are read.
            keeps: whether the last product updates angles.
        """
        of_angle, second, first = weights
        e = self._product("a_compress_e_linear")(inner) if self.options.compresses else inner
        of_center, angles = edges.inner.of_center, edges.inner.angles
        is_taken = e.shape[1] in (32, 64) and first.shape[1] % 16 == 0
        is_taken = is_taken and (is_exported() or len(e) >= _MANY_EDGES)
        if edges.at_once and is_taken:
            both = self._of_weights(edges, ("ends of angles", keeps), lambda: torch.cat([first, second], 1))
            p, q = angle_ends(e, of_node, both, of_center)
        else:
            p, q = edge_gather(of_node, of_center, linear(e, first)), linear(e, second)
        scale = self._weights("a")[0] if keeps else None
        ends = angles.of_first, angles.of_second
        given = of_angle, p, q, edges.angle_switch, scale, *ends, self.activation_name, of_center.offsets
        if edges.angle_vector is not None and a.shape == edges.cosines.shape:
            received, kept = outer_message(a, edges.angle_vector, *given, edges.matmul)
        else:
            received, kept = message(a, *given, edges.matmul)
        return received, a if kept is None else kept

    def _after_angles(
        self, updated: torch.Tensor, e: torch.Tensor, received: torch.Tensor, edges: Edges
    ) -> torch.Tensor:
        """The edges after the message from their angles."""
        weight, of_edge = self._weights("e")[1], edges.inner.of_edge
        if not self.options.smooth_edge_update:
            inside = of_edge.offsets[1:] > of_edge.offsets[:-1]
            received = torch.where(inside[:, None], edge_scatter(received, of_edge), e)
            return updated + weight * self._after("edge_angle_linear2", received)
        product = self._product("edge_angle_linear2")
        if edges.at_once:
            bias = product.added
            return edge_update(product(received), updated, weight, bias, of_edge, self.activation_name)
        nothing = self._f(product.added[None])
        share = weight * nothing
        found = torch.addcmul(-share, weight, self._after("edge_angle_linear2", received))
        return edge_scatter(found, of_edge, updated, share)

    def _weights(self, name: str) -> list[torch.Tensor]:
        """The weights of the messages to nodes, edges or angles."""
        if self.options.update_style == RESIDUAL:
            return list(getattr(self, f"{name}_residual"))
        count, width = self.options.messages[name]
        like = self._product(_TO_NODES).weight
        value = 1.0 if self.options.update_style == "res_avg" else 1 / math.sqrt(count)
        return [like.new_full((width,), value)] * count

    def _ended(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Nodes, edges or angles after the last message."""
        count, _ = self.options.messages[name]
        return x / math.sqrt(count + 1) if self.options.update_style == "res_avg" else x

    @classmethod
    def from_tree(cls, tree: Tree, options: RepflowOptions, dtype: torch.dtype) -> "RepflowLayer":
        weights = tree.get("@variables", {})
        return cls(
            options,
            tree["activation_function"],
            {name: Layer.from_tree(tree[name], dtype) for name in options.shapes},
            {
                name: [tensor(value, dtype) for value in weights[name]] if count else []
                for name, (count, _) in options.residuals.items()
            },
        )

    @staticmethod
    def said(options: RepflowOptions, activation_name: str, ntypes: int) -> Tree:
        """The descriptor's options that a layer's node repeats."""
        said = {name: getattr(options, name) for name in _SAID}
        return {**said, "e_sel": [options.e_sel], "ntypes": ntypes, "activation_function": activation_name}

    @classmethod
    def head(cls, options: RepflowOptions, activation_name: str, ntypes: int, precision: str) -> Tree:
        """The keys of the node without products and weights."""
        said = cls.said(options, activation_name, ntypes)
        return {"@class": "RepFlowLayer", "@version": 2, **said, "precision": precision}

    def to_tree(self, ntypes: int, precision: str) -> Tree:
        residuals = {
            name: [array(value, precision) for value in getattr(self, name)]
            for name in self.options.residuals
        }
        return {
            **self.head(self.options, self.activation_name, ntypes, precision),
            **{name: self._product(name).to_tree(precision) for name in self.products},
            **({"@variables": residuals} if self.options.update_style == RESIDUAL else {}),
        }

    @classmethod
    def random(
        cls,
        options: RepflowOptions,
        activation_name: str,
        precision: str,
        seed: Sequence[int],
        dtype: torch.dtype,
    ) -> "RepflowLayer":
        random = np.random.default_rng(seed)
        products = {
            name: new_product(*shape, random, precision, dtype, bias=not name.startswith("a_compress"))
            for name, shape in options.shapes.items()
        }

        residuals = new_residuals(options.residuals, options, random, precision, dtype)
        return cls(options, activation_name, products, residuals)


def new_product(
    inputs: int,
    outputs: int,
    random: np.random.Generator,
    precision: str,
    dtype: torch.dtype,
    *,
    bias: bool = True,
) -> Layer:
    """New weights of a product without an activation function."""
    given: Tree = {"random": random, "precision": precision, "dtype": dtype, "bias": bias}
    return Layer.random(inputs, outputs, "none", residual=False, **given)


# The options that a layer's node repeats.
_SAID = tuple(
    field.name
    for field in RepflowOptions.keys("file")
    if field.name not in ("nlayers", "fix_stat_std", "edge_init_use_dist", "use_exp_switch")
)
LAYER_NODE = schema.Node(
    {
        **{name: check for name, check in schema.keys_of(RepflowOptions).items() if name in _SAID},
        "e_sel": (schema.list_of(schema.count), schema.REQUIRED),
        "ntypes": (schema.count, schema.REQUIRED),
        "activation_function": (schema.text, "silu"),
        "precision": schema.precision,
        **{name: schema.part for name in ("node_self_mlp", "node_sym_linear", "node_edge_linear")},
        "edge_self_linear": schema.part,
        **{
            name: (schema.optional(schema.node), None)
            for name in ("edge_angle_linear1", "edge_angle_linear2", "angle_self_linear")
        },
        **{
            name: (schema.optional(schema.node), None)
            for name in ("a_compress_n_linear", "a_compress_e_linear")
        },
        "@variables": (schema.optional(schema.node), None),
    },
    {f"{name}_residual": False for name in "nea"},
)
