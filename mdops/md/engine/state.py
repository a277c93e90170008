"""What moves in a simulation, as tensors that are written in place."""

from dataclasses import dataclass

import torch


@dataclass
class State:
    """N atoms in the engine's own order, in ASE's units (A, eV, amu; time in A sqrt(amu/eV)), float64.

    Attributes:
        positions, momenta, forces: (N, 3).
        inverse_mass: (N, 1).
        energy: (), of the model; atom_energy: (N,).
        virial: (3, 3), W = -dE/d(strain).
        kinetic: (), the kinetic energy at the end of the last step.
    """

    positions: torch.Tensor
    momenta: torch.Tensor
    forces: torch.Tensor
    inverse_mass: torch.Tensor
    energy: torch.Tensor
    atom_energy: torch.Tensor
    virial: torch.Tensor
    kinetic: torch.Tensor

    @classmethod
    def at_rest(cls, positions: torch.Tensor, masses: torch.Tensor) -> "State":
        """No forces yet; masses (N,)."""
        n = len(positions)
        return cls(
            positions=positions.clone(),
            momenta=torch.zeros_like(positions),
            forces=torch.zeros_like(positions),
            inverse_mass=1 / masses[:, None],
            energy=positions.new_zeros(()),
            atom_energy=positions.new_zeros(n),
            virial=positions.new_zeros(3, 3),
            kinetic=positions.new_zeros(()),
        )

    @property
    def moving(self) -> tuple[torch.Tensor, ...]:
        """All that a step changes."""
        return (
            self.positions, self.momenta, self.forces, self.energy, self.atom_energy, self.virial,
            self.kinetic,
        )  # fmt: skip

    def measure_kinetic(self) -> None:
        """Sets the kinetic energy of the momenta of now."""
        self.kinetic.copy_((self.momenta.square() * self.inverse_mass).sum() / 2)
