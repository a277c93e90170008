"""Splines of lengths in place of radial nets: those whose sums with harmonics are a descriptor's features, and those
that give features to its edges."""

import warnings
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

import torch

from mdops.evaluators.context import EvaluationContext, Types
from mdops.evaluators.kept import OfTypes
from mdops.models.dpa4.radial import RadialSplines
from mdops.models.moments import TypeChoice
from mdops.models.neighborhood import Neighborhood, NeighborReport, NeighborSums
from mdops.models.ways import BySplines, Way
from mdops.ops import harmonic_forces, harmonic_sums, moment_invariants
from mdops.tables.harmonic_tables import HarmonicTables, harmonic_tables
from mdops.tables.invariant_terms import invariant_terms
from mdops.tables.radial_tables import radial_splines
from mdops.tracing import is_exported

_MOST_NUMBERS = 2**27  # of tables


class LengthSplines(ABC):
    """A descriptor's splines in place of its radial nets, computed for the types that are present."""

    captures = True

    def __init__(self, potential: EvaluationContext, descriptor: Any) -> None:
        assert potential.spline_tolerance is not None
        self._descriptor, self._tolerance = descriptor, potential.spline_tolerance
        self._tables_of = OfTypes(self._tables, lambda made: 0 if made is None else self._numbers(made))

    @staticmethod
    def why_not(potential: EvaluationContext, descriptor: BySplines) -> str | None:
        """Why a descriptor cannot have them."""
        exact = "the radial nets are evaluated exactly (spline=False)"
        return descriptor.why_no_splines or (exact if potential.spline_tolerance is None else None)

    def way(self, types: Types) -> Way | None:
        """The way for systems of these types; None if the nets have to run."""
        if is_exported():  # a program is for any types and number of atoms
            return None
        tables = self._tables_of(types)
        return None if tables is None else Way(partial(self._made, tables), self.captures)

    def _tables(self, types: Types) -> Any:
        kinds = tuple(range(len(self._descriptor.type_map))) if types is None else types
        found = self._found(kinds)
        if found is None:
            warnings.warn(
                f"there are no splines for {len(kinds)} types within {self._tolerance:.1e}: the radial nets run on "
                "every pair of neighbours instead",
                stacklevel=2,
            )
        return found

    @abstractmethod
    def _found(self, kinds: tuple[int, ...]) -> Any:
        """Tables for systems of these types; None if none keep the tolerance, or if they would be too large."""

    @abstractmethod
    def _numbers(self, tables: Any) -> int:
        """The number of numbers in the tables."""

    @abstractmethod
    def _made(self, tables: Any, near: Neighborhood) -> Any:
        """The result that the descriptor asks for (`mdops.models.ways`)."""


class EdgeNumbers(LengthSplines):
    """The features of a descriptor's edges that depend on their lengths."""

    def _found(self, kinds: tuple[int, ...]) -> RadialSplines | None:
        return radial_splines(self._descriptor, kinds, self._tolerance, _MOST_NUMBERS)

    def _numbers(self, tables: RadialSplines) -> int:
        return sum(table.numel() for table in tables.tables.values())

    def _made(self, tables: RadialSplines, near: Neighborhood) -> RadialSplines:
        return tables


class _OfSums(NamedTuple):
    """The tables for systems of some types."""

    kinds: TypeChoice
    tables: HarmonicTables
    places: torch.Tensor  # each type's place among these


class HarmonicSums(LengthSplines):
    """The features from sums with harmonics, before statistics are subtracted."""

    def __init__(self, potential: EvaluationContext, descriptor: Any) -> None:
        super().__init__(potential, descriptor)
        self._invariants = invariant_terms(descriptor)

    def _found(self, kinds: tuple[int, ...]) -> _OfSums | None:
        d = self._descriptor
        found = harmonic_tables(d, kinds, self._tolerance, _MOST_NUMBERS)
        choice = TypeChoice.of(kinds, d.mean.device)
        return None if found is None else _OfSums(choice, found, choice.places(d.ntypes))

    def _numbers(self, tables: _OfSums) -> int:
        return tables.tables.coefficients.numel()

    def _made(self, tables: _OfSums, near: Neighborhood) -> torch.Tensor:
        (kinds, splines, places), d, counts = tables, self._descriptor, near.counts
        absent = d.excluded if near.absent_pairs is None else d.excluded | near.absent_pairs
        types = near.types
        if len(kinds.numbers) < near.ntypes:
            index = kinds.index
            counts, absent, types = counts[:, index], absent[index][:, index], places[types.long()]
        pairs = near.displacements if near.sums is None else near.displacements.detach()
        listed = pairs, counts, types, splines.tables
        settings: dict[str, Any] = {"cutoff": d.cutoff, "intervals": splines.intervals}
        settings |= {"degree": d.options.lmax, "seconds": d.invariants.channels[1], "pair_mask": absent}
        scalars, others, within, nearest = harmonic_sums(*listed, **settings)
        near.reports[d] = NeighborReport((within[:, None],), nearest)
        if near.sums is not None:
            leaves = scalars.requires_grad_(), others.requires_grad_()
            lists: Any = *listed, splines.most, nearest, near.system.batch, near.neighbors, near.system.count
            near.sums[d] = NeighborSums(leaves, lambda *by: harmonic_forces(*by, *lists, **settings))
        terms = self._invariants
        more = terms.forth, terms.back, terms.mixed, terms.made
        return moment_invariants(scalars, others.flatten(1), near.types, terms.behind, *more)
