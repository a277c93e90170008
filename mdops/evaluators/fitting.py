"""The fitting nets of a standard model as one op, or why an op cannot run them."""

from typing import Any

import torch

from mdops.evaluators.base import Evaluator, Step
from mdops.evaluators.context import EvaluationContext
from mdops.models.ener import EnergyFitting
from mdops.models.net_fitting import NetFitting
from mdops.models.standard import DescriptorFitting
from mdops.ops import fitting_energy, hybrid_potential_pack
from mdops.ops.activation import CODES
from mdops.system import System
from mdops.tables.grids import moment_descriptor, sums_of
from mdops.tables.spline_model import SplineModel

_MOST_LAYERS = 16


class PackedFitting:
    """The fitting nets of all types, packed for the op that gives both energies and their gradient."""

    def __init__(self, nets: SplineModel) -> None:
        self._nets, self._packed = nets, nets.packed(hybrid_potential_pack, [], [])
        self._output = nets.scale_and_shift()
        self._no_weight = self._output[0].new_empty(0)

    @classmethod
    def of(cls, potential: EvaluationContext) -> "PackedFitting | None":
        """Those of a standard model of energies; None for other models, or if the nets cannot be packed."""
        model = potential.model
        is_standard = isinstance(model, DescriptorFitting) and potential.answers_energies
        if not is_standard or why_not_net(potential):
            return None
        nets = SplineModel(potential, grids=[None for _ in sums_of(model)])
        return cls(nets) if nets.why_not is None else None

    def energies(
        self, features: torch.Tensor, system: System, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The energies (N,), float64, of a system's atoms with these features (N, D), as in answers; and the gradient
        by the features of their sum with weight_i (N,). `step` has these atoms' parameters."""
        extra = self._nets.extra_inputs(system, step.fparam, step.aparam)
        x = torch.cat([features, extra], 1) if extra.shape[1] else features
        weight = self._no_weight if step.weight is None else step.weight
        nets = self._packed, weight, *self._output, *self._nets.shape
        energy, gradient = fitting_energy(x, system.types_without_ghosts, *nets)
        return energy, gradient[:, : features.shape[1]]


def has_sums(potential: EvaluationContext) -> bool:
    """Whether it has a standard model with descriptors of sums."""
    return isinstance(potential.model, DescriptorFitting) and bool(sums_of(potential.model))


def is_alone(potential: EvaluationContext) -> bool:
    """Whether such a descriptor is its only one."""
    return moment_descriptor(potential.model) is not None


class OfOneSum(Evaluator):
    """Base of evaluators for models of one descriptor of sums over neighbours."""

    made_for = "models of one descriptor of sums over neighbours"

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return is_alone(potential)


def why_not_net(potential: EvaluationContext, *, first_may_add: bool = False) -> str | None:
    """Why an op cannot run a model's fitting net; None if it can. `first_may_add`: whether the first layer may add its
    input."""
    fitting: Any = potential.model.fitting
    if not isinstance(fitting, EnergyFitting):
        return f"the op knows the fitting ener, and this is {fitting.kind}"
    return why_not_exact(potential) or why_not_layers(fitting, first_may_add=first_may_add)


def why_not_layers(fitting: NetFitting, *, first_may_add: bool = False) -> str | None:
    """The same for the layers of a fitting net."""
    layers = fitting.net(0).layers
    hidden, last = layers[:-1], layers[-1]
    if not 1 <= len(hidden) <= _MOST_LAYERS:
        return f"the op's fitting nets have 1 to {_MOST_LAYERS} hidden layers, and this has {len(hidden)}"
    if (hidden[0].adds_input and not first_may_add) or last.adds_input:
        return "the first or the last layer of the fitting net adds its input, which the op does not"
    names = {layer.activation_name.lower() for layer in hidden}
    if len(names) > 1 or next(iter(names)).partition(":")[0] not in CODES:
        return f"the op has one activation function of {', '.join(CODES)}, and the net has {', '.join(sorted(names))}"
    if last.activation_name.lower() not in ("linear", "none"):
        return "the last layer of the fitting net is not linear"
    if any(fitting.vacuum) and fitting.extra_size:
        return "the energies in vacuum (atom_ener) depend on frame or atomic parameters"
    return None


def why_not_exact(potential: EvaluationContext) -> str | None:
    """Why evaluators with floating-point products in fitting nets do not support this one; None if they do."""
    scheme = potential.scheme
    if scheme is None or scheme.inputs is None:
        return None
    return f"the fitting net's products are of low-bit numbers ({scheme.name})"
