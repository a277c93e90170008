"""se_e2_a with a fitting net of low-bit products, whose numbers are rounded and packed once."""

import copy
from typing import Any

import torch

from mdops.evaluators.autograd import forces_and_virials
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.moment_energy import DescriptorPasses, blank_moments, moment_rows
from mdops.evaluators.splined import SplineModel, unfused_evaluator
from mdops.models.ener import EnergyFitting
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.nn.net import Net
from mdops.nn.quantized import LowBitLayer
from mdops.ops import NeighborList
from mdops.system import System
from mdops.tables.grids import moment_descriptor, pair_masks


class LowBit(Evaluator):
    name = "low-bit"
    summary = "spline moments, products of low-bit numbers, and the ops from there to forces"
    cost = "PyTorch's operations on each atom's moments, and rounding of the weights in every step"
    packs_weights = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        s = self._splines = SplineModel(potential)
        self.r_min = s.grid.r_min
        self._fitting = frozen_fitting(s.fitting)
        self._tables = s.fixed_table().flatten(1, 2) / s.descriptor.slots

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineModel.knows(potential) and why_not_exact(potential) is not None

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if why_not_exact(potential) is None:
            return "the fitting net's products are not of low-bit numbers"
        problem = SplineModel.why_not(potential)
        if problem is not None:
            return problem
        model: Any = potential.model
        d = moment_descriptor(model)
        if d is None or d.plain or d.mixed or d.constants() is not None:
            return f"only models of se_e2_a have it, and this is {potential.kind}"
        return "types or pairs of types are excluded" if pair_masks(model)[0].any() else None

    @torch.no_grad()
    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
        atom_virial: bool = False,
    ) -> tuple[Answers, NeighborReport]:
        s = self._splines
        near = Neighborhood.of(system, neighbors, self.potential.cutoff, self.potential.dtype)
        moments, report = s.moments(near)
        if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
            # Which drops neighbours.
            return unfused_evaluator(self.potential)(
                system, neighbors, fparam, aparam, atom_virial=atom_virial
            )
        energy, gradient = self._energies(system, moments, fparam, aparam)
        gradient = s.gradient(gradient, near)
        answers = s.model.finish({"energy": energy}, system.types)
        return {**answers, **forces_and_virials(gradient, near, atom_virial=atom_virial)}, report

    def _energies(
        self,
        system: System,
        moments: torch.Tensor,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energies (N,), float64, without the model's bias, and dE/dA (N, ntypes * B, 4), of every atom."""
        s = self._splines
        extra = self._fitting.extra_inputs(system.batch, system.count, fparam, aparam)
        kinds = system.atoms_of_types(s.descriptor.ntypes)
        energy = moments.new_zeros(len(moments), dtype=torch.float64)
        gradient = blank_moments(moments, kinds)
        for kind, index in enumerate(kinds):
            passes = DescriptorPasses(self._tables[kind], s.descriptor.axis_neuron)
            features = passes.forward(moment_rows(moments, index))
            value, slope = self._fitting.value_and_gradient(kind, features, extra[index])
            energy[index] = value
            rows = passes.backward(slope * s.model.has_energy[kind])
            gradient[index] = rows.unflatten(0, (-1, 4)).transpose(1, 2)
        return energy, gradient


def why_not_exact(potential: EvaluationContext) -> str | None:
    """Why evaluators whose fitting nets multiply floating-point numbers cannot have this one; None if they can."""
    scheme = potential.scheme
    if scheme is None or scheme.inputs is None:
        return None
    return f"the fitting net's products are of low-bit numbers ({scheme.name})"


@torch.no_grad()
def frozen_fitting(fitting: EnergyFitting) -> EnergyFitting:
    """A copy that computes the same with the numbers of now, and has gradients by its input alone."""
    found = copy.deepcopy(fitting)
    for k, net in enumerate(found.nets.nets):
        found.nets[k] = Net(
            layer.frozen() if isinstance(layer, LowBitLayer) else layer for layer in net.layers
        )
    return found.requires_grad_(False)
