"""A model in the form of the one op that does a whole inference step (`mdops.ops.spline_potential`)."""

import copy
from typing import TYPE_CHECKING, Any

import torch

from mdops.nn.activation import CODES
from mdops.nn.moments import Moments
from mdops.nn.net import Layer, Net
from mdops.nn.se_e2_a import SeE2A
from mdops.nn.spline import SplineGrid, coefficients
from mdops.nn.system import System
from mdops.ops import NeighborList, spline_potential, spline_potential_pack, spline_potential_why_not

if TYPE_CHECKING:
    from mdops.nn.potential import Potential

_TABLE_PAD = 16


class FusedPotential:
    """The weights of a `Potential` as they are now, packed; `supports` says for which models there is one."""

    def __init__(self, potential: "Potential", grid: SplineGrid) -> None:
        d, fitting = potential.descriptor, potential.fitting
        self.fitting, self.r_min = fitting, grid.r_min
        with torch.no_grad():
            table = model_table(copy.deepcopy(d).cpu().double(), grid).to(potential.device, potential.dtype)
            packed = [
                _pack(fitting.net(t), d.width, d.axis_neuron, potential.matmul) for t in range(d.ntypes)
            ]
            scale, shift = _scale_and_shift(potential)
        self._model = (*norms(d), table, torch.stack(packed))
        self._output = (scale, shift)
        name, _, threshold = fitting.net(0).layers[0].activation_name.lower().partition(":")
        self._scalars = (*shape(potential, grid), CODES[name], float(threshold or 3.0), potential.matmul)

    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> tuple[dict[str, torch.Tensor], Moments]:
        """atom_energy, forces and virial, and what the neighbours told (T is not among it: empty)."""
        extra = self.fitting.extra_inputs(system.batch, system.count, fparam, aparam)
        energy, forces, virial, within, nearest = spline_potential(
            *atoms_and_pairs(system, neighbors),
            *self._model,
            extra,
            *self._output,
            *self._scalars,
        )
        result = {"atom_energy": energy, "forces": forces, "virial": virial}
        return result, Moments(nearest.new_empty(0), within, nearest)


def atoms_and_pairs(system: System, neighbors: NeighborList) -> tuple[torch.Tensor, ...]:
    """The arguments positions to counts."""
    near = neighbors.neighbors, neighbors.images, neighbors.counts
    return system.positions, system.cell, system.batch, system.types, *near


def norms(d: SeE2A) -> tuple[torch.Tensor, ...]:
    """The arguments mean to sel."""
    return d.mean, d.std, d.pair_mask, d.zeroed, d.places


def model_table(d: SeE2A, grid: SplineGrid) -> torch.Tensor:
    """The argument tables, differentiable in the descriptor's weights."""
    table = coefficients(d, grid, masked=False) / d.slots
    return torch.nn.functional.pad(table, (0, -d.width % _TABLE_PAD)).flatten(1, 2)


def shape(potential: "Potential", grid: SplineGrid) -> tuple[Any, ...]:
    """The arguments cutoff to residual."""
    d, hidden = potential.descriptor, potential.fitting.net(0).layers[:-1]
    return (
        d.cutoff,
        d.cutoff_smooth,
        d.protection,
        grid.s_max,
        d.width,
        d.axis_neuron,
        [layer.outputs for layer in hidden],
        [int(layer.adds_input) for layer in hidden],
    )


def supports(potential: "Potential") -> bool:
    """Whether the op can stand for this model: its fitting net is of the common kind, and the sizes are within the
    op's limits on the model's device (on a GPU it computes in float32)."""
    fitting = potential.fitting
    nets = [fitting.net(t) for t in range(len(potential.type_map))]
    hidden = nets[0].layers[:-1]
    plain = (
        1 <= len(hidden) <= 16
        and not hidden[0].adds_input
        and len({layer.activation_name.lower() for layer in hidden}) == 1
        and hidden[0].activation_name.lower().partition(":")[0] in CODES
        and not nets[0].layers[-1].adds_input
        and nets[0].layers[-1].activation_name.lower() in ("linear", "none")
    )
    constant_vacuum = not any(fitting.vacuum) or fitting.extra_size == 0
    return plain and constant_vacuum and _limit(potential) is None


def _limit(potential: "Potential") -> str | None:
    """The op's limit that this model, where it is now, exceeds."""
    if potential.device.type not in ("cpu", "cuda"):
        return f"there is no such op on {potential.device}"
    d, fitting = potential.descriptor, potential.fitting
    return spline_potential_why_not(
        d.mean,
        ntypes=d.ntypes,
        intervals=potential.grid.intervals if potential.grid else 1,
        width=d.width,
        axis=d.axis_neuron,
        neurons=[layer.outputs for layer in fitting.net(0).layers[:-1]],
        extra=fitting.extra_size,
    )


def tf32_problem(potential: "Potential") -> str | None:
    """Why this model, where and as it is now, cannot be evaluated with products of TF32's accuracy; None if it can."""
    if potential.device.type != "cuda":
        return f"the model is on {potential.device}, and only GPUs have such products"
    if potential.dtype != torch.float32:
        return f"the model computes in {str(potential.dtype).removeprefix('torch.')}"
    if potential.grid is None:
        return "the embedding nets are evaluated exactly, by PyTorch's own products"
    if potential.overflow == "truncate":
        return "overflow='truncate' evaluates the steps that drop neighbours by PyTorch's own products"
    return (
        None if supports(potential) else "the fused step, which has such products, does not cover this model"
    )


def _pack(net: Net, width: int, axis: int, matmul: str) -> torch.Tensor:
    def given(value: torch.Tensor | None, layer: Layer, default: float) -> torch.Tensor:
        return layer.weight.new_full((layer.outputs,), default) if value is None else value.detach()

    return spline_potential_pack(
        [layer.weight.detach() for layer in net.layers],
        [given(layer.bias, layer, 0.0) for layer in net.layers],
        [given(layer.timestep, layer, 1.0) for layer in net.layers],
        width,
        axis,
        matmul,
    )


def _scale_and_shift(potential: "Potential") -> tuple[torch.Tensor, torch.Tensor]:
    """(ntypes,) each, float64: e = scale * net + shift; both 0 for the types that have no energy."""
    fitting = potential.fitting
    scale = potential.has_energy.double()
    nothing = torch.zeros(1, fitting.net(0).inputs, dtype=torch.float64, device=potential.device)
    vacuum: list[Any] = [
        copy.deepcopy(fitting.net(t)).double()(nothing)[0, 0] if isolated else 0.0
        for t, isolated in enumerate(fitting.vacuum)
    ]
    shift = (
        fitting.bias
        + potential.out_bias
        - torch.tensor([float(v) for v in vacuum], dtype=torch.float64, device=potential.device)
    )
    return scale, scale * shift
