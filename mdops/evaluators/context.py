"""What evaluators are given: a model, the knots of its splines, and what was made of both for the steps to come."""

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

import torch
from torch import nn

from mdops.errors import InputError, UnsupportedModelError
from mdops.evaluators.judge import Overflow, judge
from mdops.evaluators.kept import PresentTypes
from mdops.models.angles import AngleKnots
from mdops.models.contract import ENERGY, AtomicModel
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSpec
from mdops.nn.quantized import Scheme
from mdops.nn.sums import sum_systems
from mdops.nn.watch import Watch
from mdops.ops import NeighborList, neighbor_list
from mdops.system import System
from mdops.tables.angle_knots import (
    angle_descriptors,
    knots_error,
    sampled_types,
    use_angle_splines,
)
from mdops.tables.grids import (
    Sum,
    attentions_of,
    finer_grid,
    grid_error,
    grid_types,
    grids_of,
    inner_sums_of,
    merge_grids,
    new_grids,
    sums_of,
)
from mdops.tables.spline import BEFORE_LAYERS, DEFAULT_R_MIN, TOLERANCE, SplineGrid

Matmul = Literal["float32", "tf32", "bf16x6", "bf16x3", "bf16"]
Use = Literal["simulate", "differentiate", "train"]
Answers = dict[str, torch.Tensor]
T = TypeVar("T")


