"""The atomic model "linear_ener": a weighted sum of other models' energies."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import nn

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.absent import nearest
from mdops.models.contract import ENERGY, AtomicModel, Descriptor, Tree
from mdops.models.neighborhood import Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.models.standard import ModelOptions
from mdops.options import Most, Options, key, variants


def _kinds_of_parts() -> dict[str, type[Options]]:
    """All but models made of models, which DeePMD-kit does not nest."""
    kinds = registry.kinds("model")
    return {name: kind.Options for name, kind in kinds.items() if not issubclass(kind, Blend)}


@dataclass(kw_only=True)
class LinearOptions(ModelOptions):
    KIND = "linear"
    NAMES = ("linear_ener",)
    NEUTRAL: ClassVar[dict[str, Any]] = {**ModelOptions.NEUTRAL, "shared_dict": {}}
    ADVICE: ClassVar[dict[str, str]] = {
        **ModelOptions.ADVICE,
        "shared_dict": "parts do not share weights; give each its own section",
    }

    models: list[Any] = variants(
        _kinds_of_parts,
        "standard",
        "type of each model in the sum; each has the type_map of the sum",
        partial(nearest, "model"),
    )
    weights: str | list[float] = key(
        "mean",
        'weights of the models: a number for each; "mean": one over the number of models; "sum": 1',
        saved=Literal["mean", "sum"] | list[float],
    )

    @classmethod
    def completed(cls, node: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """With the type map in each model. Raises ConfigError if there is none, or a model has another one."""
        types, models = node.get("type_map"), node.get("models")
        if not isinstance(models, list):
            return node
        if types is None:
            known = _kinds_of_parts()
            if all(part.get("type", "standard") in known for part in models if isinstance(part, Mapping)):
                raise ConfigError(f"{place}.type_map: is missing")
            return node  # a missing part is the greater fault
        for i, part in enumerate(models):
            if isinstance(part, Mapping) and part.get("type_map", types) != types:
                raise ConfigError(
                    f"{place}.models[{i}].type_map: is {part['type_map']}, expected that of the sum, {types}"
                )
        parts = [{**part, "type_map": types} if isinstance(part, Mapping) else part for part in models]
        return {**node, "models": parts}

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        for i, part in enumerate(self.models):
            part.check(f"{place}.models[{i}]", type_map)
            if part.preset_out_bias is not None:
                raise ConfigError(
                    f"{place}.models[{i}].preset_out_bias: only that of the sum counts: give it there"
                )
        if isinstance(self.weights, str) and self.weights not in ("mean", "sum"):
            raise ConfigError(
                f"{place}.weights: is {self.weights!r}, expected 'mean', 'sum' or a list of numbers"
            )
        if not isinstance(self.weights, str) and len(self.weights) != len(self.models):
            raise ConfigError(
                f"{place}.weights: has {len(self.weights)} numbers for {len(self.models)} models"
            )

    @property
    def cutoff(self) -> float:
        return max(part.cutoff for part in self.models)

    def resolve_sel(self, most: Most, place: str) -> Self:
        parts = [part.resolve_sel(most, f"{place}.models[{i}]") for i, part in enumerate(self.models)]
        return dataclasses.replace(self, models=parts)


class Blend(AtomicModel):
    """Base of models e_i = sum_m w_mi e_mi + bias of i's type, of the energies e_mi of other models, m.

    Each has its own cutoff, places for neighbours, exclusions and bias; it may have its own type map, with more
    elements or in another order.

    Attributes:
        models: the parts.
    """

    models: Any

    @classmethod
    def check_tree(cls, tree: Tree, place: str) -> None:
        """Each part knows all types."""
        super().check_tree(tree, place)
        if not tree["models"]:
            raise ModelFileError(f"{place}.models is empty")
        for i, part in enumerate(tree["models"]):
            kind = registry.known("model", part)
            if kind is not None:
                kind.check_tree(part, f"{place}.models[{i}]")
            missing = [name for name in tree["type_map"] if name not in part.get("type_map", ())]
            if missing:
                raise ModelFileError(f"{place}.models[{i}] does not know the type {missing[0]}")
        if isinstance(tree.get("weights"), list):
            require_same(len(tree["weights"]), len(tree["models"]), f"the number of weights of {place}")

    def __init__(
        self,
        options: Any,
        type_map: Sequence[str],
        out_bias: torch.Tensor,
        out_std: torch.Tensor,
        models: Sequence[AtomicModel],
    ) -> None:
        """Raises UnsupportedModelError for parts that do not fit together."""
        super().__init__(options, type_map, out_bias, out_std)
        self.models = nn.ModuleList(models)
        for i, part in enumerate(models):
            if part.outputs != (ENERGY,):
                answered = ", ".join(output.name for output in part.outputs)
                raise UnsupportedModelError(
                    f"the part models[{i}] answers {answered}, and energies are summed"
                )
            missing = [name for name in self.type_map if name not in part.type_map]
            if missing:
                raise UnsupportedModelError(f"the part models[{i}] does not know the type {missing[0]}")
            own = part.type_map != self.type_map
            names = torch.tensor([part.type_map.index(name) for name in self.type_map]) if own else None
            self.register_buffer(f"names_{i}", names, persistent=False)
        for name in self.parameter_sizes:
            sizes = sorted({part.parameter_sizes[name] for part in models} - {0})
            if len(sizes) > 1:
                raise UnsupportedModelError(
                    f"parts take {sizes[0]} and {sizes[1]} values of {name}: they have to take one number"
                )

    def part_weights(self, near: Neighborhood) -> list[Any]:
        """w of each part: a number, or (N,), float64."""
        raise NotImplementedError

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return tuple(spec for part in self.models for spec in part.neighbors)

    @property
    def mixed_types(self) -> bool:
        return all(part.mixed_types for part in self.models)

    @property
    def parts(self) -> list[AtomicModel]:
        return [inner for part in self.models for inner in part.parts]

    @property
    def descriptors(self) -> list[Descriptor]:
        return [descriptor for part in self.models for descriptor in part.descriptors]

    @property
    def captures(self) -> bool:
        # With its own types, a part would search for the atoms of each.
        names = [getattr(self, f"names_{i}") for i in range(len(self.models))]
        return all(part.captures and own is None for part, own in zip(self.models, names, strict=True))

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor | None:
        found, left = [], list(within)
        for part in self.models:
            own, left = left[: len(part.neighbors)], left[len(part.neighbors) :]
            found.append(part.graph_sizes(own))
        there = [sizes for sizes in found if sizes is not None]
        return torch.stack(there).amax(0) if there else None

    @property
    def dtype(self) -> torch.dtype:
        return self.models[0].dtype

    @property
    def parameter_sizes(self) -> dict[str, int]:
        names = super().parameter_sizes
        return {name: max(part.parameter_sizes[name] for part in self.models) for name in names}

    @property
    def default_parameters(self) -> set[str]:
        takers = {
            name: [part for part in self.models if part.parameter_sizes[name]]
            for name in self.parameter_sizes
        }
        return {
            name
            for name, parts in takers.items()
            if parts and all(name in part.default_parameters for part in parts)
        }

    def set_parameter_statistics(self, found: Mapping[str, tuple[np.ndarray, np.ndarray] | None]) -> None:
        for part in self.models:
            part.set_parameter_statistics(found)

    def set_trained(self) -> None:
        for part in self.models:
            part.set_trained()

    @property
    def shortest(self) -> float:
        return max(part.shortest for part in self.models)

    def short_pairs(self, near: Neighborhood) -> torch.Tensor:
        near = near.without(self.absent_pairs)
        found = [part.short_pairs(self._seen_by(i, near)) for i, part in enumerate(self.models)]
        return torch.cat(found).unique(dim=0)

    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        energy = torch.zeros(near.system.atoms, dtype=torch.float64, device=near.displacements.device)
        for i, weight in enumerate(self.part_weights(near)):
            taken = self.parameters_of(i, fparam, aparam)
            energy = energy + weight * self.models[i](self._seen_by(i, near), **taken)["atom_energy"]
        return {"energy": energy}

    def parameters_of(
        self, i: int, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor | None]:
        """Those that a part takes. Raises InputError for one that no part takes."""
        self.reject_unused_parameters(fparam, aparam)
        given = {"fparam": fparam, "aparam": aparam}
        return {name: value for name, value in given.items() if self.models[i].parameter_sizes[name]}

    def absent_of(self, i: int) -> torch.Tensor | None:
        """(n, n) bool: the pairs that the whole model leaves out, in a part's types; None: no pairs."""
        absent = self.absent_pairs
        return None if absent is None else of_part(absent, getattr(self, f"names_{i}"), self.models[i].ntypes)

    def part_alone(self, i: int) -> AtomicModel:
        """A copy of a part that shares its tensors and also leaves out the pairs of the whole model."""
        part, absent = self.models[i], self.absent_of(i)
        if absent is None:
            return part
        found: AtomicModel = copy.copy(part)
        found._buffers = {**part._buffers, "absent_pairs": absent | part.absent_matrix}
        return found

    def _seen_by(self, i: int, near: Neighborhood) -> Neighborhood:
        """In a part's own types."""
        names = getattr(self, f"names_{i}")
        return near if names is None else near.with_type_map(names, self.models[i].ntypes)

    @classmethod
    def parts_of_tree(cls, tree: Tree, dtype: torch.dtype) -> list[AtomicModel]:
        return [registry.find("model", part.get("type")).from_tree(part, dtype) for part in tree["models"]]

    def parts_to_tree(self) -> list[Tree]:
        return [part.to_tree() for part in self.models]

    @staticmethod
    def no_statistics(ntypes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """out_bias and out_std of a new model."""
        return torch.zeros(ntypes, dtype=torch.float64), torch.ones(ntypes, dtype=torch.float64)

    def summary(self) -> dict[str, str]:
        return {f"part {i}": _described(part) for i, part in enumerate(self.models, start=1)}


def of_part(x: torch.Tensor, names: torch.Tensor | None, ntypes: int) -> torch.Tensor:
    """(n, n, ...), of pairs of types, for a part's own types, which are `names` of the whole's; 0 for types that the
    whole lacks."""
    if names is None:
        return x
    found = x.new_zeros(ntypes, ntypes, *x.shape[2:])
    found[names[:, None], names] = x
    return found


def of_whole(x: torch.Tensor, names: torch.Tensor | None) -> torch.Tensor:
    """(n, n, ...) of a part's types, for the whole's."""
    return x if names is None else x[names][:, names]


def _described(part: AtomicModel) -> str:
    kinds = ", ".join(descriptor.kind for descriptor in part.descriptors)
    of = f" of {kinds}" if kinds else ""
    lines = [f"{name} {line}" for name, line in part.summary().items()]
    return "; ".join([f"{part.kind}{of}, cutoff {part.cutoff:g} A", *lines])


@register
class LinearModel(Blend):
    """e_i = sum_m w_m e_mi + bias of i's type, with constant weights."""

    Options = LinearOptions
    NODE = schema.Node(
        {**schema.MODEL, "models": (schema.list_of(schema.node), schema.REQUIRED)}, schema.MODEL_ARRAYS
    )

    def part_weights(self, near: Neighborhood) -> list[float]:
        weights, count = self.options.weights, len(self.models)
        if isinstance(weights, str):
            return [1.0 if weights == "sum" else 1.0 / count] * count
        return list(weights)

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        parts = [registry.definition("model", part) for part in tree["models"]]
        own = {"type": cls.Options.NAMES[0], "weights": tree["weights"], "models": parts}
        return {**super().definition_of_tree(tree), **own}

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "LinearModel":
        models = cls.parts_of_tree(tree, dtype)
        options = cls.Options.from_tree(
            tree, type_map=list(tree["type_map"]), models=[part.options for part in models]
        )
        return cls(options, tree["type_map"], *cls.variables_of_tree(tree), models)

    def to_tree(self) -> Tree:
        return {**self.head(3), "models": self.parts_to_tree()}

    @classmethod
    def random(cls, options: LinearOptions, seed: int, dtype: torch.dtype) -> "LinearModel":
        models = [
            registry.find("model", part.KIND).random(part, seed + i, dtype)
            for i, part in enumerate(options.models)
        ]
        for part in models:
            part.out_std.fill_(1.0)
        return cls(options, options.type_map, *cls.no_statistics(len(options.type_map)), models)
