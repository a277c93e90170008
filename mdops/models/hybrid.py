"""The descriptor hybrid: several descriptors of the same neighbours, side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from mdops.errors import UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.absent import nearest
from mdops.models.contract import Descriptor, Features, Tree, joined, masks
from mdops.models.neighborhood import Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.type_embedding import TypeEmbeddingOptions, section_with_types
from mdops.models.ways import way_of
from mdops.options import Most, Options, variants

_Parts = list[Any]  # `list` is the name of a key


def _kinds() -> dict[str, type[Options]]:
    """The options of possible parts: all descriptors but hybrids, and those with their own lists."""
    kinds = registry.options("descriptor").items()
    return {name: options for name, options in kinds if name != "hybrid" and not masks(options)}


@dataclass(kw_only=True)
class HybridOptions(Options):
    KIND = "hybrid"
    seed: ClassVar[int | None] = None  # each part may have its own

    list: _Parts = variants(
        _kinds,
        registry.DEFAULT_DESCRIPTOR,
        "type of each part; its other keys are those of this type",
        partial(nearest, "descriptor"),
    )

    def check(self, place: str, type_map: Sequence[str]) -> None:
        for i, part in enumerate(self.list):
            part.check(f"{place}.list[{i}]", type_map)

    @classmethod
    def with_types(cls, section: Mapping[str, Any], width: int, place: str, kinds: Mapping[str, type]) -> Any:
        parts = section.get("list")
        if not isinstance(parts, list):
            return section
        places = (f"{place}.list[{i}]" for i in range(len(parts)))
        found = [section_with_types(part, width, at, kinds) for part, at in zip(parts, places, strict=True)]
        return {**section, "list": found}

    def of_tensorflow(self, types: TypeEmbeddingOptions, is_last: bool) -> "HybridOptions":
        ends = [*[False] * (len(self.list) - 1), is_last]
        parts = [part.of_tensorflow(types, end) for part, end in zip(self.list, ends, strict=True)]
        return dataclasses.replace(self, list=parts)

    @property
    def cutoff(self) -> float:
        return max(part.cutoff for part in self.list)

    def resolve_sel(self, most: Most, place: str) -> "HybridOptions":
        parts = [part.resolve_sel(most, f"{place}.list[{i}]") for i, part in enumerate(self.list)]
        return dataclasses.replace(self, list=parts)


@register
class Hybrid(Descriptor):
    """D_i = (D_i of the first part, D_i of the second, ...).

    A part sees the nearest neighbours within the largest cutoff, up to its capacity (`Neighborhood.share`).

    Attributes:
        members: the parts.
    """

    Options = HybridOptions
    NODE = schema.Node({"list": (schema.list_of(schema.node), schema.REQUIRED)})

    def __init__(self, options: HybridOptions, members: Sequence[Descriptor]) -> None:
        super().__init__()
        self.options = options
        self.members = nn.ModuleList(members)

    def _members(self) -> _Parts:
        return list(self.members)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        """The largest capacity of a part: for each type, or for all if a part is mixed."""
        specs = [part.spec for part in self._members()]
        cutoff, mixed = max(spec.cutoff for spec in specs), any(spec.mixed for spec in specs)
        if any(spec.sel is None for spec in specs):
            return (NeighborSpec(cutoff, None, mixed),)
        if mixed:
            return (NeighborSpec(cutoff, (max(sum(spec.sel) for spec in specs),), True),)
        places = tuple(max(own) for own in zip(*(spec.sel for spec in specs), strict=True))
        return (NeighborSpec(cutoff, places),)

    @property
    def has_types(self) -> bool:
        return any(part.has_types for part in self._members())

    @property
    def reach(self) -> int:
        return max(part.reach for part in self._members())

    @property
    def width(self) -> int:
        return sum(part.width for part in self._members())

    @property
    def axes(self) -> int:
        return sum(part.axes for part in self._members())

    @property
    def parts(self) -> "list[Descriptor]":
        return [part for member in self._members() for part in member.parts]

    def forward(self, near: Neighborhood) -> Features:
        return joined([part(seen_by(part, near, mixed=self.mixed_types)) for part in self._members()])

    @property
    def ends_at_cutoff(self) -> bool:
        return all(map(_takes_all, self._members()))

    @property
    def captures(self) -> bool:
        return all(part.captures and _takes_all(part) for part in self._members())

    @property
    def is_local(self) -> bool:
        return all(part.is_local for part in self._members())

    def atoms_at_once(self, near: Neighborhood) -> int | None:
        sizes = [part.atoms_at_once(near) for part in self._members()] if self.is_local else []
        return min((size for size in sizes if size is not None), default=None)

    def set_trained(self) -> None:
        for part in self._members():
            part.set_trained()

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "Hybrid":
        if not tree["list"]:
            raise UnsupportedModelError("a hybrid descriptor without parts is not supported")
        members = [
            registry.find("descriptor", part.get("type")).from_tree(part, type_map, dtype)
            for part in tree["list"]
        ]
        return cls(HybridOptions(list=[part.options for part in members]), members)

    def to_tree(self) -> Tree:
        parts = [part.to_tree() for part in self._members()]
        return {"@class": "Descriptor", "@version": 1, "type": self.options.KIND, "list": parts}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        return {
            "type": cls.Options.KIND,
            "list": [registry.definition("descriptor", part) for part in tree["list"]],
        }

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        for i, part in enumerate(tree["list"]):
            kind = registry.known("descriptor", part)
            if kind is not None:
                kind.check_tree(part, type_map, f"{place}.list[{i}]")

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int | None:
        kinds = [registry.known("descriptor", part) for part in tree["list"]]
        widths = [kind and kind.width_of_tree(part) for kind, part in zip(kinds, tree["list"], strict=True)]
        return None if None in widths else sum(widths)

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        kinds = [registry.find("descriptor", part["type"]) for part in tree["list"]]
        parts = [
            kind.tree_of_types(part, types, type_map) for kind, part in zip(kinds, tree["list"], strict=True)
        ]
        return {**tree, "list": parts}

    @classmethod
    def random(
        cls, options: HybridOptions, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype
    ) -> "Hybrid":
        members = []
        for i, part in enumerate(options.list):
            given = getattr(part, "seed", None)  # users' own kinds may lack it
            own = [*seed, i] if given is None else [given, *seed[1:]]
            members.append(registry.find("descriptor", part.KIND).random(part, type_map, own, dtype))
        return cls(options, members)

    def summary(self) -> dict[str, str]:
        return {
            f"part {i}, {name}": line
            for i, part in enumerate(self._members(), 1)
            for name, line in {"descriptor": part.kind, **part.summary()}.items()
        }


def _takes_all(part: Descriptor) -> bool:
    """Whether a part selects its own neighbours from the hybrid's."""
    return part.ends_at_cutoff or way_of(part) is not None


def seen_by(part: Descriptor, near: Neighborhood, *, mixed: bool) -> Neighborhood:
    """The neighbours for a part of a hybrid, itself `mixed` or not."""
    alone = _takes_all(part) and not near.truncates
    return near if alone else near.restrict_to_part(part.spec, mixed=mixed)
