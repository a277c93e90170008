"""How the fitting nets of a standard model run: by PyTorch, packed for an op, or in low-bit numbers."""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from mdops.evaluators.base import Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import PerTypeLookup
from mdops.evaluators.spline_sum import SplineSum
from mdops.models.contract import Descriptor
from mdops.models.ener import EnergyFitting
from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.net_fitting import NetFitting
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import Net
from mdops.nn.quantized import LowBitLayer
from mdops.ops import fitting_energy, hybrid_potential_pack, spline_potential_why_not
from mdops.ops.activation import CODES
from mdops.system import System
from mdops.tracing import is_recorded

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


class SplineNets:
    """The fitting nets of a standard model for some of its types, with the descriptors' constants folded in.

    Attributes:
        model, fitting.
        kinds: the model's types that count here, n of them; has_all: whether these are all.
        shares_net: whether one fitting net, with one scale, serves all of these types.
        members: of each part of the descriptor how it is evaluated: a `SplineSum`, or the part itself; sums, others:
            these and those.
        one_hot_types: whether the first layer of the one net has an input for each type, which is 1 for its own.
    """

    def __init__(
        self,
        model: DescriptorFitting,
        types: Sequence[int] | None,
        members: "Sequence[SplineSum | Descriptor]",
    ) -> None:
        every, like = range(len(model.type_map)), next(model.parameters())
        kinds = TypeChoice.of(every if types is None else types, model.out_bias.device)
        self.model, self.kinds, self.fitting = model, kinds, model.fitting
        self.has_all = kinds.numbers == tuple(every)
        self.members = list(members)
        self.sums = [part for part in members if isinstance(part, SplineSum)]
        self.others = [part for part in members if not isinstance(part, SplineSum)]
        self.shares_net = bool(model.fitting.shared and model.has_energy[kinds.index].all())
        marks = like.new_zeros(len(every), len(kinds.numbers))
        marks[kinds.index, torch.arange(len(kinds.numbers), device=like.device)] = 1
        self._marks, self._no_inputs = PerTypeLookup(marks.detach()), like.new_empty(0)
        has_constants = any(part.descriptor.width > part.features for part in self.sums)
        self.one_hot_types = self.shares_net and len(kinds.numbers) > 1 and has_constants

    @property
    def nets(self) -> list[Net]:
        """The fitting nets: one for all, or one a type."""
        return [self.fitting.net(t) for t in self.kinds.numbers[: 1 if self.shares_net else None]]

    def fitting_layers(self, *, double: bool = False) -> list[list[LayerTensors]]:
        """Each net's layers for inputs [T^T T_< of each sum, features of the others, what `extra_inputs` gives],
        differentiable in the weights; in float64 if `double`, without a graph then.

        The numbers k_c that a descriptor has of a centre's type are multiplied with their weights here: as a part of
        the bias where a net is of one type, and otherwise as the weights of inputs that mark the types.
        """

        def number(x: torch.Tensor | None) -> torch.Tensor | None:
            return x.detach().double() if double and x is not None else x

        nets = [
            [
                LayerTensors(*map(number, (layer.multiplied, layer.bias, layer.timestep)))  # type: ignore[arg-type]
                for layer in net.layers
            ]
            for net in self.nets
        ]
        constants = [number(part.descriptor.constants()) for part in self.sums]
        if len(self.members) == 1 and not any(own is not None for own in constants):
            return nets
        for k, (layer, *_) in enumerate(nets):
            weight, bias = layer.weight, layer.bias
            features, of_others, of_types, at = [], [], [], 0
            given = iter(constants)
            for part in self.members:
                if not isinstance(part, SplineSum):
                    of_others.append(weight[at : at + part.width])
                    at += part.width
                    continue
                features.append(weight[at : at + part.features])
                at, own = at + part.features, next(given)
                if own is not None:
                    of_types.append(own[self.kinds.index] @ weight[at : at + own.shape[1]])
                    at += own.shape[1]
            rest = [*features, *of_others, weight[at:]]
            if of_types:
                added = sum(of_types[1:], of_types[0])
                if self.one_hot_types:
                    rest.insert(-1, added)
                else:
                    of_type = added[0 if self.shares_net else k]
                    bias = of_type if bias is None else bias + of_type
            nets[k][0] = LayerTensors(torch.cat(rest), bias, layer.timestep)
        return nets

    def packed(self, pack: Callable[..., torch.Tensor], *more: Any) -> torch.Tensor:
        """All nets as an op takes them, by the op that packs one: weights, biases and timesteps, and `more`."""
        dtype, found = self._no_inputs.dtype, []
        with torch.no_grad():
            for layers in self.fitting_layers(double=True):
                columns = zip(*(layer.of(dtype).filled_in() for layer in layers), strict=True)
                found.append(pack(*map(list, columns), *more))
        return torch.stack(found)

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """Outputs of each hidden layer, whether it adds its input, and the activation function with its threshold."""
        hidden = self.fitting.net(0).layers[:-1]
        name, _, threshold = hidden[0].activation_name.lower().partition(":")
        outputs, adds = [layer.outputs for layer in hidden], [int(layer.adds_input) for layer in hidden]
        return outputs, adds, CODES[name], float(threshold or 3.0)

    @torch.no_grad()
    def scale_and_shift(self) -> tuple[torch.Tensor, torch.Tensor]:
        """scale of each net and shift of each type, float64: e = scale * net + shift; both 0 for the types that have no
        energy."""
        model, fitting, kinds = self.model, self.fitting, self.kinds
        has_energy = model.has_energy[kinds.index].double()
        nothing = has_energy.new_zeros(len(kinds.numbers), fitting.net(0).inputs)
        if fitting.types_in_vacuum:  # without other inputs behind them
            constants: Any = model.descriptor.parts[-1].constants()  # type: ignore[operator]
            nothing[:, -fitting.types_in_vacuum :] = constants[kinds.index]
        vacuum: list[Any] = [
            copy.deepcopy(fitting.net(t)).double()(nothing[k : k + 1])[0, 0] if fitting.vacuum[t] else 0.0
            for k, t in enumerate(kinds.numbers)
        ]
        absent = torch.tensor([float(v) for v in vacuum], dtype=torch.float64, device=kinds.index.device)
        scale = has_energy[:1] if self.shares_net else has_energy
        return scale, has_energy * (fitting.bias[kinds.index] + model.out_bias[kinds.index] - absent)

    def extra_inputs(self, system: System, step: Step) -> torch.Tensor:
        """(N, E): what the nets of `fitting_layers` take beside the features, of atoms with these parameters."""
        marks = None
        if self.one_hot_types:
            # A graph of a training gets other frames' types in the same tensor.
            marks = (self._marks.find if is_recorded(system.types) else self._marks)(system.types)
        if not self.fitting.extra_size and step.fparam is None and step.aparam is None:
            return self._no_inputs.new_empty(system.atoms, 0) if marks is None else marks
        extra = self.fitting.extra_inputs(system.batch, system.count, step.fparam, step.aparam)
        return extra if marks is None else torch.cat([marks, extra], 1)

    @property
    def extra_size(self) -> int:
        """E."""
        return self.fitting.extra_size + (len(self.kinds.numbers) if self.one_hot_types else 0)


class PackedNets(SplineNets):
    """Of all types, with all parts of the descriptor as features that are there: energies and their gradient by the
    features in one op."""

    def __init__(self, potential: EvaluationContext) -> None:
        model: Any = potential.model
        super().__init__(model, None, model.descriptor.parts)
        self._packed, self._output = self.packed(hybrid_potential_pack, [], []), self.scale_and_shift()
        self._no_weight = self._output[0].new_empty(0)

    @staticmethod
    def why_not(potential: EvaluationContext) -> str | None:
        """Why a model's nets cannot be packed; None if they can."""
        problem = why_not_net(potential) or why_not_device(potential)
        if problem is not None:
            return problem
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
        self, features: torch.Tensor, system: System, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The energies (N,) of a system's atoms with these features (N, D), float64, as answers have them; and the
        gradient of the sum of weight_i (N,) times these by the features. `step` has these atoms' parameters."""
        extra = self.extra_inputs(system, step)
        x = torch.cat([features, extra], 1) if extra.shape[1] else features
        given = self._no_weight if step.weight is None else step.weight
        energy, gradient = fitting_energy(x, system.types, self._packed, given, *self._output, *self.shape)
        return energy, gradient[:, : features.shape[1]]


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
