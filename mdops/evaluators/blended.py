"""Models that combine models, and pair tables: each part by its own fastest evaluator, with one neighbour list."""

import dataclasses
import itertools
from functools import cached_property
from typing import Any

import torch

from mdops.evaluators.base import Answers, Evaluator, Found, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.one_op import FusedParts
from mdops.models.linear import LinearModel, of_part, of_whole
from mdops.models.neighborhood import NeighborReport, list_with_type_map
from mdops.models.pairtab import PairTable
from mdops.models.zbl import ZBLModel
from mdops.nn.kept import PerTypeLookup
from mdops.ops import near_weight, pair_table
from mdops.tables.grids import attentions_of, inner_sums_of, sums_of
from mdops.tracing import is_recorded


class PairTableEvaluator(Evaluator):
    """A pair table alone, or the table of a blend.

    Attributes:
        tensors, scalars: the op's arguments pair_mask and coefficients, and first to cutoff.
        bias: (ntypes,) float64, added to the energies of each type.
    """

    name = "pair table"
    made_for = "pair tables"
    summary = "one op a step, in float64"
    cost = "PyTorch's operations on every pair take many times as long"
    packs_weights = weighs = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.captures = potential.device.type == "cuda"
        model: Any = potential.model
        self._model, self.bias = model, model.counted_bias
        self._bias = PerTypeLookup(self.bias)
        self.tensors = model.absent_matrix, model.counted_coefficients
        self.scalars = model.first, model.step, model.options.rcut
        self._nothing, self._no_virials = (self.tensors[1].new_empty(shape) for shape in ((0,), (0, 3, 3)))
        self._near = torch.zeros_like(model.absent_matrix), 1.0, 1.0, 0.0, 1.0  # of no blend

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return isinstance(potential.model, PairTable)

    def answer(
        self, step: Step, other: Answers | None = None, near: tuple[Any, ...] | None = None
    ) -> Found | None:
        """As its base. With `other`, another model's answers with the remaining weights, and `near`, the op's arguments
        near_mask to high, answers are the blend's."""
        self._model.reject_unused_parameters(step.fparam, step.aparam)
        system, (neighbors, images, counts, *_), nothing = step.system, step.neighbors, self._nothing
        sums = (nothing,) * 4
        if other is not None:
            of_atoms = other.get("atom_virial", self._no_virials)
            sums = other["atom_energy"], other["forces"], other["virial"], of_atoms
        bias = self._bias(system.types) if self._bias.counts else None
        mask, *scalars = self._near if near is None else near
        energy, forces, virial, within, nearest, of_atoms = pair_table(
            *(system.positions, system.cell, system.batch, system.types, neighbors, images, counts),
            *self.tensors,
            nothing if step.weight is None else step.weight,
            sums[0] if other is None or bias is None else sums[0] - bias,
            *sums[1:],
            mask,
            *self.scalars,
            *scalars,
            step.atom_virial,
        )
        # A blend computes it elsewhere.
        taken = within.sum(1, keepdim=True, dtype=torch.int32) if other is None else within
        report = NeighborReport((taken,), nearest)
        return self.of_op(step, report, energy if bias is None else energy + bias, forces, virial, of_atoms)


