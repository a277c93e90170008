"""A model in the form of the one op that does a training step's passes (`mdops.ops.spline_training`)."""

from typing import TYPE_CHECKING, Any

import torch

from mdops.nn import fused
from mdops.nn.moments import Moments
from mdops.nn.net import Net
from mdops.nn.spline import SplineGrid
from mdops.nn.spline_table import trained_table
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
        system.positions,
        system.cell,
        system.batch,
        system.types,
        neighbors.neighbors,
        neighbors.images,
        neighbors.counts,
        *fused.norms(d),
        trained_table(d, grid),
        _numbers([fitting.net(t) for t in range(d.ntypes)]),
        fitting.extra_inputs(system.batch, system.count, fparam, aparam),
        scale,
        scale * (fitting.bias + potential.out_bias),
        *fused.shape(potential, grid),
    )
    result = {"atom_energy": energy, "forces": forces, "virial": virial}
    return result, Moments(nearest.new_empty(0), within, nearest)


def _numbers(nets: list[Net]) -> torch.Tensor:
    """(ntypes, P): all weights of each net, in the order of the op's argument nets."""
    parts = [part for net in nets for part in _parts(net)]
    weights = [part for part in parts if isinstance(part, torch.nn.Parameter)]
    if len({id(w) for w in weights}) < len(weights):  # one net for several types
        return torch.cat([part.flatten() for part in parts]).view(len(nets), -1)
    found: torch.Tensor = _Joined.apply(_side_by_side(parts), *parts)
    return found.view(len(nets), -1)


def _parts(net: Net) -> list[torch.Tensor]:
    """Weight, bias and timestep of each layer, as constants where there are none."""
    parts: list[torch.Tensor] = []
    for layer in net.layers:
        weight, last = layer.weight, layer is net.layers[-1]
        parts.append(weight)
        parts.append(weight.new_zeros(layer.outputs) if layer.bias is None else layer.bias)
        if not last:
            parts.append(weight.new_ones(layer.outputs) if layer.timestep is None else layer.timestep)
    return parts


@torch.no_grad()
def _side_by_side(parts: list[torch.Tensor]) -> torch.Tensor:
    """All parts as one tensor, (P,): the memory they lie in. They are moved there first if they do not, which is at
    the first step of a training; the parameters stay the same objects."""
    first, at = parts[0], 0
    home, size = first.untyped_storage().data_ptr(), first.element_size()
    there = first.storage_offset() == 0
    for part in parts:
        if isinstance(part, torch.nn.Parameter):
            there &= part.untyped_storage().data_ptr() == home and part.storage_offset() == at
            there &= part.is_contiguous()
        at += part.numel()
    if there and first.untyped_storage().nbytes() == at * size:
        return first.detach().as_strided((at,), (1,))
    joined = torch.cat([part.flatten() for part in parts])
    for part, own in zip(parts, joined.split([part.numel() for part in parts]), strict=True):
        if isinstance(part, torch.nn.Parameter):
            part.data = own.view(part.shape)
    return joined


class _Joined(torch.autograd.Function):
    """What parts that lie side by side are together, and its gradient in parts: nothing is copied."""

    @staticmethod
    def forward(ctx: Any, joined: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        ctx.shapes = [part.shape for part in parts]
        return joined.view_as(joined)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pieces = grad.split([shape.numel() for shape in ctx.shapes])
        return None, *(piece.view(shape) for piece, shape in zip(pieces, ctx.shapes, strict=True))
