"""Descriptors of sums with an energy fitting by the one op that does a whole inference step
(`mdops.ops.spline_potential`)."""

import copy
import warnings
from typing import Any

import torch

from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.low_bit import why_not_exact
from mdops.evaluators.of_types import OfTypes, Types
from mdops.evaluators.splined import (
    LayerTensors,
    SplineModel,
    SplineModels,
    SplineNets,
    SplineSum,
    unfused_evaluator,
)
from mdops.models.ener import EnergyFitting
from mdops.models.neighborhood import NeighborReport
from mdops.ops import NeighborList, spline_potential, spline_potential_pack, spline_potential_why_not
from mdops.ops.activation import CODES
from mdops.system import System
from mdops.tables.grids import moment_descriptor

_TABLE_PAD = 16
_MOST_LAYERS = 16


class Fused(Evaluator):
    name = "fused"
    summary = "one op a step"
    cost = "separate ops take about four times as long"
    packs_weights = True
    captures = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        assert potential.grid is not None
        self.r_min = potential.grid.r_min
        self._models = SplineModels(potential)
        self._tables_of = OfTypes(self._tables)
        if not moment_descriptor(potential.model).mixed:  # type: ignore[union-attr]
            self._tables_of(None)
        potential.rebuilt_kernels()  # looks for them in the cache

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        problem = SplineModel.why_not(potential) or why_not_net(potential)
        if problem is not None:
            return problem
        if potential.device.type not in ("cpu", "cuda"):
            return f"the op runs on CPUs and NVIDIA GPUs, and the model is on {potential.device}"
        return _beyond_limits(potential)

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        key = potential.rebuilt_kernels()
        return None if key is None else f"by kernels rebuilt for models of these sizes ({key})"

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
        tables = self._tables_of(self._models.types(system))
        if tables is None:
            return unfused_evaluator(self.potential)(
                system, neighbors, fparam, aparam, check=check, atom_virial=atom_virial
            )
        s = tables.splines
        energy, forces, virial, within, nearest, of_atoms = spline_potential(
            *atoms_and_pairs(s, system, neighbors),
            *tables.norms,
            s.padding(system),
            *tables.model,
            s.extra_inputs(system, fparam, aparam),
            *tables.output,
            *tables.scalars,
            atom_virial,
        )
        report = NeighborReport((s.occupied_slots(within),), nearest)
        if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
            # Which drops neighbours.
            return unfused_evaluator(self.potential)(
                system, neighbors, fparam, aparam, atom_virial=atom_virial
            )
        answers = {"atom_energy": energy, "forces": forces, "virial": virial}
        return (answers | {"atom_virial": of_atoms} if atom_virial else answers), report

    def _tables(self, types: Types) -> "_Tables | None":
        """What the op takes for systems of these types; None if it does not take them."""
        splines = self._models.of(types)
        problem = _refusal(self.potential, splines.ntypes, splines.grid.intervals, splines.extra_size)
        if problem is not None:
            warnings.warn(f"a step is made of separate ops, for {problem}: {self.cost}", stacklevel=2)
        return None if problem else _Tables(splines, self.potential)


class _Tables:
    """The op's arguments that are of the model.

    Attributes:
        norms: mean to sel; model: tables and nets; output: scale and shift; scalars: cutoff to matmul.
    """

    def __init__(self, splines: SplineModel, potential: EvaluationContext) -> None:
        d, matmul = splines.descriptor, potential.matmul
        self.splines = splines
        with torch.no_grad():
            table = model_table(splines, splines.fixed_table())
            packed = [
                _pack([cast(layer, potential.dtype) for layer in layers], d.channels, d.axis_neuron, matmul)
                for layers in splines.fitting_layers(double=True)
            ]
            self.output = scale_and_shift(splines)
        # Contiguous, as the op would copy what is not at every step.
        self.norms = tuple(x.contiguous() for x in norms(splines))
        self.model = table.contiguous(), torch.stack(packed)
        self.scalars = op_scalars(splines, matmul)


def atoms_and_pairs(
    splines: SplineModel, system: System, neighbors: NeighborList
) -> tuple[torch.Tensor, ...]:
    """The arguments positions to counts."""
    near = neighbors.neighbors, neighbors.images, splines.counts(neighbors.counts)
    return system.positions, system.cell, system.batch, splines.types(system), *near


