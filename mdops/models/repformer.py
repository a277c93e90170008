"""Layers of DPA-2 (repformer): nodes are atoms, edges point to neighbours and have features and a vector each."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from mdops.models import schema
from mdops.models.contract import Tree
from mdops.models.environment import automatic_sel_ratio, places_of
from mdops.models.graph import RESIDUAL, UPDATE_STYLES, new_residuals
from mdops.models.keys import places_key, residual_init_key, residual_key, switch_key
from mdops.models.repformer_once import AttentionOnce, GraphOnce, LayerOnce, NodesOnce, layer_once
from mdops.nn.net import Layer, array, tensor
from mdops.nn.watch import OfWeights
from mdops.ops import (
    NeighborGraph,
    axis_product,
    edge_attention,
    edge_convolution,
    edge_correlation,
    edge_gather,
    edge_rotate_outer,
    edge_scatter,
    edge_weighted_sum,
    own_message,
    row_moments,
)
from mdops.ops._register import is_by_pytorch
from mdops.ops.activation import kernel_code
from mdops.ops.add_norm import add_norm
from mdops.ops.edge_layer import EdgeLayerWeights
from mdops.ops.layer_output import layer_output
from mdops.ops.linear import linear
from mdops.ops.neighbor_attention import SHIFT
from mdops.ops.node_layer import NodeLayerWeights, node_layer_packed
from mdops.ops.own_message import has_fused_message
from mdops.options import Most, Options, key

LN_EPS = 1e-5
_WIDE = 64
COUNT_ADDED = 1e-4  # as in DeePMD-kit, to the number of neighbours in denominators


@dataclass(kw_only=True)
class RepformerOptions(Options):
    """The section `repformer` of an input; `repformer_args` of a file."""

    KIND = "repformer"

    rcut: float = key(4.0, "the cutoff of edges", unit="A", above=0, implied=..., absent=...)
    rcut_smth: float = switch_key(3.5, "edges", low=0)
    nsel: int | str = places_key("edges of an atom")
    nlayers: int = key(3, "number of layers", low=0)
    g1_dim: int = key(128, "width of the features of a node", low=1)
    g2_dim: int = key(16, "width of the features of an edge", low=1)
    axis_neuron: int = key(4, "number of columns that the symmetric sums are multiplied with", low=1)
    direct_dist: bool = key(
        False, "edges begin with lengths and vectors divided by rcut, not with rows of the environment matrix"
    )
    update_g1_has_conv: bool = key(True, "nodes get sums of products of neighbours and edges (convolution)")
    update_g1_has_drrd: bool = key(True, "nodes get products of sums of neighbours times the edges' vectors")
    update_g1_has_grrg: bool = key(True, "nodes get products of sums of edges times their vectors")
    update_g1_has_attn: bool = key(True, "nodes attend to their neighbours")
    update_g2_has_g1g1: bool = key(True, "edges get products of their two nodes")
    update_g2_has_attn: bool = key(True, "edges of an atom attend to each other")
    use_sqrt_nnei: bool = key(
        True, "divide symmetric sums by the square root of nsel, not by nsel", absent=False
    )
    g1_out_conv: bool = key(
        True, "the convolution is a separate message, not an input of the common product", absent=False
    )
    g1_out_mlp: bool = key(
        True,
        "the node's own message is separate, not an input of the common product",
        absent=False,
    )
    update_h2: bool = key(False, "update the vectors of edges by attention")
    attn1_hidden: int = key(64, "width of a head in the attention of nodes", low=1)
    attn1_nhead: int = key(4, "heads in the attention of nodes", low=1)
    attn2_hidden: int = key(16, "width of a head in the attention of edges", low=1)
    attn2_nhead: int = key(4, "heads in the attention of edges", low=1)
    attn2_has_gate: bool = key(False, "multiply the logits of edges by the product of their vectors")
    activation_function: str = key("tanh", "activation function of all messages")
    update_style: str = key(
        "res_avg",
        "messages are averaged with the old features, added divided by the square root of their "
        "number, or added with trained weights",
        choices=UPDATE_STYLES,
    )
    update_residual: float = residual_key(0.001)
    update_residual_init: str = residual_init_key("norm")
    set_davg_zero: bool = key(True, "use zero as the mean of the environment matrix")
    trainable_ln: bool = key(True, "whether the layer norms are trained", of="training")
    ln_eps: float | None = key(
        None, "added to variances in layer norms; default 1e-5", above=0, absent=LN_EPS
    )

    def __post_init__(self) -> None:
        self.ln_eps = LN_EPS if self.ln_eps is None else self.ln_eps

    @property
    def passes_messages(self) -> bool:
        """Whether layers read the nodes of neighbours."""
        return (
            self.update_g1_has_conv
            or self.update_g1_has_drrd
            or self.update_g1_has_attn
            or self.update_g2_has_g1g1
        )

    @property
    def joined_inputs(self) -> int:
        """The number of inputs of the product `linear1`."""
        return (
            (0 if self.g1_out_mlp else self.g1_dim)
            + (self.g2_dim if self.update_g1_has_conv and not self.g1_out_conv else 0)
            + (self.g2_dim * self.axis_neuron if self.update_g1_has_grrg else 0)
            + (self.g1_dim * self.axis_neuron if self.update_g1_has_drrd else 0)
        )

    def check(self, place: str, type_map: Sequence[str]) -> None:
        require = self.requirement(place)
        if isinstance(self.nsel, str):
            automatic_sel_ratio(self.nsel, f"{place}.nsel")
        require(self.rcut_smth < self.rcut, "rcut_smth", "less than rcut")
        for name, used, width in (
            ("axis_neuron", self.update_g1_has_grrg, self.g2_dim),
            ("axis_neuron", self.update_g1_has_drrd, self.g1_dim),
        ):
            require(not used or self.axis_neuron <= width, name, f"{width} or less")
        require(self.joined_inputs > 0, "g1_out_mlp", "false where the product of all has no other input")

    def resolve_sel(self, most: Most, place: str) -> Self:
        return dataclasses.replace(self, nsel=places_of(self.nsel, self.rcut, most, f"{place}.nsel"))


class LayerForm(NamedTuple):
    """The form of one layer.

    Attributes:
        options: of all layers.
        smooth: whether sums and attention fade with the switch.
        is_last: whether its new edges would not be read, so that they get no messages.
    """

    options: RepformerOptions
    smooth: bool
    is_last: bool

    @property
    def multiplies_nodes(self) -> bool:
        """Whether edges get products of their nodes."""
        return self.options.update_g2_has_g1g1 and not self.is_last

    @property
    def attends(self) -> bool:
        """Whether edges attend to each other for their features."""
        return self.options.update_g2_has_attn and not self.is_last

    @property
    def turns(self) -> bool:
        """The same for their vectors."""
        return self.options.update_h2 and not self.is_last

    @property
    def goes_once(self) -> bool:
        """Whether `mdops.models.repformer_once` has its first derivatives, without attention of nodes and without edges
        that `edges_go_once` excludes."""
        o = self.options
        return o.g1_out_conv or not o.update_g1_has_conv

    @property
    def edges_go_once(self) -> bool:
        """Whether it has the first derivatives of the edges."""
        return not (self.is_last or self.turns or self.multiplies_nodes)

    @property
    def edges_go_alone(self) -> bool:
        """Whether an edge's new features depend on its old ones alone."""
        return not (self.attends or self.turns or self.multiplies_nodes)

    @property
    def products(self) -> dict[str, tuple[int, int, bool]]:
        """The inputs and outputs of each product, and whether it has a bias, by its path in the layer's node."""
        o = self.options
        nodes, edges, heads, own_heads = o.g1_dim, o.g2_dim, o.attn2_nhead, o.attn1_nhead
        convolution = (edges, nodes) if o.g1_out_conv else (nodes, edges)
        every = {
            "linear1": (True, o.joined_inputs, nodes, True),
            "linear2": (not self.is_last, edges, edges, True),
            "g1_self_mlp": (o.g1_out_mlp, nodes, nodes, True),
            "proj_g1g2": (o.update_g1_has_conv, *convolution, False),
            "proj_g1g1g2": (self.multiplies_nodes, nodes, edges, False),
            "attn2g_map.mapqk": (self.attends or self.turns, edges, 2 * o.attn2_hidden * heads, False),
            "attn2_mh_apply.mapv": (self.attends, edges, edges * heads, False),
            "attn2_mh_apply.head_map": (self.attends, edges * heads, edges, True),
            "attn2_ev_apply.head_map": (self.turns, heads, 1, False),
            "loc_attn.mapq": (o.update_g1_has_attn, nodes, o.attn1_hidden * own_heads, False),
            "loc_attn.mapkv": (o.update_g1_has_attn, nodes, (o.attn1_hidden + nodes) * own_heads, False),
            "loc_attn.head_map": (o.update_g1_has_attn, nodes * own_heads, nodes, True),
        }
        return {name: shape for name, (there, *shape) in every.items() if there}  # type: ignore[misc]

    @property
    def residuals(self) -> dict[str, tuple[int, int]]:
        """The number and width of the messages' trained weights of nodes, edges and vectors."""
        o = self.options
        counts = {
            "g1": 1 + o.g1_out_mlp + (o.update_g1_has_conv and o.g1_out_conv) + o.update_g1_has_attn,
            "g2": 0 if self.is_last else 1 + self.multiplies_nodes + self.attends,
            "h2": int(self.turns),
        }
        widths = {"g1": o.g1_dim, "g2": o.g2_dim, "h2": 1}
        weighed = o.update_style == RESIDUAL
        return {f"{name}_residual": (count * weighed, widths[name]) for name, count in counts.items()}

    def said(self, ntypes: int) -> Tree:
        """The descriptor's options that the layer's node repeats."""
        o = self.options
        own = {
            "update_chnnl_2": not self.is_last,
            "update_g2_has_g1g1": self.multiplies_nodes,
            "update_g2_has_attn": self.attends,
            "update_h2": self.turns,
        }
        said = {name: getattr(o, name) for name in _SAID}
        return {**said, **own, "sel": [o.nsel], "ntypes": ntypes, "smooth": self.smooth}

    @property
    def holders(self) -> dict[str, Tree]:
        """The options that the nodes with products of attention repeat."""
        o = self.options
        common = {"smooth": self.smooth, "attnw_shift": SHIFT}
        of_edges = {"input_dim": o.g2_dim, "head_num": o.attn2_nhead}
        of_nodes = {"input_dim": o.g1_dim, "head_num": o.attn1_nhead, "hidden_dim": o.attn1_hidden}
        maps = {**of_edges, **common, "hidden_dim": o.attn2_hidden, "has_gate": o.attn2_has_gate}
        every = {
            "attn2g_map": {"@class": "Atten2Map", **maps},
            "attn2_mh_apply": {"@class": "Atten2MultiHeadApply", **of_edges},
            "attn2_ev_apply": {"@class": "Atten2EquiVarApply", **of_edges},
            "loc_attn": {"@class": "LocalAtten", **of_nodes, **common},
        }
        there = {name.partition(".")[0] for name in self.products}
        return {name: node for name, node in every.items() if name in there}


