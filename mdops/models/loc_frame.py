"""The descriptor loc_frame: neighbours in a frame that two of them span, as in DeePMD-kit's first versions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch.nn.functional import pad

from mdops.errors import ConfigError, InputError, ModelFileError
from mdops.models import schema
from mdops.models.contract import Descriptor, Features, Tree
from mdops.models.neighborhood import Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.shapes import check_statistics, require_same
from mdops.nn.net import array, tensor
from mdops.options import Options, key
from mdops.tracing import is_exported

_SMALLEST = 1e-2  # deviation
_NEAREST = 3  # of each type, the candidates for an axis of any type
_OPPOSITE = 1e-4  # axes are opposite if the cosine of their angle is this near to -1


@dataclass(kw_only=True)
class LocFrameOptions(Options):
    KIND = "loc_frame"
    IGNORED: ClassVar[tuple[str, ...]] = ("seed",)  # it has no random numbers

    rcut: float = key(6.0, "the cutoff", unit="A", above=0, absent=...)
    sel_a: list[int] = key(
        doc="number of nearest neighbours of each type whose full coordinates are used", low=0, of="types"
    )
    sel_r: list[int] = key(
        doc="number of further neighbours of each type whose distances are used", low=0, of="types"
    )
    axis_rule: list[int] = key(
        doc="for each type six numbers: for the first axis whether its atom is one of sel_a (0) or "
        "sel_r (1), its type, and its rank by distance; then the same for the second axis"
    )

    def __post_init__(self) -> None:
        # DeePMD-kit reads past numbers of further types.
        self.axis_rule = self.axis_rule[: 6 * len(self.sel_a)]

    def check(self, place: str, type_map: Sequence[str]) -> None:
        for name, each in (("sel_a", 1), ("sel_r", 1), ("axis_rule", 6)):
            if len(getattr(self, name)) != each * len(type_map) and (name != "axis_rule" or self.axis_rule):
                raise ConfigError(
                    f"{place}.{name}: has {len(getattr(self, name))} numbers for {len(type_map)} types"
                )
        problem = self.problem()
        if problem:
            raise ConfigError(f"{place}.{problem}")

    def problem(self) -> str:
        """The fault of numbers of the right length; empty if there is none."""
        if not sum(self.sel_a) + sum(self.sel_r):
            return "sel_a: there is no place for a neighbour"
        ntypes, rules = len(self.sel_a), self.axis_rule
        for at in range(0, len(rules), 3):
            which, kind, number = rules[at : at + 3]
            places = (self.sel_a, self.sel_r)[which] if which in (0, 1) else []
            most = places[kind] if 0 <= kind < len(places) else _NEAREST * ntypes if kind < 0 else 0
            if not places or not 0 <= number < most:
                return f"axis_rule: has {[which, kind, number]}, and there is no such neighbour"
        return ""

    @property
    def cutoff(self) -> float:
        return self.rcut


class Places(NamedTuple):
    """The neighbours of N atoms in their P places: those of sel_a by type, then those of sel_r.

    Attributes:
        vectors: (N, P, 3), A; those of empty places are (1, 0, 0).
        there: (N, P) bool.
        squared: (N, P), A^2, infinite in empty places, without a graph.
    """

    vectors: torch.Tensor
    there: torch.Tensor
    squared: torch.Tensor


@register
class LocFrame(Descriptor):
    """D_i = (d - mean)/std with d = (1/r, z/r^2, x/r^2, y/r^2) of the sel_a nearest neighbours of each type, in the
    atom's frame, and 1/r of the next sel_r; zeros in empty places. Others are left out.

    The first axis points to a neighbour, the second lies in the plane of that and another one (`axis_rule`). If the
    two are opposite, the next neighbour replaces the second. Energies jump where neighbours change places, or one
    crosses the cutoff. An atom without neighbours for its axes is an error.

    Attributes:
        mean, std: (ntypes, 4 sum(sel_a) + sum(sel_r)), of each number of d.
    """

    Options = LocFrameOptions
    OWN = "its descriptor loc_frame is of the TensorFlow backend alone"
    NODE = schema.Node({"type_map": schema.type_map, "@variables": schema.part}, schema.STATISTICS)
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, options: Any, type_map: Sequence[str], mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self._starts = [
            [start + sum(sel[:t]) for t in range(len(type_map))]
            for sel, start in ((options.sel_a, 0), (options.sel_r, self.full))
        ]

    @property
    def full(self) -> int:
        """Places with all coordinates."""
        return sum(self.options.sel_a)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, None),)  # if there are more, the nearest of each type

    @property
    def width(self) -> int:
        return width_of(self.options.sel_a, self.options.sel_r)

    is_local = True

    def forward(self, near: Neighborhood) -> Features:
        return Features((self.numbers(near) - self.mean[near.centers]) / self.std[near.centers])

    def numbers(self, near: Neighborhood) -> torch.Tensor:
        """d (N, width); arbitrary of virtual atoms."""
        places = self._placed(near)
        r = places.vectors.square().sum(-1, keepdim=True).sqrt()
        inverse = (1 / r).masked_fill(~places.there[..., None], 0.0)
        if not self.full:
            return inverse[..., 0]
        full = slice(self.full)
        local = (self._frames(near, places) @ places.vectors[:, full].transpose(1, 2)).transpose(1, 2)
        angles = local[..., [2, 0, 1]] * inverse[:, full].square()
        return torch.cat(
            [torch.cat([inverse[:, full], angles], -1).flatten(1), inverse[:, self.full :, 0]], 1
        )

    def _placed(self, near: Neighborhood) -> Places:
        o, kinds = self.options, near.neighbor_types
        squared = near.squared.masked_fill(kinds == near.ntypes, torch.inf)
        order = squared.argsort(dim=1, stable=True)
        order = order.gather(1, kinds.gather(1, order).argsort(dim=1, stable=True))
        kinds = kinds.gather(1, order)
        slot = torch.arange(kinds.shape[1], device=kinds.device)
        first = pad(near.count(kinds).cumsum(1), (1, 0))
        rank = slot - first.gather(1, kinds)
        starts, rest, sel_a, sel_r = (
            torch.tensor([*numbers, 0], device=kinds.device)[kinds]
            for numbers in (*self._starts, o.sel_a, o.sel_r)
        )
        count = self.full + sum(o.sel_r)
        place = torch.where(rank < sel_a, starts + rank, rest + rank - sel_a)
        place = torch.where((rank < sel_a + sel_r) & (kinds < near.ntypes), place, count)
        taken = place.new_full((len(kinds), count + 1), kinds.shape[1])
        taken = taken.scatter(1, place, order)[:, :count]
        there = taken < kinds.shape[1]
        vectors = pad(near.displacements, (0, 0, 0, 1)).gather(1, taken[..., None].expand(-1, -1, 3))
        apart = torch.tensor([1.0, 0.0, 0.0], dtype=vectors.dtype, device=vectors.device)
        vectors = torch.where(there[..., None], vectors, apart)
        return Places(vectors, there, vectors.detach().square().sum(-1).masked_fill(~there, torch.inf))

    def _frames(self, near: Neighborhood, places: Places) -> torch.Tensor:
        """(N, 3, 3), the axes as rows."""
        chosen = near.centers.new_zeros(len(near.centers), 3)
        start = 0 if self.full > 1 else self.full  # without a rule
        for t in range(len(self.type_map)):
            rule = self.options.axis_rule[6 * t : 6 * t + 6]
            more = [rule[:3], rule[3:], [*rule[3:5], rule[5] + 1]] if rule else []
            of_type = [self._axis(places, *one) for one in more] or [
                near.centers.new_full((len(near.centers),), start + k) for k in range(3)
            ]
            own = (near.centers == t)[:, None]
            chosen = torch.where(own, torch.stack(of_type, 1), chosen)
        chosen = chosen.clamp(max=places.there.shape[1] - 1)
        axes = places.vectors.gather(1, chosen[..., None].expand(-1, -1, 3))
        there = places.there.gather(1, chosen)
        fixed = axes.detach()
        lengths = fixed.norm(dim=-1)
        cosine = (fixed[:, 0] * fixed[:, 1]).sum(-1) / (lengths[:, 0] * lengths[:, 1])
        is_opposite = (cosine + 1).abs() < _OPPOSITE
        second = torch.where(is_opposite[:, None], axes[:, 2], axes[:, 1])
        lacks = ~(there[:, 0] & torch.where(is_opposite, there[:, 2], there[:, 1])) & (near.types >= 0)
        if not is_exported() and bool(lacks.any()):
            atom = int(lacks.nonzero()[0])
            raise InputError(
                f"atom {atom} ({self.type_map[int(near.centers[atom])]}) lacks the neighbours that the axes of its "
                f"frame point to within {self.options.rcut:g} A (axis_rule of loc_frame)"
            )
        # No root of zero if there is no frame: for virtual atoms, whose features are not read.
        spare = torch.eye(3, dtype=axes.dtype, device=axes.device)
        has = ~lacks & (near.types >= 0)
        first = torch.where(has[:, None], axes[:, 0], spare[0])
        second = torch.where(has[:, None], second, spare[1])
        x = first / first.square().sum(-1, keepdim=True).sqrt()
        y = second - (x * second).sum(-1, keepdim=True) * x
        y = y / y.square().sum(-1, keepdim=True).sqrt()
        frames = torch.stack([x, y, torch.linalg.cross(x, y)], 1)
        return torch.where(lacks[:, None, None], torch.nan, frames)

    def _axis(self, places: Places, which: int, kind: int, number: int) -> torch.Tensor:
        """(N,): the place of the neighbour that a rule names."""
        starts, sel = self._starts[which], (self.options.sel_a, self.options.sel_r)[which]
        if kind >= 0:
            return places.there.new_full((len(places.there),), starts[kind] + number, dtype=torch.int64)
        left_out = -kind if which else -kind - 1  # DeePMD-kit counts these in two ways
        candidates = [
            starts[t] + k for t in range(len(sel)) if t != left_out for k in range(min(_NEAREST, sel[t]))
        ]
        index = torch.tensor(candidates, dtype=torch.int64, device=places.there.device)
        order = places.squared[:, index].argsort(dim=1, stable=True)
        return index[order[:, min(number, len(candidates) - 1)]]

    @torch.no_grad()
    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        sums = self.mean.new_zeros(3, *self.mean.shape, dtype=torch.float64)
        spec = self.spec
        for near in frames:
            d = self.numbers(near.within(spec.cutoff))
            for t in range(len(self.type_map)):
                of_type = d[near.types == t]
                sums[:, t] += torch.stack([torch.ones_like(of_type), of_type, of_type**2]).sum(1)
        count = sums[0].clamp(min=1)
        mean = sums[1] / count
        std = (sums[2] / count - mean**2).clamp(min=0).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(std.clamp(min=_SMALLEST))

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> Self:
        extent = len(type_map), width_of(options.sel_a, options.sel_r)
        return cls(options, type_map, torch.zeros(extent, dtype=dtype), torch.ones(extent, dtype=dtype))

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        statistics = (tensor(tree["@variables"][name], dtype) for name in ("davg", "dstd"))
        return cls(LocFrameOptions.from_tree(tree), type_map, *statistics)

    def to_tree(self) -> Tree:
        statistics = {"davg": array(self.mean), "dstd": array(self.std)}
        head = {"@class": "Descriptor", "@version": 1, "type": self.options.KIND}
        return {**head, **self.options.to_tree(), "type_map": list(self.type_map), "@variables": statistics}

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        ntypes, options = len(type_map), LocFrameOptions.from_tree(tree)
        for name in ("sel_a", "sel_r"):
            require_same(len(tree[name]), ntypes, f"the length of {place}.{name}")
        if tree["axis_rule"]:
            require_same(len(tree["axis_rule"]), 6 * ntypes, f"the length of {place}.axis_rule")
        if options.problem():
            raise ModelFileError(f"{place}.{options.problem()}")
        check_statistics(tree["@variables"], (ntypes, width_of(options.sel_a, options.sel_r)), place)

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int | None:
        return width_of(tree["sel_a"], tree["sel_r"])

    def summary(self) -> dict[str, str]:
        places = zip(self.type_map, self.options.sel_a, self.options.sel_r, strict=True)
        return {"places": ", ".join(f"{t} {a} by coordinates, {r} by distances" for t, a, r in places)}


def width_of(sel_a: Sequence[int], sel_r: Sequence[int]) -> int:
    return 4 * sum(sel_a) + sum(sel_r)