class Modifier(Protocol):
    """What is added to the answers of a model of energies: those of charges at atoms, and at the ends of dipoles.

    Attributes:
        model: of the dipoles. charges, model_charges: for each of its types the charge at the atom, and at the end of
            its dipole, e.
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


_EXACT = "the embedding nets are evaluated exactly (spline=False)"


class EvaluationContext(nn.Module, ABC):
    """What evaluators know of a potential (`mdops.potential.Potential`), which chooses among them.

    Attributes:
        model: what answers for each atom.
        overflow: what to do with more neighbours than `sel`: "error", "truncate" (keep the nearest,
            as DeePMD-kit) or "extend" (keep all).
        truncates_by_type: drop of each type the farthest, as DeePMD-kit's TensorFlow backend does, not of all.
        grids: for each descriptor of sums, the knots of the splines that stand for its embedding nets; none where the
            nets run themselves.
        attention_grids: for each descriptor with layers of attention, the knots of splines for the embedding nets in
            front of them; None where these run themselves, none in trainings.
        inner_grids: the same for each descriptor of sums that another one begins with.
        spline_types: the types for whose pairs the grid was chosen, where not for all or for some that stand for all:
            those of a training's data.
        spline_tolerance: the bound on the error of splines, None where nets run themselves; for evaluators that choose
            knots as they make their tables.
        smoothing: in trainings with splines, the weight of the embedding nets' bending beside the loss.
        modifier: the charges beyond the cutoff that `Potential.evaluate` adds (mdops.long_range); None: there are none.
    """

    def __init__(self, model: AtomicModel, *, overflow: Overflow = "error") -> None:
        super().__init__()
        if overflow not in get_args(Overflow):
            raise InputError(f"overflow is {overflow!r}, expected one of {', '.join(get_args(Overflow))}")
        self.model, self.overflow = model, overflow
        self.truncates_by_type = False
        self.grids: tuple[SplineGrid | None, ...] = ()
        self.attention_grids: tuple[SplineGrid | None, ...] = ()
        self.inner_grids: tuple[SplineGrid | None, ...] = ()
        self.spline_types: tuple[int, ...] | None = None
        self.spline_tolerance: float | None = None
        self.smoothing = 0.0
        self.modifier: Modifier | None = None
        self._reasons: dict[
            str, str | None
        ] = {}  # why there are no splines of sums, angles, attention, inner sums
        self._matmul: Matmul = "float32"
        self._watch: Watch | None = None
        self._kept: dict[str, tuple[Hashable, Any]] = {}
        self._present = PresentTypes()

    @abstractmethod
    def evaluator(self, use: Use = "simulate") -> Any:
        """The fastest for that use, where and as the model is now; UnsupportedModelError where there is a modifier."""

    @abstractmethod
    def own_evaluator(self, use: Use = "simulate") -> Any:
        """The same of the model alone, without what a modifier adds."""

    @abstractmethod
    def explain(self, use: Use = "simulate") -> str:
        """Which evaluator that is, and why it is not a faster one."""

    @abstractmethod
    def rebuilt_kernels(self) -> str | None:
        """The key of the kernels, rebuilt for models of these sizes, that run in the place of the op's own: those of
        the cache, or those that `mdops.jit.build` made. None where the op's own run."""

    @property
    def kind(self) -> str:
        """What it is, for people."""
        parts = ", ".join(dict.fromkeys(d.kind for d in self.model.descriptors))
        return f"a {self.model.kind} model" + (f" of {parts}" if parts else "")

    @property
    def type_map(self) -> list[str]:
        """The element of each type."""
        return self.model.type_map

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        """The neighbours that each part of the model has places for."""
        return self.model.neighbors

    @property
    def cutoff(self) -> float:
        """A."""
        return self.model.cutoff

    @property
    def reach(self) -> int:
        """How many cutoffs away an atom may be that changes another's energy: 1 unless layers pass messages."""
        return self.model.reach

    def require_atom_virials(self) -> None:
        """Raises UnsupportedModelError where a virial has no atom: a pair's is booked on the neighbour because the pair
        changes the energy of its centre alone, which is not so where layers pass messages."""
        if self.reach > 1:
            raise UnsupportedModelError(
                f"{self.kind} passes messages over {self.reach} cutoffs, so that its virial cannot be told by atoms: "
                "the virial of the system is right, and atomic virials, stresses and heat currents are refused"
            )

    @property
    def sel(self) -> list[int] | list[list[int]]:
        """Places for neighbours of each type; of a model of several parts, a list for each of them."""
        places = [list(spec.sel or ()) for spec in self.neighbors]
        return places[0] if len(places) == 1 else places

    @property
    def parameter_sizes(self) -> dict[str, int]:
        """How many frame parameters ("fparam") and atomic parameters ("aparam") the model takes."""
        return self.model.parameter_sizes

    @property
    def scheme(self) -> Scheme | None:
        """In what low-bit numbers fitting nets multiply (`mdops.nn.quantized.SCHEMES`); None: in none. Of a model of
        several parts, that of the first that has one."""
        fittings = (getattr(part, "fitting", None) for part in self.model.parts)
        schemes = (getattr(fitting, "scheme", None) for fitting in fittings)
        return next((scheme for scheme in schemes if scheme is not None), None)

    @property
    def grid(self) -> SplineGrid | None:
        """The knots; of several, the most intervals and the largest error (`merge_grids`). Set, they are those of all
        descriptors of sums."""
        there = [grid for grid in self.grids if grid is not None]
        return merge_grids(there) if len(there) > 1 else there[0] if there else None

    @grid.setter
    def grid(self, grid: SplineGrid | None) -> None:
        self.grids = () if grid is None else (grid,) * len(sums_of(self.model))

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype."""
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.out_bias.device

    # -- Splines

    def use_spline(
        self,
        r_min: float | None = None,
        tolerance: float | None = None,
        types: Sequence[int] | None = None,
        *,
        attention: bool = True,
    ) -> None:
        """Evaluate the embedding nets as splines, with knots that keep the error bound down to r_min (A), by default
        0.5 A, or half of the distance of a virtual atom of a spin of one.

        The bound (`mdops.tables.spline.spline_error`) is `tolerance`, or that of simulation: 2e-5 in float32 and
        1e-8 in float64. Nets that no spline follows (relu has kinks) go on to be evaluated exactly, with a warning;
        so do models of kinds that have no splines. `types` are those that there will be, of a model of many; others are
        looked at when they come. Without `attention` the nets in front of layers of attention, and those of sums that
        other descriptors begin with, stay exact, silently.
        """
        tolerance = TOLERANCE[self.dtype] if tolerance is None else tolerance
        spin = self.model.spin
        nearest = DEFAULT_R_MIN if spin is None else min(DEFAULT_R_MIN, 0.5 * spin.nearest)
        r_min = nearest if r_min is None else r_min
        self.spline_tolerance = tolerance
        self.spline_types = None if types is None else tuple(types)
        self.grids, no_sums, is_unexpected = new_grids(self.model, r_min, tolerance, types)
        found = {"angles": use_angle_splines(self.model, r_min, tolerance, types)}
        self.attention_grids, self.inner_grids = (), ()
        if attention:
            self.attention_grids, found["attention"] = grids_of(attentions_of(self.model), r_min, tolerance)
            finer = BEFORE_LAYERS[self.dtype] * tolerance
            self.inner_grids, found["inner"] = grids_of(inner_sums_of(self.model), r_min, finer, types)
        self._reasons = {"sums": no_sums, **found}
        for problem in (no_sums if is_unexpected else None, *found.values()):
            if problem is not None:
                warnings.warn(f"{problem}: they are evaluated exactly, not as splines", stacklevel=2)

    @property
    def why_no_spline(self) -> str | None:
        """Why there is no grid; None where a part of the model has some."""
        return None if self.grids else self._reasons.get("sums") or _EXACT

    @property
    def angle_knots(self) -> tuple[AngleKnots | None, ...]:
        """The knots of each descriptor of angles between neighbours (`AngleDescriptor.knots`), which may be set."""
        return tuple(d.knots for d in angle_descriptors(self.model))

    @angle_knots.setter
    def angle_knots(self, knots: Sequence[AngleKnots | None]) -> None:
        for d, own in zip(angle_descriptors(self.model), knots, strict=True):
            d.knots = own

    @property
    def why_no_angle_spline(self) -> str | None:
        """Why a descriptor of angles has no knots; None where all have some."""
        return None if None not in self.angle_knots else self._reasons.get("angles") or _EXACT

    @property
    def why_no_attention_spline(self) -> str | None:
        """Why a descriptor with attention has no grid; None where all have one."""
        missing = not self.attention_grids or None in self.attention_grids
        return self._reasons.get("attention") or _EXACT if missing else None

    @property
    def why_no_inner_spline(self) -> str | None:
        """Why no sum that another descriptor begins with has a grid; None where one has."""
        return None if any(self.inner_grids) else self._reasons.get("inner") or _EXACT

    @property
    def knots(self) -> list[SplineGrid | AngleKnots]:
        """Those of all splines there are."""
        every = (self.grid, *self.attention_grids, *self.inner_grids, *self.angle_knots)
        return [k for k in every if k is not None]

    @property
    def r_min(self) -> float | None:
        """The distance that the splines reach down to, A; None without splines."""
        return max((knots.r_min for knots in self.knots), default=None)

    def spline_error(self) -> float:
        """The error of the splines there are, with the weights of now; 0 without splines."""
        errors = [
            knots_error(d, d.knots, sampled_types(self.model, self.spline_types))
            for d in angle_descriptors(self.model)
            if d.knots is not None
        ]
        inner = zip(inner_sums_of(self.model), self.inner_grids, strict=False)
        pairs = (*zip(sums_of(self.model), self.grids, strict=False), *inner)  # there may be no grids
        errors += [grid_error(one, grid, self.spline_types) for one, grid in pairs if grid is not None]
        attention = zip(attentions_of(self.model), self.attention_grids, strict=False)
        errors += [grid_error(one, grid) for one, grid in attention if grid is not None]
        return max(errors, default=0.0)

    def keep_spline(self, tolerance: float, room: float = 1.0) -> bool:
        """Choose new knots, with an error of at most `room` times the tolerance, if the error of those there exceeds
        it with the weights of now; returns whether it did so."""
        if self.r_min is None or not self.spline_error() > tolerance:  # nothing helps weights that are NaN
            return False
        self.use_spline(
            self.r_min,
            room * tolerance,
            self.spline_types,
            attention=bool(self.attention_grids or self.inner_grids),
        )
        return True

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As PyTorch's. Splines whose knots do not suit the new weights get new ones."""
        problems = super().load_state_dict(*args, **kwargs)
        if self.knots:
            self.keep_spline(max(TOLERANCE[self.dtype], *(knots.error for knots in self.knots)))
        return problems

    def splines(self) -> str | None:
        """The splines there are, in words; None without."""
        angles = [f"{knots.intervals} of angles" for knots in self.angle_knots if knots is not None]
        if not self.knots:
            own = self.spline_tolerance is not None and self.own_evaluator().chooses_knots
            return "splines with knots for the types that there are" if own else None
        every = (self.grid, *self.attention_grids, *self.inner_grids)
        grids = [str(grid.intervals) for grid in every if grid is not None]
        counts = grids + list(dict.fromkeys(angles))
        return f"splines of {' and '.join(counts)} intervals beyond {self.r_min:g} A"

    def present(self, system: System) -> tuple[int, ...] | None:
        """The types of a system's atoms; None where the device cannot be asked, or they are all of the model's."""
        found = self._present(system.types)
        return None if found is None or len(found) == len(self.type_map) else found

    def grids_for(self, types: Sequence[int] | None) -> tuple[SplineGrid | None, ...]:
        """`grids`, or finer ones where these types, all with None, need them. In a training `grids` are kept up to
        date, for the types of the data."""
        pairs = zip(sums_of(self.model), self.grids, strict=True)
        return tuple(grid and self.grid_for(one, grid, types) for one, grid in pairs)

    def grid_for(self, one: Sum, grid: SplineGrid, types: Sequence[int] | None) -> SplineGrid:
        """The same of one sum."""
        kinds = range(len(self.type_map)) if types is None else types
        known = self.spline_types
        if known is None and one.names is None:
            known = tuple(grid_types(one.descriptor))
        if self.training or (known is not None and set(kinds) <= set(known)):
            return grid
        return finer_grid(one, grid, max(TOLERANCE[self.dtype], grid.error), tuple(kinds))

    @property
    def matmul(self) -> Matmul:
        """How accurate the fitting net's matrix products in `evaluate` are; `use_matmul` sets it."""
        return self._matmul

    # -- What is kept

    def cached_for_weights(self, name: str, make: Callable[[], T], of: Hashable = None) -> T:
        """What `make` gave last, if that was with the weights of now and for the same `of`; asked at every step."""
        return self._same(name, (of, *self._structure(), self._watching().state()), make)

    def _watching(self) -> Watch:
        """What watches the modules of now."""
        if self._watch is None or not self._watch.is_valid:
            self._watch = Watch(self)
        return self._watch

    def _structure(self) -> tuple[Hashable, ...]:
        """What evaluators depend on besides the weights; for another device or dtype `_apply` forgets all of them."""
        knots = self.grids, self.attention_grids, self.inner_grids, self.angle_knots
        return *knots, self.spline_tolerance, self.spline_types, self.smoothing, self._matmul, self.overflow

    def _same(self, name: str, state: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave at this state."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != state:
            kept = self._kept[name] = state, make()
        return kept[1]

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """What `to`, `double` and the like go through: it may replace tensors."""
        self._watch = None
        self._kept = {}
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do without what can be made again."""
        return {**self.__dict__, "_watch": None, "_kept": {}, "_present": PresentTypes()}

    # -- Lists, sums, and neighbours that are too many or too near

    def neighbor_list(self, system: System) -> NeighborList:
        """All pairs within the cutoff."""
        return neighbor_list(
            system.positions.detach(),
            system.cell.detach(),
            system.pbc,
            system.types,
            self.cutoff,
            batch=system.batch,
            ntypes=len(self.type_map),
        )

    def with_sums(self, answers: Answers, system: System) -> Answers:
        """What an evaluator gave, with the sums over the atoms of each system of what is extensive, and the means of
        what is intensive."""
        found = {}
        for output in self.model.outputs:
            if output.extensive or output.intensive:
                of_atoms = answers[f"atom_{output.name}"]
                found[output.name] = sum_systems(of_atoms, system.batch, system.count)
            if output.intensive:
                atoms = torch.bincount(system.batch[system.types >= 0].long(), minlength=system.count)
                found[output.name] = found[output.name] / atoms.view(-1, *(1 for _ in output.shape))
        found |= answers
        return found if self.model.spin is None else self.model.spin.answers(found, system)

    @property
    def answers_energies(self) -> bool:
        """Whether the answers are energies, forces and virials, and nothing else."""
        return self.model.outputs == (ENERGY,)

    def require_energies(self, what: str, *, adds_charges: bool = False) -> None:
        """Raises UnsupportedModelError, naming what it is that needs energies, where there are none, or where they are
        of magnetic moments, too; or where charges are to be added, unless it `adds_charges` as `Potential.evaluate`
        does."""
        if ENERGY not in self.model.outputs:
            names = ", ".join(output.name for output in self.model.outputs)
            raise UnsupportedModelError(f"{what} needs energies and forces, and this model answers {names}")
        if self.model.spin is not None:
            raise UnsupportedModelError(
                f"{what} has no place for the magnetic moments of this model: `Potential.compute` and the ASE "
                "calculator have"
            )
        if not adds_charges:
            self.require_no_modifier(what)

    def require_no_modifier(self, what: str) -> None:
        """Raises UnsupportedModelError, naming what it is that would lack them, where there are charges to add."""
        if self.modifier is not None:
            raise UnsupportedModelError(
                f"{what} has no charges beyond the cutoff, which the modifier dipole_charge of this model adds: "
                "`Potential.compute` and the ASE calculator have (mdops.load(..., modifier=False): the model alone)"
            )

    def truncated(self, near: Neighborhood) -> Neighborhood:
        """These neighbours for `overflow` "truncate": parts of the model take the nearest."""
        return dataclasses.replace(near, truncates=True, truncates_by_type=self.truncates_by_type)

    def check_neighbors(
        self, report: NeighborReport, system: System, neighbors: NeighborList, r_min: float
    ) -> bool:
        """`judge` of this model."""
        return judge(self.model, self.overflow, report, system, neighbors, r_min, self.r_min)
