"""What moves in a simulation, as tensors that are written in place."""

from dataclasses import dataclass

import torch

from mdops.ops.dynamics import Begun, Ended

# Of a system over some steps: what may go wrong, as the largest value of each thing, and the heat.
TALLY = ("moved2", "overflow", "closeness", "energy", "kinetic", "heat")

# What a step changes, in the order it has in memory.
_MOVING = (
    "positions", "momenta", "forces", "atom_energy", "energy", "kinetic", "scale", "eta", "eta_momenta", "virial",
    "tally",
)  # fmt: skip


@dataclass
class Found:
    """What a potential says of positions; see `mdops.ops.spline_potential`.

    Attributes:
        forces: (N, 3); atom_energy: (N,); virial: (S, 3, 3).
        nearest: (N,); within: (N, ntypes).
    """

    forces: torch.Tensor
    atom_energy: torch.Tensor
    virial: torch.Tensor
    nearest: torch.Tensor
    within: torch.Tensor


@dataclass
class State:
    """N atoms of S systems in the engine's own order, in ASE's units (A, eV, amu; time in A sqrt(amu/eV)), float64.

    Attributes:
        positions, forces: (N, 3).
        momenta: (N, 3), to be multiplied by `scale`.
        atom_energy: (N,).
        energy, kinetic: (S,), of the model and the atoms, at the end of the last step.
        scale: (S,), what the thermostats made of the momenta at the end of the last step.
        eta, eta_momenta: (S, M), of the thermostats.
        virial: (S, 3, 3), W = -dE/d(strain).
        tally: (S, 6), the columns of `TALLY`.
        inverse_mass: (N,); batch: (N,) int32, the system of each atom. They do not change.
        memory: all that moves, of which the tensors above are views.
    """

    positions: torch.Tensor
    momenta: torch.Tensor
    forces: torch.Tensor
    atom_energy: torch.Tensor
    energy: torch.Tensor
    kinetic: torch.Tensor
    scale: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor
    virial: torch.Tensor
    tally: torch.Tensor
    inverse_mass: torch.Tensor
    batch: torch.Tensor
    memory: torch.Tensor

    @classmethod
    def of(
        cls,
        positions: torch.Tensor,
        momenta: torch.Tensor,
        masses: torch.Tensor,
        batch: torch.Tensor,
        systems: int,
        eta: torch.Tensor,
        eta_momenta: torch.Tensor,
    ) -> "State":
        """No forces yet; masses (N,)."""
        inverse_mass = 1 / masses
        heat = (momenta.square().sum(1) * inverse_mass / 2).cpu()
        kinetic = torch.zeros(systems, dtype=torch.float64).index_add_(0, batch.cpu().long(), heat)
        zeros = positions.new_zeros
        moving = [
            positions, momenta, torch.zeros_like(positions), torch.zeros_like(masses), zeros(systems),
            kinetic.to(positions.device), positions.new_ones(systems), eta, eta_momenta, zeros(systems, 3, 3),
            zeros(systems, len(TALLY)),
        ]  # fmt: skip
        memory = torch.cat([tensor.reshape(-1) for tensor in moving])
        parts = memory.split([tensor.numel() for tensor in moving])
        views = (part.view(tensor.shape) for part, tensor in zip(parts, moving, strict=True))
        named = dict(zip(_MOVING, views, strict=True))
        state = cls(**named, inverse_mass=inverse_mass, batch=batch, memory=memory)
        state.clear_tally()
        return state

    def take(self, begun: Begun, found: Found, ended: Ended) -> None:
        """The state after a step, in one kernel."""
        new = [
            begun.positions, ended.momenta, found.forces, found.atom_energy, ended.energy, ended.kinetic,
            ended.scale, ended.eta, ended.eta_momenta, found.virial, ended.tally,
        ]  # fmt: skip
        torch.cat([tensor.reshape(-1) for tensor in new], out=self.memory)

    def clear_tally(self) -> None:
        self.tally.fill_(-torch.inf)
        self.tally[:, TALLY.index("heat")] = 0
