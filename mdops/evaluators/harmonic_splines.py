"""DPA-4C by splines: sums over neighbours of splines times harmonics, then a product for each type of centre."""

import dataclasses
import warnings
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.models.dpa4c import DPA4C, Moments
from mdops.models.neighborhood import Neighborhood
from mdops.models.standard import DescriptorFitting
from mdops.tables.harmonic_tables import HarmonicTables, harmonic_tables
from mdops.tracing import is_exported

_MOST_NUMBERS = 2**27  # of tables
_NUMBERS = 2**20  # of moments of a run of atoms: what is made of them stays in a CPU's caches


class _Sums(torch.autograd.Function):
    """Of each atom the sums of degree 0 (N, channels + 2) and of the others (N, (lmax + 1)^2 - 1, C_1), of atoms in the
    order of their types. Differentiated once: the slopes of the splines have tables of their own, as differences of
    gradients by their coefficients would lose digits."""

    @staticmethod
    def forward(
        ctx: Any, displacements: torch.Tensor, listed: Any, settings: Any, tables: HarmonicTables
    ) -> Any:
        ctx.given, ctx.settings, ctx.tables = (displacements.detach(), *listed), settings, tables
        kinds, counts = torch.unique_consecutive(listed[1].clamp(min=0), return_counts=True)
        ctx.runs = list(zip(kinds.tolist(), counts.tolist(), strict=True))
        sums = torch.ops.mdops.harmonic_moment(*ctx.given, *settings).flatten(2)
        scalars, others = [], []
        for (kind, count), own in zip(ctx.runs, sums.split(counts.tolist()), strict=True):
            scalars.append(own[:, 0] @ tables.scalars[kind])
            others.append(torch.bmm(own[:, 1:], tables.others[kind].expand(count, -1, -1)))
        return torch.cat(scalars), torch.cat(others)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_scalars: torch.Tensor, by_others: torch.Tensor) -> Any:
        counts = [count for _, count in ctx.runs]
        found = []
        t = ctx.tables
        for scalars, others in ((t.scalars, t.others), (t.scalar_slopes, t.other_slopes)):
            parts = []
            of_runs = zip(ctx.runs, by_scalars.split(counts), by_others.split(counts), strict=True)
            for (kind, _), scalar, other in of_runs:
                parts.append(torch.cat([(scalar @ scalars[kind].T)[:, None], other @ others[kind].T], 1))
            rows = torch.cat(parts) if len(parts) > 1 else parts[0]
            found.append(rows.unflatten(2, (len(scalars), -1)))
        return torch.ops.mdops.harmonic_moment_backward(*found, *ctx.given, *ctx.settings), None, None, None


class HarmonicSplines(Autograd):
    name = "harmonic splines"
    summary = "sums over neighbours of splines of the distance times harmonics, then PyTorch"
    cost = "the radial nets run on every pair instead, which takes two to fifteen times as long"
    chooses_knots = True
    packs_weights = True
    always_runs = True
    energies_alone = True
    devices = ("cpu",)

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._descriptor: DPA4C = potential.model.descriptor  # type: ignore[assignment]
        self._tables = OfTypes(self._made, lambda tables: 0 if tables is None else tables.scalars.numel())
        self._known: tuple[tuple[int, ...], HarmonicTables | None] = (), None

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        model = potential.model
        return isinstance(model, DescriptorFitting) and isinstance(model.descriptor, DPA4C)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of dpa4c alone, and this is {potential.kind}"
        if potential.device.type != "cpu":
            return "it is for CPUs"
        return (
            "the radial nets are evaluated exactly (spline=False)"
            if potential.spline_tolerance is None
            else None
        )

    def _made(self, types: Types) -> HarmonicTables | None:
        """Of systems of these types; None where the nets have to run."""
        model: Any = self.potential.model
        kinds = range(len(model.type_map)) if types is None else types
        tolerance = self.potential.spline_tolerance
        assert tolerance is not None
        found = harmonic_tables(model.descriptor, tuple(kinds), tolerance, _MOST_NUMBERS)
        if found is None:
            warnings.warn(
                f"there are no splines for {len(kinds)} types within {tolerance:.1e}: the radial nets run on every "
                "pair of neighbours instead",
                stacklevel=2,
            )
        return found

    def _run_size(self, near: Neighborhood) -> int | None:
        if is_exported():  # a program is for any types and number of atoms: the nets run
            return None
        types = self.potential.present(near.system)
        kinds = tuple(range(near.ntypes)) if types is None else types
        self._known = kinds, self._tables(types)
        if self._known[1] is None:
            return super()._run_size(near)
        rows = self._known[1].others.shape[1]
        return max(1, _NUMBERS // (rows * (self._descriptor.options.lmax + 1) ** 2))

    def _in_runs(self, near: Neighborhood, size: int, step: Step) -> Any:
        """By atoms in the order of their types, so that those of a run are of few."""
        near, report = self.judged(near, step)
        step = dataclasses.replace(step, check=False)
        order = torch.argsort(near.types, stable=True)
        if bool((order.diff() > 0).all()):
            return super()._in_runs(near, size, step)
        answers, _, gradient = super()._in_runs(near.of_atoms(order), size, step.of_atoms(order))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return {name: value[back] for name, value in answers.items()}, report, gradient[back]

    def _answered(self, near: Neighborhood, step: Step) -> Answers:
        kinds, tables = self._known
        if tables is None:
            return super()._answered(near, step)
        model: Any = self.potential.model
        d = self._descriptor
        near = near.within(min(near.cutoff, d.cutoff)).without(model.absent_pairs)
        moments = self._moments(near, kinds, tables)
        features = d.scaled(d.described(moments, near.centers))
        return model.finish(model.fitted(features, near, step.fparam, step.aparam), near.types)

    def _moments(self, near: Neighborhood, kinds: tuple[int, ...], tables: HarmonicTables) -> Moments:
        d = self._descriptor
        index = torch.tensor(kinds)
        place = torch.zeros(near.ntypes + 1, dtype=torch.int32)
        place[index] = torch.arange(len(kinds), dtype=torch.int32)
        place[-1] = -1  # of virtual atoms, by the index -1
        types = place[near.types.long()]
        absent = d.excluded if near.absent_pairs is None else d.excluded | near.absent_pairs
        listed = near.counts[:, index], types, absent[index][:, index]
        settings = d.cutoff, tables.intervals, d.options.lmax
        scalar, other = _Sums.apply(near.displacements, listed, settings, tables)
        width = d.options.channels
        degrees = [scalar[:, None, :width]]
        for degree, channels in enumerate(d.invariants.channels[1:], 1):
            degrees.append(other[:, degree**2 - 1 : (degree + 1) ** 2 - 1, :channels])
        return Moments.of_sums(degrees, scalar[:, width:])
