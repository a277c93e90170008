"""The atomic model "pairwise_dprc" (DeePMD-kit's pairwise DPRc): a quantum region, and each residue around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mdops.errors import ConfigError, InputError, UnsupportedModelError
from mdops.models import registry, schema
from mdops.models.contract import AtomicModel, Tree
from mdops.models.linear import Blend
from mdops.models.neighborhood import Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.standard import ModelOptions, StandardOptions, of_tensorflow
from mdops.models.type_embedding import TypeEmbeddingOptions, share_types
from mdops.options import Options, section, variant

_PARTS = ("qm_model", "qmmm_model")
_DESCRIPTORS = ("dpa1", "se_atten", "se_atten_v2")
_RESIDUES = "the residue of each atom: 0 in the quantum region, 1, 2, ... elsewhere, -1 to leave it out"


def _kinds_of_parts() -> dict[str, type[Options]]:
    return {name: StandardOptions for name in StandardOptions.NAMES}


@dataclass(kw_only=True)
class PairwiseOptions(ModelOptions):
    KIND = "pairwise_dprc"
    NEUTRAL: ClassVar[dict[str, Any]] = {
        name: value for name, value in ModelOptions.NEUTRAL.items() if name != "type_embedding"
    }

    qm_model: Any = variant(_kinds_of_parts, "standard")
    qmmm_model: Any = variant(_kinds_of_parts, "standard")
    type_embedding: TypeEmbeddingOptions = section(TypeEmbeddingOptions)

    @classmethod
    def completed(cls, node: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """With the type map in both models, and the width of the embedding of types."""
        width = TypeEmbeddingOptions.width_of(node.get("type_embedding"))
        parts = {}
        for name in _PARTS:
            part = node.get(name)
            if not isinstance(part, Mapping):
                raise ConfigError(f"{place}.{name}: expected a section in braces, a model of se_atten_v2")
            own = {"type_map": node["type_map"], **part} if "type_map" in node else dict(part)
            descriptor = own.get("descriptor")
            if isinstance(descriptor, Mapping) and descriptor.get("type") in _DESCRIPTORS:
                own["descriptor"] = {**descriptor, "tebd_dim": width}
            parts[name] = own
        return {**node, **parts}

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        for name in _PARTS:
            self._check_part(getattr(self, name), f"{place}.{name}", type_map)
            # From here on the parts state the effect of `type_embedding` themselves, as in files.
            setattr(self, name, of_tensorflow(getattr(self, name), self.type_embedding))

    def _check_part(self, part: StandardOptions, place: str, type_map: Sequence[str]) -> None:
        part.check(place, type_map)
        d, fitting = part.descriptor, part.fitting_net
        if part.type_map != list(type_map):
            raise ConfigError(f"{place}.type_map: is {part.type_map}, expected that of the whole, {type_map}")
        if d.KIND not in _DESCRIPTORS or fitting.KIND != "ener":
            raise ConfigError(
                f"{place}: is of {d.KIND} and {fitting.KIND}, expected one of se_atten or se_atten_v2, and ener"
            )
        if isinstance(d.sel, str):
            raise ConfigError(
                f"{place}.descriptor.sel: is {d.sel!r}, expected a number: the most neighbours within the quantum "
                "region, or within it and one residue"
            )
        if not d.concat_output_tebd:
            raise ConfigError(f"{place}.descriptor.concat_output_tebd: is false; the fitting takes the types")
        if d.exclude_types and not d.set_davg_zero:
            raise ConfigError(
                f"{place}.descriptor.set_davg_zero: has to be true beside exclude_types: DeePMD-kit's TensorFlow "
                "backend has other rows for excluded pairs"
            )
        if fitting.numb_fparam or fitting.numb_aparam:
            raise ConfigError(f"{place}.fitting_net: takes parameters, and that of atoms is their residue")
        for key_, value in (("modifier", part.modifier), ("spin", part.spin)):
            if value is not None:
                raise ConfigError(f"{place}.{key_}: is of whole models, and this is a part of one")

    @property
    def cutoff(self) -> float:
        return float(max(getattr(self, name).cutoff for name in _PARTS))


@register
class PairwiseModel(Blend):
    """E = E_0(quantum region) + sum over residues l of E_1(quantum region and l), each of these atoms alone.

    The only atomic parameter of an atom is the number of its residue, 0 in the quantum region; atoms of residue -1
    are left out. `models` has both parts, whose energies are sums over atoms: an atom of the quantum region has one
    from E_0 and one from each residue. Nothing is periodic. The parts share their type embedding.
    """

    Options = PairwiseOptions
    NODE = schema.Node(
        {**schema.MODEL, "models": (schema.list_of(schema.node), schema.REQUIRED)}, schema.MODEL_ARRAYS
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if any(any(part.parameter_sizes.values()) for part in self.models):
            raise UnsupportedModelError("the models of pairwise_dprc take no parameters")
        if not all(part.mixed_types and part.reach == 1 for part in self.models):
            raise UnsupportedModelError("the models of pairwise_dprc have to be of se_atten")
        share_types([part.descriptors[0] for part in self.models])

    @property
    def with_averages(self) -> list[AtomicModel]:
        return list(self.models)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(max(part.cutoff for part in self.models), None, mixed=True),)

    @property
    def mixed_types(self) -> bool:
        return False  # it cannot be part of another blend, which would drop the residues

    parameter_sizes = {"fparam": 0, "aparam": 1}  # noqa: RUF012
    default_parameters: set[str] = set()  # noqa: RUF012
    captures = False

    def set_parameter_statistics(self, found: Mapping[str, Any]) -> None:
        pass

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> None:
        return None

    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        self.reject_unused_parameters(fparam, aparam)
        groups = _groups(near, aparam)
        energy = torch.zeros(near.system.atoms, dtype=torch.float64, device=near.displacements.device)
        for i, (rows, of_row) in enumerate((_quantum(groups), _with_residues(groups, near))):
            if not len(rows):
                continue
            seen = self._seen_by(i, near).of_atoms(rows)
            other = groups[seen.neighbors.long().clamp(min=0)]
            mine = (other == 0) | (other == of_row[:, None])
            own = seen.kept(mine & (seen.slot_types < seen.ntypes))
            self._check_places(i, own, rows)
            energy = energy.index_add(0, rows, self.models[i](own)["atom_energy"])
        # Atoms that are left out also get no shift from fine-tuning.
        return {"energy": torch.where(groups < 0, -self.out_bias[near.centers], energy)}

    def _check_places(self, i: int, own: Neighborhood, rows: torch.Tensor) -> None:
        """Raises InputError for an atom with more own neighbours than places: DeePMD-kit drops the farthest."""
        part = self.models[i]
        (spec,) = part.neighbors
        counts = (own.within(part.cutoff).types_in_cutoff < own.ntypes).sum(1)
        if spec.sel is not None and bool((counts > sum(spec.sel)).any()):
            row = int(counts.argmax())
            raise InputError(
                f"atom {int(rows[row])} has {int(counts[row])} neighbours in its group within the cutoff of "
                f"{part.cutoff:g} A, and the sel of models[{i}] is {sum(spec.sel)}"
            )

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "PairwiseModel":
        models = cls.parts_of_tree(tree, dtype)
        if len(models) != len(_PARTS):
            raise UnsupportedModelError(f"pairwise_dprc is of two models, and here are {len(models)}")
        own = dict(zip(_PARTS, (part.options for part in models), strict=True))
        options = cls.Options.from_tree(
            tree, type_map=list(tree["type_map"]), type_embedding=TypeEmbeddingOptions(), **own
        )
        return cls(options, tree["type_map"], *cls.variables_of_tree(tree), models)

    def to_tree(self) -> Tree:
        return {**self.head(1), "models": self.parts_to_tree()}

    @classmethod
    def random(cls, options: PairwiseOptions, seed: int, dtype: torch.dtype) -> "PairwiseModel":
        given = options.type_embedding
        inputs = given.embedding(options.type_map, [seed, len(_PARTS)], dtype)
        models = []
        for i, name in enumerate(_PARTS):
            kind = registry.find("model", StandardOptions.KIND)
            part = kind.random(getattr(options, name), seed + i, dtype)
            part.descriptor.type_embedding = inputs
            models.append(part)
        return cls(options, options.type_map, *cls.no_statistics(len(options.type_map)), models)

    def set_trained(self) -> None:
        super().set_trained()
        for part in self.models:  # for any descriptors
            part.descriptors[0].type_embedding.requires_grad_(True)


def _groups(near: Neighborhood, aparam: torch.Tensor | None) -> torch.Tensor:
    """(N,) int64: 0 in the quantum region, -1 of atoms that are left out, and else the number of the residue
    among those of all systems, from 1. Raises InputError for residues that are none, and for periodic systems."""
    system = near.system
    if aparam is None or aparam.numel() != system.atoms:
        what = "missing" if aparam is None else f"of shape {tuple(aparam.shape)}"
        raise InputError(f"aparam is {what}, expected ({system.atoms}, 1), {_RESIDUES}")
    if bool(system.pbc.any()):
        raise InputError(
            "a model of pairwise_dprc knows no periodic images: give the atoms around the quantum region "
            "without a cell (DeePMD-kit ignores the cell silently)"
        )
    residue = aparam.detach().reshape(-1)
    whole = residue.round().long()
    if bool(((residue != whole) | (whole < -1)).any()):
        raise InputError(
            f"aparam has {residue[(residue != whole) | (whole < -1)][0]:g}, expected {_RESIDUES}"
        )
    batch = system.batch.long()
    whole = whole.masked_fill(system.types < 0, -1)
    has = torch.zeros(system.count, dtype=torch.bool, device=batch.device)
    lacking = has.index_fill(0, batch[whole > 0], True) & ~has.index_fill(0, batch[whole == 0], True)
    if bool(lacking.any()):
        raise InputError(f"system {int(lacking.nonzero()[0])} has no atom of residue 0, the quantum region")
    pairs, number = torch.stack([batch, whole], 1)[whole > 0].unique(dim=0, return_inverse=True)
    found = whole.clone()
    found[whole > 0] = 1 + number if len(pairs) else number
    return found


def _quantum(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Atoms and their groups: the quantum region alone."""
    rows = (groups == 0).nonzero()[:, 0]
    return rows, torch.zeros_like(rows)


def _with_residues(groups: torch.Tensor, near: Neighborhood) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of each residue, with the quantum region once for each residue of its system."""
    batch, own = near.system.batch.long(), (groups > 0).nonzero()[:, 0]
    quantum = (groups == 0).nonzero()[:, 0]
    of_system = batch.new_zeros(int(groups.max().clamp(min=0)) + 1 if len(groups) else 1)
    of_system[groups[own]] = batch[own]
    number, atom = (of_system[1:, None] == batch[quantum]).nonzero(as_tuple=True)
    return torch.cat([own, quantum[atom]]), torch.cat([groups[own], number + 1])
