"""se_e2_a with an energy fitting by the one op that does a whole inference step (`mdops.ops.spline_potential`)."""

import copy
from typing import TYPE_CHECKING, Any

import torch

from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.low_bit import why_not_exact
from mdops.evaluators.spline import coefficients
from mdops.evaluators.splined import Splined, SplineModel
from mdops.jit.kernels import in_use, use_cached
from mdops.models.ener import EnergyFitting
from mdops.models.neighborhood import NeighborReport
from mdops.nn.activation import CODES
from mdops.nn.net import Layer, Net
from mdops.ops import NeighborList, spline_potential, spline_potential_pack, spline_potential_why_not
from mdops.system import System

if TYPE_CHECKING:
    from mdops.potential import Potential

_TABLE_PAD = 16
_MOST_LAYERS = 16


class Fused(Evaluator):
    name = "fused"
    summary = "one op a step"
    cost = "separate ops take about four times as long"
    packs_weights = True
    captures = True

    def __init__(self, potential: "Potential") -> None:
        super().__init__(potential)
        splines = self._splines = SplineModel(potential)
        d, fitting = splines.descriptor, splines.fitting
        self._fitting, self.r_min = fitting, splines.grid.r_min
        with torch.no_grad():
            double = copy.deepcopy(d).cpu().double()
            table = model_table(double, splines).to(potential.device, potential.dtype)
            packed = [
                _pack(fitting.net(t), d.channels, d.axis_neuron, potential.matmul) for t in range(d.ntypes)
            ]
            scale, shift = _scale_and_shift(splines)
        # Contiguous, as the op would copy what is not at every step.
        self._model = tuple(x.contiguous() for x in (*norms(splines), table, torch.stack(packed)))
        self._output = (scale, shift)
        self._scalars = op_scalars(splines, potential.matmul)
        use_cached(potential)

    @classmethod
    def knows(cls, potential: "Potential") -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
        problem = SplineModel.why_not(potential) or why_not_net(potential)
        if problem is not None:
            return problem
        if potential.device.type not in ("cpu", "cuda"):
            return f"the op runs on CPUs and NVIDIA GPUs, and the model is on {potential.device}"
        return _beyond_limits(potential)

    @classmethod
    def kernels(cls, potential: "Potential") -> str | None:
        use_cached(potential)
        key = in_use(potential)
        return None if key is None else f"by kernels rebuilt for models of these sizes ({key})"

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
    ) -> tuple[Answers, NeighborReport]:
        extra = self._fitting.extra_inputs(system.batch, system.count, fparam, aparam)
        energy, forces, virial, within, nearest = spline_potential(
            *atoms_and_pairs(system, neighbors),
            *self._model,
            extra,
            *self._output,
            *self._scalars,
        )
        report = NeighborReport((within,), nearest)
        if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
            return Splined(self.potential)(system, neighbors, fparam, aparam)  # which drops neighbours
        return {"atom_energy": energy, "forces": forces, "virial": virial}, report


def atoms_and_pairs(system: System, neighbors: NeighborList) -> tuple[torch.Tensor, ...]:
    """The arguments positions to counts."""
    near = neighbors.neighbors, neighbors.images, neighbors.counts
    return system.positions, system.cell, system.batch, system.types, *near


def norms(splines: SplineModel) -> tuple[torch.Tensor, ...]:
    """The arguments mean to sel."""
    d = splines.descriptor
    return d.mean, d.std, splines.mask, splines.zeroed, splines.sel


def model_table(descriptor: Any, splines: SplineModel) -> torch.Tensor:
    """The argument tables, differentiable in the descriptor's weights."""
    table = coefficients(descriptor, splines.grid, smoothing=splines.smoothing) / descriptor.slots
    return torch.nn.functional.pad(table, (0, -descriptor.channels % _TABLE_PAD)).flatten(1, 2)


def shape(splines: SplineModel) -> tuple[Any, ...]:
    """The arguments cutoff to residual."""
    d, hidden = splines.descriptor, splines.fitting.net(0).layers[:-1]
    return (
        d.cutoff,
        d.cutoff_smooth,
        d.protection,
        splines.grid.s_max,
        d.channels,
        d.axis_neuron,
        [layer.outputs for layer in hidden],
        [int(layer.adds_input) for layer in hidden],
    )


def op_scalars(splines: SplineModel, matmul: str) -> tuple[Any, ...]:
    """The arguments cutoff to matmul."""
    name, _, threshold = splines.fitting.net(0).layers[0].activation_name.lower().partition(":")
    return (*shape(splines), CODES[name], float(threshold or 3.0), matmul)


