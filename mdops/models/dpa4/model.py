"""The atomic model dpa4: the descriptor dpa4, a fitting, and a nuclear repulsion of near atoms."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from ase.data import atomic_numbers

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.absent import nearest
from mdops.models.contract import DIRECT, Features, Output, Tree
from mdops.models.dpa4 import denoising
from mdops.models.dpa4.adapted import set_adapted
from mdops.models.dpa4.denoising import DenoisingHeads
from mdops.models.dpa4.descriptor import DPA4
from mdops.models.dpa4.fitting import DPA4Fitting, DPA4FittingOptions
from mdops.models.dpa4.options import DPA4Options, automatic_width
from mdops.models.keys import AdapterOptions
from mdops.models.neighborhood import COINCIDENT, Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.spin import is_native, native_section, spin_of_types
from mdops.models.standard import DescriptorFitting, PartsOptions
from mdops.options import Most, key, section, variant
from mdops.tracing import is_exported

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
_TURNED = (
    "DeePMD-kit 3.2 trained this model (loss dens) with heads whose axes are not those of the atoms, so that its "
    "forces do not turn with the atoms. They are computed as there; a training goes on with the atoms' axes"
)


@dataclass(kw_only=True)
class DPA4ModelOptions(PartsOptions):
    KIND = "SeZM"
    NAMES: ClassVar[tuple[str, ...]] = ("dpa4", "DPA4", "sezm", "SeZM")
    IGNORED: ClassVar[tuple[str, ...]] = ("use_compile", "enable_tf32")
    HEADS: ClassVar[tuple[str, ...]] = ("dens",)

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
    active_mode: str | None = key(
        None, "the loss that it is trained with", choices=("ener", *HEADS), where="file", of="training"
    )

    @property
    def denoises(self) -> bool:
        """Whether its answers are those of the heads that the loss `dens` trains."""
        return self.active_mode in self.HEADS

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
        inputs += [fitting.get("numb_fparam", 0)]
        inputs += [] if fitting.get("use_aparam_as_mask") else [fitting.get("numb_aparam", 0)]
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
        if self.denoises:
            self._check_denoising(place)
        unknown = [name for name in elements if atomic_numbers.get(name, 0) < 1]
        if self.bridges and unknown:
            raise ConfigError(
                f"{place}.type_map: {unknown[0]} is not an element, which bridging_method needs"
            )

    def _check_denoising(self, place: str) -> None:
        o, fitting = self.descriptor, self.fitting_net
        for holds, name, wanted in (
            (not self.bridges, "bridging_method", "'none'"),
            (self.spin is None, "spin", "null"),
            (fitting.KIND == DPA4FittingOptions.KIND, "fitting_net.type", repr(DPA4FittingOptions.NAMES[0])),
            (not getattr(fitting, "dim_case_embd", 0), "fitting_net.dim_case_embd", "0"),
            (o.first_node_degree > 0 < o.last_node_degree, "descriptor.lmax", "degrees of 1 or more"),
        ):
            if not holds:
                raise ConfigError(f"{place}.{name}: with the loss dens, expected {wanted}")


@register
class DPA4Model(DescriptorFitting):
    """e_i = fitting(descriptor) + bias of i's type + half the repulsion of its neighbours, if there is one.

    A model that the loss `dens` trains answers by `denoising`: energies e_i = std head(descriptor) + bias, and forces.

    The repulsion is Z_i Z_j k/r sum_n c_n exp(-d_n r/a), a = 0.88534 a_0 / (Z_i^0.23 + Z_j^0.23), of the true distance.
    """

    Options = DPA4ModelOptions
    NODE = schema.Node(
        {
            **schema.MODEL,
            "descriptor": schema.part,
            "fitting": schema.part,
            "lora": (schema.optional(schema.node), None),
            "dens_fitting": (schema.optional(schema.node), None),
        },
        schema.MODEL_ARRAYS,
    )
    NODES: ClassVar[dict[str, schema.Node]] = {denoising.CLASS: denoising.NODE}

    FILED: ClassVar[tuple[str, ...]] = ("SeZMProperty", "sezm_native_spin", "sezm_spin")

    charges: torch.Tensor
    descriptor: DPA4

    def __init__(self, options: DPA4ModelOptions, type_map: Sequence[str], *parts: Any) -> None:
        super().__init__(options, type_map, *parts)
        numbers = [float(atomic_numbers.get(name, 0)) for name in type_map] if options.bridges else []
        self.register_buffer("charges", torch.tensor(numbers, dtype=torch.float64), persistent=False)
        self._has_virtual_atoms = self.spin is not None and self.spin.paired
        self.descriptor.has_virtual_atoms = self._has_virtual_atoms
        self.heads: DenoisingHeads | None = None

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        return DIRECT if options.denoises else super().outputs_of(options)

    @property
    def kind(self) -> str:
        return self.options.NAMES[0]

    def adapt(self) -> list[torch.nn.Parameter]:
        (self.fitting if self.heads is None else self.heads).requires_grad_(True)
        return set_adapted(self.descriptor)

    @property
    def keeps_deviation(self) -> bool:
        return self.heads is not None

    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        if self.heads is not None:
            spec = self.descriptor.spec
            return self.heads(self.descriptor, near.select(spec.sel, mixed=spec.mixed), fparam, aparam)
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
        return near.kept(
            present & (apart.square().sum(-1) <= most), waits=not (present.is_cuda or is_exported())
        )

    def finish(
        self, responses: dict[str, torch.Tensor], types: torch.Tensor, kind: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """As in `AtomicModel`; where `DenoisingHeads` give it, also `noise` (N, 3), in units of its deviation."""
        found = super().finish(responses, types, kind)
        if "noise" in responses:
            known = self.has_energy[types.long().clamp(min=0)] & (types >= 0)
            found["noise"] = responses["noise"] * known[:, None]
        return found

    def with_statistics(self, value: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        if self.heads is not None:
            value = value * self.out_std[kinds]
        return super().with_statistics(value, kinds)

    def set_trained(self) -> None:
        super().set_trained()
        if self.heads is not None:
            self.fitting.requires_grad_(False)  # no loss reads it
            self.heads.energy_head.options.trainable = self.fitting.options.trainable
            self.heads.set_trained()

    @classmethod
    def random(cls, options: Any, seed: int, dtype: torch.dtype) -> Any:
        made = super().random(options, seed, dtype)
        made.follow(options, seed)
        return made

    def follow(self, options: Any, seed: int) -> None:
        mode = getattr(options, "active_mode", None)  # inputs of other kinds take models of files as they are
        self.options = dataclasses.replace(self.options, active_mode=mode)
        if not self.options.denoises:
            self.heads, self.outputs = None, self.fitting.outputs
        elif self.heads is not None:
            self.heads.turned = False
        else:
            self.options.check("model", self.type_map)
            self.heads = DenoisingHeads.random(self.descriptor, self.fitting, self.type_map, seed)
            self.outputs = DIRECT

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
        if isinstance(inner, dict):
            outer = {name: value for name, value in tree.items() if name != "atomic_model"}
            if outer.pop("real_sel", None) is None and outer.get("spin") is not None:
                outer["spin"] = native_section(outer["spin"])
            tree = {**inner, **outer, "type": cls.Options.KIND}
        variables = dict(tree["@variables"])
        force_rms, heads = variables.pop(denoising.RMS, None), tree.get("dens_fitting")
        if tree.get("active_mode") != "dens":
            heads = None
        elif not isinstance(heads, dict) or tree["fitting"].get("type") != DPA4FittingOptions.KIND:
            raise ModelFileError("the model was trained with the loss dens, and lacks its heads or energies")
        elif heads.get("@class") != denoising.CLASS:
            heads = denoising.tree_of_heads(heads, tree["fitting"], force_rms)
        return {**tree, "dens_fitting": heads, "@variables": variables}

    @classmethod
    def file_of_tree(cls, tree: Tree) -> Tree:
        outside = ("bridging_method", "bridging_r_inner", "bridging_r_outer", "lora", "spin")
        head = ("@class", "@version", "type")
        inner = {name: value for name, value in tree.items() if name not in (*outside, *head)}
        inner |= {"@class": "Model", "@version": 3, "type": "sezm_atomic"}
        inner["active_mode"] = tree["active_mode"] or "ener"
        inner["@variables"] = {**tree["@variables"], denoising.RMS: np.ones(())}
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
        made = super().from_tree(tree, dtype)
        if made.options.denoises:
            try:
                made.options.check("model", made.type_map)
            except ConfigError as error:
                raise UnsupportedModelError(str(error)) from None
            heads = tree["dens_fitting"]
            if heads["turned"]:
                warnings.warn(_TURNED, stacklevel=2)
            made.heads = DenoisingHeads.from_tree(heads, made.descriptor, made.type_map, dtype)
            made.outputs = DIRECT
        return made

    def to_tree(self) -> Tree:
        heads = None if self.heads is None else self.heads.to_tree()
        return {**super().to_tree(), "@version": 1, "lora": None, "dens_fitting": heads}

    @classmethod
    def check_tree(cls, tree: Tree, place: str) -> None:
        super().check_tree(tree, place)
        if tree["dens_fitting"] is not None:
            width = DPA4.width_of_tree(tree["descriptor"])
            energy = tree["dens_fitting"]["energy"]
            DPA4Fitting.check_tree(energy, tree["type_map"], width, f"{place}.dens_fitting.energy")

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        found = super().tree_of_types(tree, types, type_map)
        heads = tree["dens_fitting"]
        if heads is None:
            return found
        energy = DPA4Fitting.tree_of_types(heads["energy"], types, type_map)
        return {**found, "dens_fitting": {**heads, "energy": energy}}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        names = ("bridging_method", "bridging_r_inner", "bridging_r_outer")
        return {"type": "dpa4", **super().definition_of_tree(tree), **{name: tree[name] for name in names}}


def _real(sel: int | list[int]) -> int:
    """The places of real neighbours, from all of them (`DPA4ModelOptions.with_virtual_atoms`)."""
    return (sum(sel) if isinstance(sel, list) else sel) // 2
