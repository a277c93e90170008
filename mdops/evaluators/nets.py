"""How the fitting nets of a standard model run: by PyTorch, packed for an op, or in low-bit numbers."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.evaluators.context import EvaluationContext
from mdops.models.ener import EnergyFitting
from mdops.models.moments import MomentDescriptor
from mdops.models.net_fitting import NetFitting
from mdops.nn.net import Net
from mdops.nn.quantized import LowBitLayer
from mdops.ops import spline_potential_why_not
from mdops.ops.activation import CODES

_MOST_LAYERS = 16


class LayerTensors(NamedTuple):
    """A layer's weight (inputs, outputs), bias and timestep (outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    timestep: torch.Tensor | None

    def of(self, dtype: torch.dtype) -> "LayerTensors":
        return LayerTensors(*(None if x is None else x.to(dtype) for x in self))  # type: ignore[arg-type]

    def filled_in(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """With what does nothing in the place of what is absent."""
        weight, bias, timestep = self
        width = weight.shape[1]
        return (
            weight,
            weight.new_zeros(width) if bias is None else bias,
            weight.new_ones(width) if timestep is None else timestep,
        )


def why_not_net(potential: EvaluationContext, *, first_may_add: bool = False) -> str | None:
    """Why an op cannot have a model's fitting net; None if it can. `first_may_add`: one whose first layer adds its
    input, too."""
    fitting: Any = potential.model.fitting
    if not isinstance(fitting, EnergyFitting):
        return f"the op knows the fitting ener, and this is {fitting.kind}"
    return why_not_exact(potential) or why_not_layers(fitting, first_may_add=first_may_add)


def why_not_layers(fitting: NetFitting, *, first_may_add: bool = False) -> str | None:
    """The same of the layers of a fitting net."""
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


def why_not_device(potential: EvaluationContext) -> str | None:
    """Why ops of whole steps do not run where a model is."""
    if potential.device.type in ("cpu", "cuda"):
        return None
    return f"the op runs on CPUs and NVIDIA GPUs, and the model is on {potential.device}"


def beyond_limits(
    potential: EvaluationContext, sums: Sequence[tuple[MomentDescriptor, int, int]], extra: int
) -> str | None:
    """The limit of the ops of whole steps that sums for so many types, by so many intervals, exceed, and so many inputs
    beside the descriptors'."""
    model: Any = potential.model
    inputs = extra + sum(part.width for part in model.descriptor.parts)
    for d, ntypes, intervals in sums:
        problem = spline_potential_why_not(
            d.mean,
            tables=ntypes + d.gated,
            intervals=intervals,
            width=d.channels,
            axis=d.axis_neuron,
            neurons=[layer.outputs for layer in model.fitting.net(0).layers[:-1]],
            extra=inputs - d.width,
        )
        if problem is not None:
            return problem
    return None


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
