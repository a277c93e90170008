"""Plain autograd over a model's `forward`: for every kind, and as often differentiable as the kind is."""

import dataclasses
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from mdops.evaluators.base import Answers, Evaluator
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.nn.net import input_gradient_alone
from mdops.ops import NeighborList, pair_forces
from mdops.system import System

if TYPE_CHECKING:
    from mdops.potential import Potential


class Autograd(Evaluator):
    name = "autograd"
    summary = "the model's own PyTorch operations, and their derivatives by autograd"

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
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
    ) -> tuple[Answers, NeighborReport]:
        """As of `Evaluator`, differentiable in positions, cell, parameters and weights where gradients are enabled.

        Args:
            forces: give forces and virial, too; create_graph: make them differentiable.
            atom_virial: give (N, 3, 3), a pair's virial booked on the neighbour, as in DeePMD-kit.
        """
        trains = torch.is_grad_enabled()
        alone = nullcontext() if create_graph or trains else input_gradient_alone()
        with torch.set_grad_enabled(forces or trains), alone:
            near = self.neighborhood(system, neighbors)
            if forces and not near.displacements.requires_grad:
                near.displacements.requires_grad_()
            answers, report = self.respond(near, neighbors, fparam, aparam, check, trains)
            if not forces:
                return answers, report
            (gradient,) = torch.autograd.grad(
                answers["atom_energy"].sum(),
                near.displacements,
                create_graph=create_graph,
                retain_graph=trains,
                materialize_grads=True,
            )
        with torch.set_grad_enabled(create_graph and trains):
            total, virial, per_atom = pair_forces(
                gradient, near.displacements, system.batch, near.neighbors, system.count
            )
        answers |= {"forces": total, "virial": virial}
        if atom_virial:
            # DeePMD-kit has the force's component first (the sum over atoms is symmetric).
            answers["atom_virial"] = per_atom.transpose(1, 2)
        return answers, report

    def neighborhood(self, system: System, neighbors: NeighborList) -> Neighborhood:
        """The pairs of a list, as the model sees them."""
        return Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)

    def respond(
        self,
        near: Neighborhood,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        trains: bool,
    ) -> tuple[Answers, NeighborReport]:
        """Energies, without their derivatives; `trains`: gradients of the weights are wanted."""
        report = near.report(self.potential.neighbors)
        if check and self.potential.check_neighbors(report, near.system, neighbors, self.r_min):
            near = dataclasses.replace(near, truncates=True)
        return self.potential.model(near, fparam, aparam), report
