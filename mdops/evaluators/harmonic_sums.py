"""DPA-4C by splines: sums over neighbours of splines times harmonics, then polynomials of these."""

import warnings
from typing import NamedTuple

import torch

from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.models.dpa4c import DPA4C
from mdops.models.moments import TypeChoice
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.ways import Way
from mdops.ops import harmonic_sums, moment_invariants
from mdops.tables.harmonic_tables import HarmonicTables, harmonic_tables
from mdops.tables.invariant_terms import invariant_terms
from mdops.tracing import is_exported

_MOST_NUMBERS = 2**27  # of tables


class _Splines(NamedTuple):
    """Of systems of some types."""

    kinds: TypeChoice
    tables: HarmonicTables
    places: torch.Tensor  # of all types among these


class HarmonicSums:
    """The numbers of DPA-4C, before its statistics are taken off."""

    captures = True

    def __init__(self, potential: EvaluationContext, descriptor: DPA4C) -> None:
        assert potential.spline_tolerance is not None
        self._descriptor, self._tolerance = descriptor, potential.spline_tolerance
        self._splines_of = OfTypes(
            self._made, lambda made: 0 if made is None else made.tables.coefficients.numel()
        )
        self._invariants = invariant_terms(descriptor)

    @staticmethod
    def why_not(potential: EvaluationContext, descriptor: DPA4C) -> str | None:
        """Why a descriptor has none."""
        if descriptor.spin is not None:
            return "there are no splines of sums with magnetic moments"
        exact = potential.spline_tolerance is None
        return "the radial nets are evaluated exactly (spline=False)" if exact else None

    def way(self, types: Types) -> Way | None:
        """For systems of these types; None where the nets have to run."""
        if is_exported():  # a program is for any types and number of atoms
            return None
        known = self._splines_of(types)
        return None if known is None else Way(lambda near: self._features(near, known))

    def _made(self, types: Types) -> _Splines | None:
        d = self._descriptor
        kinds = tuple(range(d.ntypes)) if types is None else types
        found = harmonic_tables(d, kinds, self._tolerance, _MOST_NUMBERS)
        if found is None:
            warnings.warn(
                f"there are no splines for {len(kinds)} types within {self._tolerance:.1e}: the radial nets run on "
                "every pair of neighbours instead",
                stacklevel=2,
            )
            return None
        choice = TypeChoice.of(kinds, d.mean.device)
        return _Splines(choice, found, choice.places(d.ntypes))

    def _features(self, near: Neighborhood, known: _Splines) -> torch.Tensor:
        d, tables, counts = self._descriptor, known.tables, near.counts
        absent = d.excluded if near.absent_pairs is None else d.excluded | near.absent_pairs
        types = near.types
        if len(known.kinds.numbers) < near.ntypes:
            index = known.kinds.index
            counts, absent, types = counts[:, index], absent[index][:, index], known.places[types.long()]
        listed = near.displacements, counts, types, tables.tables
        settings = {"cutoff": d.cutoff, "intervals": tables.intervals, "degree": d.options.lmax}
        settings["seconds"] = d.invariants.channels[1]
        scalars, others, within, nearest = harmonic_sums(*listed, **settings, pair_mask=absent)
        near.reports[d] = NeighborReport((within[:, None],), nearest)
        terms = self._invariants
        more = terms.forth, terms.back, terms.mixed, terms.made
        return moment_invariants(scalars, others.flatten(1), near.types, terms.behind, *more)
