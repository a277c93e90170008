"""Plain autograd over a model's `forward`: for every kind, and as often differentiable as the kind is."""

import dataclasses
from contextlib import nullcontext

import torch

from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.memory import keep_freed_memory
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.nn.net import input_gradient_alone
from mdops.ops import NeighborList, pair_forces
from mdops.system import System
from mdops.tables.angle_knots import angle_descriptors


class Autograd(Evaluator):
    """Takes every model: last in the lists of evaluators, and differentiable to any order."""

    energies_alone = False
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

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
        forces: bool = True,
        create_graph: bool = False,
        atom_virial: bool = False,
        weight: torch.Tensor | None = None,
    ) -> tuple[Answers, NeighborReport]:
        """As of `Evaluator`, differentiable in positions, cell, parameters and weights where gradients are enabled.

        Args:
            forces: give forces and virial, too, of the output that has them; create_graph: make them differentiable.
            atom_virial: give that, too.
            weight: (N,), float64, of each atom in the sum of energies that forces and virials are of; 1 by default.
        """
        forces = forces and self._derived is not None
        trains = torch.is_grad_enabled()
        once = forces and not trains and not create_graph and not self._shape
        with torch.set_grad_enabled((forces or trains) and not once):
            near = self.neighborhood(system, neighbors)
        size = self._run_size(near) if once else None
        if size is not None and (size < system.atoms or self._always_runs):
            answers, report, gradient = self._in_runs(near, size, neighbors, fparam, aparam, check, weight)
            return answers | forces_and_virials(gradient, near, atom_virial=atom_virial), report
        near = dataclasses.replace(near, first_derivative_only=once)
        alone = input_gradient_alone() if once else nullcontext()
        with torch.set_grad_enabled(forces or trains), alone:
            if forces and not near.displacements.requires_grad:
                near.displacements.requires_grad_()
            answers, report = self.atomic_answers(near, neighbors, fparam, aparam, check, trains)
            if not forces:
                return answers, report
            sums = self._sums(answers, weight)
            gradients = [
                torch.autograd.grad(
                    one,
                    near.displacements,
                    create_graph=create_graph,
                    retain_graph=trains or k + 1 < len(sums),
                    materialize_grads=True,
                )[0]
                for k, one in enumerate(sums)
            ]
        if not trains and not create_graph:
            answers = {name: value.detach() for name, value in answers.items()}
        with torch.set_grad_enabled(create_graph and trains):
            found = [forces_and_virials(one, near, atom_virial=atom_virial) for one in gradients]
            return answers | self._of_components(found), report

    @property
    def _shape(self) -> tuple[int, ...]:
        """Of the output that has derivatives."""
        return () if self._derived is None else self._derived.shape

    def _sums(self, answers: Answers, weight: torch.Tensor | None) -> list[torch.Tensor]:
        """Of each component of the output that has derivatives, over all atoms."""
        assert self._derived is not None
        values = answers[f"atom_{self._derived.name}"]
        components = values.flatten(1).unbind(1) if self._shape else (values,)
        return [_weighted_sum(one, weight) for one in components]

    def _of_components(self, found: list[Answers]) -> Answers:
        """The derivatives of all components, which stand behind the atom's or the system's number."""
        if not self._shape:
            return found[0]
        stacked = {
            name: torch.stack([one[name] for one in found], 1).unflatten(1, self._shape) for name in found[0]
        }
        # Of one component the virial is not symmetric, and DeePMD-kit has the force's component first.
        return stacked | {"virial": stacked["virial"].transpose(-1, -2)}

    def _in_runs(
        self,
        near: Neighborhood,
        size: int,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        weight: torch.Tensor | None = None,
    ) -> tuple[Answers, NeighborReport, torch.Tensor]:
        """Energies, and their gradient by the pair vectors, of so many atoms after so many: an atom's energy depends on
        its own pair vectors alone, and what is kept for the gradient is no more than one run's."""
        near, report = self.judged(near, neighbors, check)
        parts: list[Answers] = []
        gradients: list[torch.Tensor] = []
        for first in range(0, near.system.atoms, size):
            run = slice(first, first + size)
            part = near.of_atoms(run)
            part = dataclasses.replace(
                part, displacements=part.displacements.detach(), first_derivative_only=True
            )
            own = aparam[run] if aparam is not None and aparam.dim() > 1 else aparam
            with torch.enable_grad(), input_gradient_alone():
                part.displacements.requires_grad_()
                answers = self._answered(part, fparam, own)
                energy = _weighted_sum(answers["atom_energy"], None if weight is None else weight[run])
                gradients += torch.autograd.grad(energy, part.displacements, materialize_grads=True)
            parts.append({name: value.detach() for name, value in answers.items()})
        merged = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return merged, report, torch.cat(gradients)

    @property
    def _always_runs(self) -> bool:
        """Whether a simulation's atoms go in runs, however few there are."""
        return False

    def _run_size(self, near: Neighborhood) -> int | None:
        """Of how many atoms passes of a simulation are done together; None: of all."""
        return self.potential.model.atoms_at_once(near)

    def _answered(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> Answers:
        """Of a run of atoms."""
        return self.potential.model(near, fparam, aparam)

    def neighborhood(self, system: System, neighbors: NeighborList) -> Neighborhood:
        """The pairs of a list, as the model sees them."""
        return Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)

    def atomic_answers(
        self,
        near: Neighborhood,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        trains: bool,
    ) -> tuple[Answers, NeighborReport]:
        """Energies, without their derivatives; `trains`: gradients of the weights are wanted."""
        near, report = self.judged(near, neighbors, check)
        return self.potential.model(near, fparam, aparam), report

    def judged(
        self, near: Neighborhood, neighbors: NeighborList, check: bool
    ) -> tuple[Neighborhood, NeighborReport]:
        """The neighbours, truncated if need be, and what there is of them."""
        report = near.report(self.potential.neighbors)
        if check and self.potential.check_neighbors(report, near.system, neighbors, self.r_min):
            near = self.potential.truncated(near)
        return near, report


def forces_and_virials(gradient: torch.Tensor, near: Neighborhood, *, atom_virial: bool) -> Answers:
    """What follows from an energy's gradient by the pair vectors, (N, K, 3)."""
    forces, virial, of_atoms = pair_forces(
        gradient,
        near.displacements,
        near.system.batch,
        near.neighbors,
        near.system.count,
        of_atoms=atom_virial,
    )
    answers = {"forces": forces, "virial": virial}
    # DeePMD-kit has the force's component first (the sum over atoms is symmetric).
    return answers | {"atom_virial": of_atoms.transpose(1, 2)} if atom_virial else answers


def _weighted_sum(energies: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return energies.sum() if weight is None else (energies * weight).sum()
