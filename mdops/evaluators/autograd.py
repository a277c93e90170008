"""Plain autograd over a model's `forward`: for every kind, and as often differentiable as the kind is."""

import dataclasses
from contextlib import nullcontext

import torch

from mdops.evaluators.base import Answers, Evaluator, Found, Step, forces_and_virials
from mdops.evaluators.context import EvaluationContext
from mdops.memory import keep_freed_memory
from mdops.models.angles import AngleDescriptor
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import input_gradient_alone
from mdops.tables.angle_knots import angle_descriptors


class Autograd(Evaluator):
    """Takes every model: last in the lists of evaluators, and differentiable in positions, cell, parameters and
    weights, to any order, where gradients are enabled."""

    energies_alone = False
    differentiable = True
    weighs = True
    always_runs = False  # whether a simulation's atoms go in runs, however few there are
    name = "autograd"
    summary = "PyTorch's operations, with derivatives by autograd"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.captures = potential.device.type == "cuda" and potential.model.captures
        self._derived = next((output for output in potential.model.outputs if output.differentiated), None)
        # Descriptors of angles go by their splines, whatever the other parts do.
        knots = [d.knots for d in angle_descriptors(potential.model)]
        self.r_min = max((known.r_min for known in knots if known is not None), default=0.0)
        if potential.reach > 1:  # layers of messages keep megabytes for each gradient, in every step anew
            keep_freed_memory()

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        kinds = [d.kind for d in angle_descriptors(potential.model) if d.knots is not None]
        return f"({', '.join(dict.fromkeys(kinds))}: splines of the angle)" if kinds else None

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        return None

    def answer(self, step: Step) -> Found:
        forces, graph = step.forces and self._derived is not None, step.create_graph
        trains = torch.is_grad_enabled()
        shape = () if self._derived is None else self._derived.shape
        once = forces and not trains and not graph and not shape
        with torch.set_grad_enabled((forces or trains) and not once):
            near = self.neighborhood(step.system, step.neighbors)
        spins = near.system.spins
        if spins is not None and forces and not spins.requires_grad:
            spins = spins.detach().requires_grad_()
            near = dataclasses.replace(near, system=dataclasses.replace(near.system, spins=spins))
        size = self._run_size(near) if once else None
        if size is not None and (size < near.system.atoms or self.always_runs):
            answers, report, gradient = self._in_runs(near, size, step)
            return answers | forces_and_virials(gradient, near, atom_virial=step.atom_virial), report
        near = dataclasses.replace(near, first_derivative_only=once)
        alone = input_gradient_alone() if once else nullcontext()
        with torch.set_grad_enabled(forces or trains), alone:
            if forces and not near.displacements.requires_grad:
                near.displacements.requires_grad_()
            answers, report = self.atomic_answers(near, step, trains)
            if not forces:
                return answers, report
            assert self._derived is not None
            values = answers[f"atom_{self._derived.name}"]
            components = values.flatten(1).unbind(1) if shape else (values,)
            sums = [_weighted_sum(one, step.weight) for one in components]
            leaves = near.displacements if spins is None else (near.displacements, spins)
            gradients = [
                torch.autograd.grad(
                    one,
                    leaves,
                    create_graph=graph,
                    retain_graph=trains or k + 1 < len(sums),
                    materialize_grads=True,
                )
                for k, one in enumerate(sums)
            ]
        if not trains and not graph:
            answers = {name: value.detach() for name, value in answers.items()}
        with torch.set_grad_enabled(graph and trains):
            found = [forces_and_virials(one[0], near, atom_virial=step.atom_virial) for one in gradients]
            if spins is not None:  # which do not turn with the cell: the virial is not symmetric
                for own, (_, by_spins) in zip(found, gradients, strict=True):
                    own |= {"force_mag": -by_spins, "virial": own["virial"].transpose(1, 2)}
            return answers | (_of_components(found, shape) if shape else found[0]), report

    def _in_runs(
        self, near: Neighborhood, size: int, step: Step
    ) -> tuple[Answers, NeighborReport, torch.Tensor]:
        """Energies, and their gradient by the pair vectors, of so many atoms after so many: an atom's energy depends on
        its own pair vectors alone, and what is kept for the gradient is no more than one run's."""
        near, report = self.judged(near, step)
        parts: list[Answers] = []
        gradients: list[torch.Tensor] = []
        for first in range(0, max(1, near.system.atoms), size):  # of no atoms one, too
            run = slice(first, first + size)
            own, part = step.of_atoms(run), near.of_atoms(run)
            part = dataclasses.replace(
                part, displacements=part.displacements.detach(), first_derivative_only=True
            )
            with torch.enable_grad(), input_gradient_alone():
                part.displacements.requires_grad_()
                answers = self._answered(part, own)
                energy = _weighted_sum(answers["atom_energy"], own.weight)
                gradients += torch.autograd.grad(energy, part.displacements, materialize_grads=True)
            parts.append({name: value.detach() for name, value in answers.items()})
        merged = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return merged, report, torch.cat(gradients)

    def _run_size(self, near: Neighborhood) -> int | None:
        """Of how many atoms passes of a simulation are done together; None: of all."""
        return self.potential.model.atoms_at_once(near)

    def _answered(self, near: Neighborhood, step: Step) -> Answers:
        """Of a run of atoms."""
        return self.potential.model(near, step.fparam, step.aparam)

    def atomic_answers(self, near: Neighborhood, step: Step, trains: bool) -> Found:
        """Energies, without their derivatives; `trains`: gradients of the weights are wanted."""
        near, report = self.judged(near, step)
        return self.potential.model(near, step.fparam, step.aparam), report

    def judged(self, near: Neighborhood, step: Step) -> tuple[Neighborhood, NeighborReport]:
        """The neighbours, truncated if need be, and what there is of them."""
        report = near.report(self.potential.neighbors)
        return (self.potential.truncated(near) if self.drops(step, report) else near), report


