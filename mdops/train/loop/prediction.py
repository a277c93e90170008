"""Energies, forces and virials of a batch, with a graph to the weights for a loss on them.

Three ways lead there, with the same numbers (docs/training.md, "A step"). `Potential.forward` records everything,
whatever the model. Most models take a shorter one. Positions do not change in training, so that only the weights need
a graph: on the CPU one op does all that comes after the splines' tables (`mdops.nn.fused_training`); on a GPU the graph
begins at the spline moments, with passes of large steps through the nets (`mdops.nn.moment_energy`).
"""

from collections.abc import Callable

import torch

from mdops.nn import fused_training, moment_energy
from mdops.nn.moments import Moments
from mdops.nn.pairs import Pairs, refuse_coincident, refuse_overflow, warn_close
from mdops.nn.potential import Potential
from mdops.nn.spline import SplineGrid, coefficients
from mdops.nn.splined import pair_gradient, pair_moments
from mdops.ops import displacements, pair_forces
from mdops.train.data.batch import Batch

Way = Callable[[Potential, SplineGrid, Batch], dict[str, torch.Tensor]]


def predict(potential: Potential, batch: Batch, create_graph: bool = True) -> dict[str, torch.Tensor]:
    """energy (S,), atom_energy (N,), forces (N, 3) and virial (S, 3, 3) of a batch, from its lists.

    With `create_graph` all are differentiable in the weights. Parameters in the data that the model does not take
    are left out.
    """
    batch = batch.taken_by(potential)
    way = short_way(potential) if create_graph else None
    if way is not None and potential.grid is not None:
        return way(potential, potential.grid, batch)
    system = batch.system
    return potential(
        system.positions,
        system.types,
        system.cell,
        system.pbc,
        system.batch,
        batch.neighbors,
        batch.fparam,
        batch.aparam,
        forces=True,
        create_graph=create_graph,
    )


def short_way(potential: Potential) -> Way | None:
    """How a training of this model gets round a graph of everything: `from_op`, `from_moments`, or not at all."""
    if potential.grid is None or potential.overflow == "truncate":
        return None
    if fused_training.supports(potential):
        return from_op
    masked = potential.descriptor.has_masked or potential.atom_exclude_types
    return from_moments if moment_energy.supports(potential.fitting) and not masked else None


def from_op(potential: Potential, grid: SplineGrid, batch: Batch) -> dict[str, torch.Tensor]:
    """`predict` by one op."""
    system = batch.system
    result, found = fused_training.fused_forces(
        potential, grid, system, batch.neighbors, batch.fparam, batch.aparam
    )
    _look_at(potential, grid, batch, found)
    return {"energy": _totals(result["atom_energy"], batch), **result}


def from_moments(potential: Potential, grid: SplineGrid, batch: Batch) -> dict[str, torch.Tensor]:
    """`predict` by moments without a graph, the nets with one, and the ops that lead from dE/dA to forces with
    theirs."""
    system, near, d = batch.system, batch.neighbors, potential.descriptor
    with torch.no_grad():
        moments, vectors = _checked_moments(potential, grid, batch)
    energy, gradient = _atom_energies(potential, grid, batch, moments)
    gradient = pair_gradient(d, grid, gradient, vectors, near.counts, system.types)
    forces, virial, _ = pair_forces(gradient, vectors, system.batch, near.neighbors, system.count)
    return {"energy": _totals(energy, batch), "atom_energy": energy, "forces": forces, "virial": virial}


@torch.no_grad()
def check_frames(potential: Potential, batch: Batch) -> None:
    """Refuses and warns of what `predict` does."""
    assert potential.grid is not None
    _checked_moments(potential, potential.grid, batch)


def _totals(atom_energy: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(S,)"""
    return atom_energy.new_zeros(batch.system.count).index_add(0, batch.system.batch.long(), atom_energy)


def _vectors(potential: Potential, batch: Batch) -> torch.Tensor:
    """The pair vectors (N, K, 3)."""
    system, near = batch.system, batch.neighbors
    return displacements(
        system.positions, system.cell, system.batch, near.neighbors, near.images, potential.dtype
    )


def _checked_moments(
    potential: Potential, grid: SplineGrid, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """A (N, ntypes * B, 4) and the pair vectors."""
    vectors = _vectors(potential, batch)
    moments, within, nearest = pair_moments(
        potential.descriptor, grid, vectors, batch.neighbors.counts, batch.system.types
    )
    # While CUDA kernels are captured nothing can be read; who captures has called `check_frames` before.
    if not (vectors.is_cuda and torch.cuda.is_current_stream_capturing()):
        _look_at(potential, grid, batch, Moments(nearest.new_empty(0), within, nearest))
    return moments, vectors


def _look_at(potential: Potential, grid: SplineGrid, batch: Batch, found: Moments) -> None:
    """Refuses coincident atoms and too many neighbours; warns of pairs closer than the splines go."""
    nearest = float(found.nearest.min()) if len(found.nearest) else float("inf")
    if nearest == 0:
        near = batch.neighbors
        refuse_coincident(found, Pairs(near.neighbors, near.counts, _vectors(potential, batch)))
    if nearest < grid.r_min:
        warn_close(found, grid.r_min, "Training data with such pairs would make the splines reach there")
    if potential.overflow == "error" and bool((found.within > potential.descriptor.places).any()):
        refuse_overflow(found, potential.sel, potential.type_map)


def _atom_energies(
    potential: Potential, grid: SplineGrid, batch: Batch, moments: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies (N,), float64, and dE/dA (N, ntypes * B, 4) of every atom, type by type."""
    system, d, fitting = batch.system, potential.descriptor, potential.fitting
    table = coefficients(d, grid) / d.slots
    extra = fitting.extra_inputs(system.batch, system.count, batch.fparam, batch.aparam)
    bias = fitting.bias + potential.out_bias
    nets = [fitting.net(kind) for kind in range(d.ntypes)]
    energy, gradient = moment_energy.moment_energy(
        nets, d.axis_neuron, table.flatten(1, 2), moments, extra, batch.kinds
    )
    kind = system.types.long().clamp(min=0)
    return torch.where(system.types >= 0, energy.double() + bias[kind], 0.0), gradient
