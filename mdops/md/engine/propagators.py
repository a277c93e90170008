"""One step of each ensemble, as what comes before the new forces and what comes after them."""

import math
from abc import ABC, abstractmethod

import torch
from ase import units

from mdops.md.engine.state import State
from mdops.md.options import Physics
from mdops.ops import nose_hoover_chain

_CHAIN = 3


class Propagator(ABC):
    """Moves a state by one step; writes in place, and never asks the device for a value.

    Attributes:
        inner: the thermostat's variables by name, a part of the state.
        generator: of random numbers, or None.
    """

    inner: dict[str, torch.Tensor]
    generator: torch.Generator | None

    @abstractmethod
    def before(self, state: State) -> None: ...

    @abstractmethod
    def after(self, state: State) -> None:
        """Also measures the kinetic energy."""

    @abstractmethod
    def bath_energy(self) -> torch.Tensor | None:
        """What makes energy + kinetic energy the conserved quantity, (); None if nothing is conserved."""


class VelocityVerlet(Propagator):
    """p += F dt/2, x += p dt/m, then with the new forces p += F dt/2: NVE."""

    def __init__(self, dt: float, device: torch.device) -> None:
        self.dt = dt
        self.inner = {}
        self.generator = None
        self._nothing = torch.zeros((), dtype=torch.float64, device=device)

    def before(self, state: State) -> None:
        state.momenta.add_(state.forces, alpha=self.dt / 2)
        state.positions.addcmul_(state.momenta, state.inverse_mass, value=self.dt)

    def after(self, state: State) -> None:
        state.momenta.add_(state.forces, alpha=self.dt / 2)
        state.measure_kinetic()

    def bath_energy(self) -> torch.Tensor | None:
        return self._nothing


class Langevin(Propagator):
    """BAOAB: kick, half a drift, friction and noise, half a drift, kick.

    B. Leimkuhler and C. Matthews, J. Chem. Phys. 138, 174102 (2013). The middle is exact:
    p -> c p + sqrt((1 - c^2) m kT) xi with c = exp(-friction dt).
    """

    def __init__(self, dt: float, kT: float, friction: float, seed: int, device: torch.device) -> None:
        """friction: in 1/time."""
        self.dt = dt
        self.inner = {}
        self._keep = math.exp(-friction * dt)
        self._noise = math.sqrt((1 - self._keep**2) * kT)
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def before(self, state: State) -> None:
        state.momenta.add_(state.forces, alpha=self.dt / 2)
        state.positions.addcmul_(state.momenta, state.inverse_mass, value=self.dt / 2)
        xi = torch.randn(
            state.momenta.shape, generator=self.generator, dtype=torch.float64, device=state.momenta.device
        )
        state.momenta.mul_(self._keep).addcmul_(xi, state.inverse_mass.rsqrt(), value=self._noise)
        state.positions.addcmul_(state.momenta, state.inverse_mass, value=self.dt / 2)

    def after(self, state: State) -> None:
        state.momenta.add_(state.forces, alpha=self.dt / 2)
        state.measure_kinetic()

    def bath_energy(self) -> torch.Tensor | None:
        return None


class NoseHooverChain(VelocityVerlet):
    """Velocity Verlet between two half steps of a chain of three thermostats.

    G. J. Martyna, M. L. Klein and M. Tuckerman, J. Chem. Phys. 97, 2635 (1992); factorised as M. E. Tuckerman
    et al., J. Phys. A 39, 5629 (2006): see `mdops.ops.nose_hoover_chain`, which also says what is conserved.
    """

    def __init__(self, dt: float, kT: float, freedom: int, tau: float, device: torch.device) -> None:
        super().__init__(dt, device)
        self.inner = {
            name: torch.zeros(_CHAIN, dtype=torch.float64, device=device) for name in ("eta", "p_eta")
        }
        self._kT, self._freedom, self._tau = kT, freedom, tau
        weights = torch.ones(_CHAIN, dtype=torch.float64)
        weights[0] = freedom
        self._goal = (kT * weights).to(device)
        self._mass = self._goal * tau**2

    def before(self, state: State) -> None:
        self._thermostat(state)
        super().before(state)

    def after(self, state: State) -> None:
        super().after(state)
        self._thermostat(state)

    def bath_energy(self) -> torch.Tensor | None:
        eta, p = self.inner["eta"], self.inner["p_eta"]
        return (self._goal * eta + p.square() / (2 * self._mass)).sum()

    def _thermostat(self, state: State) -> None:
        """Half a step of the chain, which scales all momenta."""
        eta, p_eta = self.inner["eta"], self.inner["p_eta"]
        new_eta, new_p, scale = nose_hoover_chain(
            eta, p_eta, state.kinetic, self._kT, self._freedom, self._tau, self.dt / 2
        )
        eta.copy_(new_eta)
        p_eta.copy_(new_p)
        state.momenta.mul_(scale)
        state.kinetic.mul_(scale.square())


def make_propagator(physics: Physics, freedom: int, device: torch.device) -> Propagator:
    """The propagator of a run's physics (nve or nvt), with `freedom` momenta that move."""
    dt, kT = physics.timestep * units.fs, units.kB * (physics.temperature or 0.0)
    if physics.ensemble == "nve":
        return VelocityVerlet(dt, device)
    if physics.thermostat == "langevin":
        return Langevin(dt, kT, physics.friction / (1000 * units.fs), physics.seed, device)
    return NoseHooverChain(dt, kT, freedom, physics.tdamp * units.fs, device)