class AngleMoments(Autograd):
    """Descriptors of pairs of neighbours take the way by splines of the angle themselves where they have knots, in
    models of several parts, too (`mdops.models.angles`); this is its name where there is nothing else."""

    name = "angle moments"
    summary = "sums over pairs of neighbours by splines of the angle, then PyTorch"
    cost = "the embedding nets run on every pair of neighbours instead, which takes ten to twenty-five times as long"

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        descriptors = potential.model.descriptors
        return bool(descriptors) and all(isinstance(d, AngleDescriptor) for d in descriptors)

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        return None  # the summary says it

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of se_e3 or se_e3_tebd alone, and this is {potential.kind}"
        return potential.why_no_angle_spline

    def atomic_answers(self, near: Neighborhood, step: Step, trains: bool) -> Found:
        model = self.potential.model
        if isinstance(model, DescriptorFitting) and isinstance(model.descriptor, AngleDescriptor):
            d, own = model.descriptor, near.without(model.absent_pairs)
            features, report = d.with_report(own)
            if report is not None:
                if self.drops(step, report):
                    own = self.potential.truncated(own).select(d.sel, mixed=d.mixed)
                    features = d(own)
                answers = model.fitted(features, own, step.fparam, step.aparam)
                return model.finish(answers, near.types), report
        return super().atomic_answers(near, step, trains)


def _of_components(found: list[Answers], shape: tuple[int, ...]) -> Answers:
    """The derivatives of all components of an output, which stand behind the atom's or the system's number."""
    stacked = {name: torch.stack([one[name] for one in found], 1).unflatten(1, shape) for name in found[0]}
    # Of one component the virial is not symmetric, and DeePMD-kit has the force's component first.
    return stacked | {"virial": stacked["virial"].transpose(-1, -2)}


def _weighted_sum(energies: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return energies.sum() if weight is None else (energies * weight).sum()
