"""Descriptors side by side with one energy fitting, by the one op that does a step of all sums over neighbours
(`mdops.ops.hybrid_potential`); what other parts there are goes by its own operations and autograd."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from mdops.evaluators import fused
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.fused_attention import FusedAttention
from mdops.evaluators.non_radial_parts import NonRadialParts
from mdops.evaluators.of_types import OfTypes, Types
from mdops.evaluators.splined import (
    SplineHybrid,
    SplineModel,
    SplineModels,
    SplineSum,
    shares_places,
    unfused_evaluator,
)
from mdops.models.moments import MomentDescriptor
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSpec
from mdops.nn.net import input_gradient_alone
from mdops.ops import NeighborList, hybrid_potential, hybrid_potential_pack, pair_forces
from mdops.ops.activation import CODES
from mdops.system import System
from mdops.tables.grids import moment_descriptor, sums_of


class FusedParts(Evaluator):
    """As its base; atoms may have weights, too: `weight` (N,), float64, for forces and virials of the sum of the
    weighted energies. The energies that are given have none.

    Of a blend with a pair table it is told `blend`, the arguments near_mask to table_cutoff of the op, for its own
    types. Then answers are the blend's, of systems that it `covers`, and atoms have no other weights. `offset`
    (ntypes,), float64, is what the net's energies are lowered by.
    """

    name = "fused parts"
    summary = "one op a step for the sums of all descriptors"
    cost = "separate ops take about four times as long"
    packs_weights = True

    def __init__(
        self,
        potential: EvaluationContext,
        blend: tuple[Any, ...] | None = None,
        offset: torch.Tensor | None = None,
    ) -> None:
        super().__init__(potential)
        self._blend, self._offset = blend, offset
        self.r_min = potential.r_min or 0.0
        self._models = SplineModels(potential)
        splines = spline_hybrid(potential)
        # Of many atoms, layers of attention would be computed again for their gradient, after the net of all of them.
        goes_in_runs = blend is None and FusedAttention.why_not(potential) is None
        self._in_runs = FusedAttention(potential) if goes_in_runs else None
        self._others = (
            NonRadialParts(potential, splines.others) if self._in_runs is None else self._in_runs.others
        )
        # Whether a step never waits for a GPU: the op counts absent neighbours.
        captures = splines.counts_none and self._others.captures
        self.captures = potential.device.type == "cuda" and captures
        self._tables_of = OfTypes(self._tables)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineHybrid.knows(potential) and moment_descriptor(potential.model) is None

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        return _limit(potential) if cls.knows(potential) else "it is for several descriptors side by side"

    @staticmethod
    def why_not_whole(potential: EvaluationContext) -> str | None:
        """Why it is not the op that evaluates a standard model of one or more descriptors whatever its systems; None if
        it is."""
        if FusedAttention.why_not(potential) is None:
            return "layers of attention of many atoms go in runs, and the net with them"
        return _limit(potential)

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        words = NonRadialParts(potential, spline_hybrid(potential).others).words()
        return None if words is None else f"({words})"

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
        weight: torch.Tensor | None = None,
        atom_virial: bool = False,
    ) -> tuple[Answers, NeighborReport]:
        tables = self._tables_of(self._models.types(system))
        if tables is None:
            return unfused_evaluator(self.potential)(
                system, neighbors, fparam, aparam, check=check, weight=weight, atom_virial=atom_virial
            )
        s = tables.splines
        others = None if tables.is_whole else _Others(tables, self._others, system, neighbors, self.potential)
        if others is not None and self._in_runs is not None and len(others.runs) > 1:
            return self._in_runs(
                system, neighbors, fparam, aparam, check=check, weight=weight, atom_virial=atom_virial
            )
        extra = s.extra_inputs(system, fparam, aparam)
        first = s.sums[0]
        energy, forces, virial, within, nearest, gradient, of_atoms, _ = hybrid_potential(
            system.positions,
            system.cell,
            system.batch,
            first.types(system),
            neighbors.neighbors,
            neighbors.images,
            first.counts(neighbors.counts),
            *tables.norms,
            [part.padding(system) for part in s.sums],
            tables.no_absent if others is None else others.absent(),
            *tables.model,
            extra if others is None else others.with_features(extra),
            tables.no_weight if weight is None else weight,
            *tables.output,
            *tables.scalars,
            *tables.blend,
            atom_virial,
        )
        report = (
            NeighborReport(s.occupied_slots(within), nearest)
            if others is None
            else others.report(within, nearest)
        )
        if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
            # Which drops neighbours.
            return unfused_evaluator(self.potential)(
                system, neighbors, fparam, aparam, weight=weight, atom_virial=atom_virial
            )
        answers = {"atom_energy": energy, "forces": forces, "virial": virial}
        if atom_virial:
            answers["atom_virial"] = of_atoms
        if others is not None:
            others.add_to(answers, gradient, atom_virial)
        return answers, report

    def covers(self, system: System) -> bool:
        """Whether it is the op that answers."""
        return self._tables_of(self._models.types(system)) is not None

    def _tables(self, types: Types) -> "_Tables | None":
        """What the op takes for systems of these types; None if it does not take them."""
        splines = self._models.of(types)
        splines = spline_hybrid(self.potential, types) if isinstance(splines, SplineModel) else splines
        problem = _refusal(self.potential, splines)
        if problem is not None:
            warnings.warn(f"a step is made of separate ops, for {problem}: {self.cost}", stacklevel=2)
        return None if problem else _Tables(splines, self.potential, self._blend, self._offset)


def spline_hybrid(potential: EvaluationContext, types: tuple[int, ...] | None = None) -> SplineHybrid:
    """Of any standard model with sums, for these types or all."""
    return SplineHybrid(potential, types, potential.grids_for(types))


def _limit(potential: EvaluationContext) -> str | None:
    """What the op cannot do of a standard model of one or more descriptors."""
    problem = SplineHybrid.why_not(potential) or fused.why_not_net(potential)
    if problem is not None:
        return problem
    if potential.device.type not in ("cpu", "cuda"):
        return f"the op runs on CPUs and NVIDIA GPUs, and the model is on {potential.device}"
    model: Any = potential.model
    mixed = shares_places(potential)  # then tables are of the types that there are
    sums = zip(sums_of(model), potential.grids, strict=True)
    return beyond_limits(
        potential,
        [(d, 1 if mixed else d.ntypes, grid.intervals) for (_, d, _), grid in sums],
        model.fitting.extra_size,
    )


def _refusal(potential: EvaluationContext, splines: SplineHybrid) -> str | None:
    """The op's limit that a model exceeds."""
    sums = [(part.descriptor, part.ntypes, part.grid.intervals) for part in splines.sums]
    return beyond_limits(potential, sums, splines.extra_size)


