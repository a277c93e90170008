"""The atomic model "zbl": a descriptor and a fitting, and a pair table for atoms with a very near neighbour."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.contract import AtomicModel, Tree
from mdops.models.linear import Blend
from mdops.models.neighborhood import Neighborhood
from mdops.models.pairtab import TABLE_FILE, PairTable, PairTableOptions
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.models.standard import DescriptorFitting, ModelOptions, PartsOptions, StandardOptions
from mdops.options import key

_ANY_NUMBER = 2**31 - 1


@dataclass(kw_only=True)
class ZBLOptions(PartsOptions):
    KIND = "zbl"
    MARK: ClassVar[str] = "use_srtab"
    IGNORED: ClassVar[tuple[str, ...]] = ModelOptions.IGNORED

    use_srtab: str = key(
        doc="the file of the table for short distances, as `model[pairtab].tab_file`",
        where="input",
        of="training",
    )
    smin_alpha: float = key(
        0.1,
        "decay length of the weights in the mean distance of an atom to its neighbours",
        unit="A",
        above=0,
    )
    sw_rmin: float = key(doc="below this mean distance, only the table is used", unit="A", low=0)
    sw_rmax: float = key(
        doc="above this mean distance, only the descriptor and fitting are used", unit="A", above=0
    )

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if not self.sw_rmin < self.sw_rmax:
            raise ConfigError(f"{place}.sw_rmin: is {self.sw_rmin}, expected less than sw_rmax")


@register
class ZBLModel(Blend):
    """e_i = (1 - c_i) e_i(net) + c_i e_i(table) + bias of i's type.

    c falls from 1 to 0 as s goes from sw_rmin to sw_rmax: with u = (s - sw_rmin)/(sw_rmax - sw_rmin), c = 1 - 10 u^3
    + 15 u^4 - 6 u^5. s is the mean distance of the neighbours with weights exp(-r/smin_alpha), near the smallest. An
    atom without neighbours has c = 0. DeePMD-kit bounds the sum of the weights by 1e-20 from below, and so counts atoms
    whose neighbours are all beyond 46 smin_alpha as near ones; here they are not.
    """

    Options = ZBLOptions
    NODE = schema.Node(
        {
            **schema.MODEL,
            "models": (schema.list_of(schema.node), schema.REQUIRED),
            # Unused.
            "weights": (schema.either(schema.one_of("mean", "sum"), schema.list_of(schema.number)), "mean"),
        },
        schema.MODEL_ARRAYS,
    )

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        net = registry.definition("model", tree["models"][0])
        switch = {name: tree[name] for name in ("sw_rmin", "sw_rmax", "smin_alpha")}
        return {**net, **super().definition_of_tree(tree), "use_srtab": TABLE_FILE, **switch}

    @classmethod
    def check_tree(cls, tree: Tree, place: str) -> None:
        """A net and a table."""
        super().check_tree(tree, place)
        kinds = [part.get("type") for part in tree["models"][1:]]
        require_same(kinds, [PairTableOptions.KIND], f"the kinds of {place}.models[1:]")
        if tree["sw_rmax"] <= tree["sw_rmin"]:
            raise ModelFileError(f"{place} has sw_rmax = {tree['sw_rmax']}, not above its sw_rmin")

    def part_weights(self, near: Neighborhood) -> list[torch.Tensor]:
        near_ones = self.near_weight(near)
        return [1 - near_ones, near_ones]

    def near_weight(self, near: Neighborhood) -> torch.Tensor:
        """c (N,), float64, from the neighbours of the part with more places (the table, if equal)."""
        o = self.options
        part, places = self.near_part
        near = near.within(part.cutoff).select((places,), mixed=True)
        seen = near.neighbor_types != near.ntypes
        r = torch.where(seen, near.displacements.double().square().sum(-1), 1.0).sqrt()
        # The least distance is subtracted from all, so that not all weights vanish.
        some = seen.any(1, keepdim=True)
        beyond = torch.where(some, torch.inf, 0.0).to(r.dtype)  # a row may have no slots at all
        least = torch.cat([torch.where(seen, r.detach(), torch.inf), beyond], dim=1).amin(1, keepdim=True)
        weights = torch.where(seen, torch.exp((least - r) / o.smin_alpha), 0.0)
        mean = (weights * r).sum(1) / torch.where(some[:, 0], weights.sum(1), 1.0)
        u = ((mean - o.sw_rmin) / (o.sw_rmax - o.sw_rmin)).clamp(0, 1)
        return torch.where(some[:, 0], 1 - u**3 * (10 - 15 * u + 6 * u**2), 0.0)

    @property
    def near_part(self) -> tuple[AtomicModel, int]:
        """The part whose neighbours make the weights, and its places."""
        places, _, part = max((_places(part), i, part) for i, part in enumerate(self.models))
        return part, places

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "ZBLModel":
        """Raises UnsupportedModelError unless it is a standard model and a pair table."""
        kinds = [part.get("type") for part in tree["models"]]
        if kinds != [DescriptorFitting.Options.KIND, PairTable.Options.KIND]:
            raise UnsupportedModelError(
                f"a zbl model of {' and '.join(map(str, kinds))} is not supported; of standard and pairtab it is"
            )
        net, table = cls.parts_of_tree(tree, dtype)
        options = cls.Options.from_tree(
            tree,
            type_map=list(tree["type_map"]),
            descriptor=net.options.descriptor,
            fitting_net=net.options.fitting_net,
            use_srtab="",
        )
        return cls(options, tree["type_map"], *cls.variables_of_tree(tree), [net, table])

    def to_tree(self) -> Tree:
        return {**self.head(2), "weights": "mean", "models": self.parts_to_tree()}

    @classmethod
    def random(cls, options: ZBLOptions, seed: int, dtype: torch.dtype) -> "ZBLModel":
        types = list(options.type_map)
        standard = StandardOptions(
            type_map=types, descriptor=options.descriptor, fitting_net=options.fitting_net
        )
        net = DescriptorFitting.random(standard, seed, dtype)
        net.out_std.fill_(1.0)
        table = PairTable.random(
            PairTableOptions(type_map=types, tab_file=options.use_srtab, rcut=net.cutoff, sel=_places(net)),
            seed,
            dtype,
        )
        return cls(options, types, *cls.no_statistics(len(types)), [net, table])


def _places(part: AtomicModel) -> int:
    """For neighbours of all types."""
    return max(_ANY_NUMBER if spec.sel is None else sum(spec.sel) for spec in part.neighbors)