class Blended(Evaluator):
    """e_i = sum_m w_mi e_mi + bias, from the parts' energies and weighted forces, and the weights' slopes."""

    name = "blended"
    made_for = "models that are made of models"
    summary = "each part by its own evaluator"
    cost = "autograd through all of them"
    packs_weights = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        model: Any = potential.model
        self._model, self._parts = model, part_potentials(potential)
        self._bias = PerTypeLookup(model.counted_bias)
        self._all_have_energy = bool(model.has_energy.all())
        self._evaluators: list[Any] = [_evaluator(part, model) for part in self._parts]
        self._in_one = False  # whether the net's op computes the whole blend
        if isinstance(model, ZBLModel):
            self._set_blend(model)
        own_names = [getattr(model, f"names_{i}") for i in range(len(self._parts))]
        self._own_types: list[Any] = [
            None if names is None else PerTypeLookup(names.int(), -1) for names in own_names
        ]
        self._takes = any(model.parameter_sizes.values())
        self._reorders = [names is not None and bool((names.diff() < 0).any()) for names in own_names]
        for part, names in zip(self._parts, own_names, strict=True):
            part.present_types.of_virtual = 0 if names is None else int(names[0])
        self.captures = potential.device.type == "cuda" and all(e.captures for e in self._evaluators)
        # Splines are extrapolated below r_min; a blend's table has taken over by then.
        found = max((evaluator.r_min for evaluator in self._evaluators), default=0.0)
        self.r_min = 0.0 if isinstance(model, ZBLModel) and model.options.sw_rmin >= found else found

    def _set_blend(self, model: Any) -> None:
        """Sets how the weights are computed, and which part of that the net's op does."""
        o, net, table = model.options, model.models[0], self._evaluators[1]
        mask = model.absent_matrix
        self._near = mask, model.near_part[0].cutoff, o.smin_alpha, o.sw_rmin, o.sw_rmax
        reach, specs = model.models[1].cutoff, self._parts[0].neighbors
        # Then the net's report on its neighbours is valid for the table, too.
        self._alike = len(specs) == 1 and specs[0].mixed and specs[0].cutoff == reach
        self._reach = reach
        self._near_of_table = of_part(mask, model.names_1, model.models[1].ntypes), *self._near[1:]
        self._in_one = (
            isinstance(self._evaluators[0], FusedParts)
            and self._all_have_energy
            and o.sw_rmax <= max(one.descriptor.cutoff for one in sums_of(net))
        )
        if self._in_one:
            pairs = [mask, *(of_whole(x, model.names_1) for x in table.tensors)]
            near, *tensors = (of_part(x, model.names_0, net.ntypes) for x in pairs)
            blend = near, *self._near[1:], *tensors, *table.scalars
            # (1 - c) e + c (t + b) is (1 - c) (e - b) + c t, and b.
            offset = table.bias if model.names_1 is None else table.bias[model.names_1]
            self._offset = PerTypeLookup(offset)
            own = offset
            if model.names_0 is not None:
                own = offset.new_zeros(net.ntypes).index_copy(0, model.names_0, offset)
            self._evaluators[0] = FusedParts(self._parts[0], blend, own)

    @cached_property
    def _alone(self) -> Any:
        """The net's evaluator, if no atom has a near neighbour: then no weights are needed."""
        return self._evaluators[0] if not self._all_have_energy else self._parts[0].evaluator()

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return isinstance(potential.model, LinearModel | ZBLModel)

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        lines = []
        for part in part_potentials(potential):
            evaluator = _evaluator(part, potential.model)
            more = evaluator.kernels(part)
            lines.append(f"{part.kind} by {evaluator.name}{f' {more}' if more else ''}")
        return f"({'; '.join(lines)})"

    def answer(self, step: Step) -> Found | None:
        types = step.system.types
        if not self._takes:
            self._model.reject_unused_parameters(step.fparam, step.aparam)
        silent = None
        if not self._all_have_energy:
            silent = self._model.has_energy[types.long().clamp(min=0)].double()
        blend = self._zbl if isinstance(self._model, ZBLModel) else self._linear
        sums, reports = blend(step, silent)
        found = [within for report in reports for within in report.within]
        distances = list({id(r.nearest): r.nearest for r in reports}.values())
        nearest = distances[0]
        for other in distances[1:]:
            nearest = torch.minimum(nearest.double(), other.double())  # keeps NaN
        report = NeighborReport(tuple(found), nearest)
        if self.drops(step, report):
            return None
        energy = sums["atom_energy"] if silent is None else torch.where(silent == 0, 0.0, sums["atom_energy"])
        energy = energy + self._bias(types) if self._bias.counts else energy
        return {**sums, "atom_energy": energy}, report

    def _linear(self, step: Step, silent: Any) -> Any:
        sums: Answers = {}
        reports = []
        for i, factor in enumerate(self._model.part_weights(None)):
            answers, report = self._part(i, step, silent)
            reports.append(report)
            for name, value in answers.items():
                sums[name] = factor * value + sums.get(name, 0.0)
        return sums, reports

    def _zbl(self, step: Step, silent: Any) -> Any:
        system, reach, alike = step.system, self._reach, self._alike
        atoms = (system.positions, system.cell, system.batch, system.types, *step.neighbors[:3])
        in_one = self._in_one and self._evaluators[0].covers(self._seen_by(0, step))
        if not in_one or not alike:
            near, within, nearest = near_weight(*atoms, *self._near)
            if reach != self._near[1]:  # the table reports on the atoms within its own reach
                _, within, nearest = near_weight(*atoms, self._near[0], reach, *self._near[2:])
        total = None if alike else within.sum(1, keepdim=True, dtype=torch.int32)

        def reports(of_net: NeighborReport) -> list[NeighborReport]:
            return [of_net, of_net if total is None else NeighborReport((total,), nearest)]

        if in_one or _nowhere(near):
            net, net_report = self._part(0, step, silent, by=None if in_one else self._alone)
            if in_one and self._offset.counts:
                net["atom_energy"] = net["atom_energy"] + self._offset(system.types)
            return net, reports(net_report)
        far = 1 - near if silent is None else (1 - near) * silent
        net, net_report = self._part(0, step, far)
        weight = near if silent is None else near * silent
        seen = self._seen_by(1, step, weight)
        answers, _ = self._evaluators[1].answer(seen, net, self._near_of_table)
        return answers, reports(net_report)

    def _seen_by(self, i: int, step: Step, weight: torch.Tensor | None = None) -> Step:
        """The step with a part's types and parameters, and these weights of atoms; its neighbours are judged here."""
        system, neighbors, own_types = step.system, step.neighbors, self._own_types[i]
        if own_types is not None:
            names, ntypes = getattr(self._model, f"names_{i}"), self._parts[i].model.ntypes
            neighbors = list_with_type_map(neighbors, names, ntypes, reorders=self._reorders[i])
            own, first = own_types(system.types), names[system.first_of_systems().long().clamp(min=0)].int()
            system = dataclasses.replace(system, types=own, atoms_by_type=None, first_types=first)
        taken: Any = {"fparam": None, "aparam": None}
        if self._takes:
            taken |= self._model.parameters_of(i, step.fparam, step.aparam)
        return dataclasses.replace(
            step, system=system, neighbors=neighbors, check=False, weight=weight, **taken
        )

    def _part(self, i: int, step: Step, weight: torch.Tensor | None, by: Any = None) -> Found:
        """A part's answers, by its own evaluator by default."""
        seen = self._seen_by(i, step, weight)
        evaluator = self._evaluators[i] if by is None else by
        found: Found = evaluator.asked(seen)
        return found