def beyond_limits(
    potential: EvaluationContext, sums: Sequence[tuple[MomentDescriptor, int, int]], extra: int
) -> str | None:
    """The same of sums for so many types, by so many intervals, and so many inputs beside the descriptors'."""
    model: Any = potential.model
    neurons = [layer.outputs for layer in model.fitting.net(0).layers[:-1]]
    inputs = extra + sum(part.width for part in model.descriptor.parts)
    for d, ntypes, intervals in sums:
        problem = fused.spline_potential_why_not(
            d.mean,
            tables=ntypes + d.gated,
            intervals=intervals,
            width=d.channels,
            axis=d.axis_neuron,
            neurons=neurons,
            extra=inputs - d.width,
        )
        if problem is not None:
            return problem
    return None


class _Tables:
    """The op's arguments that are of the model.

    Attributes:
        norms: mean to sel; model: tables and nets; output: scale and shift; scalars: cutoff to threshold; blend:
            near_mask to table_cutoff; no_absent, no_weight: where nothing is given.
        is_whole: whether the op does the whole step.
    """

    def __init__(
        self,
        splines: SplineHybrid,
        potential: EvaluationContext,
        blend: tuple[Any, ...] | None,
        offset: torch.Tensor | None,
    ) -> None:
        self.splines, sums = splines, splines.sums
        self.is_whole = splines.counts_none and not splines.others
        shapes = [part.descriptor.channels for part in sums], [part.descriptor.axis_neuron for part in sums]
        with torch.no_grad():
            tables = [fused.model_table(part, part.fixed_table()).contiguous() for part in sums]
            nets = []
            for layers in splines.fitting_layers(double=True):
                filled = [fused.filled_in(fused.cast(layer, potential.dtype)) for layer in layers]
                weights, biases, timesteps = (list(column) for column in zip(*filled, strict=True))
                nets.append(hybrid_potential_pack(weights, biases, timesteps, *shapes))
            scale, shift = fused.scale_and_shift(splines)
            self.output = scale, shift if offset is None else shift - offset[splines.kinds.index]
        columns = zip(*(fused.norms(part) for part in sums), strict=True)
        self.norms = tuple([x.contiguous() for x in column] for column in columns)
        self.model = tables, torch.stack(nets)
        self.scalars = _scalars(splines)
        self.no_absent = [part.sel.new_empty(0, part.ntypes) for part in sums]
        self.no_weight = sums[0].mean.new_empty(0, dtype=torch.float64)
        self.blend = _no_blend(sums[0]) if blend is None else _of_types(blend, sums[0])


# Which of the blend's arguments are tensors (types, types, ...).
_OF_PAIRS = 0, 5, 6


