"""Plain autograd over a model's `forward`: for every kind of model, differentiable as often as the model is."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import torch

from mdops.evaluators.base import Answers, Evaluator, Found, Step, forces_and_virials
from mdops.evaluators.context import EvaluationContext
from mdops.memory import keep_freed_memory
from mdops.models.force_moments import with_moments
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import input_gradient_alone
from mdops.tables.angle_knots import angle_descriptors

T = TypeVar("T")
_Made = tuple[tuple[Answers, torch.Tensor | None], NeighborReport | None]  # the second: the gradient


class Autograd(Evaluator):
    """Takes every model: last in the lists of evaluators, and differentiable in positions, cell, parameters and
    weights, to any order, where gradients are enabled."""

    energies_alone = False
    differentiable = True
    weighs = True
    name = "autograd"
    summary = "PyTorch's operations, with derivatives by autograd"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._model = potential.model
        self.captures = potential.device.type == "cuda" and self._model.captures
        self._derived = next((output for output in self._model.outputs if output.differentiated), None)
        # Descriptors of angles use their splines, whatever the other parts do.
        knots = [d.knots for d in angle_descriptors(potential.model)]
        self.r_min = max((known.r_min for known in knots if known is not None), default=0.0)
        # Whether the descriptors' ops report on the neighbours.
        self._tells = isinstance(self._model, DescriptorFitting) and any(knots)
        if potential.reach > 1:  # message layers save megabytes for each gradient, anew in every step
            keep_freed_memory()

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        kinds = [d.kind for d in angle_descriptors(potential.model) if d.knots is not None]
        return f"({', '.join(dict.fromkeys(kinds))}: splines of the angle)" if kinds else None

    def is_simple(self, step: Step) -> bool:
        """Whether the answers are differentiated once, and only by the pair vectors: in simulations."""
        derives = step.forces and self._derived is not None and not self._derived.shape
        return derives and not step.create_graph and not torch.is_grad_enabled()

    def answer(self, step: Step) -> Found:
        forces = step.forces and self._derived is not None
        trains, once = torch.is_grad_enabled(), self.is_simple(step)
        with torch.set_grad_enabled((forces or trains) and not once):
            near = self.neighborhood(step.system, step.neighbors)
        if once:
            return self._in_runs(replace(near, matmul=self.potential.matmul), step)
        if step.atom_virial and self.potential.reach > 1:
            raise TypeError("atomic virials of models that pass messages have no graph: disable gradients")
        near = _with_spin_leaves(near) if forces else near
        spins = near.system.spins
        with torch.set_grad_enabled(forces or trains):
            if forces and not near.displacements.requires_grad:
                pairs = near.displacements.requires_grad_()
                # No leaf: a pass for weights alone then skips its gradient (`mdops.ops._register.is_wanted`).
                near = replace(near, displacements=pairs.view_as(pairs))
            answers, report = self._judged(
                near, step, lambda near: (self._model(near, step.fparam, step.aparam), self._told(near))
            )
            if self._derived is None or not forces:
                return answers, report
            values, shape = answers[self._derived.atom_name], self._derived.shape
            components = values.flatten(1).unbind(1) if shape else (values,)
            sums = [_weighted_sum(one, step.weight) for one in components]
            leaves = near.displacements if spins is None else (near.displacements, spins)
            asked: dict[str, Any] = {"create_graph": step.create_graph, "materialize_grads": True}
            gradients = [
                torch.autograd.grad(one, leaves, retain_graph=trains or k + 1 < len(sums), **asked)
                for k, one in enumerate(sums)
            ]
        if not trains and not step.create_graph:
            answers = {name: value.detach() for name, value in answers.items()}
        with torch.set_grad_enabled(step.create_graph and trains):
            found = [forces_and_virials(one[0], near, atom_virial=step.atom_virial) for one in gradients]
            if spins is not None:  # they do not rotate with the cell: the virial is not symmetric
                for own, (_, by_spins) in zip(found, gradients, strict=True):
                    own |= {"force_mag": -by_spins, "virial": own["virial"].transpose(1, 2)}
            return answers | (_of_components(found, shape) if shape else found[0]), report

    def _in_runs(self, near: Neighborhood, step: Step) -> Found:
        """By the gradient of all atoms at once, or in runs: there an atom's energy depends on its own pair vectors
        alone, and only one run's data is saved for the gradient."""
        atoms, own = near.system.atoms, self.own_atoms(near, step)
        size = self.run_size(near, own) or own

        def each(near: Neighborhood) -> _Made:
            if size == atoms:
                return self._run(near, step)
            runs = [slice(k, min(k + size, own)) for k in range(0, own, size)]
            made, told = zip(
                *(self._run(near.of_atoms(run), step.of_atoms(run)) for run in runs), strict=True
            )
            answers, gradients = zip(*made, strict=True)
            every = {name: _joined([of[name] for of in answers], atoms) for name in answers[0]}
            by_pairs = _joined([of for of in gradients if of is not None], atoms)
            return (every, by_pairs), NeighborReport.joined(told) if self._tells else None

        if step.atom_virial and self.potential.reach > 1:
            each = partial(with_moments, step, self._run)
        (answers, gradient), report = self._judged(near, step, each)
        if gradient is None:
            return answers, report
        found = forces_and_virials(gradient, near, atom_virial=step.atom_virial)
        if "force_mag" in answers:
            found["virial"] = found["virial"].transpose(1, 2)
        if "atom_virial" in answers:  # what messages add
            found["atom_virial"] += answers["atom_virial"]
        return answers | found, report

    def _run(self, near: Neighborhood, step: Step) -> _Made:
        """Answers and gradient of these atoms, and what the descriptors' ops report on their neighbours."""
        near = _with_spin_leaves(near.with_pairs(near.displacements.detach().requires_grad_()))
        with torch.enable_grad(), input_gradient_alone():
            return self._of_run(near, step), self._told(near)

    def _of_run(self, near: Neighborhood, step: Step) -> tuple[Answers, torch.Tensor | None]:
        """Answers for some atoms, without a graph, and the gradient of the sum of energies by their pair vectors; None
        if the answers are for all atoms, with forces and virials."""
        answers = self._model(near, step.fparam, step.aparam)
        assert self._derived is not None
        energy = _weighted_sum(answers[self._derived.atom_name], step.weight)
        leaves = tuple(x for x in (near.displacements, near.system.spins) if x is not None)
        gradient, *by_spins = torch.autograd.grad(energy, leaves, materialize_grads=True)
        answers = {name: value.detach() for name, value in answers.items()}
        return answers | ({"force_mag": -by_spins[0]} if by_spins else {}), gradient

    def own_atoms(self, near: Neighborhood, step: Step) -> int:
        """The number of atoms, from the first on, to evaluate."""
        return near.system.atoms if step.own is None or near.system.spins is not None else step.own

    def run_size(self, near: Neighborhood, atoms: int) -> int | None:
        """The number of atoms per run in a simulation, in runs of one size: a small one at the end would take a GPU
        nearly as long; None: all at once."""
        most = self._model.atoms_at_once(near)
        return None if most is None or most >= atoms else -(-atoms // -(-atoms // most))

    def _judged(
        self, near: Neighborhood, step: Step, make: Callable[[Neighborhood], tuple[T, NeighborReport | None]]
    ) -> tuple[T, NeighborReport]:
        """The result of `make` for the neighbours, without those that have to be dropped. If the descriptors' ops, and
        so `make`, report on them, they are judged after it."""
        if not self._tells:
            near, report = self.judged(near, step)
            return make(near)[0], report
        found, told = make(near)
        assert told is not None
        return (make(self.potential.truncated(near))[0] if self.drops(step, told) else found), told

    def _told(self, near: Neighborhood) -> NeighborReport | None:
        """What all descriptors' ops report, if they do; that of the longest cutoff knows the nearest neighbour."""
        if not self._tells:
            return None
        found = [(d.cutoff, near.reports.get(d) or near.report(d.neighbors)) for d in self._model.descriptors]
        _, widest = max(found, key=itemgetter(0))
        return NeighborReport(tuple(n for _, report in found for n in report.within), widest.nearest)

    def judged(self, near: Neighborhood, step: Step) -> tuple[Neighborhood, NeighborReport]:
        """The neighbours, truncated if need be, and their report."""
        report = near.report(self.potential.neighbors)
        return (self.potential.truncated(near) if self.drops(step, report) else near), report


def _with_spin_leaves(near: Neighborhood) -> Neighborhood:
    spins = near.system.spins
    return near if spins is None or spins.requires_grad else near.with_spins(spins.detach().requires_grad_())


def _joined(parts: list[torch.Tensor], atoms: int) -> torch.Tensor:
    """Rows of runs of atoms, and zeros for the atoms after them."""
    missing = atoms - sum(map(len, parts))
    return torch.cat([*parts, parts[0].new_zeros(missing, *parts[0].shape[1:])])


def _of_components(found: list[Answers], shape: tuple[int, ...]) -> Answers:
    """The derivatives of all components of an output, as dimensions after the atom or the system."""
    stacked = {name: torch.stack([one[name] for one in found], 1).unflatten(1, shape) for name in found[0]}
    # The virial of one component is not symmetric, and DeePMD-kit has the force's component first.
    return stacked | {"virial": stacked["virial"].transpose(-1, -2)}


def _weighted_sum(energies: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return energies.sum() if weight is None else (energies * weight).sum()