def norms(splines: SplineSum) -> tuple[torch.Tensor, ...]:
    """The arguments mean to sel."""
    return splines.mean, splines.std, splines.mask, splines.zeroed, splines.sel


def model_table(splines: SplineSum, table: torch.Tensor) -> torch.Tensor:
    """The argument tables, from the coefficients, in whose weights it is differentiable."""
    d = splines.descriptor
    return torch.nn.functional.pad(table / d.slots, (0, -d.channels % _TABLE_PAD)).flatten(1, 2)


def shape(splines: SplineModel) -> tuple[Any, ...]:
    """The arguments cutoff to gated."""
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
        d.gated,
    )


def op_scalars(splines: SplineModel, matmul: str) -> tuple[Any, ...]:
    """The arguments cutoff to matmul."""
    name, _, threshold = splines.fitting.net(0).layers[0].activation_name.lower().partition(":")
    return (*shape(splines), CODES[name], float(threshold or 3.0), matmul)


def why_not_net(potential: EvaluationContext, *, first_may_add: bool = False) -> str | None:
    """Why the op cannot have a model's fitting net; None if it can. `first_may_add`: one whose first layer adds its
    input, too."""
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


def _beyond_limits(potential: EvaluationContext) -> str | None:
    """The op's limit that this model, where it is now, exceeds, whatever types there are."""
    assert potential.grid is not None
    model: Any = potential.model
    ntypes = 1 if model.descriptor.mixed else model.ntypes
    return _refusal(potential, ntypes, potential.grid.intervals, model.fitting.extra_size)


def _refusal(potential: EvaluationContext, ntypes: int, intervals: int, extra: int) -> str | None:
    """The op's limit that a model of these sizes exceeds."""
    model: Any = potential.model
    return spline_potential_why_not(
        model.descriptor.mean,
        tables=ntypes + model.descriptor.gated,
        intervals=intervals,
        width=model.descriptor.channels,
        axis=model.descriptor.axis_neuron,
        neurons=[layer.outputs for layer in model.fitting.net(0).layers[:-1]],
        extra=extra,
    )


def why_not_matmul(potential: EvaluationContext, matmul: str) -> str | None:
    """Why this model, where and as it is now, cannot be evaluated with products of that accuracy, which is not
    float32's; None if it can."""
    on_gpu = potential.device.type == "cuda"
    if matmul == "tf32" and not on_gpu:
        return f"the model is on {potential.device}, and only GPUs have such products"
    if matmul != "tf32" and on_gpu:
        return (
            "a GPU has no such products: 'tf32' is as quick as bf16 and more accurate, and float32 as bf16x3 and "
            "bf16x6"
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


def cast(layer: LayerTensors, dtype: torch.dtype) -> LayerTensors:
    return LayerTensors(*(None if x is None else x.to(dtype) for x in layer))  # type: ignore[arg-type]


def _pack(layers: list[LayerTensors], width: int, axis: int, matmul: str) -> torch.Tensor:
    filled = [filled_in(layer) for layer in layers]
    weights, biases, timesteps = (list(x) for x in zip(*filled, strict=True))
    return spline_potential_pack(weights, biases, timesteps, width, axis, matmul)


def filled_in(layer: LayerTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With what does nothing in the place of what is absent."""
    weight, bias, timestep = layer
    width = weight.shape[1]
    return (
        weight,
        weight.new_zeros(width) if bias is None else bias,
        weight.new_ones(width) if timestep is None else timestep,
    )


def scale_and_shift(splines: SplineNets) -> tuple[torch.Tensor, torch.Tensor]:
    """scale of each net and shift of each type, float64: e = scale * net + shift; both 0 for the types that have no
    energy."""
    model, fitting, kinds = splines.model, splines.fitting, splines.kinds
    has_energy = model.has_energy[kinds.index].double()
    nothing = torch.zeros(1, fitting.net(0).inputs, dtype=torch.float64, device=kinds.index.device)
    vacuum: list[Any] = [
        copy.deepcopy(fitting.net(t)).double()(nothing)[0, 0] if fitting.vacuum[t] else 0.0
        for t in kinds.numbers
    ]
    absent = torch.tensor([float(v) for v in vacuum], dtype=torch.float64, device=kinds.index.device)
    scale = has_energy[:1] if splines.shares_net else has_energy
    return scale, has_energy * (fitting.bias[kinds.index] + model.out_bias[kinds.index] - absent)
