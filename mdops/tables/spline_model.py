"""A standard model's sums by splines and its fitting nets, as arguments of the ops of whole steps."""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from mdops.models.contract import Descriptor
from mdops.models.moments import TypeChoice
from mdops.nn.kept import PerTypeLookup
from mdops.nn.net import Net
from mdops.ops import spline_potential_why_not
from mdops.ops.activation import CODES
from mdops.system import System
from mdops.tables.grids import sums_of
from mdops.tables.spline import SplineGrid
from mdops.tables.splined_model import SplinedModel
from mdops.tables.sum_tables import SumTables
from mdops.tracing import is_recorded


class LayerTensors(NamedTuple):
    """A layer's weight (inputs, outputs), bias and timestep (outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    timestep: torch.Tensor | None

    def of(self, dtype: torch.dtype) -> "LayerTensors":
        return LayerTensors(*(None if x is None else x.to(dtype).contiguous() for x in self))  # type: ignore[arg-type]

    def filled_in(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same, with zeros for an absent bias and ones for an absent timestep."""
        weight, bias, timestep = self
        width = weight.shape[1]
        return (
            weight,
            weight.new_zeros(width) if bias is None else bias,
            weight.new_ones(width) if timestep is None else timestep,
        )


class SplineModel:
    """A standard model of one or more descriptors, some of which are of sums, for some of its types, with the
    descriptors' constants folded into its nets.

    Attributes:
        model, fitting; spec: of the whole descriptor.
        kinds: the model's types that count here, n of them; has_all: whether these are all.
        shares_net: whether one fitting net, with one scale, serves all of these types.
        members: for each part of the descriptor how it is evaluated: a `SumTables`, or the part itself; sums, others:
            these and those.
        one_hot_types: whether the first layer of the one net has an input for each type, which is 1 for its own.
    """

    def __init__(
        self,
        potential: SplinedModel,
        types: Sequence[int] | None = None,
        grids: Sequence[SplineGrid | None] | None = None,
    ) -> None:
        """Takes the types, or None for all, and a grid for each sum, by default the potential's; None for one
        whose nets run themselves."""
        model: Any = potential.model
        given = potential.grids if grids is None else grids
        pairs = zip(sums_of(model), given, strict=True)
        grid_of: dict[Descriptor, SplineGrid | None] = {one.descriptor: grid for one, grid in pairs}
        every, like = range(len(model.type_map)), next(model.parameters())
        self.model, self.fitting, self.spec = model, model.fitting, model.descriptor.spec
        self.kinds = kinds = TypeChoice.of(every if types is None else types, model.out_bias.device)
        self.has_all = kinds.numbers == tuple(every)
        self.members: list[SumTables | Descriptor] = [
            SumTables(model, part, grid, types, potential.smoothing) if (grid := grid_of.get(part)) else part
            for part in model.descriptor.parts
        ]
        self.sums = [part for part in self.members if isinstance(part, SumTables)]
        self.others = [part for part in self.members if not isinstance(part, SumTables)]
        self.shares_net = bool(model.fitting.shared and model.has_energy[kinds.index].all())
        marks = like.new_zeros(len(every), len(kinds.numbers))
        marks[kinds.index, torch.arange(len(kinds.numbers), device=like.device)] = 1
        self._marks, self._no_inputs = PerTypeLookup(marks.detach()), like.new_empty(0)
        has_constants = any(part.descriptor.width > part.features for part in self.sums)
        self.one_hot_types = self.shares_net and len(kinds.numbers) > 1 and has_constants

    def occupied_slots(self, within: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`NeighborReport.within` of the sums, from the neighbours (N, sums, n) of each type."""
        if all(part.descriptor.mixed for part in self.sums):
            totals = within.sum(2, dtype=torch.int32)
            return (totals,) if totals.shape[1] == 1 else totals.split(1, 1)
        return tuple(part.occupied_slots(own) for part, own in zip(self.sums, within.unbind(1), strict=True))

    @property
    def counts_none(self) -> bool:
        """Whether absent neighbours need not be counted."""
        return not any(part.may_differ for part in self.sums)

    @property
    def nets(self) -> list[Net]:
        """The fitting nets: one for all, or one a type."""
        return [self.fitting.net(t) for t in self.kinds.numbers[: 1 if self.shares_net else None]]

    def fitting_layers(self, *, double: bool = False) -> list[list[LayerTensors]]:
        """Each net's layers for inputs [T^T T_< of each sum, features of the others, what `extra_inputs` gives],
        differentiable in the weights; in float64 if `double`, without a graph then.

        The constants k_c that a descriptor has for a centre's type are multiplied with their weights here: as a part of
        the bias if a net is for one type, else as the weights of one-hot inputs of the types.
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
                if not isinstance(part, SumTables):
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
        """All nets as an op takes them, by the op that packs one net: weights, biases, timesteps and `more`."""
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
            constants: Any = model.descriptor.parts[-1].constants()
            nothing[:, -fitting.types_in_vacuum :] = constants[kinds.index]
        vacuum: list[Any] = [
            copy.deepcopy(fitting.net(t)).double()(nothing[k : k + 1])[0, 0] if fitting.vacuum[t] else 0.0
            for k, t in enumerate(kinds.numbers)
        ]
        absent = torch.tensor([float(v) for v in vacuum], dtype=torch.float64, device=kinds.index.device)
        scale = has_energy[:1] if self.shares_net else has_energy
        return scale, has_energy * (fitting.bias[kinds.index] + model.out_bias[kinds.index] - absent)

    def extra_inputs(
        self, system: System, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> torch.Tensor:
        """(N, E): the inputs of the nets of `fitting_layers` after the features, for atoms with these parameters."""
        marks = None
        if self.one_hot_types:
            # A graph of training gets other frames' types in the same tensor.
            marks = (self._marks.find if is_recorded(system.types) else self._marks)(system.types)
        if not self.fitting.extra_size and fparam is None and aparam is None:
            return self._no_inputs.new_empty(system.atoms, 0) if marks is None else marks
        extra = self.fitting.extra_inputs(system.batch, system.count, fparam, aparam)
        return extra if marks is None else torch.cat([marks, extra], 1)

    @property
    def extra_size(self) -> int:
        """E."""
        return self.fitting.extra_size + (len(self.kinds.numbers) if self.one_hot_types else 0)

    @property
    def why_not(self) -> str | None:
        """The limit of the ops of whole steps, or of the nets alone, that the model exceeds; None if it fits."""
        inputs = self.extra_size + sum(part.width for part in self.model.descriptor.parts)
        like, neurons = self._no_inputs.new_zeros(1), self.shape[0]
        if not self.sums:
            of_net = {"tables": 1, "intervals": 1, "width": 1, "axis": 0, "extra": inputs - 1}
            return spline_potential_why_not(like, neurons=neurons, **of_net)
        for part in self.sums:
            d = part.descriptor
            problem = spline_potential_why_not(
                d.mean,
                tables=part.ntypes + d.gated,
                intervals=part.grid.intervals,
                width=d.channels,
                axis=d.axis_neuron,
                neurons=neurons,
                extra=inputs - d.width,
            )
            if problem is not None:
                return problem
        return None
