"""A small potential of one's own on `mdops.ops`, trained on energies and forces with plain PyTorch.

python examples/custom_model.py

Each atom sees the moments of its neighbours' density, M[b, a] = sum_j c_b(type j) g_b(s_j) R_j[a]: Gaussians g_b
of s, a learned weight c_b of the neighbour's element, and the row R of the environment matrix. Contracting the
directions of two moments makes features that do not change when the atoms are turned; a net gives the energy.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from mdops import ops
from mdops.train import Batch, Dataset, PairLists, load_dataset, make_batch

DATA = Path(__file__).parents[1] / "tests/data/training/emt"
CUTOFF, CUTOFF_SMOOTH = 5.0, 2.0  # A: the switch falls between them
GAUSSIANS = 10
STEPS = 300


class MomentPotential(nn.Module):
    """Energies of systems of `ntypes` elements; `dtype` is that of everything but positions and sums."""

    def __init__(self, ntypes: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        # With mean 0 the row of an absent neighbour is 0, so that it adds nothing to a sum.
        self.register_buffer("mean", torch.zeros(ntypes, dtype=dtype))
        self.register_buffer("std", torch.ones(ntypes, 2, dtype=dtype))
        self.register_buffer("centers", torch.linspace(0, 0.5, GAUSSIANS, dtype=dtype))  # s = 0.5/A is at 2 A
        self.register_buffer("bias", torch.zeros(ntypes, dtype=torch.float64))  # energy of each element, eV
        self.neighbor = nn.Parameter(torch.rand(ntypes, GAUSSIANS, dtype=dtype))
        self.center = nn.Parameter(torch.rand(ntypes, GAUSSIANS, dtype=dtype))
        width = GAUSSIANS + GAUSSIANS**2
        layers = (nn.LayerNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.net = nn.Sequential(*layers, nn.Linear(32, 1)).to(dtype)

    def forward(self, batch: Batch, positions: torch.Tensor) -> torch.Tensor:
        """Energies (S,), eV, of a batch with other positions (N, 3), A; differentiable in these."""
        system, near = batch.system, batch.neighbors
        # Pair vectors are formed in float64 and then cast: far from the origin nothing is lost.
        pairs, dtype = (near.neighbors, near.images), self.center.dtype
        d = ops.displacements(positions, system.cell, system.batch, *pairs, dtype)
        smooth = {"cutoff": CUTOFF, "cutoff_smooth": CUTOFF_SMOOTH}
        rows = ops.env_mat(d, near.counts, system.types, self.mean, self.std, **smooth)  # (N, K, 4)
        # Places without a neighbour hold -1; any element will do there, as their rows are 0.
        elements = system.types.long()[near.neighbors.clamp(min=0).long()]
        gaussians = torch.exp(-(((rows[..., :1] - self.centers) / self.centers[1]) ** 2))
        moments = torch.einsum("nkb,nka->nba", self.neighbor[elements] * gaussians, rows)
        moments = moments * self.center[system.types.long()][..., None]
        vectors = moments[..., 1:]  # they turn with the atoms; their products do not
        features = torch.cat([moments[..., 0], (vectors @ vectors.mT).flatten(1)], dim=1)
        atoms = self.net(features)[:, 0].double() + self.bias[system.types.long()]
        return torch.zeros_like(batch.sizes, dtype=torch.float64).index_add(0, system.batch, atoms)


def energy_and_forces(
    model: MomentPotential, batch: Batch, training: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies (S,) and forces (N, 3) = -dE/dx; when training they can be differentiated once more."""
    positions = batch.system.positions.detach().requires_grad_()
    energy = model(batch, positions)
    (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=training)
    return energy, -gradient


def fit_bias(model: MomentPotential, data: Dataset) -> None:
    """The energies of the elements by least squares: the net only has to learn what is left."""
    solution = np.linalg.lstsq(data.composition(), data.labels["energy"], rcond=None)[0]
    model.bias.copy_(torch.from_numpy(solution))


def train(model: MomentPotential, data: Dataset, steps: int) -> list[float]:
    """Trains, and returns the force RMSE (eV/A) of each step's batch before the step."""
    lists, random, errors = PairLists(data, CUTOFF), np.random.default_rng(1), []
    fit_bias(model, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        batch = make_batch(data, lists, random.choice(len(data), 4, replace=False))
        energy, forces = energy_and_forces(model, batch, training=True)
        energy_loss = ((energy - batch.labels["energy"]) / batch.sizes).square().mean()
        force_loss = (forces - batch.labels["forces"]).square().mean()
        optimizer.zero_grad()
        (energy_loss + force_loss).backward()  # the forces are derivatives: this takes second ones
        optimizer.step()
        schedule.step()
        errors.append(float(force_loss.detach()) ** 0.5)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:3d}: {energy_loss**0.5:.4f} eV/atom, forces {errors[-1]:.4f} eV/A")
    return errors


if __name__ == "__main__":
    torch.manual_seed(1)
    train(MomentPotential(ntypes=2), load_dataset(DATA, ["Cu", "Al"]), STEPS)
