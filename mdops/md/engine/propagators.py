"""One step of each ensemble, as what comes before the new forces and what comes after them."""

import math

import numpy as np
import torch
from ase import units

from mdops.md.engine.state import Found, State
from mdops.md.options import Physics
from mdops.ops import begin_step, end_step
from mdops.ops.dynamics import Begun, Ended

_CHAIN = 3


class Propagator:
    """Moves a state by one step; never asks the device for a value.

    NVE is velocity Verlet; NVT puts it between two half steps of a chain of three thermostats a system
    (Nose-Hoover), or friction and noise into its drift (Langevin): see `mdops.ops.begin_step`.

    Attributes:
        links: thermostats of a system.
        generator: of random numbers, or None.
    """

    def __init__(self, physics: Physics, freedom: np.ndarray, device: torch.device) -> None:
        """`freedom`: (S,), momenta of each system that move."""
        self.dt = physics.timestep * units.fs
        self.generator: torch.Generator | None = None
        self.links, self._keep, self._conserves = 0, 1.0, True
        self._kT = units.kB * (physics.temperature or 0.0)
        self._tau = physics.tdamp * units.fs
        self._freedom = torch.as_tensor(freedom, dtype=torch.float64, device=device)
        if physics.ensemble == "nvt" and physics.thermostat == "langevin":
            self._keep = math.exp(-physics.friction / (1000 * units.fs) * self.dt)
            self._conserves = False
            self.generator = torch.Generator(device)
            self.generator.manual_seed(physics.seed)
        elif physics.ensemble == "nvt":
            self.links = _CHAIN
        self._no_noise = torch.zeros(0, 3, dtype=torch.float64, device=device)

    def begin(self, state: State) -> Begun:
        """Up to the new positions."""
        noise = self._no_noise
        if self.generator is not None:
            noise = torch.randn(
                state.momenta.shape, generator=self.generator, dtype=torch.float64, device=noise.device
            )
        return begin_step(
            state.positions, state.momenta, state.forces, state.inverse_mass, state.batch, state.scale,
            state.kinetic, state.eta, state.eta_momenta, self._freedom, noise, self.dt, self._kT, self._tau,
            self._keep,
        )  # fmt: skip

    def end(
        self, state: State, begun: Begun, found: Found, reference: torch.Tensor, sel: torch.Tensor
    ) -> Ended:
        """With the new forces. `reference` (N, 3): where the list was made; `sel`: (ntypes,) int32."""
        return end_step(
            begun.positions, reference, begun.momenta, found.forces, state.inverse_mass, state.batch,
            found.atom_energy, found.nearest, found.within, sel, begun.eta, begun.eta_momenta, self._freedom,
            state.tally, self.dt, self._kT, self._tau,
        )  # fmt: skip

    def bath_energy(self, state: State) -> torch.Tensor | None:
        """(S,), what makes energy + kinetic energy the conserved quantity; None if nothing is conserved."""
        if not self._conserves:
            return None
        if self.links == 0:
            return torch.zeros_like(state.kinetic)
        goal = self._kT * torch.ones_like(state.eta)
        goal[:, 0] *= self._freedom
        return (goal * state.eta + state.eta_momenta.square() / (2 * goal * self._tau**2)).sum(1)
