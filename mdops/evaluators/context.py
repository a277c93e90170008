"""The input of evaluators: a model, the knots of its splines, and a cache of what was computed from both."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

import torch

from mdops.errors import InputError, UnsupportedModelError
from mdops.models.charge_spin import charge_spin_defaults
from mdops.models.contract import ENERGY, AtomicModel
from mdops.models.judge import Overflow, judge
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSpec
from mdops.nn.kept import PresentTypes
from mdops.nn.quantized import Scheme
from mdops.nn.sums import sum_systems
from mdops.nn.watch import Watch
from mdops.ops import NeighborList, neighbor_list
from mdops.system import System, atom_spins, from_atoms
from mdops.tables.splined_model import SplinedModel
from mdops.tracing import is_exported

Matmul = Literal["float32", "tf32", "bf16x6", "bf16x3", "bf16"]
Use = Literal["simulate", "differentiate", "train"]
Answers = dict[str, torch.Tensor]
Types = tuple[int, ...] | None  # None: all types of the model
T = TypeVar("T")


class Modifier(Protocol):
    """Adds the energy of charges at atoms, and at the ends of dipoles, to the answers of a model of energies.

    Attributes:
        model: the model of the dipoles. charges, model_charges: for each of its types the charge at the atom, and at
            the end of its dipole, e.
        beta: 1/A, the inverse width of the charges.
    """

    @property
    def model(self) -> "EvaluationContext": ...

    charges: torch.Tensor
    model_charges: torch.Tensor
    beta: float

    def answers(self, system: System, type_map: Sequence[str]) -> Answers:
        """energy (S,), atom_energy (N,), forces (N, 3) and virial (S, 3, 3), eV and A; types are those of the
        `type_map`."""


class EvaluationContext(SplinedModel, ABC):
    """What evaluators know about a potential (`mdops.potential.Potential`), which chooses among them.

    Attributes, beside those of `SplinedModel`:
        overflow: what to do with more neighbours than `sel`: "error", "truncate" (keep the nearest,
            as DeePMD-kit) or "extend" (keep all).
        truncates_by_type: drop of each type the farthest, as DeePMD-kit's TensorFlow backend does, not of all.
        modifier: the charges beyond the cutoff that `Potential.evaluate` adds (mdops.long_range); None: there are none.
    """

    def __init__(self, model: AtomicModel, *, overflow: Overflow = "error") -> None:
        super().__init__(model)
        if overflow not in get_args(Overflow):
            raise InputError(f"overflow is {overflow!r}, expected one of {', '.join(get_args(Overflow))}")
        self.overflow = overflow
        self.truncates_by_type = False
        self.modifier: Modifier | None = None
        self._matmul: Matmul = "float32"
        self._watch: Watch | None = None
        self._kept: dict[str, tuple[Hashable, Any]] = {}
        self.present_types = PresentTypes()

    @abstractmethod
    def evaluator(self, use: Use = "simulate") -> Any:
        """The fastest one for that use, for the model's state and device; UnsupportedModelError with a modifier."""

    @abstractmethod
    def own_evaluator(self, use: Use = "simulate") -> Any:
        """The same for the model alone, without its modifier."""

    @abstractmethod
    def explain(self, use: Use = "simulate") -> str:
        """Which evaluator that is, and why no faster one is used."""

    @abstractmethod
    def rebuilt_kernels(self) -> str | None:
        """The key of the kernels, rebuilt for models of these sizes, that run instead of the op's own: from the cache,
        or built by `mdops.jit.build`. None if the op's own run."""

    @property
    def kind(self) -> str:
        """A description of the model."""
        parts = ", ".join(dict.fromkeys(d.kind for d in self.model.descriptors))
        return f"a {self.model.kind} model" + (f" of {parts}" if parts else "")

    @property
    def type_map(self) -> list[str]:
        """The element of each type."""
        return self.model.type_map

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        """The neighbours for which each part of the model has slots."""
        return self.model.neighbors

    @property
    def cutoff(self) -> float:
        """A."""
        return self.model.cutoff

    @property
    def reach(self) -> int:
        """The distance, in cutoffs, up to which an atom may change another's energy: 1 unless layers pass messages."""
        return self.model.reach

    @property
    def parameter_sizes(self) -> dict[str, int]:
        """How many frame parameters ("fparam") and atomic parameters ("aparam") the model takes."""
        return self.model.parameter_sizes

    @property
    def scheme(self) -> Scheme | None:
        """The scheme of low-bit numbers in fitting nets (`mdops.nn.quantized.SCHEMES`), or None. With several parts,
        that of the first part that has one."""
        fittings = (getattr(part, "fitting", None) for part in self.model.parts)
        schemes = (getattr(fitting, "scheme", None) for fitting in fittings)
        return next((scheme for scheme in schemes if scheme is not None), None)

    @property
    def device(self) -> torch.device:
        return self.model.out_bias.device

    def present(self, system: System) -> tuple[int, ...] | None:
        """The types of a system's atoms; None if the device cannot be asked, or if they are all of the model's."""
        found = self.present_types(system.types)
        return None if found is None or len(found) == len(self.type_map) else found

    @property
    def matmul(self) -> Matmul:
        """The accuracy of the matrix products in `evaluate`; `use_matmul` sets it."""
        return self._matmul

    # -- What is kept

    def cached_for_weights(self, name: str, make: Callable[[], T], of: Hashable = None) -> T:
        """The last result of `make`, if it was for the current weights and the same `of`; called in every step. In an
        exported model weights are constants."""
        weights = () if is_exported() else self._watching().state()
        return self._same(name, (of, *self._structure(), weights), make)

    def _watching(self) -> Watch:
        """The watch of the current modules."""
        if self._watch is None or not self._watch.is_valid:
            self._watch = Watch(self)
        return self._watch

    def _structure(self) -> tuple[Hashable, ...]:
        """What evaluators depend on besides the weights; for another device or dtype `_apply` drops all of them."""
        knots = self.grids, self.attention_grids, self.inner_grids, self.angle_knots
        return *knots, self.spline_tolerance, self.spline_types, self.smoothing, self._matmul, self.overflow

    def _same(self, name: str, state: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` in this state."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != state:
            kept = self._kept[name] = state, make()
        return kept[1]

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Called by `to`, `double` and the like; may replace tensors."""
        self._watch = None
        self._kept = {}
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave out what can be computed again."""
        return {**self.__dict__, "_watch": None, "_kept": {}}

    # -- Lists, sums, and neighbours that are too many or too near

    def neighbor_list(self, system: System) -> NeighborList:
        """All pairs within the cutoff."""
        atoms = system.positions.detach(), system.cell.detach(), system.pbc, system.types
        return neighbor_list(*atoms, self.cutoff, batch=system.batch, ntypes=len(self.type_map))

    def with_sums(self, answers: Answers, system: System) -> Answers:
        """An evaluator's answers, with the sums of extensive outputs over the atoms of each system, and the means of
        intensive ones."""
        found = {}
        for output in self.model.outputs:
            if output.extensive or output.intensive:
                found[output.name] = sum_systems(answers[output.atom_name], system.batch, system.count)
            if output.intensive:  # of the atoms that have it
                counts = torch.nn.functional.pad(self.model.has_energy, (0, 1))[system.types.long()]
                atoms = torch.bincount(system.batch[counts].long(), minlength=system.count)
                found[output.name] = found[output.name] / atoms.view(-1, *(1 for _ in output.shape))
        found |= answers
        return found if self.model.spin is None else self.model.spin.answers(found, system)

    def system_of(self, frames: Sequence[Any]) -> System:
        """ASE's atoms with their charges and moments. Raises InputError for what the model cannot take."""
        defaults, spin = charge_spin_defaults(self.model), self.model.spin
        system = from_atoms(frames, self.type_map, self.device, defaults=defaults)
        return system if spin is None else spin.system(system, torch.from_numpy(atom_spins(frames)))

    @property
    def answers_energies(self) -> bool:
        """Whether the answers are energies, forces and virials, and nothing else."""
        return self.model.outputs == (ENERGY,)

    def require_energies(self, what: str, *, adds_charges: bool = False) -> None:
        """Raises UnsupportedModelError, naming `what` needs energies, if there are none; or if charges are to be added,
        unless it `adds_charges` like `Potential.evaluate`."""
        if ENERGY not in self.model.outputs:
            has = ", ".join(output.name for output in self.model.outputs)
            raise UnsupportedModelError(f"{what} needs energies and conservative forces, not {has}")
        if not adds_charges:
            self.require_no_modifier(what)

    def require_no_modifier(self, what: str) -> None:
        """Raises UnsupportedModelError, naming `what` would lack them, if there are charges to add."""
        if self.modifier is not None:
            raise UnsupportedModelError(
                f"{what} does not support the long-range charges (modifier dipole_charge) of this model: "
                "`Potential.compute` and the ASE calculator do (mdops.load(..., modifier=False) loads the "
                "model without them)"
            )

    def truncated(self, near: Neighborhood) -> Neighborhood:
        """These neighbours for `overflow` "truncate": parts of the model use the nearest."""
        return dataclasses.replace(near, truncates=True, truncates_by_type=self.truncates_by_type)

    def check_neighbors(
        self, report: NeighborReport, system: System, neighbors: NeighborList, r_min: float
    ) -> bool:
        """`judge` for this model."""
        return judge(self.model, self.overflow, report, system, neighbors, r_min, self.r_min)
