"""DPA-1 with layers of attention or sums to higher degrees: splines of the embedding nets, layers and sums as one op
each; hybrids with it."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Evaluator, Found, Step, forces_and_virials
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.evaluators.nets import PackedNets
from mdops.evaluators.other_parts import AttentionSums, NonRadialParts
from mdops.evaluators.spline_sum import SplineSum
from mdops.evaluators.splined import SplineModel, SplineModels
from mdops.models.contract import Descriptor
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import input_gradient_alone
from mdops.ops.neighbor_rows import NeighborRows
from mdops.tables.grids import attentions_of, sums_of


class FusedAttention(Evaluator):
    """Rows of the neighbours by splines, each layer of attention, and their sums as one op each way; then the net.
    Other parts of a hybrid go by spline moments, or by their own operations.

    Atoms are taken in runs, each from its neighbours to the gradient of its energy: what is kept for the gradient is
    one run's, which stays in a CPU's cache. Sums without layers keep little: they are made for all atoms before, and
    get their gradient after, the runs. Atoms may have weights.
    """

    name = "fused attention"
    summary = "splines of the embedding nets, one op a layer of attention, sums over neighbours, then the net"
    cost = "the embedding nets run on every pair of neighbours instead, by PyTorch's operations"
    packs_weights = True
    weighs = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        model: Any = potential.model
        self._model, self.others = model, NonRadialParts(potential, _others(potential))
        self._nets = PackedNets(potential) if PackedNets.why_not(potential) is None else None
        self._models = SplineModels(potential) if _sums(potential) else None
        self._splines = None if self._models is None else OfTypes(self._splines_for)
        self._alone = self.others.sums_alone()
        captures = model.captures if self._alone else self._is_sync_free()
        self.captures = potential.device.type == "cuda" and captures

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return isinstance(potential.model, DescriptorFitting) and bool(attentions_of(potential.model))

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of dpa1 with layers of attention or lmax above 1, and this is {potential.kind}"
        problem = potential.why_no_attention_spline
        if problem is not None:
            return problem
        problems = [AttentionSums.why_not(potential, one) for one in attentions_of(potential.model)]
        return None if None in problems else problems[0]

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        if len(potential.model.descriptors) == 1:
            return None
        sums = dict.fromkeys(part.kind for part in _sums(potential))
        words = NonRadialParts(potential, _others(potential)).words()
        return f"({', '.join(sums)}: spline moments; {words})" if sums else f"({words})"

    def answer(self, step: Step) -> Found | None:
        types = self.potential.present(step.system)
        near = self.neighborhood(step.system, step.neighbors).without(self._model.absent_pairs)
        slices = self.others.runs(near)
        parts = [near if len(slices) == 1 else near.of_atoms(run) for run in slices]
        report, rows = self._report(near, parts, types)
        if self.drops(step, report):
            return None
        energies: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        sums = None
        if self._models is not None and self._splines is not None:
            sums = _Sums(self._splines(self._models.types(step.system)), near)
        for run, part, known in zip(slices, parts, rows, strict=True):
            with torch.enable_grad(), input_gradient_alone():
                d = part.displacements.detach().requires_grad_()
                features = self._features(part.with_pairs(d), types, known, sums, run)
            energy, by_features = self._energies(features.detach(), part, step.of_atoms(run))
            leaves = d, *(() if sums is None else sums.leaves)
            gradient, *of_sums = torch.autograd.grad(features, leaves, by_features, materialize_grads=True)
            energies.append(energy)
            gradients.append(gradient)
            if sums is not None:
                sums.gradients.append(of_sums)
        answers = {"atom_energy": energies[0] if len(energies) == 1 else torch.cat(energies)}
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        if sums is not None:
            gradient = gradient + sums.gradient()
        return answers | forces_and_virials(gradient, near, atom_virial=step.atom_virial), report

    def instead(self) -> Evaluator:
        return Autograd(self.potential)

    def _splines_for(self, types: Types) -> tuple[SplineModel, list[torch.Tensor]]:
        """With the tables of its sums."""
        assert self._models is not None
        model = self._models.of(types)
        return model, model.fixed_tables()

    def _is_sync_free(self) -> bool:
        """Whether a step of a hybrid never waits for a GPU."""
        if not (self.others.captures and self._model.fitting.captures):
            return False
        return self._models is None or SplineModel(self.potential).counts_none

    def _report(
        self, near: Neighborhood, parts: Sequence[Neighborhood], types: tuple[int, ...] | None
    ) -> tuple[NeighborReport, list[NeighborRows] | list[None]]:
        """And, for each run of atoms, the rows of the descriptor's only part, which it is made of then."""
        tables = None if self._alone is None else self._alone.tables_of(types)
        if self._alone is None or tables is None:
            return near.report(self.potential.neighbors), [None for _ in parts]
        rows = [self._alone.rows(part, tables) for part in parts]
        within, nearest = (
            found[0] if len(rows) == 1 else torch.cat(found)
            for found in ([of.within for of in rows], [of.nearest for of in rows])
        )
        return NeighborReport((within[:, None],), nearest), rows

    def _features(
        self,
        near: Neighborhood,
        types: tuple[int, ...] | None,
        rows: NeighborRows | None,
        sums: "_Sums | None",
        run: slice,
    ) -> torch.Tensor:
        """(N, width) of the descriptor, differentiable in the pair vectors and the leaves of `sums`."""
        if sums is None:
            found = [self.others.of(part, near, types, rows) for part in self.others.parts]
            return found[0] if len(found) == 1 else torch.cat(found, 1)
        own = iter(sums.of(run))
        members = sums.model.members
        return torch.cat(
            [
                next(own) if isinstance(part, SplineSum) else self.others.of(part, near, types)
                for part in members
            ],
            1,
        )

    def _energies(
        self, features: torch.Tensor, near: Neighborhood, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energies (N,) as answers have them, and the gradient of their weighted sum by the features."""
        if self._nets is not None:
            return self._nets.energies(features, near.system, step)
        with torch.enable_grad(), input_gradient_alone():
            leaf = features.requires_grad_()
            energy = self._model.fitting(leaf, near, step.fparam, step.aparam)["energy"]
            counted = torch.where(self._model.has_energy[near.centers] & (near.types >= 0), energy, 0.0)
            summed = counted if step.weight is None else counted * step.weight
            (gradient,) = torch.autograd.grad(summed.sum(), leaf)
        return self._model.finish({"energy": energy.detach()}, near.types)["atom_energy"], gradient


class _Sums:
    """The features of a step's sums, for all atoms at once, and the way back from their gradient in runs.

    Attributes:
        leaves: what a run takes of them; gradients: by these, of each run.
    """

    def __init__(self, splines: tuple[SplineModel, list[torch.Tensor]], near: Neighborhood) -> None:
        self.model, tables = splines
        self.leaves: list[torch.Tensor] = []
        self.gradients: list[list[torch.Tensor]] = []
        with torch.enable_grad(), input_gradient_alone():
            self._pairs = near.displacements.detach().requires_grad_()
            near = near.with_pairs(self._pairs)
            self._features = [
                part.descriptor.contract(
                    part.t(part.moments(near, self.model.absent(part, near))[0], table, near.system), near
                ).values
                for part, table in zip(self.model.sums, tables, strict=True)
            ]

    def of(self, run: slice) -> list[torch.Tensor]:
        """Of some atoms: the leaves."""
        self.leaves = [values.detach()[run].requires_grad_() for values in self._features]
        return self.leaves

    def gradient(self) -> torch.Tensor:
        """By the pair vectors."""
        grads = [torch.cat(of_runs) for of_runs in zip(*self.gradients, strict=True)]
        (found,) = torch.autograd.grad(self._features, self._pairs, grads)
        return found


def _others(potential: EvaluationContext) -> list[Descriptor]:
    """The parts that are not plain sums by splines."""
    sums = _sums(potential)
    return [part for part in potential.model.descriptors if part not in sums]


def _sums(potential: EvaluationContext) -> list[Descriptor]:
    pairs = zip(sums_of(potential.model), potential.grids, strict=False)  # there may be no grids
    return [one.descriptor for one, grid in pairs if grid is not None]
