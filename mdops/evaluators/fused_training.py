"""A training step's passes by one op on the CPU (`mdops.ops.spline_training`)."""

from typing import Any

import torch

from mdops.evaluators import fused
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.splined import LayerTensors, SplineModel, SplineModels
from mdops.models.neighborhood import NeighborReport
from mdops.ops import NeighborList, spline_training
from mdops.system import System


class FusedTraining(Evaluator):
    """Answers that are differentiable in the model's weights, not in the positions."""

    name = "fused training"
    summary = "one op for all that comes after the splines' tables"
    cost = "separate operations take one and a half times as long, or twice"
    devices = ("cpu",)

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        assert potential.grid is not None
        self._models = SplineModels(potential)
        self.r_min = potential.grid.r_min

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if potential.device.type != "cpu":
            return f"the op runs on CPUs, and the model is on {potential.device}"
        problem = fused.Fused.why_not(potential) or why_not_truncated(potential)
        if problem is not None:
            return problem
        fitting: Any = potential.model.fitting
        name = fitting.net(0).layers[0].activation_name
        if name.lower() != "tanh":
            return f"the op trains fitting nets of tanh, and this has {name}"
        return "energies in vacuum (atom_ener) are taken away" if any(fitting.vacuum) else None

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
    ) -> tuple[Answers, NeighborReport]:
        s = self._models.of(self._models.types(system))
        has_energy = s.model.has_energy[s.kinds.index].double()
        nets = s.fitting_layers()
        energy, forces, virial, within, nearest, _ = spline_training(
            *fused.atoms_and_pairs(s, system, neighbors),
            *fused.norms(s),
            s.padding(system),
            fused.model_table(s, s.table()),
            _tensors(nets),
            s.extra_inputs(system, fparam, aparam),
            has_energy[: len(nets)],
            has_energy * (s.fitting.bias + s.model.out_bias)[s.kinds.index],
            *fused.shape(s),
        )
        report = NeighborReport((s.occupied_slots(within),), nearest)
        if check:
            self.potential.check_neighbors(report, system, neighbors, self.r_min)
        return {"atom_energy": energy, "forces": forces, "virial": virial}, report


def why_not_truncated(potential: EvaluationContext) -> str | None:
    """A reason not to train without dropping neighbours."""
    if potential.overflow == "truncate":
        return "frames have more neighbours than sel, and the farthest have to be dropped"
    return None


def _tensors(nets: list[list[LayerTensors]]) -> list[torch.Tensor]:
    """The weights of each net, in the order of the op's argument nets."""
    tensors: list[torch.Tensor] = []
    for *hidden, last in nets:
        for layer in hidden:
            tensors += fused.filled_in(layer)
        tensors += fused.filled_in(last)[:2]
    return tensors
