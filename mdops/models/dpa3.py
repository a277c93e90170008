"""The descriptor dpa3: DPA-3, which passes messages between atoms, edges and angles (mdops.models.repflow)."""

import dataclasses
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
from mdops.models.charge_spin import EXPECTED, charge_spin_rows, is_charge_spin
from mdops.models.contract import (
    EnvironmentDescriptor,
    Features,
    Tree,
    renumbered,
    statistics_arrays,
    without_none,
)
from mdops.models.graph import GraphDescriptor, neighbor_graph_of
from mdops.models.keys import excluded_pairs_key, seed_key
from mdops.models.neighborhood import Neighborhood, NeighborSpec, pair_matrix
from mdops.models.registry import register
from mdops.models.repflow import (
    FIXED_DEVIATION,
    LAYER_NODE,
    Edges,
    Local,
    RepflowLayer,
    RepflowOptions,
    new_product,
    switch,
    symmetric_sums,
)
from mdops.models.shapes import check_options, check_product, check_residuals, check_statistics, require_same
from mdops.models.statistics import environment_statistics
from mdops.models.type_embedding import TypeEmbedding, check_elements
from mdops.nn.net import Layer
from mdops.ops import angle_products, edge_gather
from mdops.ops.activation import CODES, kernel_code
from mdops.ops.layer_output import layer_output
from mdops.ops.message import TENSOR_WIDTHS, has_tensor_cores, takes_numbers
from mdops.options import PRECISIONS, Most, Options, check_pairs, key, saved_precision, section
from mdops.system import CHARGES, MULTIPLICITIES, System
from mdops.tracing import is_exported

# As in DeePMD-kit; they keep angles differentiable.
_LENGTH_ADDED, _COSINE_FACTOR = 1e-6, 1 - 1e-6
_DIRECTION_SCALE = math.sqrt(_COSINE_FACTOR / math.sqrt(math.pi))
CONDITIONS = {"chg_embedding": CHARGES, "spin_embedding": MULTIPLICITIES}


@dataclass(kw_only=True)
class DPA3Options(Options):
    KIND = "dpa3"

    repflow: RepflowOptions = section(RepflowOptions, "the layers")
    concat_output_tebd: bool = key(False, "append the centre's type embedding to the descriptor")
    activation_function: str = key("silu", "activation function of all messages")
    precision: str = key(
        "default", "precision in which the weights are saved; default float64", choices=PRECISIONS
    )
    exclude_types: list[list[int]] = excluded_pairs_key()
    env_protection: float = key(0.0, "added to distances in denominators", unit="A", low=0)
    trainable: bool = key(True, "whether the weights are trained", of="training")
    seed: int | None = seed_key(where="input")
    use_econf_tebd: bool = key(False, "distinguish types by their electron configurations")
    use_tebd_bias: bool = key(False, "a bias in the type embedding")
    use_loc_mapping: bool = key(
        True, "how DeePMD-kit finds the atom of an image; no effect on the numbers", of="training"
    )
    add_chg_spin_ebd: bool = key(False, "add an embedding of charge and multiplicity to the type embedding")
    default_chg_spin: list[float] | None = key(None, "charge and multiplicity of systems that give none")

    @property
    def cutoff(self) -> float:
        return self.repflow.e_rcut

    @property
    def tebd_dim(self) -> int:
        """Width of the type embedding."""
        return self.repflow.n_dim

    def check(self, place: str, type_map: Sequence[str]) -> None:
        self.repflow.check(f"{place}.repflow", type_map)
        check_pairs(self.exclude_types, len(type_map), f"{place}.exclude_types")
        if self.use_econf_tebd:
            check_elements(place, type_map)
        if not is_charge_spin(self.default_chg_spin):
            raise ConfigError(f"{place}.default_chg_spin: is {self.default_chg_spin}, expected {EXPECTED}")

    def resolve_sel(self, most: Most, place: str) -> Self:
        return dataclasses.replace(self, repflow=self.repflow.resolve_sel(most, f"{place}.repflow"))


_VARIABLE_NODE = schema.Node(
    {
        "edge_embd": schema.part,
        "angle_embd": schema.part,
        "repflow_layers": (schema.list_of(schema.node), schema.REQUIRED),
        "env_mat": (schema.optional(schema.node), None),
        "@variables": schema.part,
    },
    schema.STATISTICS,
)


