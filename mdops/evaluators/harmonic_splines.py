"""DPA-4C by splines: sums over neighbours of splines times harmonics, then polynomials of these."""

import warnings
from typing import Any, NamedTuple

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.models.contract import Features
from mdops.models.dpa4c import DPA4C
from mdops.models.neighborhood import Neighborhood
from mdops.models.standard import DescriptorFitting
from mdops.ops import harmonic_sums, moment_invariants
from mdops.tables.harmonic_tables import HarmonicTables, harmonic_tables
from mdops.tables.invariant_terms import invariant_terms
from mdops.tracing import is_exported

_MOST_NUMBERS = 2**27  # of tables
# Slots of neighbours of a run of atoms: what is made of them stays in a CPU's caches, and fits a GPU.
_NUMBERS = {"cpu": 2**15, "cuda": 2**28}


class _Splines(NamedTuple):
    """Of systems of some types, and what finds these: types (n,) of those of the model, place (ntypes + 1,) of theirs
    among these, and -1 of virtual atoms."""

    kinds: tuple[int, ...]
    tables: HarmonicTables
    types: torch.Tensor
    place: torch.Tensor


class HarmonicSplines(Autograd):
    name = "harmonic splines"
    summary = "sums over neighbours of splines of the distance times harmonics, and polynomials of these"
    cost = "the radial nets run on every pair instead, which takes ten to thirty times as long"
    chooses_knots = True
    packs_weights = True
    always_runs = True
    energies_alone = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._descriptor: DPA4C = potential.model.descriptor  # type: ignore[assignment]
        self._tables = OfTypes(self._made, lambda made: 0 if made is None else made.tables.scalars.numel())
        self._known: _Splines | None = None
        self._invariants = invariant_terms(self._descriptor)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        model = potential.model
        return isinstance(model, DescriptorFitting) and isinstance(model.descriptor, DPA4C)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of dpa4c alone, and this is {potential.kind}"
        if potential.model.spin is not None:
            return "there are no splines of sums with magnetic moments"
        return (
            "the radial nets are evaluated exactly (spline=False)"
            if potential.spline_tolerance is None
            else None
        )

    def _made(self, types: Types) -> _Splines | None:
        """Of systems of these types; None where the nets have to run."""
        model: Any = self.potential.model
        d = self._descriptor
        kinds = tuple(range(d.ntypes)) if types is None else types
        tolerance = self.potential.spline_tolerance
        assert tolerance is not None
        found = harmonic_tables(model.descriptor, kinds, tolerance, _MOST_NUMBERS)
        if found is None:
            warnings.warn(
                f"there are no splines for {len(kinds)} types within {tolerance:.1e}: the radial nets run on every "
                "pair of neighbours instead",
                stacklevel=2,
            )
            return None
        index = torch.tensor(kinds)
        place = torch.full((d.ntypes + 1,), -1, dtype=torch.int32)
        place[index] = torch.arange(len(kinds), dtype=torch.int32)
        return _Splines(kinds, found, *(t.to(self.potential.device) for t in (index, place)))

    def _run_size(self, near: Neighborhood) -> int | None:
        if is_exported():  # a program is for any types and number of atoms: the nets run
            return None
        self._known = self._tables(self.potential.present(near.system))
        if self._known is None:
            return super()._run_size(near)
        return max(1, _NUMBERS[near.displacements.device.type] // max(1, near.displacements.shape[1]))

    def _answered(self, near: Neighborhood, step: Step) -> Answers:
        known = self._known
        if known is None:
            return super()._answered(near, step)
        model: Any = self.potential.model
        d, tables = self._descriptor, known.tables
        near = near.within(min(near.cutoff, d.cutoff)).without(model.absent_pairs)
        absent = d.excluded if near.absent_pairs is None else d.excluded | near.absent_pairs
        counts = near.counts
        if len(known.kinds) < near.ntypes:
            counts, absent = counts[:, known.types], absent[known.types][:, known.types]
        listed = near.displacements, counts, known.place[near.types.long()], tables.tables
        settings = {"cutoff": d.cutoff, "intervals": tables.intervals, "degree": d.options.lmax}
        scalars, others = harmonic_sums(*listed, **settings, pair_mask=absent)
        terms = self._invariants
        more = terms.forth, terms.back, terms.mixed
        features = moment_invariants(scalars, others.flatten(1), near.types, terms.behind, *more)
        return model.finish(model.fitted(Features(features), near, step.fparam, step.aparam), near.types)
