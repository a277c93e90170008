"""Splines in the place of the nets in front of sums over neighbours; all that comes after them is the model's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mdops.evaluators.attention_sums import AttentionSums
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers, Found, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.harmonic_sums import HarmonicSums
from mdops.evaluators.kept import OfTypes, Types
from mdops.evaluators.spline_model import PackedFitting
from mdops.evaluators.spline_sum import SplineSum
from mdops.models.contract import Descriptor
from mdops.models.dpa4c import DPA4C
from mdops.models.length_basis import EdgesByLength
from mdops.models.moments import MomentDescriptor
from mdops.models.neighborhood import Neighborhood
from mdops.models.standard import DescriptorFitting
from mdops.models.ways import Way, numbers_by
from mdops.tables.angle_knots import angle_descriptors
from mdops.tables.grids import NO_SUMS, attentions_of, inner_sums_of, sums_of
from mdops.tables.length_tables import length_basis
from mdops.tables.spline import collocation_on

Others = dict[Descriptor, AttentionSums | HarmonicSums]


class Splines(Autograd):
    """Descriptors take their sums from splines, wherever they are in the model: its own, those of the parts of hybrids
    and blends, and those that others begin with. Descriptors of angles do so by themselves (`mdops.models.angles`)."""

    name = "splines"
    summary = "sums over neighbours by splines, then PyTorch"
    cost = "the embedding nets run on every pair instead, which takes three times as long or more"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.r_min = potential.r_min or 0.0
        inner = inner_sums_of(potential.model)
        self._inner = {one.descriptor for one in inner}
        pairs = [
            *zip(sums_of(potential.model), potential.grids, strict=False),  # there may be no grids
            *zip(inner if self.takes_inner(potential) else [], potential.inner_grids, strict=False),
        ]
        self._sums = [(one, grid) for one, grid in pairs if grid is not None]
        self._mixed = any(one.descriptor.mixed for one, _ in self._sums)
        self._others = self._other_sums()
        self._of = OfTypes(self._sums_for)
        self._fitting: PackedFitting | None = None
        self._held: list[Any] = []  # what CUDA graphs read, and others may take the place of where it is kept
        own = {*self._others, *(one.descriptor for one, _ in self._sums)}
        told = own.intersection(self._model.descriptors)
        self._tells |= isinstance(self._model, DescriptorFitting) and bool(told)
        if potential.device.type == "cuda":
            every = {d: Way(id, of.captures) for d, of in self._others.items()}
            sums = self._sums_for(None, as_they_are=True)
            with numbers_by(every | {part.descriptor: Way(id, not part.may_differ) for part in sums}):
                self.captures = self._model.captures

    @staticmethod
    def takes_inner(potential: EvaluationContext) -> bool:
        """Whether sums that other descriptors begin with go by splines. In trainings on a GPU their nets run."""
        return not (potential.training and potential.device.type == "cuda")

    def _other_sums(self) -> Others:
        """Of descriptors whose numbers are no plain sums."""
        return {}

    def other_ways(self, types: Types) -> dict[Descriptor, Way]:
        """Theirs, for systems of these types."""
        found = {d: of.way(types) for d, of in self._others.items()}
        return {d: way for d, way in found.items() if way is not None}

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        model = potential.model
        return bool(sums_of(model) or inner_sums_of(model) or angle_descriptors(model))

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        model = potential.model
        every: list[tuple[Any, str | None]] = [
            (sums_of(model), potential.why_no_spline),
            (inner_sums_of(model), potential.why_no_inner_spline),
            (angle_descriptors(model), potential.why_no_angle_spline),
        ]
        reasons = [why for there, why in every if there]
        if not reasons:
            return f"{NO_SUMS}, and this is {potential.kind}"
        return None if None in reasons else reasons[0]

    def answer(self, step: Step) -> Found:
        types = self.potential.present(step.system)
        with numbers_by(self.other_ways(types) | self._ways(types, step.neighbors.neighbors.numel())):
            return super().answer(step)

    def _of_run(self, near: Neighborhood, step: Step) -> tuple[Answers, torch.Tensor]:
        if self._fitting is None:
            return super()._of_run(near, step)
        features = self._model.describe(near)
        energy, by_features = self._fitting.energies(features.detach(), near.system, step)
        (gradient,) = torch.autograd.grad(features, near.displacements, by_features, materialize_grads=True)
        return {"atom_energy": energy}, gradient

    def _packed_fitting(self) -> PackedFitting | None:
        """The fitting nets as one op, which gives the gradient by what they take, too. None where PyTorch runs them, or
        they are packed already."""
        packs = self.potential.device.type == "cpu" and not self.packs_weights
        return packed_fitting(self.potential) if packs else None

    def _ways(self, types: Types, slots: int) -> dict[Descriptor, Way]:
        """For lists with so many places."""
        sums = self._of(types if self._mixed else None)
        trains, edges = torch.is_grad_enabled(), dict[Descriptor, Way]()
        if trains:
            # Where the nets would run at more knots than pairs, inner ones run on the pairs.
            sums = [part for part in sums if part.descriptor not in self._inner or part.knots <= slots]
            tables = [part.table() for part in sums]
        else:
            tables, fitting, edges = self.potential.cached_for_weights(
                f"tables of {self.name}",
                lambda: (
                    [part.fixed_table() for part in sums],
                    self._packed_fitting(),
                    self._edge_ways(types),
                ),
                types,
            )
            if not self.packs_weights:
                self._fitting = fitting
        if sums and sums[0].mean.is_cuda and torch.cuda.is_current_stream_capturing():
            # Fixed tables are made before, in float64: nothing reads their grids, which are not there in float32.
            like = [(part.grid.intervals, part.mean.device, part.mean.dtype) for part in sums if trains]
            self._held.append((sums, tables, [collocation_on(*one) for one in like]))
        pairs = zip(sums, tables, strict=True)
        return edges | {part.descriptor: Way(partial(part.summed, table)) for part, table in pairs}

    def _edge_ways(self, types: Types) -> dict[Descriptor, Way]:
        """Of descriptors whose edges go by their lengths, on a CPU."""
        potential, found = self.potential, dict[Descriptor, Way]()
        if potential.device.type != "cpu" or potential.spline_tolerance is None:
            return found
        for d in potential.model.descriptors:
            if not isinstance(d, EdgesByLength):
                continue
            own = types if d.type_map == potential.type_map else None
            basis = length_basis(d, self.r_min, potential.spline_tolerance, own)
            if basis is not None:
                found[d] = Way(partial(_given, d.steps(basis)))
        return found

    def _sums_for(self, types: Types, as_they_are: bool = False) -> list[SplineSum]:
        """With the knots that these types need, unless `as_they_are`."""
        potential, found = self.potential, []
        for one, grid in self._sums:
            of = types if one.descriptor.mixed else None
            own = of if of is None or one.names is None else tuple(one.names[t] for t in of)
            knots = grid if as_they_are else potential.grid_for(one, grid, of)
            smoothing = 0.0 if one.descriptor in self._inner else potential.smoothing
            found.append(SplineSum(one.model, one.descriptor, knots, own, smoothing, one.absent))
        return found


def _given(steps: Any, _: Neighborhood) -> Any:
    return steps


class FusedSums(Splines):
    """In simulations, of models with layers of attention or harmonics of several degrees: splines of the nets in front
    of them, then one op a layer, and one for the sums. Atoms may have weights.

    Atoms are taken in runs, each from its neighbours to the gradient of its energy: what is kept for the gradient is
    one run's, which stays in a CPU's cache.
    """

    name = "fused sums"
    summary = "splines of the embedding nets, one op a layer of attention, sums over neighbours, then the net"
    cost = "the embedding nets run on every pair of neighbours instead, by PyTorch's operations"
    packs_weights = True
    energies_alone = True
    differentiable = False

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.chooses_knots = any(isinstance(of, HarmonicSums) for of in self._others.values())
        self._fitting = packed_fitting(potential)

    def _other_sums(self) -> Others:
        return {d: made() for d, made in other_sums(self.potential)[0].items()}

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return isinstance(potential.model, DescriptorFitting) and any(other_sums(potential))

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of dpa4c, or of dpa1 with attention or lmax above 1, and this is {potential.kind}"
        found, reasons = other_sums(potential)
        return None if found else reasons[0]

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        if len(potential.model.descriptors) == 1:
            return None
        return f"({words(potential)})"


def packed_fitting(potential: EvaluationContext) -> PackedFitting | None:
    """That of a standard model of energies; None where there is none."""
    knows = isinstance(potential.model, DescriptorFitting) and potential.answers_energies
    return PackedFitting(potential) if knows and not PackedFitting.why_not(potential) else None


def other_sums(potential: EvaluationContext) -> tuple[dict[Descriptor, Callable[[], Any]], list[str]]:
    """What makes the sums of those descriptors of a standard model that are no plain ones, and why there are none for
    others."""
    every: list[tuple[Descriptor, Callable[[], Any], str | None]] = []
    attentions = attentions_of(potential.model)
    grids: Any = potential.attention_grids or [None] * len(attentions)
    for one, grid in zip(attentions, grids, strict=True):
        why = potential.why_no_attention_spline if grid is None else AttentionSums.why_not(potential, one)
        every.append((one.descriptor, partial(AttentionSums, one, grid, potential.dtype), why))
    every += [
        (d, partial(HarmonicSums, potential, d), HarmonicSums.why_not(potential, d))
        for d in potential.model.descriptors
        if isinstance(d, DPA4C)
    ]
    return {d: make for d, make, why in every if why is None}, [why for *_, why in every if why is not None]


def words(potential: EvaluationContext, *, but_sums: bool = False) -> str | None:
    """How the numbers of each descriptor of a standard model are made, or of those that are no plain sums."""
    grids = zip(sums_of(potential.model), potential.grids, strict=False)
    sums: list[Descriptor] = [one.descriptor for one, grid in grids if grid is not None]
    others, _ = other_sums(potential)
    own = [d for d in potential.model.descriptors if d not in sums and d not in others]
    ways: dict[str, list[Descriptor]] = {
        "spline moments": [] if but_sums else sums,
        "its own operations, and autograd": own,
        "splines, and one op a layer": [d for d in others if isinstance(d, MomentDescriptor)],
        "harmonic splines": [d for d in others if isinstance(d, DPA4C)],
    }
    told = [f"{', '.join(dict.fromkeys(d.kind for d in of))}: {way}" for way, of in ways.items() if of]
    return "; ".join(told) or None
