"""Descriptors that sum over neighbours, with their embedding nets as splines: the sum comes first, and autograd does
the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Found, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.evaluators.nets import SplineNets
from mdops.evaluators.spline_sum import SplineSum, shares_places
from mdops.models.contract import Descriptor, joined
from mdops.models.moments import moments_by
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.system import System
from mdops.tables.grids import NO_SUMS, Sum, inner_sums_of, moment_descriptor, sums_of
from mdops.tables.spline import SplineGrid, collocation_on


class SplineModel(SplineNets):
    """A standard model of one or more descriptors, some of which are of sums, for some of its types."""

    def __init__(
        self,
        potential: EvaluationContext,
        types: Sequence[int] | None = None,
        grids: Sequence[SplineGrid | None] | None = None,
    ) -> None:
        """Takes the types, or None for all, and a grid for each of the sums, by default the potential's; None for one
        whose nets run themselves."""
        model = potential.model
        assert isinstance(model, DescriptorFitting)
        given = potential.grids if grids is None else grids
        of_sums = zip(sums_of(model), given, strict=True)
        grid_of: dict[Descriptor, SplineGrid | None] = {one.descriptor: grid for one, grid in of_sums}
        members = [
            SplineSum(model, part, grid, types, potential.smoothing)  # type: ignore[arg-type]  # which is of sums
            if (grid := grid_of.get(part)) is not None
            else part
            for part in model.descriptor.parts
        ]
        super().__init__(model, types, members)
        self.spec = model.descriptor.spec
        self._all_mixed = all(part.descriptor.mixed for part in self.sums)

    @staticmethod
    def knows(potential: EvaluationContext) -> bool:
        return isinstance(potential.model, DescriptorFitting) and bool(sums_of(potential.model))

    @staticmethod
    def why_not(potential: EvaluationContext, *, alone: bool = False) -> str | None:
        """Why there is none for a potential; `alone`: or its descriptor is not one of sums."""
        known = is_alone(potential) if alone else SplineModel.knows(potential)
        return potential.why_no_spline if known else f"{NO_SUMS}, and this is {potential.kind}"

    def near(self, system: System, neighbors: Any, dtype: torch.dtype) -> Neighborhood:
        """The pairs of a list, as the model has them."""
        near = Neighborhood.of(system, neighbors, self.spec.cutoff, dtype)
        return near.without(self.model.absent_pairs)

    def occupied_slots(self, within: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What `NeighborReport.within` is of the sums, from the neighbours (N, sums, n) of each type."""
        if self._all_mixed:
            totals = within.sum(2, dtype=torch.int32)
            return (totals,) if totals.shape[1] == 1 else totals.split(1, 1)
        return tuple(part.occupied_slots(own) for part, own in zip(self.sums, within.unbind(1), strict=True))

    @property
    def counts_none(self) -> bool:
        """Whether absent neighbours need not be looked for."""
        return not any(self.may_differ(part) for part in self.sums)

    def may_differ(self, part: SplineSum) -> bool:
        """Whether `absent` is not None: a shorter cutoff than the model's, and absent neighbours that are not all
        alike."""
        d = part.descriptor
        alike = (
            not part.has_mean
            if d.mixed and not d.gated
            else not (part.excludes and (part.has_mean or d.plain))
        )
        return not alike and d.cutoff < self.spec.cutoff

    def absent(self, part: SplineSum, near: Neighborhood) -> torch.Tensor | None:
        """(N, n) int32: how many neighbours of each type count as absent ones for a sum. None where that follows from
        the neighbours within its own cutoff."""
        d = part.descriptor
        if not self.may_differ(part):
            return None
        # Those beyond its own cutoff take places, as neighbours of their own type whose R is that of absent ones.
        shared = near.restrict_to_part(d.spec, mixed=self.spec.mixed)
        kinds, ntypes = shared.neighbor_types, shared.ntypes
        within = ~(shared.squared >= d.cutoff**2)
        beyond = shared.count(torch.where(within | d.excludes(shared), ntypes, kinds))
        if d.mixed:
            empty = (d.slots - (kinds < ntypes).sum(1)).clamp(min=0).int()
            found = beyond.scatter_add(1, near.padding_types[:, None], empty[:, None])
        else:
            found = torch.tensor(d.sel, device=kinds.device) - shared.count(kinds) + beyond
        return part.counts(found.int())

    def fixed_tables(self) -> list[torch.Tensor]:
        """Of each sum."""
        return [part.fixed_table() for part in self.sums]


def is_alone(potential: EvaluationContext) -> bool:
    """Whether it is of a standard model whose only descriptor is of sums."""
    return moment_descriptor(potential.model) is not None


def shared(part: Descriptor, near: Neighborhood, *, mixed: bool) -> Neighborhood:
    """What a part of a hybrid, itself `mixed` or not, gets of its neighbours."""
    if part.ends_at_cutoff and not near.truncates:
        return near
    return near.restrict_to_part(part.spec, mixed=mixed)


class SplineModels:
    """The spline models of a potential for the types of the systems that it meets.

    Attributes:
        of: gives that for some types.
    """

    def __init__(self, potential: EvaluationContext) -> None:
        self._potential = potential
        self._mixed = shares_places(potential)
        self.of: OfTypes[SplineModel] = OfTypes(lambda types: spline_model(potential, types))
        if not self._mixed:
            self.of(None)

    def types(self, system: System) -> Types:
        """Those that count for a system; None for all that the model has."""
        return self._potential.present(system) if self._mixed else None


