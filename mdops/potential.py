"""A model that is ready to use: it makes lists, picks an evaluator, judges the neighbours, sums over the atoms."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import nn

from mdops import evaluators
from mdops import system as systems
from mdops.errors import InputError
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.fused import why_not_matmul
from mdops.evaluators.splined import PresentTypes
from mdops.io import write_model
from mdops.models.angles import AngleKnots
from mdops.models.contract import AtomicModel
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSpec
from mdops.nn.quantized import Scheme
from mdops.nn.sums import sum_systems
from mdops.nn.watch import Watch
from mdops.ops import NeighborList, displacements, neighbor_list
from mdops.system import System
from mdops.tables.angle_knots import (
    angle_descriptors,
    knots_error,
    sampled_types,
    use_angle_splines,
)
from mdops.tables.grids import (
    attention_grids,
    attentions_of,
    finer_grid,
    grid_error,
    grid_types,
    new_grids,
    sums_of,
    together,
)
from mdops.tables.spline import DEFAULT_R_MIN, TOLERANCE, SplineGrid

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Overflow = Literal["error", "truncate", "extend"]
Matmul = Literal["float32", "tf32", "bf16x6", "bf16x3", "bf16"]
Use = Literal["simulate", "differentiate", "train"]
T = TypeVar("T")


def _in_own_precision(method: Callable[..., T]) -> Callable[..., T]:
    """The method without autocast, under which PyTorch's operations would round to 16 bits what is in float32."""

    @wraps(method)
    def own(self: "Potential", *args: Any, **kwargs: Any) -> T:
        device = self.device.type
        if not torch.is_autocast_enabled(device):
            return method(self, *args, **kwargs)
        with torch.autocast(device, enabled=False):
            return method(self, *args, **kwargs)

    return own


_EXACT = "the embedding nets are evaluated exactly (spline=False)"
_EVALUATORS: dict[str, Sequence[type[Evaluator]]] = {
    "simulate": evaluators.SIMULATE,
    "differentiate": evaluators.DIFFERENTIATE,
    "train": evaluators.TRAIN,
}