def _padded(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Rows padded with zeros to this width, unless they have it already."""
    return F.pad(rows, (0, width - rows.shape[1])) if rows.shape[1] < width else rows


@register
class DPA3(GraphDescriptor):
    """D_i = n_i after the last layer, and the type embedding of i beside it if `concat_output_tebd`.

    n_i begin as f(type embedding), e_ij as a product of the distance, or f(product of the first number in the row of
    the environment matrix), a_ijk as a product of the angle's cosine.

    Attributes:
        mean, std, excluded: as of `EnvironmentDescriptor`.
        type_embedding: (ntypes, n_dim).
        edge_embedding, angle_embedding: the first products.
        charge_embedding, spin_embedding, charge_spin: (200, n_dim) and (100, n_dim), of charges and multiplicities,
            and the product of both; None unless the options say so.
    """

    Options = DPA3Options
    NODE = schema.Node(
        {
            "repflow_args": schema.part,
            "repflow_variable": schema.part,
            "type_embedding": schema.part,
            "ntypes": (schema.count, None),
            "type_map": schema.type_map,
            **{name: (schema.optional(schema.node), None) for name in (*CONDITIONS, "mix_cs_mlp")},
        }
    )
    NODES: ClassVar[dict[str, schema.Node]] = {
        "TypeEmbedNet": TypeEmbedding.NODE,
        "RepFlowLayer": LAYER_NODE,
        "repflow_args": schema.Node({**schema.keys_of(RepflowOptions), "skip_stat": (schema.boolean, False)}),
        "repflow_variable": _VARIABLE_NODE,
    }
    mixed: ClassVar[bool] = True
    goes_in_runs = True

    mean: torch.Tensor
    std: torch.Tensor
    excluded: torch.Tensor
    charge_embedding: TypeEmbedding | None
    spin_embedding: TypeEmbedding | None
    charge_spin: Layer | None

    def __init__(
        self,
        options: DPA3Options,
        type_map: Sequence[str],
        statistics: tuple[torch.Tensor, torch.Tensor],
        first: tuple[TypeEmbedding, Layer, Layer],
        layers: Sequence[RepflowLayer],
        conditions: tuple[TypeEmbedding, TypeEmbedding, Layer] | tuple[None, None, None],
    ) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.type_embedding, self.edge_embedding, self.angle_embedding = first
        self.layers = nn.ModuleList(layers)
        self.charge_embedding, self.spin_embedding, self.charge_spin = conditions
        for name, value in zip(("mean", "std"), statistics, strict=True):
            self.register_buffer(name, value)
        self.register_buffer("excluded", pair_matrix(options.exclude_types, len(type_map)))
        self._makes_axes = True
        for layer in self.own_layers[-1:]:
            layer.makes_angles = False

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        o = self.options.repflow
        return NeighborSpec(o.e_rcut, (o.e_sel,), True), NeighborSpec(o.a_rcut, (o.a_sel,), True)

    captures = True

    def takes_matmul(self, matmul: str) -> bool:
        return matmul == "tf32" and self._wide(next(self.parameters()).device) is not None

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor:
        of_edges, of_angles = (counts[:, 0].long() for counts in within)
        return torch.stack([of_edges, of_angles.square(), of_angles], 1)

    @property
    def charge_spin_defaults(self) -> tuple[Sequence[float] | None, ...]:
        return (self.options.default_chg_spin,) if self.options.add_chg_spin_ebd else ()

    @property
    def own_layers(self) -> list[RepflowLayer]:
        return [layer for layer in self.layers if isinstance(layer, RepflowLayer)]

    @property
    def width(self) -> int:
        return self.options.tebd_dim * (1 + self.options.concat_output_tebd)

    @property
    def axes(self) -> int:
        width: int = self.options.repflow.e_dim
        return width

    def graph(self, near: Neighborhood) -> Edges:
        o = self.options.repflow
        graph = neighbor_graph_of(
            near,
            o.e_rcut,
            sel=o.e_sel,
            angle_cutoff=o.a_rcut,
            angle_sel=o.a_sel,
            excluded=self.excluded if self.options.exclude_types else None,
        )
        assert graph.angles is not None
        # Rows after the last edge get finite numbers; no sum reads them.
        centers, present = graph.i.long().clamp(min=0), (graph.i >= 0)[:, None]
        vectors = graph.vectors(near.displacements)
        r = torch.where(present, vectors, 1.0).norm(dim=1, keepdim=True)
        w = torch.where(present, switch(r, o.e_rcut_smth, o.e_rcut, o.use_exp_switch), 0.0)
        inverse, kinds = 1 / (r + self.options.env_protection), near.centers[centers]
        lengths = r
        if not o.edge_init_use_dist:
            lengths = (inverse * w - self.mean[kinds, None]) / self.std[kinds, :1]
        frame = vectors * (inverse * w) ** 2 / self.std[kinds, 1:]
        inner = graph.angle_edges(None if near.graph_room is None else near.graph_room[2])
        angle_switch = torch.where(present, switch(r, o.a_rcut_smth, o.a_rcut, o.use_exp_switch), 0.0)
        # Scaled for cosines and for sums over angles: there are fewer edges than angles.
        vectors, angle_switch = (
            vectors * (_DIRECTION_SCALE / (r + _LENGTH_ADDED)),
            angle_switch * o.angle_scale**-0.25,
        )
        of_inner = edge_gather(torch.cat([vectors, angle_switch], 1), inner.of_edge)
        cosines, of_angles = angle_products(of_inner, inner.angles.of_first, inner.angles.of_second)
        of_edges = w[:, 0] / o.edge_scale
        condition = self._condition(near.system) if self.options.add_chg_spin_ebd else None
        made = lengths, frame, of_edges, inner, cosines[:, None], of_angles, condition, near.matmul
        is_plain = near.first_derivative_only and frame.is_cuda and frame.dtype == torch.float32
        found = self._wide(frame.device) if is_plain and not is_exported() else None
        wide = o if found is None else found
        is_taken = is_plain and self._is_silu
        at_once = is_taken and has_tensor_cores(frame.device, *wide.rows_of_messages[0])
        takes_cosines = at_once and o.update_angle and self.angle_embedding.bias is None
        takes_cosines = takes_cosines and takes_numbers(frame.device, *wide.rows_of_messages[1])
        vector = _padded(self.angle_embedding.weight, wide.a_dim) if takes_cosines else None
        ways = near.first_derivative_only, at_once, vector, None if wide == o else wide
        return Edges(graph, near.centers, *made, *ways)

    def _wide(self, device: torch.device) -> RepflowOptions | None:
        """The options of layers for which a GPU has tensor-core kernels of some messages, with edges and angles padded
        with zeros if need be; None: it has none."""
        found = self.options.repflow.wide(TENSOR_WIDTHS)
        taken = self._is_silu and any(has_tensor_cores(device, *of) for of in found.rows_of_messages)
        return found if taken else None

    @property
    def _is_silu(self) -> bool:
        return kernel_code(self.options.activation_function)[0] in (CODES["silu"], CODES["silut"])

    def start(self, graph: Edges) -> tuple[torch.Tensor, Local]:
        edges = self.edge_embedding(graph.lengths)
        if not self.options.repflow.edge_init_use_dist:
            edges = self._f(edges)
        angles = graph.cosines if graph.angle_vector is not None else self.angle_embedding(graph.cosines)
        if graph.wide is not None:
            edges = _padded(edges, graph.wide.e_dim)
            if graph.angle_vector is None:
                angles = _padded(angles, graph.wide.a_dim)
        return self._f(self._embedded(graph)), (edges, angles)

    def bytes_of(self, local: Local, graph: Edges) -> int:
        edges, angles = local
        if graph.angle_vector is not None:  # angles are their cosines
            angles = angles.expand(-1, graph.angle_vector.shape[1])
        return super().bytes_of((edges, angles), graph)

    def values_alone(self) -> None:
        self._makes_axes = False
        for layer in self.own_layers[-1:]:
            layer.is_last = True
        if not self.options.repflow.sequential_update:
            for layer in self.own_layers[-2:]:
                layer.makes_angles = False

    def finish(self, nodes: torch.Tensor, local: Local, graph: Edges) -> Features:
        axes, o = None, self.options.repflow
        if self._makes_axes:
            axes = symmetric_sums(local[0][:, : o.e_dim], graph, o.edge_scale)
        if self.options.concat_output_tebd:
            nodes = torch.cat([nodes, self._embedded(graph)], 1)
        return Features(nodes, axes)

    def _f(self, z: torch.Tensor) -> torch.Tensor:
        return layer_output(z, None, self.options.activation_function)

    def _embedded(self, graph: Edges) -> torch.Tensor:
        """(N, n_dim), from types, charge and multiplicity."""
        found = F.embedding(graph.types, self.type_embedding())
        return found if graph.condition is None else found + graph.condition

    def _condition(self, system: System) -> torch.Tensor:
        """(N, n_dim) or (1, n_dim), from the charge and multiplicity of each atom's system."""
        assert self.charge_embedding and self.spin_embedding and self.charge_spin
        tables = self.charge_embedding(), self.spin_embedding()
        found = self._f(self.charge_spin(charge_spin_rows(*tables, system, self.options.default_chg_spin)))
        return found if system.charge_spin is None else found[system.batch.long()]

    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        o = self.options.repflow
        if o.fix_stat_std:
            return
        found = environment_statistics(
            frames,
            ntypes=len(self.type_map),
            sel=[int(o.e_sel)],
            mixed=True,
            cutoff_smooth=o.e_rcut_smth,
            protection=self.options.env_protection,
            exclude_types=[*self.options.exclude_types, *absent],
        )
        with torch.no_grad():
            self.std.copy_(torch.from_numpy(found.std))

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "DPA3":
        repflow = RepflowOptions.from_tree(tree["repflow_args"])
        options = DPA3Options.from_tree(tree, repflow=repflow)
        inner = tree["repflow_variable"]
        first = (
            TypeEmbedding.from_tree(tree["type_embedding"], type_map, dtype),
            Layer.from_tree(inner["edge_embd"], dtype),
            Layer.from_tree(inner["angle_embd"], dtype),
        )
        layers = [RepflowLayer.from_tree(layer, repflow, dtype) for layer in inner["repflow_layers"]]
        conditions: Any = (None, None, None)
        if options.add_chg_spin_ebd:
            made = (TypeEmbedding.from_tree(tree[k], _names(of), dtype) for k, of in CONDITIONS.items())
            conditions = (*made, Layer.from_tree(tree["mix_cs_mlp"], dtype))
        statistics = EnvironmentDescriptor.statistics_of_tree(inner, dtype)
        return cls(options, type_map, statistics, first, layers, conditions)

    def to_tree(self) -> Tree:
        o = self.options
        precision, ntypes, slots = saved_precision(o.precision), len(self.type_map), int(o.repflow.e_sel)
        of_condition: Tree = {}
        if self.charge_spin is not None:
            for name, made in zip(CONDITIONS, (self.charge_embedding, self.spin_embedding), strict=True):
                assert made is not None
                of_condition[name] = {**made.to_tree(precision), "type_map": None}
            of_condition["mix_cs_mlp"] = self.charge_spin.to_tree(precision)
        return {
            "@class": "Descriptor",
            "@version": 2,
            "type": o.KIND,
            "ntypes": ntypes,
            "repflow_args": o.repflow.to_tree(),
            **o.to_tree(),
            "type_map": list(self.type_map),
            "type_embedding": self.type_embedding.to_tree(precision),
            **of_condition,
            "repflow_variable": {
                "edge_embd": self.edge_embedding.to_tree(precision),
                "angle_embd": self.angle_embedding.to_tree(precision),
                "repflow_layers": [layer.to_tree(ntypes, precision) for layer in self.own_layers],
                "env_mat": cutoff_node(o.repflow),
                "@variables": statistics_arrays(self.mean, self.std, slots, precision),
            },
        }

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        return {**super().definition_of_tree(tree), "repflow": dict(tree["repflow_args"])}

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        repflow = dict(tree["repflow_args"])
        if repflow.pop("skip_stat"):
            repflow["fix_stat_std"] = FIXED_DEVIATION
        inner = tree["repflow_variable"]
        layers = [without_none(layer) for layer in inner["repflow_layers"]]
        inner = {**without_none(inner), "repflow_layers": layers}
        default = {"default_chg_spin": tree["default_chg_spin"]}
        return {**without_none(tree), **default, "repflow_args": repflow, "repflow_variable": inner}

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        repflow = RepflowOptions.from_tree(tree["repflow_args"])
        options = DPA3Options.from_tree(tree, repflow=repflow)
        check_options(options, tree, type_map, place)
        ntypes, n_dim = len(type_map), repflow.n_dim
        TypeEmbedding.check_tree(tree["type_embedding"], n_dim, ntypes, f"{place}.type_embedding")
        for name, known in CONDITIONS.items():
            require_same(name in tree, options.add_chg_spin_ebd, f"whether {place} has {name}")
            if name in tree:
                TypeEmbedding.check_tree(tree[name], n_dim, len(known), f"{place}.{name}")
        require_same("mix_cs_mlp" in tree, options.add_chg_spin_ebd, f"whether {place} has mix_cs_mlp")
        if "mix_cs_mlp" in tree:
            check_product(tree["mix_cs_mlp"], 2 * n_dim, n_dim, f"{place}.mix_cs_mlp")
        inner, place = tree["repflow_variable"], f"{place}.repflow_variable"
        check_statistics(inner["@variables"], (ntypes, int(repflow.e_sel), 4), place)
        check_product(inner["edge_embd"], 1, repflow.e_dim, f"{place}.edge_embd")
        check_product(inner["angle_embd"], 1, repflow.a_dim, f"{place}.angle_embd")
        layers = inner["repflow_layers"]
        require_same(len(layers), repflow.nlayers, f"the number of layers of {place}")
        for i, layer in enumerate(layers):
            _check_layer(layer, options, ntypes, f"{place}.repflow_layers[{i}]")

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int:
        width: int = tree["repflow_args"]["n_dim"]
        return width * (1 + tree["concat_output_tebd"])

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        inner = tree["repflow_variable"]
        statistics = {name: value[list(types)] for name, value in inner["@variables"].items()}
        layers = [{**layer, "ntypes": len(types)} for layer in inner["repflow_layers"]]
        return {
            **tree,
            "type_map": list(type_map),
            "ntypes": len(types),
            "exclude_types": renumbered(tree["exclude_types"], types),
            "type_embedding": TypeEmbedding.tree_of_types(tree["type_embedding"], types, type_map),
            "repflow_variable": {**inner, "repflow_layers": layers, "@variables": statistics},
        }

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> "DPA3":
        o: DPA3Options = options
        repflow, precision, n_dim = o.repflow, saved_precision(o.precision), o.tebd_dim
        random = np.random.default_rng([*seed, 0])
        first = (
            TypeEmbedding.random(o, type_map, [*seed, 1], dtype),
            new_product(1, repflow.e_dim, random, precision, dtype),
            new_product(1, repflow.a_dim, random, precision, dtype, bias=False),
        )
        layers = [
            RepflowLayer.random(repflow, o.activation_function, precision, [*seed, 2, k], dtype)
            for k in range(repflow.nlayers)
        ]
        conditions: Any = (None, None, None)
        if o.add_chg_spin_ebd:
            plain = dataclasses.replace(o, use_econf_tebd=False, use_tebd_bias=False)
            made = (
                TypeEmbedding.random(plain, _names(of), [*seed, 3, k], dtype)
                for k, of in enumerate(CONDITIONS.values())
            )
            conditions = (*made, new_product(2 * n_dim, n_dim, random, precision, dtype))
        ntypes = len(type_map)
        statistics = (
            torch.zeros(ntypes, dtype=dtype),
            torch.full((ntypes, 2), repflow.fix_stat_std or 1.0, dtype=dtype),
        )
        return cls(o, type_map, statistics, first, layers, conditions)

    def summary(self) -> dict[str, str]:
        o = self.options.repflow
        found = {
            "layers": f"{o.nlayers}, of nodes {o.n_dim}, edges {o.e_dim} and angles {o.a_dim} wide",
            "reach": f"{self.reach * o.e_rcut:g} A, from where other atoms change an atom's energy",
            "edges": f"{o.e_sel} of all types within {o.e_rcut:g} A, the switch from {o.e_rcut_smth:g} A",
        }
        if o.update_angle:
            found["angles"] = f"of {o.a_sel} edges within {o.a_rcut:g} A, the switch from {o.a_rcut_smth:g} A"
        return found


def cutoff_node(options: RepflowOptions) -> Tree:
    """The cutoff's options that a node repeats; DeePMD-kit writes them for any switch and protection."""
    cutoffs = {"rcut": options.e_rcut, "rcut_smth": options.e_rcut_smth}
    return {**cutoffs, "protection": 0.0, "use_exp_switch": False}


def _names(known: range) -> list[str]:
    return [str(number) for number in known]


def _check_layer(layer: Tree, options: DPA3Options, ntypes: int, place: str) -> None:
    """Raises ModelFileError for a layer that does not match the descriptor's options."""
    repflow = options.repflow
    wanted = RepflowLayer.said(repflow, options.activation_function, ntypes)
    for name, value in wanted.items():
        require_same(layer[name], value, f"{place}.{name}")
    for name, shape in repflow.shapes.items():
        if name not in layer:
            raise ModelFileError(f"{place} lacks {name!r}")
        check_product(layer[name], *shape, f"{place}.{name}")
    check_residuals(layer.get("@variables", {}), repflow.residuals, place)
