"""Energies, forces and virials of a batch, with a graph to the weights for a loss on them.

Two ways lead there. `Potential.forward` records everything, whatever the model. Most models take the short way:
positions do not change in training, so the graph begins at the spline moments, and the passes through the nets are
those of `mdops.nn.moment_energy`. Both give the same numbers (docs/training.md, "A step").
"""

import torch

from mdops.nn.moment_energy import moment_energy, supports
from mdops.nn.moments import Moments
from mdops.nn.pairs import Pairs, refuse_coincident, refuse_overflow, warn_close
from mdops.nn.potential import Potential
from mdops.nn.spline import SplineGrid, coefficients
from mdops.nn.splined import pair_gradient, pair_moments
from mdops.ops import displacements, pair_forces
from mdops.train.batch import Batch


def predict(potential: Potential, batch: Batch, create_graph: bool = True) -> dict[str, torch.Tensor]:
    """energy (S,), atom_energy (N,), forces (N, 3) and virial (S, 3, 3) of a batch, from its lists.

    With `create_graph` all are differentiable in the weights.
    """
    if create_graph and takes_short_way(potential):
        return _short_way(potential, batch)
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


def takes_short_way(potential: Potential) -> bool:
    """Whether a training of this model begins at the moments: it has splines, tanh and no pairs or atoms left out."""
    return (
        potential.grid is not None
        and potential.overflow != "truncate"
        and not potential.descriptor.has_masked
        and not potential.atom_exclude_types
        and supports(potential.fitting)
    )


@torch.no_grad()
def check_frames(potential: Potential, batch: Batch) -> None:
    """Refuses and warns of what `predict` does."""
    assert potential.grid is not None
    _checked_moments(potential, potential.grid, batch)


def _short_way(potential: Potential, batch: Batch) -> dict[str, torch.Tensor]:
    """Moments without a graph, the nets with one, and the ops that lead from dE/dA to forces with theirs."""
    system, near, d, grid = batch.system, batch.neighbors, potential.descriptor, potential.grid
    assert grid is not None
    with torch.no_grad():
        moments, vectors = _checked_moments(potential, grid, batch)
    energy, gradient = _atom_energies(potential, batch, moments)
    gradient = pair_gradient(d, grid, gradient, vectors, near.counts, system.types)
    forces, virial, _ = pair_forces(gradient, vectors, system.batch, near.neighbors, system.count)
    total = energy.new_zeros(system.count).index_add(0, system.batch.long(), energy)
    return {"energy": total, "atom_energy": energy, "forces": forces, "virial": virial}


def _checked_moments(
    potential: Potential, grid: SplineGrid, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """A (N, ntypes * B, 4) and the pair vectors (N, K, 3)."""
    system, near = batch.system, batch.neighbors
    vectors = displacements(
        system.positions, system.cell, system.batch, near.neighbors, near.images, potential.dtype
    )
    moments, within, nearest = pair_moments(potential.descriptor, grid, vectors, near.counts, system.types)
    # While CUDA kernels are captured nothing can be read; who captures has called `check_frames` before.
    if not (vectors.is_cuda and torch.cuda.is_current_stream_capturing()):
        found = Moments(nearest.new_empty(0), within, nearest)
        refuse_coincident(found, Pairs(near.neighbors, near.counts, vectors))
        warn_close(found, grid.r_min)
        if potential.overflow == "error":
            refuse_overflow(found, potential.sel, potential.type_map)
    return moments, vectors


def _atom_energies(
    potential: Potential, batch: Batch, moments: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies (N,), float64, and dE/dA (N, ntypes * B, 4) of every atom, type by type."""
    system, d, fitting = batch.system, potential.descriptor, potential.fitting
    assert potential.grid is not None
    table = coefficients(d, potential.grid) / d.slots
    extra = fitting.extra_inputs(system.batch, system.count, batch.fparam, batch.aparam)
    bias = fitting.bias + potential.out_bias
    nets = [fitting.net(kind) for kind in range(d.ntypes)]
    energy, gradient = moment_energy(nets, d.axis_neuron, table.flatten(1, 2), moments, extra, batch.kinds)
    kind = system.types.long().clamp(min=0)
    return torch.where(system.types >= 0, energy.double() + bias[kind], 0.0), gradient
