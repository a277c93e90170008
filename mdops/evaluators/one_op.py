"""A step of models with sums over neighbours by one op: `mdops.ops.spline_potential` for a single such descriptor,
`mdops.ops.hybrid_potential` for several, and `mdops.ops.spline_training`. Other parts of a descriptor use their own
operations and autograd."""

import warnings
from typing import Any

import torch

from mdops.evaluators.base import Answers, Evaluator, Found, Step, forces_and_virials
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.fitting import OfOneSum, has_sums, is_alone, why_not_net
from mdops.evaluators.kept import OfSystems, shares_places
from mdops.evaluators.spline_sum import SplineSum
from mdops.evaluators.splines import FusedSums, Splines, words
from mdops.models.contract import joined
from mdops.models.hybrid import seen_by
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.ways import numbers_by
from mdops.nn.net import input_gradient_alone
from mdops.ops import (
    hybrid_potential,
    hybrid_potential_pack,
    spline_potential,
    spline_potential_pack,
    spline_training,
)
from mdops.tables.grids import attentions_of
from mdops.tables.spline_model import SplineModel
from mdops.tables.sum_tables import SumTables


class FusedParts(Evaluator):
    """For several descriptors. Atoms may have weights.

    For a blend with a pair table it gets `blend`, the op's arguments near_mask to table_cutoff, for its own types.
    Then it gives the blend's answers, for systems that it `covers`, and atoms have no other weights. `offset`
    (ntypes,), float64, is subtracted from the net's energies.
    """

    name = "fused parts"
    summary = "one op a step for the sums of all descriptors"
    made_for = "models of several descriptors side by side, and sums over neighbours among them"
    cost = "separate ops take about four times as long"
    packs_weights = weighs = True

    def __init__(
        self,
        potential: EvaluationContext,
        blend: tuple[Any, ...] | None = None,
        offset: torch.Tensor | None = None,
    ) -> None:
        super().__init__(potential)
        self._blend, self._offset = blend, offset
        # With many atoms the whole hybrid runs in parts: otherwise attention layers would be recomputed for their
        # gradient, after the net of all atoms. Whether a step never waits for a GPU does not change: the op counts
        # absent neighbours.
        kind = Splines if FusedSums.why_not(potential) else FusedSums
        self._in_runs = kind(potential)
        self.captures = self._in_runs.captures
        self._tables_of = OfSystems(potential, self._tables)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return has_sums(potential) and not is_alone(potential)

    @classmethod
    def why_not_whole(cls, potential: EvaluationContext) -> str | None:
        """Why the op does not evaluate a standard model of one or more descriptors for all systems; None if it
        does."""
        in_runs = "layers of attention of many atoms go in runs, and the net with them"
        return in_runs if attentions_of(potential.model) else cls.limit(potential)

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        """What of a standard model of one or more descriptors the ops do not support."""
        problem = potential.why_no_spline or why_not_net(potential)
        if problem is not None:
            return problem
        # If types share slots, tables are for the types that are present.
        return SplineModel(potential, [0] if shares_places(potential) else None).why_not

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        told = words(potential, but_sums=True)
        return None if told is None else f"({told})"

    def answer(self, step: Step) -> Found | None:
        system, near = step.system, step.neighbors
        tables = self._tables_of(system)
        if tables is None or (step.atom_virial and self.potential.reach > 1):
            return self._in_runs.answer(step)
        s, others = tables.splines, None
        extra = s.extra_inputs(system, step.fparam, step.aparam)
        if not tables.is_whole:
            types = self.potential.present(system)
            with numbers_by(self._in_runs.other_ways(types)):
                all_pairs = self._in_runs.neighborhood(system, near).without(s.model.absent_pairs)
                if self._blend is None and self._in_runs.run_size(all_pairs, system.atoms) is not None:
                    return self._in_runs.answer(step)
                others = _Others(tables, all_pairs, extra)
        energy, forces, virial, within, nearest, gradient, of_atoms, _ = hybrid_potential(
            *s.sums[0].listed(system, near),
            *tables.norms,
            [part.padding(system) for part in s.sums],
            tables.no_absent if others is None else others.absent,
            *tables.model,
            extra if others is None else others.extra,
            tables.no_weight if step.weight is None else step.weight,
            *tables.output,
            *tables.scalars,
            *tables.blend,
            step.atom_virial,
        )
        if others is None:
            report = NeighborReport(s.occupied_slots(within), nearest)
        else:
            report = others.report(within, nearest)
        found = self.of_op(step, report, energy, forces, virial, of_atoms)
        if found is not None and others is not None and s.others:
            more = others.forces_and_virials(gradient, atom_virial=step.atom_virial)
            found[0].update({name: found[0][name] + value for name, value in more.items()})
        return found

    def covers(self, step: Step) -> bool:
        """Whether the op answers this step."""
        in_passes = step.atom_virial and self.potential.reach > 1
        return not in_passes and self._tables_of(step.system) is not None

    def _tables(self, splines: SplineModel) -> "_Tables | None":
        """The op's arguments for systems of its types; None if it does not support them."""
        if splines.why_not is not None:
            warnings.warn(f"a step is made of separate ops, for {splines.why_not}: {self.cost}", stacklevel=2)
            return None
        return self._arguments(splines)

    def _arguments(self, splines: SplineModel) -> "_Tables":
        return _Tables(splines, self._blend, self._offset)


