"""Steps from the spline moments of one descriptor to their gradient; the nets between are low-bit, ops without a graph,
or written-out passes for training."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch

from mdops.evaluators.base import Evaluator, Found, Step, forces_and_virials
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.fitting import OfOneSum, why_not_exact, why_not_net
from mdops.evaluators.kept import OfSystems, shares_places
from mdops.evaluators.one_op import why_not_truncated
from mdops.evaluators.spline_sum import SplineSum
from mdops.models.ener import EnergyFitting
from mdops.nn.moment_energy import moment_energy, supports
from mdops.ops import axis_product, mlp_value_and_gradient, moment_product
from mdops.tables.grids import moment_descriptor, pair_masks, sums_of
from mdops.tables.spline import collocation_on
from mdops.tables.spline_model import SplineModel
from mdops.tracing import is_exported

Energies = tuple[torch.Tensor, torch.Tensor]


class FromMoments(OfOneSum):
    """The step, without the part between the moments and their gradient."""

    @abstractmethod
    def _nets(self, step: Step) -> Any:
        """For the types that are present: their sum as `part`, a `SplineSum`, and `energies(moments, step)`: energies
        (N,), float64, as in answers, and dE/dA, (N, F * B, 4) or for plain sums (N, F * B, 1). None if it does not
        support these types."""

    def answer(self, step: Step) -> Found | None:
        nets = self._nets(step)
        if nets is None:
            return None
        with torch.no_grad():
            near = self.neighborhood(step.system, step.neighbors)
            moments, report = nets.part.moments(near), near.reports[nets.part.descriptor]
            if self.drops(step, report):
                return None
        energy, gradient = nets.energies(moments, step)
        by_pairs = nets.part.gradient(gradient, near)
        found = forces_and_virials(by_pairs, near, atom_virial=step.atom_virial)
        return {"atom_energy": energy, **found}, report


class MomentTraining(FromMoments):
    """Answers that are differentiable in the model's weights, not in the positions, which are constant in training:
    passes of large steps through the nets, on GPUs (training.md, "A step")."""

    name = "moments"
    summary = "moments without a graph, written-out passes through the nets, and the ops from there to forces"
    cost = "autograd records every operation of a step, which takes one and a third times as long or more"
    captures = differentiable = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        types = potential.spline_types if shares_places(potential) else None
        self._splines = SplineModel(potential, types)
        (tables,) = self._splines.sums
        self.part = SplineSum(tables)
        # Held for CUDA graphs, which read it: other grids may replace it in the cache.
        self._held = collocation_on(tables.grid.intervals, tables.mean.device, tables.mean.dtype)

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        problem = potential.why_no_spline or why_not_truncated(potential) or why_not_exact(potential)
        if problem is not None:
            return problem
        model: Any = potential.model
        if not bool(model.has_energy.all()):
            return "types are excluded"
        if model.descriptor.constants() is not None and model.fitting.net(0).layers[0].adds_input:
            return "the first layer of the fitting net adds its input, of which the type embedding is a part"
        fitting = model.fitting
        if not isinstance(fitting, EnergyFitting) or any(fitting.vacuum) or not supports(fitting.nets.nets):
            return "the passes are written for fitting nets of tanh with a linear layer at the end"
        return None

    def _nets(self, step: Step) -> "MomentTraining | None":
        if not step.check or self._splines.has_all:
            return self
        types = self.potential.present(step.system)
        return self if types is not None and set(types) <= set(self._splines.kinds.numbers) else None

    def energies(self, moments: torch.Tensor, step: Step) -> Energies:
        """As `FromMoments._nets` says."""
        s, tables, types = self._splines, self.part.tables, step.system.types
        atoms = step.system.atoms_of_types(s.model.ntypes)
        energy, gradient = moment_energy(
            s.nets,
            s.fitting_layers(),
            self.part.descriptor.axis_neuron,
            tables.product_table(tables.table()),
            moments,
            s.extra_inputs(step.system, step.fparam, step.aparam),
            [atoms[t] for t in s.kinds.numbers],
        )
        bias = (s.fitting.bias + s.model.out_bias)[types.long().clamp(min=0)]
        return torch.where(types >= 0, energy.double() + bias, 0.0), gradient


class _Nets:
    """What a step needs of a model for atoms of some types.

    Attributes:
        part: the sum; tables: (n, F * B, M).
        scale, shift: of the nets' outputs: one for all, or one per type (`SplineModel.scale_and_shift`).
    """

    def __init__(self, splines: SplineModel, scale: torch.Tensor, shift: torch.Tensor) -> None:
        self.splines, (own,) = splines, splines.sums
        self.part, self.axis = SplineSum(own), own.descriptor.axis_neuron
        self.tables = own.product_table(own.fixed_table()).contiguous()
        self.scale, self.shift = scale, shift
        # With each net's scale, for the backward pass.
        self._scaled = self.tables * scale.to(self.tables.dtype)[:, None, None]

    def energies(self, moments: torch.Tensor, step: Step) -> Energies:
        """As `FromMoments._nets` says."""
        s, scale = self.splines, self.scale
        extra = s.extra_inputs(step.system, step.fparam, step.aparam)
        types = self.part.tables.types(step.system)
        of_types = step.system.atoms_of_types(s.model.ntypes)
        kinds = [of_types[t] for t in s.kinds.numbers]
        atoms = torch.cat(kinds)
        rows, of_rows = atoms.int(), types.index_select(0, atoms).long()
        t, more = moment_product(moments, self.tables, rows, types), extra.index_select(0, atoms)
        counts = [len(t)] if len(scale) == 1 else [len(own) for own in kinds]
        values, by_t = self._of_all(t.split(counts), more.split(counts))
        scale = scale if len(scale) == 1 else scale.index_select(0, of_rows)
        energy = moments.new_zeros(len(moments), dtype=torch.float64)
        energy.index_copy_(0, atoms, values[:, 0].double() * scale + self.shift.index_select(0, of_rows))
        return energy, torch.ops.mdops.moment_product_backward(by_t, self._scaled, rows, types)

    def _of_all(self, t: Sequence[torch.Tensor], extra: Sequence[torch.Tensor]) -> Energies:
        """The outputs of all nets for their atoms' T, and the gradients by T, one net after another."""
        return _joined([self._of_one(n, *own) for n, own in enumerate(zip(t, extra, strict=True))])

    @abstractmethod
    def _of_one(self, n: int, t: torch.Tensor, extra: torch.Tensor) -> Energies:
        """The same for one net: (N, 1) and (N, 4, M)."""


