"""The atomic model dpa4: the descriptor dpa4, a fitting, and a nuclear repulsion of near atoms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from ase.data import atomic_numbers

from mdops.errors import ConfigError, UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.absent import nearest
from mdops.models.contract import Features, Tree
from mdops.models.dpa4.adapted import set_adapted
from mdops.models.dpa4.descriptor import DPA4
from mdops.models.dpa4.fitting import DPA4FittingOptions
from mdops.models.dpa4.options import DPA4Options, automatic_width
from mdops.models.keys import AdapterOptions
from mdops.models.neighborhood import COINCIDENT, Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.spin import is_native, native_section, spin_of_types
from mdops.models.standard import DescriptorFitting, ModelOptions, PartsOptions
from mdops.options import Most, key, section, variant

_TERMS = (
    (0.18175, 3.1998),
    (0.50986, 0.94229),
    (0.28022, 0.4029),
    (0.028171, 0.20162),
)  # Ziegler, Biersack, Littmark
_COULOMB, _BOHR = 14.3996, 0.5291772109  # eV A and A, as DeePMD-kit has them
_SCREENING, _POWER = 0.88534, 0.23
_NONE = "none"
_SAME = 1 + 1e-6  # squared distances up to this ratio are the same, in another order of operations
_OF_DENOISING = "dens_force_rmsd"  # what DeePMD-kit keeps for another loss


@dataclass(kw_only=True)
class DPA4ModelOptions(PartsOptions):
    KIND = "SeZM"
    NAMES: ClassVar[tuple[str, ...]] = ("dpa4", "DPA4", "sezm", "SeZM")
    IGNORED: ClassVar[tuple[str, ...]] = ("use_compile", "enable_tf32")
    NEUTRAL: ClassVar[dict[str, Any]] = {
        name: value for name, value in ModelOptions.NEUTRAL.items() if name not in ("bridging_method", "spin")
    }
    ADVICE: ClassVar[dict[str, str]] = {
        name: words for name, words in ModelOptions.ADVICE.items() if name not in ("bridging_method", "spin")
    }

    descriptor: Any = variant(
        lambda: registry.options("descriptor"), "dpa4", absent=partial(nearest, "descriptor")
    )
    fitting_net: Any = variant(
        lambda: registry.options("fitting"), "dpa4_ener", absent=partial(nearest, "fitting")
    )
    bridging_method: str = key(
        _NONE, 'additional interaction of close atoms: "none", or "zbl", the repulsion of nuclei'
    )
    bridging_r_inner: float = key(
        0.5, "shorter distances are replaced by this in the nets", unit="A", above=0
    )
    bridging_r_outer: float = key(0.8, "longer distances are unchanged", unit="A", above=0)

    spin: dict | None = key(
        None,
        'elements with magnetic moments, {"scheme": "native", "use_spin": [...]}, or as virtual atoms, '
        '{"use_spin": [...], "virtual_scale": [A per unit of moment]}',
        absent=None,
    )
    lora: AdapterOptions | None = section(AdapterOptions, optional=True)

    @classmethod
    def completed(cls, node: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """The descriptor decides the widths of a fitting's layers that are zero."""
        fitting, descriptor = node.get("fitting_net", {}), node.get("descriptor", {})
        if not (isinstance(fitting, Mapping) and isinstance(descriptor, Mapping)):
            return node
        gated = fitting.get("type", "dpa4_ener") in DPA4FittingOptions.NAMES
        name = "n_neuron" if "n_neuron" in fitting else "neuron"
        widths = fitting.get(name, [0] if gated else None)
        inputs = [descriptor.get("channels", DPA4Options.channels)]
        inputs += [fitting.get(key, 0) for key in ("numb_fparam", "numb_aparam")]
        inputs += [] if fitting.get("case_film_embd") else [fitting.get("dim_case_embd", 0)]
        if not isinstance(widths, list) or any(type(width) is not int for width in inputs):
            return node
        known = [automatic_width(sum(inputs), 8 / 3) if width == 0 else width for width in widths]
        return {**node, "fitting_net": {**fitting, name: known}}

    @classmethod
    def absent_pairs_of(cls, model: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        return super().absent_pairs_of(model) or model.get("descriptor", {}).get("exclude_types") or []

    @classmethod
    def with_virtual_atoms(cls, descriptor: Mapping[str, Any], elements: int) -> dict[str, Any]:
        """`sel` counts real neighbours. Each has a virtual atom, and so has the atom itself."""
        sel = descriptor.get("sel", DPA4Options.sel)
        given = sel if isinstance(sel, list) else [sel]
        known = all(type(places) is int and places > 0 for places in given)
        return {**descriptor, **({"sel": [2 * sum(given) + 1]} if known else {})}

    @classmethod
    def without_virtual_atoms(cls, descriptor: Mapping[str, Any], elements: int) -> dict[str, Any]:
        return {**descriptor, "sel": _real(descriptor["sel"])}

    def resolve_sel(self, most: Most, place: str) -> Self:
        if self.spin is None or is_native(self.spin) or not isinstance(self.descriptor.sel, str):
            return super().resolve_sel(most, place)

        def of_atoms(cutoff: float) -> tuple[Sequence[int], int]:
            found = most(cutoff)[0][: len(self.type_map) // 2]
            return found, sum(found)

        found = super().resolve_sel(of_atoms, place)
        found.descriptor.sel = [2 * found.descriptor.sel + 1]
        return found

    @property
    def bridges(self) -> bool:
        return self.bridging_method.lower() not in (_NONE, "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bridges and self.descriptor.KIND == self.KIND:
            self.descriptor.inner_clamp_r_inner = self.bridging_r_inner
            self.descriptor.inner_clamp_r_outer = self.bridging_r_outer

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if self.descriptor.KIND != self.KIND:
            raise ConfigError(f"{place}.descriptor.type: is {self.descriptor.KIND}, expected dpa4")
        if self.bridging_method.lower() not in (_NONE, "", "zbl"):
            raise ConfigError(
                f"{place}.bridging_method: is {self.bridging_method!r}, expected 'none' or 'zbl'"
            )
        if self.bridges and self.fitting_net.KIND != "sezm_ener":
            raise ConfigError(f"{place}.bridging_method: energies alone have it: expected 'none'")
        elements = type_map
        if self.spin is not None:
            elements = type_map[: spin_of_types(self.spin, type_map, f"{place}.spin").ntypes]
            if self.fitting_net.KIND != "sezm_ener":
                raise ConfigError(f"{place}.spin: energies alone have it: expected null")
        if self.lora is not None and place != "model":
            raise ConfigError(f"{place}.lora: a part of a model has no adapters: leave the section out")
        unknown = [name for name in elements if atomic_numbers.get(name, 0) < 1]
        if self.bridges and unknown:
            raise ConfigError(
                f"{place}.type_map: {unknown[0]} is not an element, which bridging_method needs"
            )


@register
class DPA4Model(DescriptorFitting):
    """e_i = fitting(descriptor) + bias of i's type + half the repulsion of its neighbours, if there is one.

    The repulsion is Z_i Z_j k/r sum_n c_n exp(-d_n r/a), a = 0.88534 a_0 / (Z_i^0.23 + Z_j^0.23), of the true distance.
    """

    Options = DPA4ModelOptions
    NODE = schema.Node(
        {
            **schema.MODEL,
            "descriptor": schema.part,
            "fitting": schema.part,
            "lora": (schema.optional(schema.node), None),
            "dens_fitting": (schema.anything, None),
            "active_mode": (schema.optional(schema.text), None),
        },
        schema.MODEL_ARRAYS,
    )

    FILED: ClassVar[tuple[str, ...]] = ("SeZMProperty", "sezm_native_spin", "sezm_spin")

    charges: torch.Tensor
    descriptor: DPA4

    def __init__(self, options: DPA4ModelOptions, type_map: Sequence[str], *parts: Any) -> None:
        super().__init__(options, type_map, *parts)
        numbers = [float(atomic_numbers.get(name, 0)) for name in type_map] if options.bridges else []
        self.register_buffer("charges", torch.tensor(numbers, dtype=torch.float64), persistent=False)
        self._has_virtual_atoms = self.spin is not None and self.spin.paired
        self.descriptor.has_virtual_atoms = self._has_virtual_atoms

    @property
    def kind(self) -> str:
        return self.options.NAMES[0]

    def adapt(self) -> list[torch.nn.Parameter]:
        self.fitting.requires_grad_(True)
        return set_adapted(self.descriptor)

    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        found = super().atomic_outputs(near, fparam, aparam)
        if self.options.bridges:
            found["energy"] = found["energy"] + self.repulsion(self._paired(near))
        return found

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        """With virtual atoms there are places for the nearest atoms; without, all neighbours count."""
        if not self._has_virtual_atoms:
            return super().neighbors
        places = _real(self.descriptor.options.sel)
        return (NeighborSpec(self.descriptor.cutoff, (places,), True, self.ntypes // 2),)

    @property
    def captures(self) -> bool:
        return super().captures and not self._has_virtual_atoms  # `_paired` waits for a GPU

    def _features(self, near: Neighborhood) -> Features:
        found: Features = self.descriptor(self._paired(near))
        return found

    def _paired(self, near: Neighborhood) -> Neighborhood:
        """With virtual atoms, only neighbours whose atoms are neighbours, too: DeePMD-kit finds these, the nearest
        that have places, and then adds their virtual atoms. A virtual atom that lies on its atom is no neighbour."""
        if not near.system.paired:
            return near
        places = near.system.positions.detach().view(-1, 2, 3)
        away = (places - places[:, :1]).flatten(0, 1)
        apart = near.displacements.detach() - away[near.neighbors.long()] + away[:, None]
        most: float | torch.Tensor = near.cutoff**2
        (spec,) = self.neighbors
        if near.truncates and spec.sel is not None and sum(spec.sel) < near.neighbors.shape[1]:
            of_atoms = near.squared[::2].masked_fill(near.types_in_cutoff[::2] >= self.ntypes // 2, torch.inf)
            last = of_atoms.kthvalue(sum(spec.sel), dim=1, keepdim=True).values
            most = (last * _SAME).clamp(max=most).repeat_interleave(2, 0)
        present = (near.types_in_cutoff < near.ntypes) & (near.squared > COINCIDENT**2)
        return near.kept(present & (apart.square().sum(-1) <= most))

    def repulsion(self, near: Neighborhood) -> torch.Tensor:
        """(N,), eV, float64: half of the repulsion of an atom and its neighbours."""
        silent = torch.nn.functional.pad(~self.has_energy, (0, 1), value=True)
        pairs = self.descriptor.excluded
        assert isinstance(pairs, torch.Tensor)
        excluded = torch.nn.functional.pad(pairs, (0, 1))
        absent = (
            silent[near.neighbor_types]
            | silent[near.centers][:, None]
            | excluded[near.centers[:, None], near.neighbor_types]
        )
        r = torch.where(absent, 1.0, near.displacements.double().square().sum(-1)).sqrt()
        z = torch.nn.functional.pad(self.charges, (0, 1))
        own, other = z[near.centers][:, None], z[near.neighbor_types]
        scaled = r * (own**_POWER + other**_POWER) / (_SCREENING * _BOHR)
        screened = sum(weight * torch.exp(-rate * scaled) for weight, rate in _TERMS)
        energy = _COULOMB * own * other / r * screened
        return 0.5 * torch.where(absent, 0.0, energy).sum(1)

    @classmethod
    def tree_of_file(cls, tree: Tree) -> Tree:
        """DeePMD-kit's node holds the atomic model in an inner node."""
        inner = tree.get("atomic_model")
        if not isinstance(inner, dict):
            return tree
        outer = {name: value for name, value in tree.items() if name != "atomic_model"}
        variables = {name: value for name, value in inner["@variables"].items() if name != _OF_DENOISING}
        if outer.pop("real_sel", None) is None and outer.get("spin") is not None:
            outer["spin"] = native_section(outer["spin"])
        return {**inner, **outer, "type": cls.Options.KIND, "@variables": variables}

    @classmethod
    def file_of_tree(cls, tree: Tree) -> Tree:
        outside = ("bridging_method", "bridging_r_inner", "bridging_r_outer", "lora", "spin")
        head = ("@class", "@version", "type")
        inner = {name: value for name, value in tree.items() if name not in (*outside, *head)}
        inner |= {"@class": "Model", "@version": 3, "type": "sezm_atomic"}
        inner["@variables"] = {**tree["@variables"], _OF_DENOISING: np.ones(())}
        outer = {name: tree[name] for name in (*head, *outside) if name in tree}
        if tree["fitting"]["type"] == "property":
            outer["type"] = cls.FILED[0]
        if tree.get("spin") is not None:
            section = {name: value for name, value in tree["spin"].items() if name != "scheme"}
            outer |= {"type": cls.FILED[1], "spin": section}
            if not is_native(tree["spin"]):
                own = tree["descriptor"]
                outer |= {"type": cls.FILED[2], "real_sel": [_real(own.get("config", own)["sel"])]}
        return {**outer, "atomic_model": inner}

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        method = tree["bridging_method"]
        return {**super().completed_tree(tree), "bridging_method": method.lower(), "lora": None}

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> Any:
        if tree.get("active_mode") == "dens":
            raise UnsupportedModelError(
                "a dpa4 model that was trained to denoise (the loss `dens`) has no energies: train it on with the loss "
                "`ener`"
            )
        return super().from_tree(tree, dtype)

    def to_tree(self) -> Tree:
        tree = super().to_tree()
        return {**tree, "@version": 1, "lora": None, "dens_fitting": None, "active_mode": "ener"}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        names = ("bridging_method", "bridging_r_inner", "bridging_r_outer")
        return {"type": "dpa4", **super().definition_of_tree(tree), **{name: tree[name] for name in names}}


def _real(sel: int | list[int]) -> int:
    """The places of real neighbours, from all of them (`DPA4ModelOptions.with_virtual_atoms`)."""
    return (sum(sel) if isinstance(sel, list) else sel) // 2