def spline_model(potential: EvaluationContext, types: Types) -> SplineModel:
    """For these types, with the knots that they need."""
    return SplineModel(potential, types, potential.grids_for(types))


class Splined(Autograd):
    name = "splines"
    summary = "spline moments, then PyTorch"
    cost = "the embedding nets run on every pair instead, which takes about three times as long"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._models = SplineModels(potential)
        model: Any = potential.model
        # Whether it never waits for a GPU where it is known which atoms are of which type.
        self.captures = potential.device.type == "cuda" and model.fitting.captures
        if self.captures and not is_alone(potential):
            s = SplineModel(potential)
            self.captures = s.counts_none and all(part.captures and part.ends_at_cutoff for part in s.others)
        self._held: list[Any] = []
        self.r_min = potential.r_min or 0.0

    def _hold(self, s: SplineModel, tables: Sequence[torch.Tensor]) -> None:
        """Keeps what a CUDA graph reads that is being captured: others may take its place where it is kept."""
        mean = s.sums[0].mean
        if mean.is_cuda and torch.cuda.is_current_stream_capturing():
            grids = [collocation_on(part.grid.intervals, mean.device, mean.dtype) for part in s.sums]
            self._held.append((s, tables, grids))

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        return SplineModel.why_not(potential)

    def atomic_answers(self, near: Neighborhood, step: Step, trains: bool) -> Found:
        types = self._models.types(near.system)
        s = self._models.of(types)
        near = near.within(min(near.cutoff, s.model.cutoff)).without(s.model.absent_pairs)
        if trains:
            self._hold(s, [])
            tables = [part.table() for part in s.sums]
        else:
            tables = self.potential.cached_for_weights("table", s.fixed_tables, types)
            self._hold(s, tables)
        parts, report = self._parts(s, near)
        if self.drops(step, report):
            near = self.potential.truncated(near).select(s.spec.sel, mixed=s.spec.mixed)
            parts, _ = self._parts(s, near)
        features, given = [], iter(tables)
        for part, found in zip(s.members, parts, strict=True):
            if isinstance(part, SplineSum):
                features.append(part.descriptor.contract(part.t(found, next(given), near.system), near))
            else:
                features.append(found)
        answers = s.model.fitted(joined(features), near, step.fparam, step.aparam)
        return s.model.finish(answers, near.types), report

    @staticmethod
    def _parts(s: SplineModel, near: Neighborhood) -> tuple[list[Any], NeighborReport]:
        """The moments of each sum, and the features of other parts."""
        found: list[Any] = []
        within: list[torch.Tensor] = []
        nearest, widest = None, 0.0
        for part in s.members:
            d = part.descriptor if isinstance(part, SplineSum) else part
            if isinstance(part, SplineSum):
                own = near.restrict_to_part(d.spec, mixed=s.spec.mixed) if near.truncates else near
                moments, report = part.moments(own, s.absent(part, own))
                found.append(moments)
            else:
                report = near.report(d.neighbors)
                found.append(part(shared(part, near, mixed=s.spec.mixed)))
            within += report.within
            if d.cutoff > widest:
                nearest, widest = report.nearest, d.cutoff
        assert nearest is not None
        return found, NeighborReport(tuple(within), nearest)


class InnerSplines(Autograd):
    """Descriptors that begin with sums over neighbours: the sums are spline moments; all that comes after them is the
    model's own."""

    name = "splines before layers"
    summary = "spline moments for the sums that layers begin with, then PyTorch"
    cost = "the embedding nets run on every pair instead"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.r_min = potential.r_min or 0.0
        self._of: OfTypes[list[SplineSum]] = OfTypes(self._of_types)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return bool(inner_sums_of(potential.model))

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return (
                f"it is for models whose layers begin with sums over neighbours, and this is {potential.kind}"
            )
        return potential.why_no_inner_spline

    def _of_types(self, types: Types) -> list[SplineSum]:
        potential, found = self.potential, []
        for one, grid in zip(inner_sums_of(potential.model), potential.inner_grids, strict=True):
            if grid is not None:
                own = potential.grid_for(one, grid, types)
                names = _names(one, types)
                found.append(SplineSum(one.model, one.descriptor, own, names, potential.smoothing))
        return found

    def atomic_answers(self, near: Neighborhood, step: Step, trains: bool) -> Found:
        types = self.potential.present(near.system)
        sums = self._of(types)
        if trains:
            tables = [part.table() for part in sums]
        else:
            tables = self.potential.cached_for_weights(
                "inner table", lambda: [part.fixed_table() for part in sums], types
            )
        ways = {part.descriptor: _moments(part, table) for part, table in zip(sums, tables, strict=True)}
        with moments_by(ways):
            return super().atomic_answers(near, step, trains)


def _names(one: Sum, types: Types) -> Types:
    """These types of the whole, as the sum has them."""
    return types if types is None or one.names is None else tuple(one.names[t] for t in types)


def _moments(part: SplineSum, table: torch.Tensor) -> Callable[[Neighborhood], torch.Tensor]:
    return lambda near: part.t(part.moments(near)[0], table, near.system)