class _LowBitNets(_Nets):
    def __init__(self, splines: SplineModel) -> None:
        model = splines.model
        has_energy = model.has_energy.double()
        super().__init__(splines, has_energy, has_energy * model.out_bias)
        self._fitting = splines.fitting.frozen()

    def _of_one(self, n: int, t: torch.Tensor, extra: torch.Tensor) -> Energies:
        value, slope = self._fitting.value_and_gradient(n, axis_product(t, self.axis), extra)
        return value[:, None], torch.ops.mdops.axis_product_backward(slope, t, self.axis)


class _NetsByOps(_Nets):
    _MOST_STREAMS = 4

    def __init__(self, splines: SplineModel) -> None:
        super().__init__(splines, *splines.scale_and_shift())
        # Contiguous; else the op would copy them in every step.
        self._layers = [
            [layer.of(self.tables.dtype) for layer in layers]
            for layers in splines.fitting_layers(double=True)
        ]
        hidden = splines.fitting.net(0).layers[:-1]
        self._options: dict[str, Any] = {
            "activation": [layer.activation_name for layer in hidden],
            "residual": [layer.adds_input for layer in hidden],
        }
        # One net's products leave a GPU half idle for a few thousand atoms.
        device = self.tables.device
        others = min(len(self._layers), self._MOST_STREAMS) - 1 if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device) for _ in range(others)]

    def _of_all(self, t: Sequence[torch.Tensor], extra: Sequence[torch.Tensor]) -> Energies:
        """In streams. Each waits for this one first, so the memory that it freed before may be in use here until
        then."""
        if not self._streams or is_exported():
            return super()._of_all(t, extra)
        here = torch.cuda.current_stream(t[0].device)
        for stream in self._streams:
            stream.wait_stream(here)
        parts, turns = [], [None, *self._streams]
        for n, own in enumerate(zip(t, extra, strict=True)):
            turn = turns[n % len(turns)]
            with nullcontext() if turn is None else torch.cuda.stream(turn):
                parts.append(self._of_one(n, *own))
        for stream in self._streams:
            here.wait_stream(stream)
        return _joined(parts)

    def _of_one(self, n: int, t: torch.Tensor, extra: torch.Tensor) -> Energies:
        weights, biases, timesteps = zip(*self._layers[n], strict=True)
        behind = extra if extra.shape[1] else None
        value, grad = mlp_value_and_gradient(
            axis_product(t, self.axis, behind), weights, biases, timesteps=timesteps[:-1], **self._options
        )
        return value, torch.ops.mdops.axis_product_backward(grad, t, self.axis)


def _joined(parts: list[Energies]) -> Energies:
    """The results of all nets."""
    values, by_t = zip(*parts, strict=True)
    return parts[0] if len(parts) == 1 else (torch.cat(values), torch.cat(by_t))


class MomentSteps(FromMoments):
    """On a GPU by ops without a graph, for models that the op of a whole step does not support there: float64."""

    name = "moment steps"
    summary = "spline moments, features, nets and forces by an op each"
    cost = "autograd through spline moments takes several times as long"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    packs_weights = captures = True
    nets: ClassVar[Any] = _NetsByOps

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._nets_of = OfSystems(potential, type(self).nets)

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        plain = any(one.descriptor.plain for one in sums_of(potential.model))
        no_rows = "the passes are written for rows of the environment matrix, and here are none"
        return potential.why_no_spline or (no_rows if plain else why_not_net(potential))

    def _nets(self, step: Step) -> _Nets:
        return self._nets_of(step.system)


class LowBit(MomentSteps):
    """se_e2_a with a fitting net of low-bit products, whose weights are rounded and packed once."""

    name = "low-bit"
    made_for = "fitting nets of low-bit products"
    summary = "spline moments, products of low-bit numbers, and the ops from there to forces"
    cost = "PyTorch's operations on each atom's moments, and rounding of the weights in every step"
    devices = Evaluator.devices
    captures = False
    nets = _LowBitNets

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return super().knows(potential) and why_not_exact(potential) is not None

    @classmethod
    def limit(cls, potential: EvaluationContext) -> str | None:
        d = moment_descriptor(potential.model)
        if d is None or d.plain or d.mixed or d.constants() is not None:
            return f"only models of se_e2_a have it, and this is {potential.kind}"
        excluded = bool(pair_masks(potential.model)[0].any())  # type: ignore[arg-type]
        return potential.why_no_spline or ("types or pairs of types are excluded" if excluded else None)