def _of_types(blend: tuple[Any, ...], part: SplineSum) -> tuple[Any, ...]:
    """For the types that count."""
    found, index = list(blend), part.kinds.index
    for k in _OF_PAIRS:
        found[k] = (found[k] if part.has_all else found[k][index][:, index]).contiguous()
    return tuple(found)


def _no_blend(part: SplineSum) -> tuple[Any, ...]:
    mask = part.mask.new_empty(0, 0)
    no_table = mask, part.mean.new_empty(0, 0, 0, 4, dtype=torch.float64), 0.0, 1.0, 1.0
    return mask, 1.0, 1.0, 0.0, 1.0, *no_table


def _scalars(splines: SplineHybrid) -> tuple[Any, ...]:
    hidden = splines.fitting.net(0).layers[:-1]
    name, _, threshold = hidden[0].activation_name.lower().partition(":")
    sums = [(part.descriptor, part.grid) for part in splines.sums]
    return (
        [d.cutoff for d, _ in sums],
        [d.cutoff_smooth for d, _ in sums],
        [d.protection for d, _ in sums],
        [grid.s_max for _, grid in sums],
        [d.channels for d, _ in sums],
        [d.axis_neuron for d, _ in sums],
        [int(d.gated) for d, _ in sums],
        [layer.outputs for layer in hidden],
        [int(layer.adds_input) for layer in hidden],
        CODES[name],
        float(threshold or 3.0),
    )


class _Others:
    """What the op does not do for a system: the features of parts that are not sums, from positions and back, and the
    absent neighbours that it cannot count."""

    def __init__(
        self,
        tables: _Tables,
        parts: NonRadialParts,
        system: System,
        neighbors: NeighborList,
        potential: EvaluationContext,
    ) -> None:
        self._s, self._none, self._parts, self._system = tables.splines, tables.no_absent, parts, system
        self._neighbors, self._potential = neighbors, potential
        self._width = parts.width
        self._types = potential.present(system) if self._width else None
        self.runs = parts.runs(self.near) if self._width else []

    def with_features(self, extra: torch.Tensor) -> torch.Tensor:
        """The argument `extra` of the op: the features, and what is given."""
        if not self._width:
            return extra
        # Of several runs a graph is made again for its gradient: all of them would fill the memory.
        self._made = [self._forward(run) for run in self.runs] if len(self.runs) == 1 else []
        made = self._made or map(self._forward, self.runs)
        return torch.cat([torch.cat([values.detach() for _, values in made]), extra], 1)

    @property
    def near(self) -> Neighborhood:
        if not hasattr(self, "_near"):
            self._near = self._s.near(self._system, self._neighbors, self._potential.dtype)
        return self._near

    def absent(self) -> list[torch.Tensor]:
        """The argument of the op."""
        s = self._s
        return [
            empty if not s.may_differ(part) or (counts := s.absent(part, self.near)) is None else counts
            for part, empty in zip(s.sums, self._none, strict=True)
        ]

    def report(self, within: torch.Tensor, nearest: torch.Tensor) -> NeighborReport:
        """From what the op says of the sums."""
        found: list[torch.Tensor] = []
        specs: list[NeighborSpec] = []
        k = 0
        for part in self._s.members:
            if isinstance(part, SplineSum):
                found.append(part.occupied_slots(within.select(1, k)))
                k += 1
                continue
            found += self.near.report(part.neighbors).within
            specs += part.neighbors
        if specs and max(s.cutoff for s in specs) > max(part.descriptor.cutoff for part in self._s.sums):
            nearest = self.near.report([]).nearest
        return NeighborReport(tuple(found), nearest)

    def add_to(self, answers: Answers, gradient: torch.Tensor, atom_virial: bool) -> None:
        """Forces and virials that the features add, from the gradient by the op's `extra`."""
        if not self._width:
            return
        gradient = gradient[:, : self._width]
        pairs: list[torch.Tensor] = []
        for k, run in enumerate(self.runs):
            leaf, values = self._made[k] if self._made else self._forward(run)
            pairs += torch.autograd.grad(values, leaf, gradient[run])
        forces, virial, of_atoms = pair_forces(
            torch.cat(pairs),
            self.near.displacements,
            self._system.batch,
            self.near.neighbors,
            self._system.count,
            of_atoms=atom_virial,
        )
        answers["forces"] = answers["forces"] + forces
        answers["virial"] = answers["virial"] + virial
        if atom_virial:  # the force's component first
            answers["atom_virial"] = answers["atom_virial"] + of_atoms.transpose(1, 2)

    def _forward(self, run: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The pair vectors of some atoms, and the features, differentiable in these."""
        near = self.near.of_atoms(run) if len(self.runs) > 1 else self.near
        leaf = near.displacements.detach().requires_grad_()
        with torch.enable_grad(), input_gradient_alone():
            return leaf, self._parts.features(near.with_pairs(leaf), self._types)