class Fused(OfOneSum, FusedParts):
    """For one descriptor of sums, by the op with kernels rebuilt for a model and products of chosen accuracy."""

    name = "fused"
    summary = "one op a step"
    captures = True
    weighs = False

    def __init__(self, potential: EvaluationContext) -> None:
        Evaluator.__init__(self, potential)
        self._tables_of = OfSystems(potential, self._tables)
        potential.rebuilt_kernels()  # looks for them in the cache

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        key = potential.rebuilt_kernels()
        return None if key is None else f"by kernels rebuilt for models of these sizes ({key})"

    def answer(self, step: Step) -> Found | None:
        tables = self._tables_of(step.system)
        if tables is None:
            return None
        s = tables.splines.sums[0]
        energy, forces, virial, within, nearest, of_atoms = spline_potential(
            *s.listed(step.system, step.neighbors),
            *tables.norms,
            s.padding(step.system),
            *tables.model,
            tables.splines.extra_inputs(step.system, step.fparam, step.aparam),
            *tables.output,
            *tables.scalars,
            step.atom_virial,
        )
        report = NeighborReport((s.occupied_slots(within),), nearest)
        return self.of_op(step, report, energy, forces, virial, of_atoms)

    def _arguments(self, splines: SplineModel) -> "_Tables":
        return _Tables(splines, matmul=self.potential.matmul)


class FusedTraining(OfOneSum):
    """Answers that are differentiable in the model's weights, not in the positions."""

    name = "fused training"
    summary = "one op for all that comes after the splines' tables"
    cost = "separate operations take one and a half times as long, or twice"
    devices = ("cpu",)
    differentiable = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._model_of = OfSystems(potential, lambda model: model)

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        problem = Fused.limit(potential) or why_not_truncated(potential)
        if problem is not None:
            return problem
        fitting: Any = potential.model.fitting
        name = fitting.net(0).layers[0].activation_name
        if name.lower() != "tanh":
            return f"the op trains fitting nets of tanh, and this has {name}"
        return "energies in vacuum (atom_ener) are taken away" if any(fitting.vacuum) else None

    def answer(self, step: Step) -> Found | None:
        model = self._model_of(step.system)
        s, index, system = model.sums[0], model.kinds.index, step.system
        has_energy = model.model.has_energy[index].double()
        nets = model.fitting_layers()
        # The op takes no timestep of the last layer.
        tensors = [x for net in nets for x in [x for layer in net for x in layer.filled_in()][:-1]]
        energy, forces, virial, within, nearest, _ = spline_training(
            *s.listed(system, step.neighbors),
            *s.norms,
            s.padding(system),
            s.op_table(s.table()),
            tensors,
            model.extra_inputs(system, step.fparam, step.aparam),
            has_energy[: len(nets)],
            has_energy * (model.fitting.bias + model.model.out_bias)[index],
            *op_scalars(model, "")[:10],
        )
        return self.of_op(step, NeighborReport((s.occupied_slots(within),), nearest), energy, forces, virial)


def why_not_truncated(potential: EvaluationContext) -> str | None:
    """Why training without dropping neighbours is not possible, or None."""
    if potential.overflow == "truncate":
        return "frames have more neighbours than sel, and the farthest have to be dropped"
    return None


def op_scalars(splines: SplineModel, matmul: str) -> tuple[Any, ...]:
    """The arguments cutoff to matmul of `spline_potential`."""
    outputs, adds, *activation = splines.shape
    part = splines.sums[0]
    return *part.scalars, outputs, adds, part.descriptor.gated, *activation, matmul


