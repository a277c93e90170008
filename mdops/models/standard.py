"""The atomic model "standard": a descriptor, and a fitting net on top of it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.absent import nearest
from mdops.models.contract import AtomicModel, Descriptor, Features, Output, Tree, masks
from mdops.models.keys import excluded_pairs_key
from mdops.models.neighborhood import Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.models.spin import Spin, is_native, native_section, spin_of, spin_of_types
from mdops.models.type_embedding import TypeEmbeddingOptions, section_with_types, share_types
from mdops.models.virtual_types import without_virtual_types
from mdops.options import Most, Options, are_types, check_pairs, key, section, variant

_PROTECTION = 0.01  # A, for a descriptor without one: the virtual atom of a zero spin lies on its atom


@dataclass(kw_only=True)
class ModelOptions(Options):
    """The common options of models."""

    IGNORED: ClassVar[tuple[str, ...]] = ("bridging_r_inner", "bridging_r_outer")  # of no bridging_method
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "compress": (),  # which made a frozen model of its TensorFlow code anew
        "data_bias_nsample": (10,),  # DeePMD-kit's PyTorch code has no use for it either
        "info": ({},),
        "model_branch_alias": ([],),
        "srtab_add_bias": (True,),
    }
    NEUTRAL: ClassVar[dict[str, Any]] = {
        **{name: None for name in ("type_embedding", "modifier", "spin")},
        "bridging_method": "None",
    }
    ADVICE: ClassVar[dict[str, str]] = {
        "bridging_method": "use_srtab has a table for small distances (`mdops zbl` writes one)",
        "modifier": "it goes with a model of type standard",
        "shared_dict": "it is for several models, which stand in model_dict",
        "spin": "the nearest are types of their own for atoms of different magnetic moments",
        "type_embedding": "the descriptors se_atten and se_atten_v2 embed types by themselves",
    }

    is_frozen: ClassVar[bool] = (
        False  # whether it stands for a model that was trained before, and is not again
    )
    HEADS: ClassVar[tuple[str, ...]] = ()  # losses that train heads of its own; then it has `active_mode`

    type_map: list[str] = key(doc="the element of each type", where="input", of="training")
    data_stat_nbatch: int = key(
        10,
        "number of batches of each system from which statistics are computed",
        low=1,
        where="input",
        of="training",
    )
    data_stat_protect: float = key(
        0.01,
        "smallest standard deviation of frame and atomic parameters",
        above=0,
        where="input",
        of="training",
    )
    pair_exclude_types: list[list[int]] = excluded_pairs_key()
    atom_exclude_types: list[int] = key([], "types whose atoms have no energy", low=0, of="set")
    finetune_head: str | None = key(
        None,
        "the model of a multi-task file to fine-tune; RANDOM: a new fitting on its descriptor",
        where="input",
        of="training",
    )
    preset_out_bias: dict | None = key(
        None,
        'fixed energies of types, which are not fitted, {"energy": [eV or null, ...]}',
        of="training",
    )

    def check(self, place: str, type_map: Sequence[str]) -> None:
        """Raises ConfigError for unknown types, and elements given twice."""
        twice = [name for name in dict.fromkeys(type_map) if list(type_map).count(name) > 1]
        if not type_map or twice:
            what = f"has {twice[0]} more than once" if twice else "is empty"
            raise ConfigError(f"{place}.type_map: {what}, expected the name of each element once")
        check_pairs(self.pair_exclude_types, len(type_map), f"{place}.pair_exclude_types")
        if not are_types(self.atom_exclude_types, len(type_map)):
            raise ConfigError(
                f"{place}.atom_exclude_types: is {self.atom_exclude_types}, expected types, 0 .. {len(type_map) - 1}"
            )
        unknown = set(self.preset_out_bias or {}) - {"energy"}
        if unknown:
            raise ConfigError(
                f"{place}.preset_out_bias.{min(unknown)}: there is no such key; the only one is 'energy'"
            )
        energies = (self.preset_out_bias or {}).get("energy")
        if energies is not None and not (
            isinstance(energies, list) and len(energies) == len(type_map) and all(map(_is_energy, energies))
        ):
            raise ConfigError(
                f"{place}.preset_out_bias.energy: is {energies!r}, expected a list of a number (eV) or null for each "
                f"of {len(type_map)} types"
            )


def _is_energy(value: Any) -> bool:
    """Whether it is a value of this type, or a list of one, as in DeePMD-kit; or None."""
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    return value is None or (type(number) in (int, float) and math.isfinite(number))


def _has_places_by_type(descriptor: Mapping[str, Any], types: int) -> bool:
    """Whether its `sel` has a number for each of so many types: neighbours of each type have their own places."""
    kind = registry.kinds("descriptor").get(descriptor.get("type", registry.DEFAULT_DESCRIPTOR))
    sel = descriptor.get("sel")
    return kind is not None and not kind.mixed and isinstance(sel, list) and len(sel) == types


@dataclass(kw_only=True)
class PartsOptions(ModelOptions):
    """Of models with a descriptor and a fitting."""

    descriptor: Any = variant(
        lambda: registry.options("descriptor"),
        registry.DEFAULT_DESCRIPTOR,
        absent=partial(nearest, "descriptor"),
    )
    fitting_net: Any = variant(
        lambda: registry.options("fitting"), registry.DEFAULT_FITTING, absent=partial(nearest, "fitting")
    )

    def __post_init__(self) -> None:
        # The descriptor's keys in the model's section; a training input gives them only to the model.
        section = getattr(self, "spin", None)
        if section is not None and is_native(section) and hasattr(self.descriptor, "use_spin"):
            self.descriptor.use_spin = section["use_spin"]

    @classmethod
    def absent_pairs_of(cls, model: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """The pairs of types that the section `model` of an input excludes, where there are virtual atoms."""
        return model.get("pair_exclude_types") or []

    @classmethod
    def with_virtual_atoms(cls, descriptor: Mapping[str, Any], elements: int) -> dict[str, Any]:
        """The section of a descriptor, with places for virtual atoms."""
        found = {**descriptor, "env_protection": descriptor.get("env_protection") or _PROTECTION}
        return found | ({"sel": 2 * found["sel"]} if _has_places_by_type(found, elements) else {})

    @classmethod
    def without_virtual_atoms(cls, descriptor: Mapping[str, Any], elements: int) -> dict[str, Any]:
        """The reverse of `with_virtual_atoms`."""
        if _has_places_by_type(descriptor, 2 * elements):
            sel = descriptor["sel"]
            if sel[:elements] == sel[elements:]:
                return {**descriptor, "sel": sel[:elements]}
        return dict(descriptor)

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        self.descriptor.check(f"{place}.descriptor", type_map)
        self.fitting_net.check(f"{place}.fitting_net", type_map)
        inputs = getattr(self.fitting_net, "parameter_sizes", {})
        if masks(self.descriptor) and (inputs.get("aparam") or getattr(self, "spin", None) is not None):
            raise ConfigError(
                f"{place}.descriptor: takes aparam as a mask, so that fitting_net.use_aparam_as_mask has to be true, "
                "and the model has no magnetic moments"
            )

    @property
    def cutoff(self) -> float:
        return self.descriptor.cutoff

    def resolve_sel(self, most: Most, place: str) -> Self:
        return dataclasses.replace(self, descriptor=self.descriptor.resolve_sel(most, f"{place}.descriptor"))


@dataclass(kw_only=True)
class ModifierOptions:
    """Charges beyond the cutoff (mdops.long_range); labels are trained without their part."""

    type: str = key("dipole_charge", "its type", choices=("dipole_charge",))
    model_name: str = key(doc="the file of the dipole model, of any format that mdops reads")
    model_charge_map: list[float] = key(
        doc="the charge of the centroid of each type that has a dipole", unit="e"
    )
    sys_charge_map: list[float] = key(doc="the charge at the atoms of each type", unit="e")
    ewald_h: float = key(
        1.0, "spacing of the grid that defines the wave vectors of the sum", unit="A", above=0
    )
    ewald_beta: float = key(0.4, "inverse width of the charges", unit="1/A", above=0)


@dataclass(kw_only=True)
class StandardOptions(PartsOptions):
    KIND = "standard"
    # Of no table.
    IGNORED: ClassVar[tuple[str, ...]] = (
        *ModelOptions.IGNORED,
        *("use_srtab", "smin_alpha", "sw_rmin", "sw_rmax"),
    )

    spin: dict | None = key(
        None,
        'elements with magnetic moments, {"use_spin": [...], "virtual_scale": [A per unit of '
        'moment]}, or {"scheme": "native", "use_spin": [...]} for a descriptor that takes moments'
        " as vectors",
    )
    modifier: ModifierOptions | None = section(ModifierOptions, optional=True)
    type_embedding: TypeEmbeddingOptions | None = section(TypeEmbeddingOptions, optional=True)

    @classmethod
    def completed(cls, node: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """With the width of an embedding of types in its descriptors."""
        types = node.get("type_embedding")
        if not isinstance(types, Mapping):
            return node
        width, at = TypeEmbeddingOptions.width_of(types), f"{place}.descriptor"
        return {
            **node,
            "descriptor": section_with_types(
                node.get("descriptor", {}), width, at, registry.options("descriptor")
            ),
        }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.type_embedding is not None:
            found = of_tensorflow(self, self.type_embedding)
            self.descriptor, self.fitting_net = found.descriptor, found.fitting_net
            self.preset_out_bias = found.preset_out_bias

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if self.spin is not None and is_native(self.spin):
            spin_of_types(self.spin, type_map, f"{place}.spin")
            if self.fitting_net.KIND != "ener":
                raise ConfigError(f"{place}.spin: energies alone have it: expected null")
        if self.modifier is None:
            return
        if place != "model" or self.spin is not None:
            other = "a model with magnetic moments" if self.spin is not None else "a part of a model"
            raise ConfigError(f"{place}.modifier: is of whole models of energies, and this is {other}")
        if len(self.modifier.sys_charge_map) != len(type_map):
            raise ConfigError(
                f"{place}.modifier.sys_charge_map: has {len(self.modifier.sys_charge_map)} charges for the types "
                f"{', '.join(type_map)}"
            )


def of_tensorflow(options: StandardOptions, types: TypeEmbeddingOptions) -> StandardOptions:
    """Options with their meaning in DeePMD-kit's TensorFlow backend, in a model with a type embedding: energies of
    atoms alone hold, and descriptors follow their `of_tensorflow`."""
    fitting, preset, known = options.fitting_net, options.preset_out_bias, []
    if fitting.KIND == "ener":
        known = fitting.atom_ener
        width = types.neuron[-1] if known else 0
        fitting = dataclasses.replace(fitting, types_in_vacuum=width)
    if any(energy is not None for energy in known) and not preset:
        preset = {"energy": [*known, *[None] * (len(options.type_map) - len(known))]}
    descriptor = options.descriptor.of_tensorflow(types, True)
    parts = {
        "descriptor": descriptor,
        "fitting_net": fitting,
        "preset_out_bias": preset,
        "type_embedding": None,
    }
    return dataclasses.replace(options, **parts)


@register
class DescriptorFitting(AtomicModel):
    """e_i = fitting(descriptor(neighbours of i)) + bias of i's type.

    Attributes:
        descriptor, fitting: the parts.
    """

    Options: ClassVar[type[PartsOptions]] = StandardOptions
    FILED: ClassVar[tuple[str, ...]] = ("spin_ener", "native_spin")
    NODE = schema.Node(
        {**schema.MODEL, "descriptor": schema.part, "fitting": schema.part}, schema.MODEL_ARRAYS
    )

    def __init__(
        self,
        options: PartsOptions,
        type_map: Sequence[str],
        out_bias: torch.Tensor,
        out_std: torch.Tensor,
        descriptor: Descriptor,
        fitting: Any,
    ) -> None:
        """Raises UnsupportedModelError for a fitting of vectors on a descriptor without them."""
        super().__init__(options, type_map, out_bias, out_std)
        self.descriptor, self.fitting = descriptor, fitting
        self.outputs = fitting.outputs
        axes = descriptor.axes
        if fitting.needs_axes and (not axes or axes != fitting.options.embedding_width):
            raise UnsupportedModelError(
                f"the fitting {fitting.kind} needs {fitting.options.embedding_width or 'some'} vectors that turn with "
                f"the atoms, and the descriptor {descriptor.kind} has {axes}: docs/reference/models.md "
                "says which have some"
            )
        if not fitting.needs_axes:
            for part in descriptor.parts:
                part.values_alone()
        if any(part.shares_types for part in descriptor.parts):
            share_types(descriptor.parts)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return tuple(spec for part in self.descriptor.parts for spec in part.neighbors)

    @property
    def spin(self) -> Spin | None:
        return spin_of(self.options, self.type_map)

    @property
    def mixed_types(self) -> bool:
        return self.descriptor.mixed_types

    @property
    def parameter_sizes(self) -> dict[str, int]:
        return self.fitting.parameter_sizes

    @property
    def descriptors(self) -> list[Descriptor]:
        return self.descriptor.parts

    @property
    def captures(self) -> bool:
        return self.descriptor.captures and self.fitting.captures

    def takes_matmul(self, matmul: str) -> bool:
        return self.descriptor.takes_matmul(matmul)

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor | None:
        return self.descriptor.graph_sizes(within)

    def atoms_at_once(self, near: Neighborhood) -> int | None:
        return self.descriptor.atoms_at_once(near)

    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        features, exchange = self._features(near), near.system.exchange
        if exchange is None:
            return self.fitted(features, near, fparam, aparam)
        own, ghosts = slice(exchange.atoms), near.system.atoms - exchange.atoms
        if aparam is not None and aparam.dim() > 1:
            aparam = aparam[own]
        found = self.fitted(features.of_atoms(own), near.of_atoms(own), fparam, aparam)
        # Ghosts have no energies.
        return {name: torch.cat((of, of.new_zeros(ghosts, *of.shape[1:]))) for name, of in found.items()}

    def fitted(
        self, features: Features, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """The fitting's result for a descriptor's features."""
        more = {"axes": features.axes} if self.fitting.needs_axes else {}
        found: dict[str, torch.Tensor] = self.fitting(features.values, near, fparam, aparam, **more)
        return found

    def with_statistics(self, value: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fitting.with_statistics(value, kinds, self.out_bias, self.out_std)
        return found

    def describe(self, near: Neighborhood) -> torch.Tensor:
        return self._features(near.within(min(near.cutoff, self.cutoff)).without(self.absent_pairs)).values

    def _features(self, near: Neighborhood) -> Features:
        spec = self.descriptor.spec
        found: Features = self.descriptor(near.select(spec.sel, mixed=spec.mixed))
        return found

    @classmethod
    def tree_of_file(cls, tree: Tree) -> Tree:
        """DeePMD-kit's node of a model with virtual atoms holds the model in one of its own."""
        if tree.get("type") not in cls.FILED:
            return tree
        if tree["type"] == cls.FILED[1]:
            inner = tree.get("backbone_type", cls.Options.KIND)
            if inner != cls.Options.KIND or not isinstance(tree.get("spin"), dict):
                raise UnsupportedModelError(
                    f"a {inner} model with magnetic moments as vectors is not supported"
                )
            own = {name: value for name, value in tree.items() if name != "backbone_type"}
            return {**own, "type": inner, "spin": native_section(tree["spin"])}
        backbone, section = tree.get("backbone_model"), tree.get("spin")
        if not isinstance(backbone, dict) or not isinstance(section, dict):
            raise ModelFileError("a model with spins lacks its backbone_model or its spin")
        return {**backbone, "spin": section}

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        return {name: value for name, value in tree.items() if name != "spin" or value is not None}

    @classmethod
    def file_of_tree(cls, tree: Tree) -> Tree:
        section = tree.get("spin")
        if section is not None and is_native(section):
            given = {name: value for name, value in section.items() if name != "scheme"}
            return {**tree, "type": cls.FILED[1], "backbone_type": tree["type"], "spin": given}
        backbone = {name: value for name, value in tree.items() if name != "spin"}
        return {"type": cls.FILED[0], "backbone_model": backbone, "spin": section} if section else backbone

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "DescriptorFitting":
        type_map, parts = tree["type_map"], []
        for sort in ("descriptor", "fitting"):
            kind = registry.find(sort, tree[sort].get("type"))
            parts.append(kind.from_tree(tree[sort], type_map, dtype))
        options = cls.Options.from_tree(
            tree, type_map=list(type_map), descriptor=parts[0].options, fitting_net=parts[1].options
        )
        return cls(options, type_map, *cls.variables_of_tree(tree, parts[1].outputs[0].shape), *parts)

    def to_tree(self) -> Tree:
        return {
            **self.completed_tree(self.head(2)),
            "rcond": self.fitting.options.rcond,
            "descriptor": self.descriptor.to_tree(),
            "fitting": self.fitting.to_tree(),
        }

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        preset = {"preset_out_bias": tree["preset_out_bias"]} if tree.get("preset_out_bias") else {}
        found = {
            **super().definition_of_tree(tree),
            **preset,
            **({"spin": tree["spin"]} if tree.get("spin") else {}),
            "descriptor": registry.definition("descriptor", tree["descriptor"]),
            "fitting_net": registry.definition("fitting", tree["fitting"]),
        }
        return without_virtual_types(found, cls.Options)

    @classmethod
    def check_tree(cls, tree: Tree, place: str) -> None:
        super().check_tree(tree, place)
        type_map, width, spin = tree["type_map"], None, None
        if tree.get("spin") is not None:
            try:
                spin = spin_of_types(tree["spin"], type_map, f"{place}.spin")
            except ConfigError as error:
                raise ModelFileError(str(error)) from None
        vectors = None if spin is None or spin.paired else list(spin.use_spin)
        require_same(tree["descriptor"].get("use_spin"), vectors, f"{place}.descriptor.use_spin")
        kind = registry.known("descriptor", tree["descriptor"])
        if kind is not None:
            kind.check_tree(tree["descriptor"], type_map, f"{place}.descriptor")
            width = kind.width_of_tree(tree["descriptor"])
        kind = registry.known("fitting", tree["fitting"])
        if kind is not None:
            kind.check_tree(tree["fitting"], type_map, width, f"{place}.fitting")
        in_vacuum = tree["fitting"].get("types_in_vacuum")
        if in_vacuum:
            last = tree["descriptor"].get("list", [tree["descriptor"]])[-1]
            known = last.get("tebd_dim") if last.get("concat_output_tebd") else 0
            require_same(in_vacuum, known, f"{place}.fitting.types_in_vacuum")

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        if tree.get("spin") is not None:
            raise UnsupportedModelError("a model with spins keeps all of its types")
        parts = {
            sort: registry.find(sort, tree[sort]["type"]).tree_of_types(tree[sort], types, type_map)
            for sort in ("descriptor", "fitting")
        }
        return {**super().tree_of_types(tree, types, type_map), **parts}

    @classmethod
    def random(cls, options: Any, seed: int, dtype: torch.dtype) -> "DescriptorFitting":
        o, types = options, options.type_map
        given = getattr(o.descriptor, "seed", None)  # users' own kinds may lack it
        own = seed if given is None else given
        descriptor = registry.find("descriptor", o.descriptor.KIND).random(
            o.descriptor, types, [own, 0], dtype
        )
        if getattr(o, "type_embedding", None) is not None:
            embedding = o.type_embedding.embedding(types, [seed, 2], dtype)
            for part in descriptor.parts:
                part.type_embedding = embedding
        kind = registry.find("fitting", o.fitting_net.KIND)
        axes = {"axes": descriptor.axes} if kind.needs_axes else {}
        fitting = kind.random(
            o.fitting_net, types, descriptor.width, descriptor.has_types, seed, dtype, **axes
        )
        fitting.options.exclude_types = list(o.atom_exclude_types)
        zeros = torch.zeros(len(types), *fitting.outputs[0].shape, dtype=torch.float64)
        return cls(o, types, zeros, torch.ones_like(zeros), descriptor, fitting)

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        kind = registry.find("fitting", options.fitting_net.KIND)
        found: tuple[Output, ...] = kind.outputs_of(kind.for_axes(options.fitting_net, 0))
        return found

    @property
    def default_parameters(self) -> set[str]:
        return {"fparam"} if self.fitting.default_fparam is not None else set()

    def set_trained(self) -> None:
        self.descriptor.set_trained()
        self.fitting.set_trained()

    @torch.no_grad()
    def set_parameter_statistics(self, found: Mapping[str, tuple[np.ndarray, np.ndarray] | None]) -> None:
        """Takes averages and inverse deviations of "fparam" and "aparam", where the model has them."""
        for name, statistics in found.items():
            if statistics is not None and self.parameter_sizes[name]:
                getattr(self.fitting, name).set_statistics(*statistics)

    def summary(self) -> dict[str, str]:
        return {**self.descriptor.summary(), **self.fitting.summary()}
