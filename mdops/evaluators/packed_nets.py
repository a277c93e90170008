"""The fitting nets of a model for features that are there: energies and their gradient by the features in one op."""

from typing import Any

import torch

from mdops.evaluators import fused
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.splined import SplineNets
from mdops.models.moments import TypeChoice
from mdops.ops import fitting_energy, hybrid_potential_pack, spline_potential_why_not
from mdops.ops.activation import CODES
from mdops.system import System


class PackedNets(SplineNets):
    """Of a standard model, for all of its types, with all parts of its descriptor as features that are given."""

    def __init__(self, potential: EvaluationContext) -> None:
        model: Any = potential.model
        self.members = list(model.descriptor.parts)
        self.has_all = True
        self.set_nets(model, TypeChoice.of(range(len(model.type_map)), model.out_bias.device))
        with torch.no_grad():
            packed = []
            for layers in self.fitting_layers(double=True):
                filled = [fused.filled_in(fused.cast(layer, potential.dtype)) for layer in layers]
                weights, biases, timesteps = (list(column) for column in zip(*filled, strict=True))
                packed.append(hybrid_potential_pack(weights, biases, timesteps, [], []))
            self._output = fused.scale_and_shift(self)
        self._packed = torch.stack(packed)
        self._no_weight = self._output[0].new_empty(0)
        hidden = self.fitting.net(0).layers[:-1]
        name, _, threshold = hidden[0].activation_name.lower().partition(":")
        self._shape: Any = (
            [layer.outputs for layer in hidden],
            [int(layer.adds_input) for layer in hidden],
            CODES[name],
            float(threshold or 3.0),
        )

    @staticmethod
    def why_not(potential: EvaluationContext) -> str | None:
        """Why a model's nets cannot be packed; None if they can."""
        problem = fused.why_not_net(potential)
        if problem is not None:
            return problem
        if potential.device.type not in ("cpu", "cuda"):
            return f"the op runs on CPUs and NVIDIA GPUs, and the model is on {potential.device}"
        net = potential.model.fitting.net(0)  # type: ignore[union-attr,operator]
        return spline_potential_why_not(
            net.layers[0].weight.flatten(),
            tables=1,
            intervals=1,
            width=1,
            axis=0,
            neurons=[layer.outputs for layer in net.layers[:-1]],
            extra=net.inputs - 1,
        )

    def energies(
        self,
        features: torch.Tensor,
        system: System,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        weight: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The energies (N,) of a system's atoms with these features (N, D), float64, as answers have them; and the
        gradient of the sum of weight_i (N,) times these by the features."""
        extra = self.extra_inputs(system, fparam, aparam)
        x = torch.cat([features, extra], 1) if extra.shape[1] else features
        given = self._no_weight if weight is None else weight
        energy, gradient = fitting_energy(x, system.types, self._packed, given, *self._output, *self._shape)
        return energy, gradient[:, : features.shape[1]]
