"""A training step that begins at the spline moments, with passes of large steps through the nets: on GPUs.

Positions do not change in training, so that only the weights need a graph (training.md, "A step").
"""

from typing import Any

import torch

from mdops.evaluators import moment_energy
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.fused_training import why_not_truncated
from mdops.evaluators.low_bit import why_not_exact
from mdops.evaluators.splined import SplineModel, trained_types, unfused_evaluator
from mdops.models.ener import EnergyFitting
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.ops import NeighborList, pair_forces
from mdops.system import System
from mdops.tables.spline import collocation_on


class MomentTraining(Evaluator):
    """Answers that are differentiable in the model's weights, not in the positions."""

    name = "moments"
    summary = "moments without a graph, written-out passes through the nets, and the ops from there to forces"
    cost = "autograd records every operation of a step, which takes one and a third times as long or more"
    captures = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        s = self._splines = SplineModel(potential, trained_types(potential))
        self.r_min = s.grid.r_min
        # Held for CUDA graphs, which read it: other grids may take its place in the cache.
        self._held = collocation_on(s.grid.intervals, s.descriptor.mean.device, s.descriptor.mean.dtype)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        problem = SplineModel.why_not(potential) or why_not_truncated(potential) or why_not_exact(potential)
        if problem is not None:
            return problem
        model: Any = potential.model
        if not bool(model.has_energy.all()):
            return "types are excluded"
        if model.descriptor.constants() is not None and model.fitting.net(0).layers[0].adds_input:
            return "the first layer of the fitting net adds its input, of which the type embedding is a part"
        if not isinstance(model.fitting, EnergyFitting) or not moment_energy.supports(model.fitting):
            return "the passes are written for fitting nets of tanh with a linear layer at the end"
        return None

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
    ) -> tuple[Answers, NeighborReport]:
        if check and not self._splines.covers(self.potential.present(system)):
            separate = unfused_evaluator(self.potential)
            return separate(system, neighbors, fparam, aparam, check=check, create_graph=True)
        with torch.no_grad():
            near = Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)
            moments, report = self._splines.moments(near)
            if check:
                self.potential.check_neighbors(report, system, neighbors, self.r_min)
        energy, gradient = self._atom_energies(system, moments, fparam, aparam)
        gradient = self._splines.gradient(gradient, near)
        forces, virial, _ = pair_forces(
            gradient, near.displacements, system.batch, near.neighbors, system.count, of_atoms=False
        )
        return {"atom_energy": energy, "forces": forces, "virial": virial}, report

    def _atom_energies(
        self,
        system: System,
        moments: torch.Tensor,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energies (N,), float64, and dE/dA (N, F * B, 4 or 1) of every atom, net by net."""
        s, d = self._splines, self._splines.descriptor
        table = s.table() / d.slots
        extra = s.extra_inputs(system, fparam, aparam)
        bias = s.fitting.bias + s.model.out_bias
        atoms = system.atoms_of_types(d.ntypes)
        energy, gradient = moment_energy.moment_energy(
            s.nets,
            s.fitting_layers(),
            d.axis_neuron,
            table.flatten(1, 2),
            moments,
            extra,
            atoms if s.has_all else [atoms[t] for t in s.kinds.numbers],
        )
        kind = system.types.long().clamp(min=0)
        return torch.where(system.types >= 0, energy.double() + bias[kind], 0.0), gradient