def part_of(tree: Tree, name: str) -> Any:
    """The node of a product, by its path in a layer's node."""
    return reduce(getitem, name.split("."), tree)


class Edges(NamedTuple):
    """The graph that all layers read.

    Attributes:
        graph: with E edges.
        types: (N,) int64, of the atoms.
        nodes: (N, g1_dim), the first nodes.
        lengths: (E, 1), and vectors: (E, 3), the edges' first inputs.
        weight: (E, 1), the switch, or 1 if the layers are not smooth; zero after the last edge.
        mean_weight: (E, 1), the same over the divisor of means.
        of_sums: the factor of `weight` in symmetric sums, a number or (E, 1).
        turning: (E, 3), `vectors` times `axis_weight`.
        empty: (N,), places without a neighbour.
        once: whether results are differentiated at most once, and by the displacements alone.
        constants: of each layer, if edges have few functions of their length instead of features.
    """

    graph: NeighborGraph
    types: torch.Tensor
    nodes: torch.Tensor
    lengths: torch.Tensor
    vectors: torch.Tensor
    weight: torch.Tensor
    mean_weight: torch.Tensor
    of_sums: torch.Tensor | float
    turning: torch.Tensor
    empty: torch.Tensor
    once: bool
    constants: Mapping[nn.Module, LayerOnce] | None = None

    @property
    def sum_weight(self) -> torch.Tensor:
        """(E, 1)."""
        return self.weight * self.of_sums

    @property
    def axis_weight(self) -> torch.Tensor:
        """(E, 1), `sum_weight` over the root of 3, which divides products of two such sums by 3."""
        return axis_weight(self.weight, self.of_sums)