def _nowhere(near: torch.Tensor) -> bool:
    """Whether all weights are known to be 0. On a GPU they are not read: its step is the same in any case."""
    return not near.is_cuda and not is_recorded(near) and not near.any()


def _evaluator(potential: EvaluationContext, whole: Any) -> Evaluator:
    """The fastest evaluator of a part, of those with a weight for each atom if the whole has such weights."""
    weighs = isinstance(whole, ZBLModel) or not bool(whole.has_energy.all())
    if weighs and FusedParts.why_not_whole(potential) is None:
        return FusedParts(potential)
    found: Evaluator = potential.evaluator()
    if weighs and not found.weighs:
        found = potential.evaluator("differentiate")
    return found


def part_potentials(potential: EvaluationContext) -> list[EvaluationContext]:
    """The parts of a blend as potentials, with the blend's knots and excluded pairs."""
    model: Any = potential.model
    found = []
    grids, inner = iter(potential.grids), iter(potential.inner_grids)
    of_attention = iter(potential.attention_grids)
    for i, part in enumerate(model.models):
        names = getattr(model, f"names_{i}")
        one = type(potential)(model.part_alone(i), overflow=potential.overflow)
        one.train(potential.training)
        one.smoothing = potential.smoothing
        own = tuple(itertools.islice(grids, len(sums_of(part))))
        one.grids = own if any(own) else ()  # a standard model has none at all, or one for each
        one.attention_grids = tuple(itertools.islice(of_attention, len(attentions_of(part))))
        one.inner_grids = tuple(itertools.islice(inner, len(inner_sums_of(part))))
        types = potential.spline_types
        one.spline_types = types if types is None or names is None else tuple(int(names[t]) for t in types)
        found.append(one)
    return found
