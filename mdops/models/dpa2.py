"""The descriptor dpa2: DPA-2, sums over neighbours (repinit) and layers of messages (mdops.models.repformer)."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.errors import ConfigError, ModelFileError
from mdops.models import schema
from mdops.models.contract import (
    Descriptor,
    EnvironmentDescriptor,
    Features,
    Tree,
    environment_node,
    renumbered,
    statistics_arrays,
    without_none,
)
from mdops.models.dpa1 import DPA1, DPA1Options
from mdops.models.environment import automatic_sel_ratio, check_axis, places_of
from mdops.models.graph import MANY_ATOMS, GraphDescriptor, neighbor_graph_of
from mdops.models.keys import excluded_pairs_key, input_mode_key, places_key, precision_key, seed_key
from mdops.models.length_basis import EdgesByLength, LengthBasis
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSpec, pair_matrix
from mdops.models.registry import register
from mdops.models.repflow import new_product, switch
from mdops.models.repformer import (
    COUNT_ADDED,
    Edges,
    LayerForm,
    Local,
    RepformerLayer,
    RepformerOptions,
    axis_weight,
    part_of,
    symmetric_sums,
)
from mdops.models.repformer import NODES as LAYER_NODES
from mdops.models.repformer_once import GraphOnce, StepsOnce, steps_once
from mdops.models.se_e3_tebd import SeE3Tebd, SeE3TebdOptions
from mdops.models.shapes import (
    check_collection,
    check_options,
    check_product,
    check_residuals,
    check_statistics,
    require_same,
)
from mdops.models.statistics import EnvironmentSums
from mdops.models.type_embedding import Nets, TypeEmbedding, check_elements, check_type_nets, random_nets
from mdops.models.ways import way_of
from mdops.nn.net import Layer, NetCollection, tensor
from mdops.ops import NeighborGraph, edge_environment, edge_gather
from mdops.ops._register import is_by_pytorch
from mdops.ops.layer_output import layer_output
from mdops.options import Most, Options, check_pairs, key, saved_precision, section
from mdops.system import Exchange


@dataclass(kw_only=True)
class RepinitOptions(Options):
    """The section `repinit` of an input; `repinit_args` of a file."""

    KIND = "repinit"

    rcut: float = key(6.0, "the cutoff", unit="A", above=0, implied=..., absent=...)
    rcut_smth: float = key(
        0.5, "distance at which the switch begins to fall", unit="A", low=0, implied=..., absent=...
    )
    nsel: int | str = places_key("neighbours of all types")
    neuron: list[int] = key([25, 50, 100], "widths of the embedding net's layers", low=1)
    axis_neuron: int = key(16, "number of columns of the embedding that the sums are multiplied with", low=1)
    tebd_dim: int = key(8, "width of the type embedding", low=1)
    tebd_input_mode: str = input_mode_key()
    set_davg_zero: bool = key(True, "use zero as the mean of the environment matrix")
    activation_function: str = key("tanh", "activation function of the embedding nets")
    type_one_side: bool = key(False, "the net gets only the neighbour's type, not the centre's")
    resnet_dt: bool = key(False, "a trained factor in front of each residual layer")
    use_three_body: bool = key(False, "add sums over pairs of neighbours")
    three_body_neuron: list[int] = key(
        [2, 4, 8], "widths of the layers of the net for pairs of neighbours", low=1
    )
    three_body_sel: int | str = key(
        40, "largest number of neighbours that form pairs, as `nsel`", low=1, saved=int
    )
    three_body_rcut: float = key(4.0, "the cutoff of neighbours that form pairs", unit="A", above=0)
    three_body_rcut_smth: float = key(0.5, "distance at which their switch begins to fall", unit="A", low=0)

    def check(self, place: str, type_map: Sequence[str]) -> None:
        for name in ("nsel", "three_body_sel"):
            if isinstance(getattr(self, name), str):
                automatic_sel_ratio(getattr(self, name), f"{place}.{name}")
        for name, cutoff in (("rcut_smth", "rcut"), ("three_body_rcut_smth", "three_body_rcut")):
            if not getattr(self, name) < getattr(self, cutoff):
                raise ConfigError(f"{place}.{name}: is {getattr(self, name)}, expected less than {cutoff}")
        check_axis(self.axis_neuron, self.neuron, place)
        if not self.three_body_neuron:
            raise ConfigError(f"{place}.three_body_neuron: is empty, expected the widths of layers")

    def resolve_sel(self, most: Most, place: str) -> Self:
        return dataclasses.replace(
            self,
            nsel=places_of(self.nsel, self.rcut, most, f"{place}.nsel"),
            three_body_sel=places_of(
                self.three_body_sel, self.three_body_rcut, most, f"{place}.three_body_sel"
            ),
        )


@dataclass(kw_only=True)
class DPA2Options(Options):
    KIND = "dpa2"

    repinit: RepinitOptions = section(RepinitOptions, "the sums that nodes begin with")
    repformer: RepformerOptions = section(RepformerOptions, "the layers")
    concat_output_tebd: bool = key(True, "append the centre's type embedding to the descriptor")
    precision: str = precision_key()
    smooth: bool = key(True, 'multiply sums, attention and the types\' net ("strip") by the switch')
    exclude_types: list[list[int]] = excluded_pairs_key()
    env_protection: float = key(0.0, "added to distances in denominators", unit="A", low=0)
    trainable: bool = key(True, "whether the weights are trained", of="training")
    seed: int | None = seed_key(where="input")
    add_tebd_to_repinit_out: bool = key(
        False,
        "add a product of the type embedding to the initial features of nodes",
        alias=["repformer_add_type_ebd_to_seq"],
    )
    use_econf_tebd: bool = key(False, "distinguish types by their electron configurations")
    use_tebd_bias: bool = key(False, "a bias in the type embedding", absent=True)  # as version 1 had it

    @property
    def cutoff(self) -> float:
        return self.repinit.rcut

    @property
    def tebd_dim(self) -> int:
        """Width of the type embedding."""
        return self.repinit.tebd_dim

    @property
    def forms(self) -> list[LayerForm]:
        """The form of each layer."""
        o = self.repformer
        return [LayerForm(o, self.smooth, k + 1 == o.nlayers) for k in range(o.nlayers)]

    @property
    def sums(self) -> DPA1Options:
        """The options of the sums over neighbours."""
        o = self.repinit
        return DPA1Options(
            rcut=o.rcut,
            rcut_smth=o.rcut_smth,
            sel=[int(o.nsel)],
            neuron=o.neuron,
            axis_neuron=o.axis_neuron,
            tebd_input_mode=o.tebd_input_mode,
            type_one_side=o.type_one_side,
            attn_layer=0,
            smooth_type_embedding=self.smooth,
            **self._of_both,
        )

    @property
    def pair_sums(self) -> SeE3TebdOptions | None:
        """The options of the sums over pairs of neighbours."""
        o = self.repinit
        if not o.use_three_body:
            return None
        return SeE3TebdOptions(
            rcut=o.three_body_rcut,
            rcut_smth=o.three_body_rcut_smth,
            sel=[int(o.three_body_sel)],
            neuron=o.three_body_neuron,
            tebd_input_mode=o.tebd_input_mode,
            smooth=self.smooth,
            **self._of_both,
        )

    @property
    def _of_both(self) -> dict[str, Any]:
        o = self.repinit
        names = ("tebd_dim", "set_davg_zero", "activation_function", "resnet_dt")
        own = ("exclude_types", "env_protection", "precision", "use_econf_tebd", "use_tebd_bias")
        return {
            "concat_output_tebd": False,
            **{name: getattr(o, name) for name in names},
            **{name: getattr(self, name) for name in own},
        }

    @property
    def nodes_begin(self) -> int:
        """The width of the sums."""
        o = self.repinit
        return o.neuron[-1] * o.axis_neuron + (o.three_body_neuron[-1] if o.use_three_body else 0)

    @property
    def products(self) -> dict[str, tuple[int, int, bool]]:
        """The inputs and outputs of the products between the sums and the layers, and whether they have a bias."""
        nodes = self.repformer.g1_dim
        found = {} if self.nodes_begin == nodes else {"g1_shape_tranform": (self.nodes_begin, nodes, False)}
        if self.add_tebd_to_repinit_out:
            found["tebd_transform"] = self.tebd_dim, nodes, False
        return found

    def check(self, place: str, type_map: Sequence[str]) -> None:
        self.repinit.check(f"{place}.repinit", type_map)
        self.repformer.check(f"{place}.repformer", type_map)
        check_pairs(self.exclude_types, len(type_map), f"{place}.exclude_types")
        if self.use_econf_tebd:
            check_elements(place, type_map)
        if not self.repformer.rcut < self.repinit.rcut:
            raise ConfigError(
                f"{place}.repformer.rcut: is {self.repformer.rcut}, expected less than that of repinit, "
                f"{self.repinit.rcut:g}"
            )
        if self.repinit.use_three_body and self.repinit.three_body_rcut > self.repinit.rcut:
            raise ConfigError(
                f"{place}.repinit.three_body_rcut: is {self.repinit.three_body_rcut}, expected rcut, "
                f"{self.repinit.rcut:g}, or less"
            )
        self._check_places(place)

    def _check_places(self, place: str) -> None:
        """Raises ConfigError where a shorter cutoff has more places than a longer one, as DeePMD-kit does."""
        o, layers = self.repinit, self.repformer
        found: dict[str, tuple[float, Any]] = {
            "repinit.nsel": (o.rcut, o.nsel),
            "repformer.nsel": (layers.rcut, layers.nsel),
        }
        if o.use_three_body:
            found["repinit.three_body_sel"] = o.three_body_rcut, o.three_body_sel
        known = sorted((*of, name) for name, of in found.items() if isinstance(of[1], int))
        for (_, fewer, name), (_, more, other) in itertools.pairwise(known):
            if fewer > more or (fewer == more and {name, other} == {"repinit.nsel", "repformer.nsel"}):
                raise ConfigError(
                    f"{place}.{name}: is {fewer}, expected less than the {more} of {other}, whose cutoff is longer"
                )

    def resolve_sel(self, most: Most, place: str) -> Self:
        found = dataclasses.replace(
            self,
            repinit=self.repinit.resolve_sel(most, f"{place}.repinit"),
            repformer=self.repformer.resolve_sel(most, f"{place}.repformer"),
        )
        fewer = int(found.repformer.nsel)
        if isinstance(self.repinit.nsel, str) and int(found.repinit.nsel) <= fewer:
            # Small molecules have as many neighbours within both cutoffs.
            repinit = dataclasses.replace(found.repinit, nsel=fewer + 4)
            found = dataclasses.replace(found, repinit=repinit)
        found._check_places(place)
        return found


_One = torch.Tensor
_Rows = tuple[_One, _One, _One, _One, _One | float, _One]  # of edges, as in `Edges`

_SUMS_NODE = schema.Node(
    {
        "embeddings": schema.part,
        "embeddings_strip": (schema.optional(schema.node), None),
        "env_mat": (schema.optional(schema.node), None),
        "compress": (schema.anything, None),
        "@variables": schema.part,
    },
    schema.STATISTICS,
)


@register
class DPA2(EdgesByLength, GraphDescriptor):
    """D_i = n_i after the last layer, and the type embedding of i beside it if `concat_output_tebd`.

    n_i begin as f(W [sums] + V t_i), with the sums over neighbours of dpa1 without attention, and those over pairs of
    se_e3_tebd. W is there if the sums are not as wide as n_i; V, on the type embedding, if `add_tebd_to_repinit_out`.
    e_ij begin as f of a product of the first number in the row of the environment matrix, the vectors as its x, y and
    z; or, with `direct_dist`, of the distance, with the vector to the neighbour, both over the cutoff.

    Attributes:
        repinit: the sums over neighbours. three_body: those over pairs; None: there are none.
        mean, std, excluded: as of `EnvironmentDescriptor`, of the layers' edges.
        type_embedding: (ntypes, tebd_dim).
        edge_embedding: the first product of edges.
        between: the products between the sums and the layers, by DeePMD-kit's names.
    """

    Options = DPA2Options
    NODE = schema.Node(
        {
            "repinit_args": schema.part,
            "repformer_args": schema.part,
            "repinit_variable": schema.part,
            "repinit_three_body_variable": (schema.optional(schema.node), None),
            "repformers_variable": schema.part,
            "type_embedding": schema.part,
            "g1_shape_tranform": schema.part,
            "tebd_transform": (schema.optional(schema.node), None),
            "ntypes": (schema.count, None),
            "type_map": schema.type_map,
        }
    )
    NODES: ClassVar[dict[str, schema.Node]] = {
        "TypeEmbedNet": TypeEmbedding.NODE,
        **LAYER_NODES,
        "Identity": schema.Node({}),
        "repinit_args": schema.Node(schema.keys_of(RepinitOptions)),
        "repformer_args": schema.Node(schema.keys_of(RepformerOptions)),
        "repinit_variable": _SUMS_NODE,
        "repinit_three_body_variable": _SUMS_NODE,
        "repformers_variable": schema.Node(
            {
                "g2_embd": schema.part,
                "repformer_layers": (schema.list_of(schema.node), schema.REQUIRED),
                "env_mat": (schema.optional(schema.node), None),
                "@variables": schema.part,
            },
            schema.STATISTICS,
        ),
    }
    mixed: ClassVar[bool] = True

    mean: torch.Tensor
    std: torch.Tensor
    excluded: torch.Tensor

    def __init__(
        self,
        options: DPA2Options,
        type_map: Sequence[str],
        sums: tuple[DPA1, SeE3Tebd | None],
        statistics: tuple[torch.Tensor, torch.Tensor],
        edge_embedding: Layer,
        between: dict[str, Layer],
        layers: Sequence[RepformerLayer],
    ) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.repinit, self.three_body = sums
        self.edge_embedding, self.between = edge_embedding, nn.ModuleDict(between)
        self.layers = nn.ModuleList(layers)
        for name, value in zip(("mean", "std"), statistics, strict=True):
            self.register_buffer(name, value)
        self.register_buffer("excluded", pair_matrix(options.exclude_types, len(type_map)))
        self._makes_axes = True

    def values_alone(self) -> None:
        self._makes_axes = False

    @property
    def type_embedding(self) -> TypeEmbedding:
        return self.repinit.type_embedding

    @property
    def edges_go_by_length(self) -> bool:
        o = self.options
        return (
            o.smooth
            and not (o.repformer.direct_dist or self._makes_axes)
            and all(form.goes_once and form.edges_go_alone for form in o.forms)
        )

    def edge_range(self, r_min: float, types: Sequence[int] | None) -> tuple[float, float]:
        index = slice(None) if types is None else list(types)
        mean, std = self.mean[index].double(), self.std[index, 0].double()
        nearest = 1 / (r_min + self.options.env_protection)
        return float((-mean / std).min()), float(((nearest - mean) / std).max())

    def edge_functions(self, x: torch.Tensor) -> list[torch.Tensor]:
        own = self.edge_embedding
        assert own.bias is not None
        found = [self._f(x * own.weight.to(x) + own.bias.to(x))]
        for layer in self.own_layers[:-1]:
            found.append(layer.new_numbers(found[-1]))
        return found

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        o, layers = self.options.repinit, self.options.repformer
        own = (
            NeighborSpec(o.rcut, (int(o.nsel),), True),
            NeighborSpec(layers.rcut, (int(layers.nsel),), True),
        )
        if self.three_body is None:
            return own
        return *own, NeighborSpec(o.three_body_rcut, (int(o.three_body_sel),), True)

    captures = goes_in_runs = True

    def bytes_of(self, local: Any, graph: Edges) -> int:
        return 0  # a layer that exceeds the memory is recomputed as a whole

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor:
        edges = within[1][:, 0].long()
        none = torch.zeros_like(edges)
        return torch.stack([edges, none, none], 1)

    @property
    def own_layers(self) -> list[RepformerLayer]:
        return [layer for layer in self.layers if isinstance(layer, RepformerLayer)]

    @property
    def inner(self) -> list[Descriptor]:
        return [part for part in (self.repinit, self.three_body) if part is not None]

    @property
    def reach(self) -> int:
        return math.ceil(self._distance / self.cutoff - 1e-9)

    @property
    def _distance(self) -> float:
        """The distance up to which other atoms change an atom's features, A."""
        o = self.options.repformer
        return self.cutoff + o.rcut * o.nlayers * o.passes_messages

    @property
    def width(self) -> int:
        o = self.options
        return o.repformer.g1_dim + (o.tebd_dim if o.concat_output_tebd else 0)

    @property
    def axes(self) -> int:
        width: int = self.options.repformer.g2_dim
        return width

    ends_at_cutoff = True

    def graph(self, near: Neighborhood) -> Edges:
        o, layers = self.options, self.options.repformer
        near = near.within(min(near.cutoff, self.cutoff))
        graph = self._graph(near)
        is_plain = o.smooth and not layers.direct_dist
        once = is_plain and near.first_derivative_only
        # Training on a GPU captures graphs of operations.
        by_op = once or (is_plain and not near.displacements.is_cuda)
        rows = self._rows_by_op(graph, near) if by_op else self._rows(graph, near)
        sums = self._sums(near)
        if near.displacements.device.type == "cpu":
            self._report(near, graph)
        constants = None
        if once and (steps := self._steps(near)) is not None:
            constants = dict(zip(self.layers, steps.layers, strict=True))
            rows = steps.basis.functions(rows[0]), *rows[1:]
        return Edges(
            graph,
            near.centers,
            sums,
            *rows,
            (float(layers.nsel) - graph.offsets.diff().to(self.mean.dtype)).clamp(min=0),
            near.first_derivative_only,
            constants,
        )

    def steps(self, basis: LengthBasis) -> StepsOnce:
        given = zip(self.own_layers, basis.products, strict=True)
        return StepsOnce(basis, tuple(layer.constants(product) for layer, product in given))

    def _steps(self, near: Neighborhood) -> StepsOnce | None:
        """The steps that an evaluator set for simulations; None: the usual layers."""
        way = way_of(self)
        if way is None or not near.first_derivative_only or not is_by_pytorch():
            return None
        found: StepsOnce = way.make(near)
        return found

    def _by_layers(self, near: Neighborhood, exchange: Exchange | None) -> Features:
        """Runs all layers as one function of the first nodes and the pair vectors, unless exchange or memory require a
        stop between layers. For some hundred atoms, autograd costs as much as many operations."""
        alone = exchange is None and not self.options.repformer.update_g1_has_attn
        steps = self._steps(near) if alone else None
        if steps is None or len(near.types) >= MANY_ATOMS:
            return super()._by_layers(near, exchange)
        near = near.within(min(near.cutoff, self.cutoff))
        graph, nodes = self._graph(near), self._f(self._sums(near))
        self._report(near, graph)
        ends = GraphOnce(graph.of_neighbor, graph.of_center, self.mean[:0])
        tensors, numbers = self._environment(graph, near)
        environment = *tensors, *map(float, numbers.values())
        nodes = steps_once(steps, ends, environment, nodes, near.displacements)
        return Features(self._with_types(nodes, near.centers))

    def _graph(self, near: Neighborhood) -> NeighborGraph:
        o, layers = self.options, self.options.repformer
        excluded = self.excluded if o.exclude_types else None
        return neighbor_graph_of(near, layers.rcut, sel=layers.nsel, excluded=excluded)

    def _report(self, near: Neighborhood, graph: NeighborGraph) -> None:
        """Combines what the parts' ops report on the neighbours, if they do."""
        told = [near.reports.get(part) for part in self.inner]
        if near.cutoff == self.cutoff and told[0] is not None and told[-1] is not None:
            within = (told[0].within[0], graph.within[:, :1], *(part.within[0] for part in told[1:] if part))
            near.reports[self] = NeighborReport(within, told[0].nearest)

    def _rows_by_op(self, graph: NeighborGraph, near: Neighborhood) -> _Rows:
        """`_rows`, if all is smooth."""
        tensors, numbers = self._environment(graph, near)
        rows = edge_environment(near.displacements, *tensors, **numbers)
        return rows.lengths, rows.vectors, rows.weight, rows.means, self._of_sums, rows.turning

    @property
    def _of_sums(self) -> float:
        """`Edges.of_sums`, if all is smooth."""
        layers = self.options.repformer
        return float(layers.nsel) ** (-0.5 if layers.use_sqrt_nnei else -1.0)

    def _environment(
        self, graph: NeighborGraph, near: Neighborhood
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `edge_environment` after the pair vectors."""
        layers = self.options.repformer
        return (graph.slots, graph.edge_of_slot, near.types, self.mean, self.std), {
            "smooth": layers.rcut_smth,
            "cutoff": layers.rcut,
            "protection": self.options.env_protection,
            "of_means": 1 / float(layers.nsel),
            "of_turning": self._of_sums * 3**-0.5,
        }

    def _rows(self, graph: NeighborGraph, near: Neighborhood) -> _Rows:
        """The edges' first inputs and weights, as in `Edges`."""
        o, layers = self.options, self.options.repformer
        # Rows after the last edge get finite numbers; no sum reads them.
        present = (graph.i >= 0)[:, None]
        kinds = near.centers[graph.i.long().clamp(min=0)]
        vectors = graph.vectors(near.displacements)
        r = torch.where(present, vectors, 1.0).norm(dim=1, keepdim=True)
        w = torch.where(present, switch(r, layers.rcut_smth, layers.rcut, False), 0.0)
        if layers.direct_dist:
            lengths, turning = r / layers.rcut, vectors / layers.rcut
        else:
            inverse = 1 / (r + o.env_protection)
            lengths = (inverse * w - self.mean[kinds, None]) / self.std[kinds, :1]
            turning = vectors * (inverse**2 * w) / self.std[kinds, 1:]
        places = float(layers.nsel)
        of_means: _One | float
        of_sums: _One | float
        if o.smooth:
            of_means, of_sums = 1 / places, self._of_sums
        else:
            w, count = present.to(w.dtype), graph.offsets.diff().to(w.dtype)
            root = count.sqrt() if layers.use_sqrt_nnei else count
            of_means, of_sums = (
                1 / (COUNT_ADDED + edge_gather(divisor[:, None], graph.of_center))
                for divisor in (count, root)
            )
        return lengths, turning, w, w * of_means, of_sums, turning * axis_weight(w, of_sums)

    def _sums(self, near: Neighborhood) -> torch.Tensor:
        """(N, g1_dim), the first nodes before the activation function."""
        parts = [self.repinit(near).values]
        if self.three_body is not None:
            spec = self.three_body.spec
            pairs = near.within(spec.cutoff).select(spec.sel, mixed=True)
            parts.append(self.three_body(pairs).values)
        product = dict(self.between.items()).get("g1_shape_tranform")
        if isinstance(product, Layer) and parts[0].device.type == "cpu" and near.first_derivative_only:
            weights = product.multiplied.split([part.shape[1] for part in parts])
            sums = parts[0] @ weights[0]
            for part, weight in zip(parts[1:], weights[1:], strict=True):
                sums = torch.addmm(sums, part, weight)
        else:
            sums = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
            sums = sums if product is None else product(sums)
        if "tebd_transform" in self.between:
            sums = sums + F.embedding(near.centers, self.between["tebd_transform"](self.type_embedding()))
        return sums

    def start(self, graph: Edges) -> tuple[torch.Tensor, Local]:
        e = graph.lengths if graph.constants is not None else self._f(self.edge_embedding(graph.lengths))
        return self._f(graph.nodes), (e, graph.vectors)

    def finish(self, nodes: torch.Tensor, local: Local, graph: Edges) -> Features:
        axes = symmetric_sums(*local, graph) if self._makes_axes else None
        return Features(self._with_types(nodes, graph.types), axes)

    def _with_types(self, nodes: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """The descriptor's features without vectors, for atoms of types (N,)."""
        if not self.options.concat_output_tebd:
            return nodes
        return torch.cat([nodes, F.embedding(types, self.type_embedding())], 1)

    def _f(self, z: torch.Tensor) -> torch.Tensor:
        return layer_output(z, None, self.options.repformer.activation_function)

    def set_trained(self) -> None:
        super().set_trained()
        if not self.options.repformer.trainable_ln:
            for layer in self.own_layers:
                layer.norm.requires_grad_(False)

    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        o, layers = self.options, self.options.repformer

        def sums(cutoff_smooth: float, places: int) -> EnvironmentSums:
            return EnvironmentSums(
                ntypes=len(self.type_map),
                sel=[places],
                mixed=True,
                cutoff_smooth=cutoff_smooth,
                protection=o.env_protection,
                exclude_types=[*o.exclude_types, *absent],
            )

        parts: Any = self.inner
        found = [(part.cutoff, sums(part.cutoff_smooth, part.slots)) for part in parts]
        own = sums(layers.rcut_smth, int(layers.nsel))
        for pairs in frames:
            for cutoff, one in (*found, (layers.rcut, own)):
                one.add(pairs.within(cutoff))
        for part, (_, one) in zip(parts, found, strict=True):
            part.set_statistics(one.result().mean, one.result().std)
        with torch.no_grad():
            if not layers.set_davg_zero:
                self.mean.copy_(torch.from_numpy(own.result().mean))
            self.std.copy_(torch.from_numpy(own.result().std))

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "DPA2":
        options = DPA2Options.from_tree(
            tree,
            repinit=RepinitOptions.from_tree(tree["repinit_args"]),
            repformer=RepformerOptions.from_tree(tree["repformer_args"]),
        )
        embedding = TypeEmbedding.from_tree(tree["type_embedding"], type_map, dtype)

        def nets(inner: Tree) -> Nets:
            strip = inner.get("embeddings_strip")
            types = None if strip is None else NetCollection.from_tree(strip, dtype)
            return NetCollection.from_tree(inner["embeddings"], dtype), types, embedding

        def statistics(inner: Tree) -> tuple[torch.Tensor, torch.Tensor]:
            return EnvironmentDescriptor.statistics_of_tree(inner, dtype)

        inner = tree["repinit_variable"]
        repinit = DPA1(options.sums, type_map, *statistics(inner), nets(inner), [])
        three_body = None
        if options.pair_sums is not None:
            inner = tree["repinit_three_body_variable"]
            three_body = SeE3Tebd(options.pair_sums, type_map, *statistics(inner), nets(inner))
        inner = tree["repformers_variable"]
        layers = zip(inner["repformer_layers"], options.forms, strict=True)
        return cls(
            options,
            type_map,
            (repinit, three_body),
            statistics(inner),
            Layer.from_tree(inner["g2_embd"], dtype),
            {name: Layer.from_tree(tree[name], dtype) for name in options.products},
            [RepformerLayer.from_tree(layer, form, dtype) for layer, form in layers],
        )

    def to_tree(self) -> Tree:
        o, ntypes = self.options, len(self.type_map)
        precision, slots = saved_precision(o.precision), int(o.repformer.nsel)

        def sums(part: DPA1 | SeE3Tebd) -> Tree:
            types, resnet_dt = part.type_nets, part.options.resnet_dt
            return {
                "embeddings": part.embeddings.to_tree(precision, resnet_dt),
                **({} if types is None else {"embeddings_strip": types.to_tree(precision, resnet_dt)}),
                "env_mat": cutoff_node(part.options),
                "@variables": part.statistics_to_tree(),
            }

        pairs = {} if self.three_body is None else {"repinit_three_body_variable": sums(self.three_body)}
        return {
            "@class": "Descriptor",
            "@version": 3,
            "type": o.KIND,
            "ntypes": ntypes,
            "repinit_args": o.repinit.to_tree(),
            "repformer_args": o.repformer.to_tree(),
            **o.to_tree(),
            "type_map": list(self.type_map),
            "type_embedding": self.type_embedding.to_tree(precision),
            "g1_shape_tranform": {"@class": "Identity", "@version": 1},
            **{name: product.to_tree(precision) for name, product in self.between.items()},  # type: ignore[operator]
            "repinit_variable": sums(self.repinit),
            **pairs,
            "repformers_variable": {
                "g2_embd": self.edge_embedding.to_tree(precision),
                "repformer_layers": [layer.to_tree(ntypes, precision) for layer in self.own_layers],
                "env_mat": cutoff_node(o.repformer),
                "@variables": statistics_arrays(self.mean, self.std, slots, precision),
            },
        }

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        own = {name: dict(tree[f"{name}_args"]) for name in ("repinit", "repformer")}
        return {**super().definition_of_tree(tree), **own}

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        inner = tree["repformers_variable"]
        layers = [without_none(layer) for layer in inner["repformer_layers"]]
        return {
            **without_none(tree),
            "repformers_variable": {**without_none(inner), "repformer_layers": layers},
        }

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        repinit = RepinitOptions.from_tree(tree["repinit_args"])
        repformer = RepformerOptions.from_tree(tree["repformer_args"])
        options = DPA2Options.from_tree(tree, repinit=repinit, repformer=repformer)
        check_options(options, tree, type_map, place)
        ntypes = len(type_map)
        TypeEmbedding.check_tree(tree["type_embedding"], options.tebd_dim, ntypes, f"{place}.type_embedding")
        for name, part in (
            ("repinit_variable", options.sums),
            ("repinit_three_body_variable", options.pair_sums),
        ):
            require_same(name in tree, part is not None, f"whether {place} has {name}")
            if part is not None:
                _check_sums(tree[name], part, ntypes, f"{place}.{name}")
        for name in ("g1_shape_tranform", "tebd_transform"):
            there = tree.get(name, {}).get("@class") == "Layer"
            require_same(there, name in options.products, f"whether {place} has the product {name}")
        for name, (inputs, outputs, _) in options.products.items():
            check_product(tree[name], inputs, outputs, f"{place}.{name}")
        inner, place = tree["repformers_variable"], f"{place}.repformers_variable"
        check_statistics(inner["@variables"], (ntypes, int(repformer.nsel), 4), place)
        check_product(inner["g2_embd"], 1, repformer.g2_dim, f"{place}.g2_embd")
        layers = inner["repformer_layers"]
        require_same(len(layers), repformer.nlayers, f"the number of layers of {place}")
        for i, (layer, form) in enumerate(zip(layers, options.forms, strict=True)):
            _check_layer(layer, form, ntypes, f"{place}.repformer_layers[{i}]")

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int:
        width: int = tree["repformer_args"]["g1_dim"]
        return width + (tree["repinit_args"]["tebd_dim"] if tree["concat_output_tebd"] else 0)

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        count = len(types)
        found = {**tree, "type_map": list(type_map), "ntypes": count}
        for name in ("repinit_variable", "repinit_three_body_variable", "repformers_variable"):
            if name in tree:
                statistics = {k: value[list(types)] for k, value in tree[name]["@variables"].items()}
                nets = {
                    k: {**tree[name][k], "ntypes": count}
                    for k in ("embeddings", "embeddings_strip")
                    if k in tree[name]
                }
                found[name] = {**tree[name], **nets, "@variables": statistics}
        layers = [{**layer, "ntypes": count} for layer in tree["repformers_variable"]["repformer_layers"]]
        found["repformers_variable"]["repformer_layers"] = layers
        found["exclude_types"] = renumbered(tree["exclude_types"], types)
        found["type_embedding"] = TypeEmbedding.tree_of_types(tree["type_embedding"], types, type_map)
        return found

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> "DPA2":
        o: DPA2Options = options
        precision, ntypes, random = (
            saved_precision(o.precision),
            len(type_map),
            np.random.default_rng([*seed, 1]),
        )
        sums = o.sums
        nets = random_nets(sums, 1 if sums.type_one_side else 2, type_map, [*seed, 0], dtype)
        no_statistics = EnvironmentDescriptor.no_statistics
        repinit = DPA1(sums, type_map, *no_statistics(ntypes, dtype), nets, [])
        three_body, pair_sums = None, o.pair_sums
        if pair_sums is not None:
            own = (*random_nets(pair_sums, 2, type_map, [*seed, 3], dtype)[:2], nets[2])
            three_body = SeE3Tebd(pair_sums, type_map, *no_statistics(ntypes, dtype), own)
        between = {}
        for name, (inputs, outputs, _) in o.products.items():
            between[name] = new_product(inputs, outputs, random, precision, dtype, bias=False)
        if "g1_shape_tranform" in between:  # DeePMD-kit draws this one from another distribution
            weight = between["g1_shape_tranform"].weight
            most = math.sqrt(6 / sum(weight.shape))
            drawn = random.uniform(-most, most, tuple(weight.shape)).astype(precision)
            weight.data.copy_(tensor(drawn, dtype))
        return cls(
            o,
            type_map,
            (repinit, three_body),
            no_statistics(ntypes, dtype),
            new_product(1, o.repformer.g2_dim, random, precision, dtype),
            between,
            [RepformerLayer.random(form, precision, [*seed, 2, k], dtype) for k, form in enumerate(o.forms)],
        )

    def summary(self) -> dict[str, str]:
        o, layers = self.options.repinit, self.options.repformer
        place = "stripped" if o.tebd_input_mode == "strip" else "beside the distance"
        found = {
            "sums": f"{o.nsel} neighbours of all types within {o.rcut:g} A, the switch from {o.rcut_smth:g} A",
            "embedding nets": f"{self.repinit.embeddings.net().described}, axis {o.axis_neuron}",
            "type embedding": f"of width {o.tebd_dim}, {place}",
        }
        if self.three_body is not None:
            found["sums over pairs"] = (
                f"of {o.three_body_sel} neighbours within {o.three_body_rcut:g} A, the switch from "
                f"{o.three_body_rcut_smth:g} A, nets {self.three_body.embeddings.net().described}"
            )
        return {
            **found,
            "layers": f"{layers.nlayers}, of nodes {layers.g1_dim} and edges {layers.g2_dim} wide",
            "edges": f"{layers.nsel} of all types within {layers.rcut:g} A, the switch from {layers.rcut_smth:g} A",
            "reach": f"{self._distance:g} A, from where other atoms change an atom's energy",
        }


def cutoff_node(options: Any) -> Tree:
    """The cutoff's options that a node repeats; DeePMD-kit writes them for any protection."""
    return environment_node({"rcut": options.rcut, "rcut_smth": options.rcut_smth, "env_protection": 0.0})


def _check_sums(inner: Tree, options: DPA1Options | SeE3TebdOptions, ntypes: int, place: str) -> None:
    """Raises ModelFileError for nets and statistics that do not match the options."""
    places = sum(options.sel)  # type: ignore[arg-type]
    check_statistics(inner["@variables"], (ntypes, places, 4), place)
    for name in ("embeddings", "embeddings_strip"):
        if name in inner:
            check_collection(inner[name], vars(options), 0, ntypes, f"{place}.{name}")
    check_type_nets(inner, options, 1 if getattr(options, "type_one_side", False) else 2, place)


def _check_layer(layer: Tree, form: LayerForm, ntypes: int, place: str) -> None:
    """Raises ModelFileError for a layer that does not match the descriptor's options."""
    for name, value in form.said(ntypes).items():
        require_same(layer[name], value, f"{place}.{name}")
    for holder, node in form.holders.items():
        if holder not in layer:
            raise ModelFileError(f"{place} lacks {holder!r}")
        for name, value in node.items():
            require_same(layer[holder][name], value, f"{place}.{holder}.{name}")
    for name, (inputs, outputs, _) in form.products.items():
        if name not in layer and "." not in name:
            raise ModelFileError(f"{place} lacks {name!r}")
        check_product(part_of(layer, name), inputs, outputs, f"{place}.{name}")
    if form.attends:
        if "attn2_lm" not in layer:
            raise ModelFileError(f"{place} lacks 'attn2_lm'")
        width = (form.options.g2_dim,)
        norm = layer["attn2_lm"]
        require_same(norm["eps"], form.options.ln_eps, f"{place}.attn2_lm.eps")
        shapes = norm["@variables"]["w"].shape, norm["@variables"]["b"].shape
        require_same(shapes, (width, width), f"the shapes of {place}.attn2_lm")
    check_residuals(layer.get("@variables", {}), form.residuals, place)
