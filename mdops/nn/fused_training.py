"""A model in the form of the one op that does a training step's passes (`mdops.ops.spline_training`)."""

from typing import TYPE_CHECKING

import torch

from mdops.nn import fused
from mdops.nn.moments import Moments
from mdops.nn.net import Net
from mdops.nn.spline import SplineGrid
from mdops.nn.system import System
from mdops.ops import NeighborList, spline_training

if TYPE_CHECKING:
    from mdops.nn.potential import Potential


def supports(potential: "Potential") -> bool:
    """Whether the op can stand for this model: on the CPU, tanh in the fitting nets, no energies taken away."""
    fitting = potential.fitting
    return (
        potential.device.type == "cpu"
        and fused.supports(potential)
        and fitting.net(0).layers[0].activation_name.lower() == "tanh"
        and not any(fitting.vacuum)
    )


def fused_forces(
    potential: "Potential",
    grid: SplineGrid,
    system: System,
    neighbors: NeighborList,
    fparam: torch.Tensor | None,
    aparam: torch.Tensor | None,
) -> tuple[dict[str, torch.Tensor], Moments]:
    """atom_energy (N,), forces (N, 3) and virial (S, 3, 3), float64, differentiable in the model's weights, and what
    the neighbours told (T is not among it: empty)."""
    d, fitting = potential.descriptor, potential.fitting
    scale = potential.has_energy.double()
    energy, forces, virial, within, nearest, _ = spline_training(
        *fused.atoms_and_pairs(system, neighbors),
        *fused.norms(d),
        fused.model_table(d, grid),
        _tensors([fitting.net(t) for t in range(d.ntypes)]),
        fitting.extra_inputs(system.batch, system.count, fparam, aparam),
        scale,
        scale * (fitting.bias + potential.out_bias),
        *fused.shape(potential, grid),
    )
    result = {"atom_energy": energy, "forces": forces, "virial": virial}
    return result, Moments(nearest.new_empty(0), within, nearest)


def _tensors(nets: list[Net]) -> list[torch.Tensor]:
    """The weights of each net, in the order of the op's argument nets."""
    tensors: list[torch.Tensor] = []
    for net in nets:
        for layer in net.layers[:-1]:
            tensors += layer.tensors
        tensors += net.layers[-1].tensors[:2]
    return tensors