def axis_weight(weight: torch.Tensor, of_sums: torch.Tensor | float) -> torch.Tensor:
    """`Edges.axis_weight`."""
    return weight * (of_sums * 3**-0.5)


Local = tuple[torch.Tensor, torch.Tensor]  # features of edges (E, g2_dim) and their vectors (E, 3)


def symmetric_sums(rows: torch.Tensor, vectors: torch.Tensor, edges: Edges) -> torch.Tensor:
    """(N, 3, M): the sums over the edges of an atom of their vectors times `rows` (E, M)."""
    return row_moments(vectors * edges.sum_weight, rows, edges.graph.offsets)


class RepformerLayer(nn.Module):
    """Adds messages to nodes n_i, edges e_ij and their vectors h_ij:

        n_i:   f(A n_i), sum_j w_ij n_j (C e_ij), f(B [S_i of e, S_i of n]), attention of i to its neighbours
        e_ij:  f(D e_ij), w_ij E (n_i n_j), norm(F sum_k p_ijk (V e_ik))
        h_ij:  G sum_k p_ijk h_ik

    S_i is T^T T_< / 3 for T = sum_j w_ij h_ij (x) rows_j; p are the weights of attention among the edges of i, times
    h_ij . h_ik. `LayerForm` and the options tell which of these exist.
    """

    def __init__(
        self,
        form: LayerForm,
        products: Mapping[str, Layer],
        residuals: Mapping[str, Sequence[torch.Tensor]],
        norm: Sequence[torch.Tensor] | None,
    ) -> None:
        """Takes the layers of `form.products`, without activation functions, `form.residuals`, and weight and bias
        (g2_dim,) of the norm if edges attend to each other."""
        super().__init__()
        self.form = form
        self.products = nn.ModuleDict({name.replace(".", "/"): product for name, product in products.items()})
        self.g1_residual, self.g2_residual, self.h2_residual = (
            nn.ParameterList(residuals[f"{name}_residual"]) for name in ("g1", "g2", "h2")
        )
        self.norm = nn.ParameterList(norm or ())
        self._kept: OfWeights[LayerOnce] = OfWeights()

    def forward(
        self, nodes: torch.Tensor, local: Local, edges: Edges, own: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Local]:
        """The new features of nodes (N, g1_dim), and of edges and their vectors; `own`: the old nodes of these atoms,
        if `nodes` has more."""
        form, (e, h) = self.form, local
        own = nodes if own is None else own
        if edges.once and form.goes_once and nodes.device.type == "cpu" and is_by_pytorch():
            return self._once(own, nodes, local, edges)
        return self._with_edges(self._nodes(own, nodes, e, h, edges), own, nodes, local, edges)

    def _with_edges(
        self, new: torch.Tensor, own: torch.Tensor, nodes: torch.Tensor, local: Local, edges: Edges
    ) -> tuple[torch.Tensor, Local]:
        """The new nodes, and the new edges and their vectors, computed from the old nodes."""
        form, (e, h) = self.form, local
        if form.is_last:
            return new, local
        if edges.once and has_fused_message(e) and is_by_pytorch():
            made, to_vectors = self._edges_once(own, nodes, e, h, edges)
            return new, (made, self._added("h2", h, to_vectors))
        to_edges, to_vectors = [self._after("linear2", e)], []
        if form.multiplies_nodes:
            to_edges.append(self._of_both_ends(own, nodes, edges))
        if form.attends or form.turns:
            numbers, turned = self._attention(e, h, edges)
            to_edges += numbers
            to_vectors += turned
        return new, (self._added("g2", e, to_edges), self._added("h2", h, to_vectors))

    def _edges_once(
        self, own: torch.Tensor, nodes: torch.Tensor, e: torch.Tensor, h: torch.Tensor, edges: Edges
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The new edges, differentiable once and not by weights, and the messages to their vectors."""
        form, product, turned = self.form, self._product("linear2"), list[torch.Tensor]()
        keep, factors = self._factors("g2", 1 + form.multiplies_nodes + form.attends)
        assert product.bias is not None
        activation = form.options.activation_function
        made = own_message(e, product.weight, product.bias, factors[0], keep=keep, activation=activation)
        if form.multiplies_nodes:
            made = torch.addcmul(made, factors[1], self._of_both_ends(own, nodes, edges))
        if form.attends or form.turns:
            numbers, turned = self._attention(e, h, edges, factors[-1])
            made = sum(numbers, made)
        return made, turned

    def _once(
        self, own: torch.Tensor, nodes: torch.Tensor, local: Local, edges: Edges
    ) -> tuple[torch.Tensor, Local]:
        """`forward`, differentiable once."""
        form, (e, h), graph = self.form, local, edges.graph
        absent = edges.empty if form.smooth else torch.zeros_like(edges.empty)
        r = h * 3**-0.25 if form.attends else h
        layer = self._kept(self, self.constants) if edges.constants is None else edges.constants[self]
        new, made = layer_once(
            layer,
            GraphOnce(graph.of_neighbor, graph.of_center, absent),
            *(own, nodes, e, r, edges.weight, edges.mean_weight, self._turning(h, edges)),
        )
        if layer.attention is not None:
            new = new + self._node_attention(own, nodes, edges, layer.attention)
        if made is None and edges.constants is None:
            return self._with_edges(new, own, nodes, local, edges)
        return new, (e if made is None else made, h)

    def _turning(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """`Edges.turning`, for the vectors after earlier layers."""
        return h * edges.axis_weight if self.form.options.update_h2 else edges.turning

    def new_numbers(self, e: torch.Tensor) -> torch.Tensor:
        """The new features of edges that go alone, in the dtype of e (E, g2_dim)."""
        own, (keep, (factor,)) = self._product("linear2"), self._factors("g2", 1)
        assert own.bias is not None
        return keep * e + factor.to(e) * self._activated(e @ own.weight.to(e) + own.bias.to(e))

    @torch.no_grad()
    def constants(self, of_edges: torch.Tensor | None = None) -> LayerOnce:
        """The weights for `layer_once`. of_edges: (R, g2_dim), if edges have functions that this matrix maps to their
        features."""
        o, form = self.form.options, self.form
        every, empty = self._product("linear1"), self._product("linear1").weight.new_empty(0)
        own: tuple[Any, Any] = (empty.view(0, 0), empty)
        filters, of_own, of_sum = every.weight[:0], empty, empty
        attends = o.update_g1_has_attn
        keep, factors = self._factors("g1", 1 + o.g1_out_mlp + o.update_g1_has_conv + attends)
        attention = self._of_attention(factors.pop()) if attends else None
        if o.g1_out_mlp:
            product, of_own = self._product("g1_self_mlp"), factors[0]
            own = product.weight, product.bias
        if o.update_g1_has_conv:
            filters, of_sum = self._product("proj_g1g2").weight, factors[-2]
            filters = filters if of_edges is None else of_edges @ filters
        assert every.bias is not None
        weights = NodeLayerWeights(*own, of_own, of_sum, every.weight, every.bias, factors[-1])
        nodes = NodesOnce(
            weights,
            node_layer_packed(weights),
            filters,
            of_edges,
            o.update_g1_has_grrg,
            o.update_g1_has_drrd,
            takes_nodes=not o.g1_out_mlp,
            keep=keep,
            axis=o.axis_neuron,
        )
        edges = self._edge_constants() if form.edges_go_once and of_edges is None else None
        return LayerOnce(
            nodes,
            edges,
            attention,
            kernel_code(o.activation_function),
            SHIFT if form.smooth else 0.0,
            o.attn2_has_gate,
            o.ln_eps or LN_EPS,
        )

    def _edge_constants(self) -> tuple[float, EdgeLayerWeights]:
        own, attends = self._product("linear2"), self.form.attends
        none = own.weight.new_empty(0)
        keep, factors = self._factors("g2", 1 + attends)
        heads: list[Any] = [none.view(0, *own.weight.shape)] * 2 + [none] * 4
        if attends:
            joined = self._product("attn2_mh_apply.head_map").bias
            heads = [self._of_queries(), self._of_values(), joined, *self.norm, factors[1]]
        assert own.bias is not None
        return keep, EdgeLayerWeights(own.weight, own.bias, factors[0], *heads)

    def _factors(self, name: str, count: int) -> tuple[float, list[torch.Tensor]]:
        """The factor of the old features, and those of `count` messages."""
        style = self.form.options.update_style
        if style == RESIDUAL:
            return 1.0, list(getattr(self, f"{name}_residual"))
        keep = (count + 1) ** -0.5 if style == "res_avg" else 1.0
        factor = keep if style == "res_avg" else count**-0.5
        width = self.form.residuals[f"{name}_residual"][1]
        ones = self._product("linear1").weight.new_ones(width)
        return keep, [ones * factor] * count

    def _nodes(
        self, own: torch.Tensor, nodes: torch.Tensor, e: torch.Tensor, h: torch.Tensor, edges: Edges
    ) -> torch.Tensor:
        """The new nodes."""
        o = self.form.options
        turning = self._turning(h, edges)
        messages, joined, symmetric = [], [], []
        if o.g1_out_mlp:
            messages.append(self._after("g1_self_mlp", own))
        else:
            joined.append(own)
        convolution, sums = self._of_neighbors(nodes, e, turning, edges)
        if convolution is not None:
            (messages if o.g1_out_conv else joined).append(convolution)
        if o.update_g1_has_grrg:
            symmetric.append(row_moments(turning, e, edges.graph.offsets))
        if sums is not None:
            symmetric.append(sums)
        messages.append(self._activated(self._product_of_all(joined, symmetric)))
        if o.update_g1_has_attn:
            messages.append(self._node_attention(own, nodes, edges))
        return self._added("g1", own, messages)

    def _of_neighbors(
        self, nodes: torch.Tensor, e: torch.Tensor, turning: torch.Tensor, edges: Edges
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The convolution of nodes, and sums (N, 3, g1_dim) of neighbours times the edges' vectors; None if the layer
        lacks it."""
        o, ends = self.form.options, (edges.graph.of_neighbor, edges.graph.of_center)
        filters = o.update_g1_has_conv and o.g1_out_conv
        convolution = sums = None
        if filters or o.update_g1_has_drrd:
            found = edge_convolution(
                nodes,
                e if filters else e[:, :0],
                edges.mean_weight.squeeze(1),
                turning if o.update_g1_has_drrd else turning[:, :0],
                self._product("proj_g1g2").weight if filters else e.new_empty(0, o.g1_dim),
                *ends,
            )
            convolution, sums = found.split([1, found.shape[1] - 1], 1)
            convolution, sums = convolution.squeeze(1), sums if o.update_g1_has_drrd else None
        if not filters:
            convolution = None
            if o.update_g1_has_conv:
                projected = self._product("proj_g1g2")(nodes)
                convolution = edge_weighted_sum(e * edges.mean_weight, projected, *ends)
        return convolution, sums

    def _of_both_ends(self, own: torch.Tensor, nodes: torch.Tensor, edges: Edges) -> torch.Tensor:
        """The edges' message from products of their nodes."""
        product, ends = self._product("proj_g1g1g2"), (edges.graph.of_center, edges.graph.of_neighbor)
        return edge_correlation(own, nodes, edges.weight.squeeze(1), product.weight.T, *ends)

    def _product_of_all(
        self, joined: Sequence[torch.Tensor], symmetric: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The product `linear1` of `joined` and the products of symmetric sums, concatenated."""
        product, axis = self._product("linear1"), self.form.options.axis_neuron
        widths = [*(part.shape[1] for part in joined), *(axis * sums.shape[2] for sums in symmetric)]
        weights = product.weight.split(widths)
        if (joined or symmetric)[0].is_cuda:  # one product is faster than several
            every, ordered = torch.cat(list(joined), 1) if joined else None, list(weights[: len(joined)])
            for sums, weight in zip(symmetric, weights[len(joined) :], strict=True):
                every = axis_product(sums, axis, every)
                ordered.insert(0, weight.unflatten(0, (axis, -1)).transpose(0, 1).flatten(0, 1))
            assert every is not None
            return linear(every, torch.cat(ordered), product.bias)
        z = None
        parts = [*joined, *(self._axis_product(sums) for sums in symmetric)]
        for part, weight in zip(parts, weights, strict=True):
            own = linear(part, weight, product.bias if z is None else None)
            z = own if z is None else z + own
        assert z is not None
        return z

    def _axis_product(self, sums: torch.Tensor) -> torch.Tensor:
        axis = self.form.options.axis_neuron
        if sums.shape[2] < _WIDE:  # matmul is slower for such small matrices
            return axis_product(sums, axis).unflatten(1, (-1, axis)).mT.flatten(1)
        return (sums[:, :, :axis].mT @ sums).flatten(1)

    def _node_attention(
        self, own: torch.Tensor, nodes: torch.Tensor, edges: Edges, constants: AttentionOnce | None = None
    ) -> torch.Tensor:
        """The attention of each node to its neighbours, with these or its own weights."""
        graph, heads = edges.graph, self.form.options.attn1_nhead
        near = edge_gather(nodes, graph.of_neighbor)
        weights = self._of_attention() if constants is None else constants
        wanted = linear(own, weights.wanted).unflatten(1, (heads, -1))
        logits = edge_rotate_outer(near[:, None], wanted, graph.of_center).squeeze(1)
        attended = row_moments(self._shares(logits, edges), near, graph.offsets)
        return linear(attended.flatten(1), weights.joined, weights.bias)

    def _of_attention(self, factor: torch.Tensor | float = 1.0) -> AttentionOnce:
        """The weights of the nodes' attention. Keys and values are the neighbours' features: the matrices of keys are
        folded into those of queries, those of values into that which joins the heads."""
        o, head = self.form.options, self._product("loc_attn.head_map")
        query = self._of_heads("loc_attn.mapq", o.attn1_nhead)
        both = self._of_heads("loc_attn.mapkv", o.attn1_nhead)
        keys, values = both.split([o.attn1_hidden, o.g1_dim], 2)
        wanted = (query @ keys.mT * o.attn1_hidden**-0.5).transpose(0, 1).flatten(1)
        joined = values @ head.weight.unflatten(0, (o.attn1_nhead, -1))
        assert head.bias is not None
        return AttentionOnce(wanted, joined.flatten(0, 1) * factor, head.bias * factor)

    def _shares(self, logits: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(E, H): the softmax over the edges of each atom, with its empty places if the layer is smooth, times the
        switch."""
        graph, smooth = edges.graph, self.form.smooth
        z = (logits + SHIFT) * edges.weight - SHIFT if smooth else logits
        center = graph.i.long().clamp(min=0)[:, None].expand(-1, z.shape[1])
        most = z.new_full((edges.empty.shape[0], z.shape[1]), -SHIFT)
        there = torch.where(graph.i[:, None] >= 0, z.detach(), -torch.inf)
        most = most.scatter_reduce(0, center, there, "amax", include_self=smooth)
        power = torch.exp(z - edge_gather(most, graph.of_center))
        total = edge_scatter(power, graph.of_center)
        if smooth:
            total = total + edges.empty[:, None] * torch.exp(-SHIFT - most)
        # The denominator is 1 after the last edge.
        share = power / (edge_gather(total, graph.of_center) + (graph.i < 0)[:, None])
        return share * edges.weight

    def _attention(
        self, e: torch.Tensor, h: torch.Tensor, edges: Edges, factor: torch.Tensor | None = None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The messages of an atom's edges to each other's features, times a factor, and to their vectors."""
        o, form = self.form.options, self.form
        heads, width, smooth = o.attn2_nhead, o.g2_dim, form.smooth
        # Keys and values are the edges' features: the matrices of keys are folded into those of queries, those of
        # values into that which joins the heads. DeePMD-kit has the heads innermost.
        of_queries = self._of_queries().transpose(0, 1).flatten(1)
        found = edge_attention(
            linear(e, of_queries).unflatten(1, (heads, -1)),
            torch.cat([e, h], 1) if form.turns else e,
            h * 3**-0.25,
            edges.weight[:, 0],
            edges.empty if smooth else torch.zeros_like(edges.empty),
            edges.graph.offsets,
            shift=SHIFT if smooth else 0.0,
            gated=o.attn2_has_gate,
            longest=edges.graph.edge_of_slot.shape[1],
        )
        numbers, vectors = [], []
        if form.attends:
            joined = self._product("attn2_mh_apply.head_map")
            x = linear(found[..., :width].flatten(1), self._of_values().flatten(0, 1), joined.bias)
            norm = self.norm if factor is None else [factor * weight for weight in self.norm]
            numbers.append(add_norm(x, None, norm[0], norm[1], o.ln_eps or LN_EPS))
        if form.turns:
            of_heads = self._product("attn2_ev_apply.head_map").weight[:, 0]
            vectors.append(torch.einsum("ehx,h->ex", found[..., width:], of_heads))
        return numbers, vectors

    def _of_queries(self) -> torch.Tensor:
        """(H, g2_dim, g2_dim): the matrices of queries times those of keys."""
        o = self.form.options
        query, keys = self._of_heads("attn2g_map.mapqk", 2 * o.attn2_nhead).split(o.attn2_nhead)
        scale = o.attn2_hidden**-0.5 * (3**0.5 if o.attn2_has_gate else 1.0)
        return query @ keys.mT * scale

    def _of_values(self) -> torch.Tensor:
        """(H, g2_dim, g2_dim): the matrices of values times that which joins the heads."""
        heads = self.form.options.attn2_nhead
        joined = self._product("attn2_mh_apply.head_map").weight.unflatten(0, (-1, heads)).transpose(0, 1)
        return self._of_heads("attn2_mh_apply.mapv", heads) @ joined

    def _of_heads(self, name: str, heads: int) -> torch.Tensor:
        """(H, inputs, outputs of a head): the weight of a product whose outputs have the heads innermost."""
        return self._product(name).weight.unflatten(1, (-1, heads)).permute(2, 0, 1)

    def _after(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._activated(self._product(name)(x))

    def _activated(self, z: torch.Tensor) -> torch.Tensor:
        return layer_output(z, None, self.form.options.activation_function)

    def _product(self, name: str) -> Layer:
        found = self.products[name.replace(".", "/")]
        assert isinstance(found, Layer)
        return found

    def _added(self, name: str, old: torch.Tensor, messages: Sequence[torch.Tensor]) -> torch.Tensor:
        """The old features with these messages."""
        style, count = self.form.options.update_style, len(messages)
        if style == RESIDUAL:
            weights = list(getattr(self, f"{name}_residual"))
            for weight, message in zip(weights, messages, strict=True):
                old = torch.addcmul(old, weight, message)
            return old
        if not messages:
            return old
        total = sum(messages[1:], messages[0])
        if style == "res_avg":
            return (old + total) / math.sqrt(count + 1)
        return old + total / math.sqrt(count)

    @classmethod
    def from_tree(cls, tree: Tree, form: LayerForm, dtype: torch.dtype) -> "RepformerLayer":
        weights, norm = tree.get("@variables", {}), None
        if form.attends:
            norm = [tensor(tree["attn2_lm"]["@variables"][name], dtype) for name in ("w", "b")]
        return cls(
            form,
            {name: Layer.from_tree(part_of(tree, name), dtype) for name in form.products},
            {
                name: [tensor(value, dtype) for value in weights[name]] if count else []
                for name, (count, _) in form.residuals.items()
            },
            norm,
        )

    @staticmethod
    def tree_of(
        form: LayerForm,
        ntypes: int,
        precision: str,
        products: Mapping[str, Tree],
        residuals: Mapping[str, Sequence[Any]],
        norm: Sequence[Any] | None,
    ) -> Tree:
        """The layer's node, from those of its products, its weights, and the norm's weight and bias."""
        head = {"@class": "RepformerLayer", "@version": 2}
        tree: Tree = {**head, **form.said(ntypes), "precision": precision}
        for name, node in form.holders.items():
            tree[name] = {"@version": 1, **node, "precision": precision}
        for name, node in products.items():
            holder, _, own = name.rpartition(".")
            (part_of(tree, holder) if holder else tree)[own] = node
        if norm is not None:
            o = form.options
            own_norm = {"eps": o.ln_eps, "trainable": o.trainable_ln, "precision": precision}
            arrays = dict(zip(("w", "b"), norm, strict=True))
            tree["attn2_lm"] = {"@class": "LayerNorm", "@version": 1, **own_norm, "@variables": arrays}
        if form.options.update_style == RESIDUAL:
            tree["@variables"] = {name: list(values) for name, values in residuals.items()}
        return tree

    def to_tree(self, ntypes: int, precision: str) -> Tree:
        return self.tree_of(
            self.form,
            ntypes,
            precision,
            {name: self._product(name).to_tree(precision) for name in self.form.products},
            {
                name: [array(value, precision) for value in getattr(self, name)]
                for name in self.form.residuals
            },
            [array(value, precision) for value in self.norm] if self.form.attends else None,
        )

    @classmethod
    def random(
        cls, form: LayerForm, precision: str, seed: Sequence[int], dtype: torch.dtype
    ) -> "RepformerLayer":
        o, random = form.options, np.random.default_rng(seed)
        given: Tree = {"random": random, "precision": precision, "dtype": dtype, "residual": False}
        products = {
            name: Layer.random(inputs, outputs, "none", bias=bias, **given)
            for name, (inputs, outputs, bias) in form.products.items()
        }

        residuals = new_residuals(form.residuals, o, random, precision, dtype)
        norm = [torch.ones(o.g2_dim, dtype=dtype), torch.zeros(o.g2_dim, dtype=dtype)]
        return cls(form, products, residuals, norm if form.attends else None)


# The options that a layer's node repeats.
_SAID = tuple(
    field.name
    for field in RepformerOptions.keys("file")
    if field.name
    not in ("nsel", "nlayers", "direct_dist", "set_davg_zero", "update_residual", "update_residual_init")
)
_holder: schema.Keys = {
    "input_dim": (schema.count, schema.REQUIRED),
    "head_num": (schema.count, schema.REQUIRED),
    "precision": schema.precision,
}
_map: schema.Keys = {
    **_holder,
    "hidden_dim": (schema.count, schema.REQUIRED),
    "smooth": (schema.boolean, True),
    "attnw_shift": (schema.number, SHIFT),
}
_maybe = (schema.optional(schema.node), None)
NODES: dict[str, schema.Node] = {
    "RepformerLayer": schema.Node(
        {
            **{name: check for name, check in schema.keys_of(RepformerOptions).items() if name in _SAID},
            "sel": (schema.list_of(schema.count), schema.REQUIRED),
            "ntypes": (schema.count, schema.REQUIRED),
            "update_chnnl_2": (schema.boolean, True),
            "smooth": (schema.boolean, True),
            "precision": schema.precision,
            "linear1": schema.part,
            **dict.fromkeys(("linear2", "g1_self_mlp", "proj_g1g2", "proj_g1g1g2"), _maybe),
            **dict.fromkeys(
                ("attn2g_map", "attn2_mh_apply", "attn2_lm", "attn2_ev_apply", "loc_attn"), _maybe
            ),
            "@variables": _maybe,
        },
        {f"{name}_residual": False for name in ("g1", "g2", "h2")},
    ),
    "Atten2Map": schema.Node({**_map, "has_gate": (schema.boolean, False), "mapqk": schema.part}),
    "Atten2MultiHeadApply": schema.Node({**_holder, "mapv": schema.part, "head_map": schema.part}),
    "Atten2EquiVarApply": schema.Node({**_holder, "head_map": schema.part}),
    "LocalAtten": schema.Node(
        {**_map, **dict.fromkeys(("mapq", "mapkv", "head_map"), schema.part)},
    ),
}