class _Tables:
    """An op's arguments from the model: of `spline_potential` with `matmul`, otherwise of `hybrid_potential`.

    Attributes:
        norms: mean to sel; model: tables and nets; output: scale and shift; scalars: from cutoff on; blend: near_mask
            to table_cutoff; no_absent, no_weight: empty arguments.
        is_whole: whether the op does the whole step.
    """

    def __init__(
        self,
        splines: SplineModel,
        blend: tuple[Any, ...] | None = None,
        offset: torch.Tensor | None = None,
        matmul: str | None = None,
    ) -> None:
        self.splines, sums = splines, splines.sums
        self.is_whole = splines.counts_none and not splines.others
        scalars: Any = list(map(list, zip(*(part.scalars for part in sums), strict=True)))
        # Contiguous; else the op would copy them in every step.
        norms = [[x.contiguous() for x in own] for own in zip(*(part.norms for part in sums), strict=True)]
        with torch.no_grad():
            tables = [part.op_table(part.fixed_table()).contiguous() for part in sums]
        scale, shift = splines.scale_and_shift()
        self.output = scale, shift if offset is None else shift - offset[splines.kinds.index]
        self.norms: Any
        self.model: Any
        if matmul is not None:
            self.norms = tuple(own[0] for own in norms)
            widths = sums[0].descriptor.channels, sums[0].descriptor.axis_neuron
            self.model = tables[0], splines.packed(spline_potential_pack, *widths, matmul)
            self.scalars = op_scalars(splines, matmul)
            return
        self.norms, self.model = norms, (tables, splines.packed(hybrid_potential_pack, *scalars[-2:]))
        self.scalars = *scalars, [int(part.descriptor.gated) for part in sums], *splines.shape
        self.no_absent = [part.sel.new_empty(0, part.ntypes) for part in sums]
        self.no_weight = sums[0].mean.new_empty(0, dtype=torch.float64)
        self.blend = _no_blend(sums[0]) if blend is None else _of_types(blend, sums[0])


# The blend's arguments that are tensors (types, types, ...).
_OF_PAIRS = 0, 5, 6


def _of_types(blend: tuple[Any, ...], part: SumTables) -> tuple[Any, ...]:
    """The arguments for the types that count."""
    found, index = list(blend), part.kinds.index
    for k in _OF_PAIRS:
        found[k] = (found[k] if part.has_all else found[k][index][:, index]).contiguous()
    return tuple(found)


def _no_blend(part: SumTables) -> tuple[Any, ...]:
    mask = part.mask.new_empty(0, 0)
    no_table = mask, part.mean.new_empty(0, 0, 0, 4, dtype=torch.float64), 0.0, 1.0, 1.0
    return mask, 1.0, 1.0, 0.0, 1.0, *no_table


class _Others:
    """What the op does not do for a system: the features of parts that are not sums, forward and backward, and the
    absent neighbours that it cannot count.

    Attributes:
        absent: the argument of the op.
        extra: its argument, the features and the parameters.
    """

    def __init__(self, tables: _Tables, near: Neighborhood, extra: torch.Tensor) -> None:
        self._splines, self._near, self.extra = tables.splines, near, extra
        absent = [SplineSum(part).absent(near) for part in self._splines.sums]
        self.absent = [none if a is None else a for a, none in zip(absent, tables.no_absent, strict=True)]
        if self._splines.others:
            self._leaf, mixed = near.displacements.detach().requires_grad_(), self._splines.spec.mixed
            seen = near.with_pairs(self._leaf)
            with torch.enable_grad(), input_gradient_alone():
                self._values = joined([p(seen_by(p, seen, mixed=mixed)) for p in self._splines.others]).values
            self.extra = torch.cat([self._values.detach(), extra], 1)

    def report(self, within: torch.Tensor, nearest: torch.Tensor) -> NeighborReport:
        """The report, from what the op gives for the sums."""
        found: list[torch.Tensor] = []
        of_sums, cutoff = iter(within.unbind(1)), 0.0
        for part in self._splines.members:
            if isinstance(part, SumTables):
                found.append(part.occupied_slots(next(of_sums)))
                cutoff = max(cutoff, part.descriptor.cutoff)
            else:
                found += (self._near.reports.get(part) or self._near.report(part.neighbors)).within
        if cutoff < self._near.cutoff:
            nearest = self._near.report([]).nearest
        return NeighborReport(tuple(found), nearest)

    def forces_and_virials(self, gradient: torch.Tensor, *, atom_virial: bool) -> Answers:
        """The features' part of forces and virials, from the gradient by the op's `extra`."""
        gradient = gradient[:, : self._values.shape[1]]
        (by_pairs,) = torch.autograd.grad(self._values, self._leaf, gradient, materialize_grads=True)
        return forces_and_virials(by_pairs, self._near, atom_virial=atom_virial)
