"""DPA-4C by splines: sums over neighbours of splines times harmonics, then a product for each type of centre."""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.models.contract import Features
from mdops.models.dpa4c import DPA4C
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import input_gradient_alone
from mdops.tables.harmonic_tables import HarmonicTables, harmonic_tables
from mdops.tables.invariant_terms import InvariantTerms, invariant_terms
from mdops.tracing import is_exported

_MOST_NUMBERS = 2**27  # of tables
# Of moments of a run of atoms: what is made of them stays in a CPU's caches, and fits a GPU.
_NUMBERS = {"cpu": 2**20, "cuda": 2**29}


class _Splines(NamedTuple):
    """Of systems of some types, and what finds these: types (n,) of those of the model, place (ntypes + 1,) of theirs
    among these, and -1 of virtual atoms."""

    kinds: tuple[int, ...]
    tables: HarmonicTables
    types: torch.Tensor
    place: torch.Tensor


class HarmonicSplines(Autograd):
    name = "harmonic splines"
    summary = "sums over neighbours of splines of the distance times harmonics, then PyTorch"
    cost = "the radial nets run on every pair instead, which takes two to fifteen times as long"
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
        rows, components = self._known.tables.others.shape[1], (self._descriptor.options.lmax + 1) ** 2
        return max(1, _NUMBERS[near.displacements.device.type] // (rows * components))

    def _in_runs(
        self, near: Neighborhood, size: int, step: Step
    ) -> tuple[Answers, NeighborReport, torch.Tensor]:
        """By atoms in the order of their types, so that those of a run are of few."""
        known = self._known
        if known is None:
            return super()._in_runs(near, size, step)
        near, report = self.judged(near, step)
        step = dataclasses.replace(step, check=False)
        groups = near.system.atoms_of_types(near.ntypes)
        counts = [len(groups[kind]) for kind in known.kinds]
        order = groups[known.kinds[0]] if len(counts) == 1 else torch.cat([groups[k] for k in known.kinds])
        atoms = near.system.atoms
        is_ordered = len(counts) == 1 and counts[0] == atoms
        own, of_own = (near, step) if is_ordered else (near.of_atoms(order), step.of_atoms(order))
        ends = list(itertools.accumulate(counts))
        parts, gradients = [], []
        for first in range(0, max(1, len(order)), size):
            run = slice(first, min(first + size, len(order)))
            # Of each type so many atoms of the run.
            shares = [
                max(0, min(run.stop, end) - max(run.start, end - n))
                for end, n in zip(ends, counts, strict=True)
            ]
            part, of_part = own.of_atoms(run), of_own.of_atoms(run)
            answers, gradient = self._of_run(part, of_part, known, shares)
            parts.append(answers)
            gradients.append(gradient)
        merged = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        merged["gradient"] = torch.cat(gradients)
        if not is_ordered:  # virtual atoms have no energy
            merged = {
                name: value.new_zeros(atoms, *value.shape[1:]).index_copy(0, order, value)
                for name, value in merged.items()
            }
        gradient = merged.pop("gradient")
        return merged, report, gradient

    def _of_run(
        self, near: Neighborhood, step: Step, known: _Splines, counts: Sequence[int]
    ) -> tuple[Answers, torch.Tensor]:
        """Energies and their gradient by the pair vectors, of so many atoms of each type, one type after the other."""
        model: Any = self.potential.model
        d, tables = self._descriptor, known.tables
        near = near.within(min(near.cutoff, d.cutoff)).without(model.absent_pairs)
        absent = d.excluded if near.absent_pairs is None else d.excluded | near.absent_pairs
        of_types = near.counts
        if len(known.kinds) < near.ntypes:
            of_types, absent = of_types[:, known.types], absent[known.types][:, known.types]
        pairs = near.displacements.detach()
        settings = d.cutoff, tables.intervals, d.options.lmax
        listed = pairs, of_types, known.place[near.types.long()], absent, *settings
        with torch.no_grad():
            sums = torch.ops.mdops.harmonic_moment(*listed).flatten(2)
            scalars, others = _products(sums, tables.scalars, tables.others, counts)
            moments = scalars, others.flatten(1), near.types, *_flat(self._invariants)
            features = torch.ops.mdops.moment_invariants(*moments)
        with torch.enable_grad(), input_gradient_alone():
            features.requires_grad_()
            near = dataclasses.replace(near, first_derivative_only=True)
            fitted = model.fitted(Features(features), near, step.fparam, step.aparam)
            answers = model.finish(fitted, near.types)
            energy = answers["atom_energy"] if step.weight is None else answers["atom_energy"] * step.weight
            (by_features,) = torch.autograd.grad(energy.sum(), features, materialize_grads=True)
        with torch.no_grad():
            by_scalars, by = torch.ops.mdops.moment_invariants_backward(by_features, *moments)
            by_others = by.view_as(others)
            functions = (tables.scalars, tables.others), (tables.scalar_slopes, tables.other_slopes)
            grads = [
                _sums_gradient(by_scalars, by_others, *own, counts).unflatten(
                    2, (len(known.kinds), tables.basis)
                )
                for own in functions
            ]
            gradient = torch.ops.mdops.harmonic_moment_backward(*grads, *listed)
        return {name: value.detach() for name, value in answers.items()}, gradient


def _flat(terms: InvariantTerms) -> tuple[Any, ...]:
    return terms.behind, *terms.forth, *terms.back, terms.mixed


def _products(
    sums: torch.Tensor, scalars: torch.Tensor, others: torch.Tensor, counts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of sums (N, M, n B) of atoms in the order of their types, `counts` of each: those of degree 0 (N, channels + 2),
    and of all components (N, M, C_1), whose first is of no use: without it there would be a product an atom."""
    first = sums.new_empty(len(sums), scalars.shape[2])
    second = sums.new_empty(*sums.shape[:2], others.shape[2])
    parts = (sums.split(counts), first.split(counts), second.split(counts))
    for kind, (own, to_first, to_second) in enumerate(zip(*parts, strict=True)):
        torch.mm(own[:, 0], scalars[kind], out=to_first)
        torch.mm(own.flatten(0, 1), others[kind], out=to_second.view(-1, others.shape[2]))
    return first, second


def _sums_gradient(
    by_first: torch.Tensor,
    by_second: torch.Tensor,
    scalars: torch.Tensor,
    others: torch.Tensor,
    counts: Sequence[int],
) -> torch.Tensor:
    """(N, M, n B), from the gradients by the results of `_products`."""
    found = by_second.new_empty(*by_second.shape[:2], scalars.shape[1])
    parts = (found.split(counts), by_first.split(counts), by_second.split(counts))
    for kind, (to, first, second) in enumerate(zip(*parts, strict=True)):
        torch.mm(second.flatten(0, 1), others[kind].T, out=to.view(-1, scalars.shape[1]))
        to[:, 0] = first @ scalars[kind].T
    return found
