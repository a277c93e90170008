"""Steps that begin at the spline moments of one descriptor and end at their gradient; the nets between are low-bit, ops
without a graph, or passes that are written out for a training."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from mdops.evaluators.base import Evaluator, Found, Step, forces_and_virials
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes
from mdops.evaluators.nets import frozen_fitting, why_not_exact, why_not_net
from mdops.evaluators.one_op import why_not_truncated
from mdops.evaluators.spline_model import SplineModel, SplineModels, is_alone, shares_places
from mdops.models.ener import EnergyFitting
from mdops.nn.moment_energy import DescriptorPasses, blank_moments, moment_energy, moment_rows, supports
from mdops.ops import axis_product, mlp_value_and_gradient, moment_product
from mdops.tables.grids import moment_descriptor, pair_masks, sums_of
from mdops.tables.spline import collocation_on
from mdops.tracing import is_exported

Energies = tuple[torch.Tensor, torch.Tensor]


class FromMoments(Evaluator):
    """The step, but for what it does between the moments and their gradient."""

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return is_alone(potential)

    @abstractmethod
    def _model(self, step: Step) -> SplineModel | None:
        """For the types that there are; None where it cannot have these."""

    @abstractmethod
    def _energies(self, s: SplineModel, moments: torch.Tensor, step: Step) -> Energies:
        """Energies (N,), float64, as answers have them, and dE/dA, (N, F * B, 4) or of plain sums (N, F * B, 1)."""

    def answer(self, step: Step) -> Found | None:
        s = self._model(step)
        if s is None:
            return None
        with torch.no_grad():
            near = self.neighborhood(step.system, step.neighbors)
            moments, report = s.sums[0].moments(near), near.reports[s.sums[0].descriptor]
            if self.drops(step, report):
                return None
        energy, gradient = self._energies(s, moments, step)
        gradient = s.sums[0].gradient(gradient, near)
        return {
            "atom_energy": energy,
            **forces_and_virials(gradient, near, atom_virial=step.atom_virial),
        }, report


class LowBit(FromMoments):
    """se_e2_a with a fitting net of low-bit products, whose numbers are rounded and packed once."""

    name = "low-bit"
    summary = "spline moments, products of low-bit numbers, and the ops from there to forces"
    cost = "PyTorch's operations on each atom's moments, and rounding of the weights in every step"
    packs_weights = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        s = self._splines = SplineModel(potential)
        self._fitting = frozen_fitting(s.fitting)
        self._tables = s.sums[0].fixed_table().flatten(1, 2) / s.sums[0].descriptor.slots

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return is_alone(potential) and why_not_exact(potential) is not None

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if why_not_exact(potential) is None:
            return "the fitting net's products are not of low-bit numbers"
        problem = SplineModel.why_not(potential, alone=True)
        if problem is not None:
            return problem
        model: Any = potential.model
        d = moment_descriptor(model)
        if d is None or d.plain or d.mixed or d.constants() is not None:
            return f"only models of se_e2_a have it, and this is {potential.kind}"
        return "types or pairs of types are excluded" if pair_masks(model)[0].any() else None

    def _model(self, step: Step) -> SplineModel:
        return self._splines

    def _energies(self, s: SplineModel, moments: torch.Tensor, step: Step) -> Energies:
        system, d = step.system, s.sums[0].descriptor
        extra = self._fitting.extra_inputs(system.batch, system.count, step.fparam, step.aparam)
        kinds = system.atoms_of_types(d.ntypes)
        energy = moments.new_zeros(len(moments), dtype=torch.float64)
        gradient = blank_moments(moments, kinds)
        for kind, index in enumerate(kinds):
            passes = DescriptorPasses(self._tables[kind], d.axis_neuron)
            features = passes.forward(moment_rows(moments, index))
            value, slope = self._fitting.value_and_gradient(kind, features, extra[index])
            energy[index] = value
            rows = passes.backward(slope * s.model.has_energy[kind])
            gradient[index] = rows.unflatten(0, (-1, 4)).transpose(1, 2)
        return s.model.finish({"energy": energy}, system.types)["atom_energy"], gradient


class MomentTraining(FromMoments):
    """Answers that are differentiable in the model's weights, not in the positions, which do not change in a training:
    passes of large steps through the nets, on GPUs (training.md, "A step")."""

    name = "moments"
    summary = "moments without a graph, written-out passes through the nets, and the ops from there to forces"
    cost = "autograd records every operation of a step, which takes one and a third times as long or more"
    captures = differentiable = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        s = self._splines = SplineModel(
            potential, potential.spline_types if shares_places(potential) else None
        )
        # Held for CUDA graphs, which read it: other grids may take its place in the cache.
        mean = s.sums[0].mean
        self._held = collocation_on(s.sums[0].grid.intervals, mean.device, mean.dtype)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        problem = SplineModel.why_not(potential, alone=True)
        problem = problem or why_not_truncated(potential) or why_not_exact(potential)
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

    def _model(self, step: Step) -> SplineModel | None:
        s = self._splines
        return s if not step.check or s.sums[0].covers(self.potential.present(step.system)) else None

    def _energies(self, s: SplineModel, moments: torch.Tensor, step: Step) -> Energies:
        part, types = s.sums[0], step.system.types
        atoms = step.system.atoms_of_types(part.descriptor.ntypes)
        energy, gradient = moment_energy(
            s.nets,
            s.fitting_layers(),
            part.descriptor.axis_neuron,
            (part.table() / part.descriptor.slots).flatten(1, 2),
            moments,
            s.extra_inputs(step.system, step),
            atoms if s.has_all else [atoms[t] for t in s.kinds.numbers],
        )
        bias = (s.fitting.bias + s.model.out_bias)[types.long().clamp(min=0)]
        return torch.where(types >= 0, energy.double() + bias, 0.0), gradient


class MomentSteps(FromMoments):
    """On a GPU by ops without a graph, for models that the one op of a step does not take there: float64."""

    name = "moment steps"
    summary = "spline moments, features, nets and forces by an op each"
    cost = "autograd through spline moments takes several times as long"
    devices = ("cuda",)
    packs_weights = captures = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self._models = SplineModels(potential)
        self._constants = OfTypes(lambda types: _Constants(self._models.of(types)))

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if potential.device.type != "cuda":
            return f"it is made for NVIDIA GPUs, and the model is on {potential.device}"
        problem = SplineModel.why_not(potential, alone=True)
        if problem is None and any(one.descriptor.plain for one in sums_of(potential.model)):
            problem = "the passes are written for rows of the environment matrix, and here are none"
        return problem or why_not_net(potential)

    def _model(self, step: Step) -> SplineModel:
        return self._constants(self._models.types(step.system)).splines

    def _energies(self, s: SplineModel, moments: torch.Tensor, step: Step) -> Energies:
        constants = self._constants(self._models.types(step.system))
        atoms = step.system.atoms_of_types(s.model.ntypes)
        kinds = [atoms[t] for t in s.kinds.numbers]
        extra = s.extra_inputs(step.system, step)
        return constants.energies(moments, extra, s.sums[0].types(step.system), kinds)


class _Constants:
    """What a step takes of a model for atoms of some types: tables (n, F * B, M), nets, and what is made of their
    outputs."""

    _MOST_STREAMS = 4

    def __init__(self, splines: SplineModel) -> None:
        self.splines, part = splines, splines.sums[0]
        dtype, device = part.mean.dtype, part.mean.device
        self.tables = (part.fixed_table() / part.descriptor.slots).flatten(1, 2).contiguous()
        # Contiguous, as the op would copy what is not at every step.
        self.nets = [
            [layer.of(dtype)._replace(weight=layer.weight.to(dtype).contiguous()) for layer in layers]
            for layers in splines.fitting_layers(double=True)
        ]
        self.scale, self.shift = splines.scale_and_shift()
        # With each net's scale, for the way back.
        self.scaled = self.tables * self.scale.to(dtype)[:, None, None]
        hidden = splines.fitting.net(0).layers[:-1]
        self.options: dict[str, Any] = {
            "activation": [layer.activation_name for layer in hidden],
            "residual": [layer.adds_input for layer in hidden],
        }
        # One net's products leave a GPU half idle where there are some thousand atoms.
        others = min(len(self.nets), self._MOST_STREAMS) - 1 if device.type == "cuda" else 0
        self.streams = [torch.cuda.Stream(device) for _ in range(others)]

    def energies(
        self, moments: torch.Tensor, extra: torch.Tensor, types: torch.Tensor, kinds: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energies (N,), float64, and their gradients by A, (N, F * B, 4), from A. `kinds`: the atoms of each type."""
        atoms = torch.cat(list(kinds))
        rows, of_rows = atoms.int(), types.index_select(0, atoms).long()
        t = moment_product(moments, self.tables, rows, types)
        more = extra.index_select(0, atoms) if extra.shape[1] else None
        shares = len(self.nets) == 1
        counts = [len(t)] if shares else [len(own) for own in kinds]
        values, by_t = self._in_streams(t.split(counts), None if more is None else more.split(counts))
        scale = self.scale if shares else self.scale.index_select(0, of_rows)
        energy = moments.new_zeros(len(moments), dtype=torch.float64)
        energy.index_copy_(0, atoms, values[:, 0].double() * scale + self.shift.index_select(0, of_rows))
        return energy, torch.ops.mdops.moment_product_backward(by_t, self.scaled, rows, types)

    def _in_streams(
        self, t: Sequence[torch.Tensor], extra: Sequence[torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of all nets for their atoms' T, and the gradients by T, one net after the other in the results.

        Every stream waits for this one first, so that what it had given back may be in use here until then.
        """
        streams: list[Any] = [] if is_exported() else self.streams
        here = torch.cuda.current_stream(t[0].device) if streams else None
        for stream in streams:
            stream.wait_stream(here)
        parts = []
        for n, own in enumerate(t):
            k = n % (len(streams) + 1)
            with torch.cuda.stream(streams[k - 1]) if k else nullcontext():
                parts.append(self._net(n, own, None if extra is None else extra[n]))
        for stream in streams:
            here.wait_stream(stream)  # type: ignore[union-attr]
        values, by_t = zip(*parts, strict=True)
        return (values[0], by_t[0]) if len(parts) == 1 else (torch.cat(values), torch.cat(by_t))

    def _net(self, n: int, t: torch.Tensor, extra: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of one net, and their gradients by T."""
        axis, layers = self.splines.sums[0].descriptor.axis_neuron, self.nets[n]
        value, grad = mlp_value_and_gradient(
            axis_product(t, axis, extra),
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            timesteps=[layer.timestep for layer in layers[:-1]],
            **self.options,
        )
        return value, torch.ops.mdops.axis_product_backward(grad, t, axis)
