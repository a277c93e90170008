"""Splines in place of the nets before sums over neighbours; everything after them is the model's own code."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mdops.evaluators.attention_sums import AttentionSums
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers, Found, Step
from mdops.evaluators.context import EvaluationContext, Types
from mdops.evaluators.fitting import PackedFitting
from mdops.evaluators.kept import OfTypes
from mdops.evaluators.length_splines import EdgeNumbers, HarmonicSums
from mdops.evaluators.spline_sum import SplineSum
from mdops.models.contract import Descriptor
from mdops.models.length_basis import EdgesByLength
from mdops.models.neighborhood import Neighborhood
from mdops.models.standard import DescriptorFitting
from mdops.models.ways import EdgesBySplines, SumsBySplines, Way, numbers_by
from mdops.tables.angle_knots import angle_descriptors
from mdops.tables.grids import attentions_of, inner_sums_of, sums_of
from mdops.tables.length_tables import length_basis
from mdops.tables.spline import DEFAULT_R_MIN, collocation_on
from mdops.tables.sum_tables import SumTables

Others = dict[Descriptor, AttentionSums | HarmonicSums]


class Splines(Autograd):
    """Descriptors take their sums from splines, wherever they are in the model: its own, in parts of hybrids and
    blends, and inside other descriptors. Descriptors of angles do so by themselves (`mdops.models.angles`)."""

    name = "splines"
    summary = "sums over neighbours by splines, then PyTorch"
    made_for = (
        "models of sums over neighbours or pairs of them (se_e2_a, se_e2_r, se_e3, DPA-1 without attention)"
    )
    cost = "the embedding nets run on every pair instead, which takes three times as long or more"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.r_min = potential.r_min or 0.0
        inner = inner_sums_of(potential.model)
        # In training on a GPU the nets of sums inside other descriptors run themselves.
        takes_inner = not (potential.training and potential.device.type == "cuda")
        self._inner = {one.descriptor for one in inner}
        pairs = [
            *zip(sums_of(potential.model), potential.grids, strict=False),  # there may be no grids
            *zip(inner if takes_inner else [], potential.inner_grids, strict=False),
        ]
        self._sums = [(one, grid) for one, grid in pairs if grid is not None]
        self._mixed = any(one.descriptor.mixed for one, _ in self._sums)
        self._others = self._other_sums()
        self._of = OfTypes(self._sums_for)
        self._fitting: PackedFitting | None = None
        self._held: list[Any] = []
        own = {*self._others, *(one.descriptor for one, _ in self._sums)}
        told = own.intersection(self._model.descriptors)
        self._tells |= isinstance(self._model, DescriptorFitting) and bool(told)
        if potential.device.type == "cuda":
            every = {d: Way(id, of.captures) for d, of in self._others.items()}
            sums = self._sums_for(None, as_they_are=True)
            with numbers_by(every | {part.descriptor: Way(id, not part.tables.may_differ) for part in sums}):
                self.captures = self._model.captures

    def _other_sums(self) -> Others:
        """The sums of descriptors whose features are not plain sums."""
        return {}

    def other_ways(self, types: Types) -> dict[Descriptor, Way]:
        """Their ways, for systems of these types."""
        found = {d: of.way(types) for d, of in self._others.items()}
        return {d: way for d, way in found.items() if way is not None}

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        model = potential.model
        return bool(sums_of(model) or inner_sums_of(model) or angle_descriptors(model))

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        model = potential.model
        every: list[tuple[Any, str | None]] = [
            (sums_of(model), potential.why_no_spline),
            (inner_sums_of(model), potential.why_no_inner_spline),
            (angle_descriptors(model), potential.why_no_angle_spline),
        ]
        reasons = [why for there, why in every if there]
        return None if None in reasons else reasons[0]

    def answer(self, step: Step) -> Found:
        types = self.potential.present(step.system)
        if torch.is_grad_enabled():
            ways = self._trained_ways(types, step.neighbors.neighbors.numel())
        else:
            ways, self._fitting = self.potential.cached_for_weights(
                f"ways of {self.name}", lambda: (self._fixed_ways(types), self._packed_fitting()), types
            )
            self._hold(ways)
        with numbers_by(self.other_ways(types) | ways):
            return super().answer(step)

    def _of_run(self, near: Neighborhood, step: Step) -> tuple[Answers, torch.Tensor | None]:
        if self._fitting is None or near.system.spins is not None:
            return super()._of_run(near, step)
        if near.nodes is None and self._has_sums_alone and not step.atom_virial:
            near = dataclasses.replace(near, sums={})
        features = self._model.describe(near)
        energy, by_features = self._fitting.energies(features.detach(), near.system, step)
        answers, of = {"atom_energy": energy}, next(iter((near.sums or {}).values()), None)
        leaves = (near.displacements,) if of is None else of.sums
        gradients = torch.autograd.grad(features, leaves, by_features, materialize_grads=True)
        if of is None:
            return answers, gradients[0]
        forces, virial = of.forces(*gradients)
        return answers | {"forces": forces, "virial": virial}, None

    def own_atoms(self, near: Neighborhood, step: Step) -> int:
        return near.system.atoms if self._has_sums_alone else super().own_atoms(near, step)

    @property
    def _has_sums_alone(self) -> bool:
        """Whether the only descriptor may give sums whose gradients become forces directly, as on a GPU."""
        alone = len(self._model.descriptors) == 1 and self.potential.device.type == "cuda"
        return alone and all(isinstance(of, HarmonicSums) for of in self._others.values())

    def _packed_fitting(self) -> PackedFitting | None:
        """The fitting nets as one op, which also gives the gradient by their inputs; None if PyTorch runs them."""
        return PackedFitting.of(self.potential) if self.potential.device.type == "cpu" else None

    def _trained_ways(self, types: Types, slots: int) -> dict[Descriptor, Way]:
        """Ways that are differentiable in the weights, for lists with so many slots."""
        # Inner nets run on the pairs if there are fewer pairs than knots.
        of_types = self._of(types if self._mixed else None)
        every = [(part, part.tables) for part in of_types]
        sums = [
            (part, own) for part, own in every if part.descriptor not in self._inner or own.knots <= slots
        ]
        like = [(own.grid.intervals, own.mean.device, own.mean.dtype) for _, own in sums]
        found: dict[Descriptor, Way] = {
            part.descriptor: Way(partial(part.summed, own.table())) for part, own in sums
        }
        self._hold(sums, [collocation_on(*one) for one in like])
        return found

    def _fixed_ways(self, types: Types) -> dict[Descriptor, Way]:
        """Ways with the current weights. On a CPU also for edges whose features depend on their lengths."""
        potential, found, tolerance = self.potential, dict[Descriptor, Way](), self.potential.spline_tolerance
        for d in potential.model.descriptors if potential.device.type == "cpu" else []:
            if tolerance is not None and isinstance(d, EdgesByLength):
                own = types if d.type_map == potential.type_map else None
                basis = length_basis(d, self.r_min, tolerance, own)
                if basis is not None:
                    found[d] = Way(partial(lambda steps, near: steps, d.steps(basis)))
        sums = self._of(types if self._mixed else None)
        return found | {
            part.descriptor: Way(partial(part.summed, part.tables.fixed_table())) for part in sums
        }

    def _hold(self, *read: Any) -> None:
        """Holds what a CUDA graph that is being captured reads, as it may be replaced in its cache."""
        if self.potential.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._held.append(read)

    def _sums_for(self, types: Types, as_they_are: bool = False) -> list[SplineSum]:
        """The sums with the knots that these types need, or with the present ones if `as_they_are`."""
        potential, found = self.potential, []
        for one, grid in self._sums:
            of = types if one.descriptor.mixed else None
            own = of if of is None or one.names is None else tuple(one.names[t] for t in of)
            knots = grid if as_they_are else potential.grid_for(one, grid, of)
            smoothing = 0.0 if one.descriptor in self._inner else potential.smoothing
            found.append(SplineSum(SumTables(one.model, one.descriptor, knots, own, smoothing, one.absent)))
        return found


class FusedSums(Splines):
    """In simulations, for models with attention layers or harmonics of several degrees: splines of the nets before
    them, then one op per layer, and one for the sums. Atoms may have weights.

    Atoms are evaluated in runs, each from the neighbours to the gradient of the energy: only one run's data is saved
    for the gradient, and stays in a CPU's cache.
    """

    name = "fused sums"
    summary = "splines of the embedding nets, one op a layer of attention, sums over neighbours, then the net"
    made_for = "models of dpa4c, or of dpa1 with attention or lmax above 1"
    cost = "the embedding nets run on every pair of neighbours instead, by PyTorch's operations"
    packs_weights = True
    energies_alone = True
    differentiable = False

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.chooses_knots = any(isinstance(of, HarmonicSums) for of in self._others.values())
        self._packed = PackedFitting.of(potential)

    def _other_sums(self) -> Others:
        return {d: made() for d, made in other_sums(self.potential)[0].items()}

    def _packed_fitting(self) -> PackedFitting | None:
        return self._packed

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return isinstance(potential.model, DescriptorFitting) and any(other_sums(potential))

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        found, reasons = other_sums(potential)
        return None if found else reasons[0]

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        return None if len(potential.model.descriptors) == 1 else f"({words(potential)})"


class RadialSplineSteps(Autograd):
    """In simulations, for descriptors whose edges have features that depend on their lengths."""

    energies_alone = True
    name = "radial splines"
    summary = "splines of the lengths of edges for each pair of types, then PyTorch"
    made_for = "models of one descriptor with radial nets of edges"
    cost = "the radial nets run on every edge instead"
    chooses_knots = packs_weights = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        model: Any = potential.model
        self.r_min, self._descriptor = DEFAULT_R_MIN, model.descriptor
        self._splines = EdgeNumbers(potential, model.descriptor)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        model = potential.model
        return isinstance(model, DescriptorFitting) and isinstance(model.descriptor, EdgesBySplines)

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        model: Any = potential.model
        return EdgeNumbers.why_not(potential, model.descriptor)

    def answer(self, step: Step) -> Found:
        way = self._splines.way(self.potential.present(step.system)) if self.is_simple(step) else None
        with numbers_by({} if way is None else {self._descriptor: way}):
            return super().answer(step)


def other_sums(potential: EvaluationContext) -> tuple[dict[Descriptor, Callable[[], Any]], list[str]]:
    """Makers of the sums of a standard model's descriptors that are not plain sums, and the reasons why others have
    none."""
    every: list[tuple[Descriptor, Callable[[], Any], str | None]] = []
    attentions = attentions_of(potential.model)
    grids: Any = potential.attention_grids or [None] * len(attentions)
    for one, grid in zip(attentions, grids, strict=True):
        why = potential.why_no_attention_spline if grid is None else AttentionSums.why_not(potential, one)
        every.append((one.descriptor, partial(AttentionSums, one, grid, potential.dtype), why))
    every += [
        (d, partial(HarmonicSums, potential, d), HarmonicSums.why_not(potential, d))
        for d in potential.model.descriptors
        if isinstance(d, SumsBySplines)
    ]
    return {d: make for d, make, why in every if why is None}, [why for *_, why in every if why is not None]


def words(potential: EvaluationContext, *, but_sums: bool = False) -> str | None:
    """How the features of each descriptor of a standard model are computed, or only of those that are no plain sums."""
    grids = zip(sums_of(potential.model), potential.grids, strict=False)
    sums: list[Descriptor] = [one.descriptor for one, grid in grids if grid is not None]
    others, _ = other_sums(potential)
    own = [d for d in potential.model.descriptors if d not in sums and d not in others]
    ways: dict[str, list[Descriptor]] = {
        "spline moments": [] if but_sums else sums,
        "its own operations, and autograd": own,
        "splines, and one op a layer": [d for d in others if not isinstance(d, SumsBySplines)],
        "harmonic splines": [d for d in others if isinstance(d, SumsBySplines)],
    }
    told = [f"{', '.join(dict.fromkeys(d.kind for d in of))}: {way}" for way, of in ways.items() if of]
    return "; ".join(told) or None