def why_not_net(potential: "Potential") -> str | None:
    """Why the op cannot have a model's fitting net; None if it can."""
    fitting: Any = potential.model.fitting
    if not isinstance(fitting, EnergyFitting):
        return f"the op knows the fitting ener, and this is {fitting.kind}"
    problem = why_not_exact(potential)
    if problem is not None:
        return problem
    layers = fitting.net(0).layers
    hidden, last = layers[:-1], layers[-1]
    if not 1 <= len(hidden) <= _MOST_LAYERS:
        return f"the op's fitting nets have 1 to {_MOST_LAYERS} hidden layers, and this has {len(hidden)}"
    if hidden[0].adds_input or last.adds_input:
        return "the first or the last layer of the fitting net adds its input, which the op does not"
    names = {layer.activation_name.lower() for layer in hidden}
    if len(names) > 1 or next(iter(names)).partition(":")[0] not in CODES:
        return f"the op has one activation function of {', '.join(CODES)}, and the net has {', '.join(sorted(names))}"
    if last.activation_name.lower() not in ("linear", "none"):
        return "the last layer of the fitting net is not linear"
    if any(fitting.vacuum) and fitting.extra_size:
        return "the energies in vacuum (atom_ener) depend on frame or atomic parameters"
    return None


def _beyond_limits(potential: "Potential") -> str | None:
    """The op's limit that this model, where it is now, exceeds."""
    assert potential.grid is not None
    descriptor: Any = potential.model.descriptor
    fitting: Any = potential.model.fitting
    return spline_potential_why_not(
        descriptor.mean,
        ntypes=descriptor.ntypes,
        intervals=potential.grid.intervals,
        width=descriptor.channels,
        axis=descriptor.axis_neuron,
        neurons=[layer.outputs for layer in fitting.net(0).layers[:-1]],
        extra=fitting.extra_size,
    )


def why_not_matmul(potential: "Potential", matmul: str) -> str | None:
    """Why this model, where and as it is now, cannot be evaluated with products of that accuracy, which is not
    float32's; None if it can."""
    on_gpu = potential.device.type == "cuda"
    if matmul == "tf32" and not on_gpu:
        return f"the model is on {potential.device}, and only GPUs have such products"
    if matmul != "tf32" and on_gpu:
        return (
            "a GPU has no such products: 'tf32' is as quick as bf16 and more accurate, and float32 as bf16x3"
        )
    if matmul != "tf32" and not torch.ops.mdops.cpu_bf16():
        return "this CPU has neither AMX nor AVX512-BF16, or its kernels for AVX-512 are switched off"
    if potential.dtype != torch.float32:
        return f"the model computes in {str(potential.dtype).removeprefix('torch.')}"
    if potential.overflow == "truncate":
        return "overflow='truncate' evaluates the steps that drop neighbours by PyTorch's own products"
    problem = Fused.why_not(potential)
    return (
        None
        if problem is None
        else f"the fused step, which has such products, does not cover this model: {problem}"
    )


def _pack(net: Net, width: int, axis: int, matmul: str) -> torch.Tensor:
    def value(tensor: torch.Tensor | None, layer: Layer, default: float) -> torch.Tensor:
        return layer.weight.new_full((layer.outputs,), default) if tensor is None else tensor.detach()

    return spline_potential_pack(
        [layer.multiplied.detach() for layer in net.layers],
        [value(layer.bias, layer, 0.0) for layer in net.layers],
        [value(layer.timestep, layer, 1.0) for layer in net.layers],
        width,
        axis,
        matmul,
    )


def _scale_and_shift(splines: SplineModel) -> tuple[torch.Tensor, torch.Tensor]:
    """(ntypes,) each, float64: e = scale * net + shift; both 0 for the types that have no energy."""
    model, fitting = splines.model, splines.fitting
    scale = model.has_energy.double()
    device = scale.device
    nothing = torch.zeros(1, fitting.net(0).inputs, dtype=torch.float64, device=device)
    vacuum: list[Any] = [
        copy.deepcopy(fitting.net(t)).double()(nothing)[0, 0] if isolated else 0.0
        for t, isolated in enumerate(fitting.vacuum)
    ]
    absent = torch.tensor([float(v) for v in vacuum], dtype=torch.float64, device=device)
    return scale, scale * (fitting.bias + model.out_bias - absent)