class Potential(nn.Module):
    """E = sum_i e_i, of any atomic model; forces and virials are its derivatives.

    Made by `mdops.load`. Parameters have the compute dtype; positions, cells and energies are float64. How the answers
    are computed is an evaluator's matter: `evaluator` takes the first that can (mdops.evaluators).

    Attributes:
        model: what answers for each atom.
        overflow: what to do with more neighbours than `sel`: "error", "truncate" (keep the nearest,
            as DeePMD-kit) or "extend" (keep all).
        grids: for each descriptor of sums, the knots of the splines that stand for its embedding nets; none where the
            nets run themselves.
        attention_grids: for each descriptor with layers of attention, the knots of splines for the embedding nets in
            front of them; None where these run themselves, none in trainings.
        spline_types: the types for whose pairs the grid was chosen, where not for all or for some that stand for all:
            those of a training's data.
        smoothing: in trainings with splines, the weight of the embedding nets' bending beside the loss.
        source: where the model is from, as `mdops.io.ModelFile.source`; `save` writes it, too.
        allow_low_bit: whether a low-bit model may be used for dynamics (`MDOps`, the engine): its user said so.
    """

    def __init__(self, model: AtomicModel, *, overflow: Overflow = "error") -> None:
        super().__init__()
        if overflow not in get_args(Overflow):
            raise InputError(f"overflow is {overflow!r}, expected one of {', '.join(get_args(Overflow))}")
        self.model, self.overflow = model, overflow
        self.source: dict[str, Any] = {}
        self.allow_low_bit = False
        self.grids: tuple[SplineGrid, ...] = ()
        self.attention_grids: tuple[SplineGrid | None, ...] = ()
        self.spline_types: tuple[int, ...] | None = None
        self.smoothing = 0.0
        self._no_spline: str | None = None
        self._no_angle_spline: str | None = None
        self._no_attention_spline: str | None = None
        self._matmul: Matmul = "float32"
        self._watch: Watch | None = None
        self._kept: dict[str, tuple[Hashable, Any]] = {}
        self._present = PresentTypes()

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
        """The knots; of several, the most intervals and the largest error (`together`). Set, they are those of all
        descriptors of sums."""
        if len(self.grids) < 2:
            return self.grids[0] if self.grids else None
        return together(self.grids)

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

    # -- How it is evaluated

    def use_spline(
        self,
        r_min: float = DEFAULT_R_MIN,
        tolerance: float | None = None,
        types: Sequence[int] | None = None,
        *,
        attention: bool = True,
    ) -> None:
        """Evaluate the embedding nets as splines, with knots that keep the error bound down to r_min (A).

        The bound (`mdops.tables.spline.spline_error`) is `tolerance`, or that of simulation: 2e-5 in float32 and
        1e-8 in float64. Nets that no spline follows (relu has kinks) go on to be evaluated exactly, with a warning;
        so do models of kinds that have no splines. `types` are those that there will be, of a model of many; others are
        looked at when they come. Without `attention` the nets in front of layers of attention stay exact, silently.
        """
        tolerance = TOLERANCE[self.dtype] if tolerance is None else tolerance
        self.spline_types = None if types is None else tuple(types)
        self.grids, self._no_spline, is_unexpected = new_grids(self.model, r_min, tolerance, types)
        if is_unexpected:
            warnings.warn(f"{self._no_spline}: they are evaluated exactly, not as splines", stacklevel=2)
        self._no_angle_spline = use_angle_splines(self.model, r_min, tolerance, types)
        self.attention_grids, self._no_attention_spline = (), None
        if attention:
            found = attention_grids(self.model, r_min, tolerance)
            self.attention_grids, self._no_attention_spline = found
        for problem in (self._no_angle_spline, self._no_attention_spline):
            if problem is not None:
                warnings.warn(f"{problem}: they are evaluated exactly, not as splines", stacklevel=2)

    @property
    def why_no_spline(self) -> str | None:
        """Why there is no grid; None where there is one."""
        return None if self.grids else self._no_spline or _EXACT

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
        return None if None not in self.angle_knots else self._no_angle_spline or _EXACT

    @property
    def why_no_attention_spline(self) -> str | None:
        """Why a descriptor with attention has no grid; None where all have one."""
        missing = not self.attention_grids or None in self.attention_grids
        return self._no_attention_spline or _EXACT if missing else None

    @property
    def knots(self) -> list[SplineGrid | AngleKnots]:
        """Those of all splines there are."""
        return [k for k in (self.grid, *self.attention_grids, *self.angle_knots) if k is not None]

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
        pairs = zip(sums_of(self.model), self.grids, strict=False)  # there may be no grids
        errors += [grid_error(one, grid, self.spline_types) for one, grid in pairs]
        attention = zip(attentions_of(self.model), self.attention_grids, strict=False)
        errors += [grid_error(one, grid) for one, grid in attention if grid is not None]
        return max(errors, default=0.0)

    def keep_spline(self, tolerance: float, room: float = 1.0) -> bool:
        """Choose new knots, with an error of at most `room` times the tolerance, if the error of those there exceeds
        it with the weights of now; returns whether it did so."""
        if self.r_min is None or self.spline_error() <= tolerance:
            return False
        self.use_spline(self.r_min, room * tolerance, self.spline_types, attention=bool(self.attention_grids))
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
            return None
        grids = [str(grid.intervals) for grid in (self.grid, *self.attention_grids) if grid is not None]
        counts = grids + list(dict.fromkeys(angles))
        return f"splines of {' and '.join(counts)} intervals beyond {self.r_min:g} A"

    def present(self, system: System) -> tuple[int, ...] | None:
        """The types of a system's atoms; None where the device cannot be asked, or they are all of the model's."""
        found = self._present(system.types)
        return None if found is None or len(found) == len(self.type_map) else found

    def grids_for(self, types: Sequence[int] | None) -> tuple[SplineGrid, ...]:
        """`grids`, or finer ones where these types, all with None, need them. In a training `grids` are kept up to
        date, for the types of the data."""
        found = []
        for one, grid in zip(sums_of(self.model), self.grids, strict=True):
            kinds = range(len(self.type_map)) if types is None else types
            known = self.spline_types
            if known is None and one.names is None:
                known = tuple(grid_types(one.descriptor))
            if self.training or (known is not None and set(kinds) <= set(known)):
                found.append(grid)
            else:
                tolerance = max(TOLERANCE[self.dtype], grid.error)
                found.append(finer_grid(one, grid, tolerance, tuple(kinds)))
        return tuple(found)

    @property
    def matmul(self) -> Matmul:
        """How accurate the fitting net's matrix products in `evaluate` are; `use_matmul` sets it."""
        return self._matmul

    def use_matmul(self, matmul: Matmul) -> None:
        """Choose the accuracy of the fitting net's matrix products in `evaluate` and all that uses it.

        "float32" is that of float32 (22 bits on a GPU). Others are for simulation, faster and less accurate; all sum in
        float32: "tf32" keeps 11 bits of each factor, on a GPU; "bf16x6" all 24, "bf16x3" 16 and "bf16" 8, on a CPU
        with AMX or AVX512-BF16 (docs/matmul.md has their errors, and what they gain where). The choice goes with the
        model when that is copied, pickled or moved; `save` does not write it.

        Raises:
            InputError: none of these; or one that has no effect: on a device without such products, in float64, with
                exact nets, with overflow "truncate", and for models that the fused step does not cover. A model that
                was moved or changed to such a state later is refused by `evaluate`.
        """
        if matmul not in get_args(Matmul):
            raise InputError(f"matmul is {matmul!r}, expected one of {', '.join(get_args(Matmul))}")
        if matmul != "float32":
            self._refuse_matmul(matmul, why_not_matmul(self, matmul))
        self._matmul = matmul

    def _refuse_matmul(self, matmul: Matmul, problem: str | None) -> None:
        if problem is not None:
            raise InputError(
                f"matmul is {matmul!r}, and {problem}: use matmul 'float32' (`Potential.use_matmul`)"
            )

    def evaluator(self, use: Use = "simulate") -> Any:
        """The first evaluator that can have the model where and as it is now: to "simulate", to "differentiate" in
        positions and weights, or to "train" (differentiable in the weights)."""
        watch = self._watching()
        # An evaluator may keep what it made of buffers, such as the statistics of the data, which no step changes.
        state = (*self._structure(), watch, watch.buffers())
        kind = self._same(f"kind to {use}", state, lambda: self._first(use))
        if use == "simulate" and self._matmul != "float32":
            why_not = self._same("why not", state, lambda: why_not_matmul(self, self._matmul))
            self._refuse_matmul(self._matmul, why_not)
        if kind.packs_weights:
            return self._same(kind.name, (*state, watch.parameters()), lambda: kind(self))
        return self._same(use, (kind, *state), lambda: kind(self))

    def _first(self, use: Use) -> type[Evaluator]:
        return next(kind for kind in _EVALUATORS[use] if kind.why_not(self) is None)

    def explain(self, use: Use = "simulate") -> str:
        """Which evaluator runs, why not a faster one, and what that costs, in one line."""
        kinds = _EVALUATORS[use]
        kind = self._first(use)
        of = f"({self.scheme.name}: {self.scheme.words})" if self.scheme else None
        line = " ".join(filter(None, [f"{kind.name}: {kind.summary}", kind.kernels(self), of]))
        faster = [k for k in kinds[: list(kinds).index(kind)] if self.device.type in k.devices]
        missed = [(k, k.why_not(self)) for k in faster if k.knows(self)]
        if not missed:
            return f"{line}; no faster way is known for {self.kind}" if kind is kinds[-1] and faster else line
        reasons = "; ".join(dict.fromkeys(why for _, why in missed if why is not None))
        return f"{line}; not {' or '.join(k.name for k, _ in missed)}: {reasons} ({missed[0][0].cost})"

    def kept(self, name: str, make: Callable[[], T], of: Hashable = None) -> T:
        """What `make` gave last, if that was with the weights of now and for the same `of`; asked at every step."""
        return self._same(name, (of, *self._structure(), self._watching().state()), make)

    def _watching(self) -> Watch:
        """What watches the modules of now."""
        if self._watch is None or not self._watch.is_valid:
            self._watch = Watch(self)
        return self._watch

    def _structure(self) -> tuple[Hashable, ...]:
        """What evaluators depend on besides the weights; for another device or dtype `_apply` forgets all of them."""
        knots = self.grids, self.attention_grids, self.angle_knots
        return *knots, self.spline_types, self.smoothing, self._matmul, self.overflow

    def _same(self, name: str, state: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave at this state."""
        kept = self._kept.get(name)
        if kept is None or kept[0] != state:
            kept = self._kept[name] = state, make()
        return kept[1]

    def _apply(self, *args: Any, **kwargs: Any) -> "Potential":
        """What `to`, `double` and the like go through: it may replace tensors."""
        self._watch = None
        self._kept = {}
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do without what can be made again."""
        return {**self.__dict__, "_watch": None, "_kept": {}, "_present": PresentTypes()}

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        core: Sequence[str] | None = None,
        elements: Sequence[str] | None = None,
    ) -> None:
        """Write a file that `mdops.load` reads, with `source`; weights have the precision that the options name.

        The suffix says the format: .dp or .yaml, which DeePMD-kit reads too, .json, or .safetensors (docs/formats.md).
        With `core`, which names "float32", "float64" or both, a .safetensors file gets what the C core computes in
        these with (docs/core.md), for all `elements` unless some are named.

        Raises:
            ModelFileError: weights are not finite, the suffix is another, or the place is none for a file.
            UnsupportedModelError: the C core does not evaluate the model.
            InputError: a precision or an element that is none.
        """
        from mdops.core.export import core_arrays

        more = None if core is None else core_arrays(self, core, elements)
        write_model(path, self.model.to_tree(), self.source, more)

    def export(self, *, capacity: int | None = None, atom_virial: bool = False) -> "ExportedProgram":
        """Energies, forces and virials as a program of `torch.export`, for any number of atoms, neighbours and systems.

        It holds the weights of now, and runs on the model's device by the same evaluator as `evaluate`.
        `torch.export.save` writes it, and `torch._inductor.aoti_compile_and_package` compiles it; where it runs, the
        library of the ops has to be loaded, and nothing else of mdops (docs/compile.md).

        Args:
            capacity: None for a program that is given a neighbour list; otherwise it makes one itself, with so many
                places an atom.
            atom_virial: answer with that, too.

        Returns:
            The program, of positions (N, 3) float64, types (N,) int32, cell (S, 3, 3) float64, then, without a
            capacity, batch (N,) int32, neighbors and images (N, K) and counts (N, ntypes), int32, and with one pbc
            (S, 3) bool and batch; then fparam (S, p) and aparam (N, q), float64, of a model that takes them
            (docs/ops.md, "Conventions"). It answers with a dict of energy (S,), atom_energy (N,), forces (N, 3), virial
            (S, 3, 3) and, if asked for, atom_virial (N, 3, 3), eV and A; all are NaN where `evaluate` refuses the atoms
            or the capacity does not do.

        Raises:
            InputError: `overflow` is "truncate", or the capacity is not positive.
            UnsupportedModelError: a kind of model whose operations depend on the number of atoms.
        """
        from mdops.export import export_program

        return export_program(self, capacity=capacity, atom_virial=atom_virial)

    # -- Answers

    @_in_own_precision
    def forward(
        self,
        positions: torch.Tensor,
        types: torch.Tensor,
        cell: torch.Tensor | None = None,
        pbc: torch.Tensor | None = None,
        batch: torch.Tensor | None = None,
        neighbors: NeighborList | None = None,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        forces: bool = False,
        create_graph: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Energies, differentiable in positions, cell, parameters and weights.

        Args:
            positions: (N, 3), A.
            types: (N,) integers, -1 for a virtual atom.
            cell: (S, 3, 3), or (3, 3) for one system, A; nothing is periodic without it.
            pbc: (S, 3) or (3,) bool; with a cell all are True unless told.
            batch: (N,) integers, the system of each atom; one system unless told.
            neighbors: a list that holds at least all pairs within the cutoff; made here unless told.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,); only of a model that takes them.
            forces: give forces and virial too.
            create_graph: make those differentiable, for a loss on them.

        Returns:
            energy (S,) and atom_energy (N,), eV, float64; with `forces` also forces (N, 3), eV/A, and virial
            (S, 3, 3), W = -dE/d(strain), eV.

        Raises:
            InputError: an argument does not fit, parameters are missing, or given to a model that takes none, atoms
                coincide, or there are more neighbours than `sel`; or `matmul` is not "float32".
        """
        if self.matmul != "float32":
            self._refuse_matmul(self.matmul, "differentiable energies come from PyTorch's own products")
        system = systems.from_tensors(positions, types, cell, pbc, batch, len(self.type_map))
        near = self.neighbor_list(system) if neighbors is None else neighbors
        self._check_cutoff(near)
        evaluator: Autograd = self.evaluator("differentiate")
        answers, _ = evaluator(system, near, fparam, aparam, forces=forces, create_graph=create_graph)
        return self.with_sums(answers, system)

    @_in_own_precision
    @torch.no_grad()
    def evaluate(
        self,
        system: System,
        neighbors: NeighborList | None = None,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        atom_virial: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Energy, forces, virial and atom_energy (as `forward` gives them), without a graph: for simulation.

        With `atom_virial` also atom_virial (N, 3, 3), eV, in DeePMD-kit's convention: with e_i the energy of atom i
        and d = x_j - x_i, that of atom j is the sum over i of -de_i/dd (x) d, the force's component first. A pair's
        virial is its neighbour's. They sum to the virial to rounding. The same evaluator gives them in the same pass.
        """
        near = self.neighbor_list(system) if neighbors is None else neighbors
        self._check_cutoff(near)
        answers, _ = self.evaluator()(system, near, fparam, aparam, atom_virial=atom_virial)
        return self.with_sums({name: value.detach() for name, value in answers.items()}, system)

    @_in_own_precision
    @torch.no_grad()
    def descriptors(self, system: System, neighbors: NeighborList | None = None) -> torch.Tensor:
        """(N, D): what the model's descriptor says of each atom, by its nets themselves.

        Raises:
            InputError: as `forward`.
            UnsupportedModelError: the model has no descriptor, or is made of several models.
        """
        near = self.neighbor_list(system) if neighbors is None else neighbors
        self._check_cutoff(near)
        autograd = Autograd(self)
        pairs, _ = autograd.judged(autograd.neighborhood(system, near), near, check=True)
        pairs = dataclasses.replace(pairs, once=True)
        size = self.model.atoms_at_once(pairs) or max(system.atoms, 1)
        runs = [slice(first, first + size) for first in range(0, system.atoms, size)] or [slice(0, 0)]
        return torch.cat([self.model.describe(pairs.of_atoms(run)) for run in runs])

    @_in_own_precision
    def predict(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
    ) -> dict[str, torch.Tensor]:
        """energy, atom_energy, forces and virial, differentiable in the weights: for training. Without `check`
        neighbours are not judged (`check_frames` has done so before)."""
        evaluator = self.evaluator("train")
        options = {} if not isinstance(evaluator, Autograd) else {"create_graph": True}
        answers, _ = evaluator(system, neighbors, fparam, aparam, check=check, **options)
        return self.with_sums(answers, system)

    def with_sums(self, answers: Answers, system: System) -> Answers:
        """What an evaluator gave, with the sums over the atoms of each system of what is extensive."""
        sums = {
            output.name: sum_systems(answers[f"atom_{output.name}"], system.batch, system.count)
            for output in self.model.outputs
            if output.extensive
        }
        return {**sums, **answers}

    def compute(
        self,
        atoms: Any,
        fparam: np.ndarray | Sequence[float] | None = None,
        aparam: np.ndarray | Sequence[float] | None = None,
        *,
        atom_virial: bool = False,
    ) -> dict[str, np.ndarray]:
        """Answers for ASE Atoms, or a list of them, S systems with N atoms in all.

        Args:
            atoms: ase.Atoms or a list of them; elements are looked up in `type_map`, "X" is a virtual atom.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).
            atom_virial: give that too.

        Returns:
            energy (S,), forces (N, 3), virial (S, 3, 3), atom_energy (N,) and, when asked for, atom_virial
            (N, 3, 3); eV and A.

        Raises:
            InputError: as `forward`, and for an element the model does not know.
        """
        frames = atoms if isinstance(atoms, list | tuple) else [atoms]
        system = systems.from_atoms(frames, self.type_map, self.device)
        result = self.evaluate(
            system, None, self._parameter(fparam), self._parameter(aparam), atom_virial=atom_virial
        )
        return {name: value.cpu().numpy() for name, value in result.items()}

    def _parameter(self, value: np.ndarray | Sequence[float] | None) -> torch.Tensor | None:
        return None if value is None else torch.as_tensor(value, dtype=torch.float64, device=self.device)

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

    def _check_cutoff(self, neighbors: NeighborList) -> None:
        if neighbors.cutoff < self.cutoff:
            raise InputError(
                f"the neighbour list is of cutoff {neighbors.cutoff} A, and the model's is {self.cutoff} A"
            )

    # -- Neighbours that are too many or too near

    def check_neighbors(
        self, report: NeighborReport, system: System, neighbors: NeighborList, r_min: float
    ) -> bool:
        """The one judge of what evaluators say of the neighbours; waits for the device.

        Returns whether neighbours have to be dropped (`overflow` "truncate"). Warns of neighbours nearer than r_min.

        Raises:
            InputError: two atoms are at the same place, or nearer than the model has answers for, or an atom has more
                neighbours than `sel` and `overflow` is "error"; the message names the first.
        """
        if not len(report.nearest):
            return False
        nearest = float(report.nearest.min())
        if nearest == 0:
            self._refuse_coincident(report, system, neighbors)
        if nearest < self.model.shortest:
            self._refuse_short(system, neighbors)
        if self.overflow != "extend":
            for within, spec in zip(report.within, self.neighbors, strict=True):
                if spec.sel is None:
                    continue
                if any(n > places for n, places in zip(within.amax(0).tolist(), spec.sel, strict=True)):
                    if self.overflow == "truncate":
                        return True
                    self._refuse_overflow(within, spec)
        if nearest < r_min:
            warn_extrapolated(r_min, _TRAINING_ADVICE if self.training else _LOADING_ADVICE)
        return False

    def _refuse_coincident(self, report: NeighborReport, system: System, neighbors: NeighborList) -> None:
        atom = int(torch.nonzero(report.nearest == 0)[0])
        near = neighbors.neighbors
        d = displacements(
            system.positions.detach(), system.cell.detach(), system.batch, near, neighbors.images, self.dtype
        )
        slot = torch.nonzero((near[atom] >= 0) & (d[atom] == 0).all(-1))[0]
        raise InputError(f"atoms {atom} and {int(near[atom, slot])} are at the same place")

    def _refuse_short(self, system: System, neighbors: NeighborList) -> None:
        with torch.no_grad():
            near = Neighborhood.of(system, neighbors, self.cutoff, self.dtype)
            pairs = self.model.short_pairs(near)
        if len(pairs):
            (a, b), shortest = pairs[0].tolist(), self.model.shortest
            raise InputError(
                f"atoms {a} and {b} are nearer than {shortest:g} A, where the model's table of pairs begins "
                f"({len(pairs.unique())} atoms are)"
            )

    def _refuse_overflow(self, within: torch.Tensor, spec: NeighborSpec) -> None:
        assert spec.sel is not None
        too_many = within > torch.tensor(spec.sel, device=within.device)
        atom, kind = torch.nonzero(too_many)[0].tolist()
        of_type = "" if spec.mixed else f" of type {self.type_map[kind]}"
        places = sum(spec.sel) if spec.mixed else spec.sel[kind]
        raise InputError(
            f"atom {atom} has {int(within[atom, kind])} neighbours{of_type} within the "
            f"cutoff, and the model's sel is {places} ({int(too_many.any(1).sum())} atoms overflow). "
            'DeePMD-kit would drop the farthest: overflow="truncate" does too, overflow="extend" keeps all'
        )


_LOADING_ADVICE = (
    "Load the model with a smaller r_min, or with spline=False (of the commands: --r-min, --no-spline)"
)
_TRAINING_ADVICE = "Training data with such pairs would make the splines reach there"


def warn_extrapolated(r_min: float, advice: str = _LOADING_ADVICE) -> None:
    """Says that atoms have neighbours nearer than r_min (A): always in the same words from the same line, so that by
    Python's own filter a process says them once."""
    warnings.warn(
        f"atoms have a neighbour nearer than {r_min:g} A, where the splines are extrapolated: the forces there are "
        f"smooth but not the model's. {advice}",
        stacklevel=1,
    )
