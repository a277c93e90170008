"""One step of each ensemble, as the parts before and after the new forces."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from ase import units

from mdops.md.engine.state import BATH, ForceResult, ListOrigin, State
from mdops.md.options import EnsembleSettings
from mdops.ops import begin_cell_step, begin_step, end_cell_step, end_step, next_step

_CHAIN = 3


class Moved(NamedTuple):
    """A state with new positions (N, 3) and cells (S, 3, 3), and all new tensors so far, by name."""

    positions: torch.Tensor
    cell: torch.Tensor
    new: Mapping[str, torch.Tensor]


class Propagator:
    """Moves a state by one step; never reads a value from the device.

    NVE is velocity Verlet; NVT puts it between two half steps of a chain of three thermostats a system
    (Nose-Hoover), or friction and noise into its drift (Langevin): see `mdops.ops.begin_step`.

    Attributes:
        joins: whether the end of a step and the start of the next are one op.
        links: thermostats of a system.
        generator: of random numbers, or None.
    """

    joins = True

    def __init__(self, physics: EnsembleSettings, freedom: np.ndarray, device: torch.device) -> None:
        """`freedom`: (S,), momenta of each system that move."""
        self.dt = physics.timestep * units.fs
        self.generator: torch.Generator | None = None
        self.links, self._keep, self._conserves = 0, 1.0, not physics.has_ramp
        self._physics, self._ramp_stage = physics, -1
        self.set_targets(0)
        self._tau = physics.tdamp * units.fs
        self._freedom = torch.as_tensor(freedom, dtype=torch.float64, device=device)
        if physics.ensemble == "nvt" and physics.thermostat == "langevin":
            self._keep = math.exp(-physics.friction / (1000 * units.fs) * self.dt)
            self._conserves = False
            self.generator = torch.Generator(device)
            self.generator.manual_seed(physics.seed)
        elif physics.ensemble != "nve":
            self.links = _CHAIN
        self._no_noise = torch.zeros(0, 3, dtype=torch.float64, device=device)

    def set_targets(self, step: int) -> bool:
        """Set the targets of the step after `step` steps; whether they changed."""
        stage = self._physics.ramp_stage(step)
        changed, self._ramp_stage = stage != self._ramp_stage, stage
        if changed:
            temperature, pressure = self._physics.goals(step)
            self._kT, self._pressure = units.kB * temperature, pressure * units.GPa
        return changed

    def bath(self) -> dict[str, torch.Tensor]:
        """`BATH`'s tensors, at rest."""
        widths = dict.fromkeys(BATH, 0) | {"eta": self.links, "eta_momenta": self.links} | self._cell_widths()
        return {name: self._freedom.new_zeros(len(self._freedom), width) for name, width in widths.items()}

    def _cell_widths(self) -> dict[str, int]:
        return {}

    def first_half(self, state: State) -> Moved:
        """Up to the new positions."""
        first = begin_step(
            state.positions, state.momenta, state.forces, state.inverse_mass, state.batch, state.scale,
            state.kinetic, state.eta, state.eta_momenta, self._freedom, self._noise(state), self.dt, self._kT,
            self._tau, self._keep,
        )  # fmt: skip
        return Moved(first.positions, state.cell, first._asdict())

    def _noise(self, state: State) -> torch.Tensor:
        if self.generator is None:
            return self._no_noise
        return torch.randn(
            state.momenta.shape, generator=self.generator, dtype=torch.float64, device=self._no_noise.device
        )

    def second_half(
        self, state: State, moved: Moved, result: ForceResult, origin: ListOrigin, sel: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """With the new forces: all new tensors. `origin`: of the list; `sel`: (ntypes,) int32."""
        given = state, moved, result, origin, sel
        second = self._ended_by(end_step, *given, self.dt, self._kT, self._tau)
        return {**moved.new, **vars(result), **second._asdict()}

    def _ended_by(
        self,
        op: Callable[..., Any],
        state: State,
        moved: Moved,
        result: ForceResult,
        origin: ListOrigin,
        sel: torch.Tensor,
        *more: Any,
    ) -> Any:
        """The result of an op with `end_step`'s arguments."""
        at = moved.new
        return op(
            moved.positions, origin.positions, at["momenta"], result.forces, state.inverse_mass, state.batch,
            result.atom_energy, result.nearest, result.within, sel, at["eta"], at["eta_momenta"], self._freedom,
            state.tally, *more,
        )  # fmt: skip

    def next_step(
        self, state: State, moved: Moved, result: ForceResult, origin: ListOrigin, sel: torch.Tensor
    ) -> tuple[State, Moved]:
        """The state after `second_half`, beside the one before, and `first_half` of the next step."""
        if not self.joins:
            state = state.after(self.second_half(state, moved, result, origin, sel))
            return state, self.first_half(state)
        given = state, moved, result, origin, sel
        more = self._noise(state), self.dt, self._kT, self._tau, self._keep
        ended, begun = self._ended_by(next_step, *given, *more)
        state = state.after({**moved.new, **vars(result), **ended._asdict()})
        return state, Moved(begun.positions, state.cell, begun._asdict())

    def bath_energy(self, state: State) -> torch.Tensor | None:
        """(S,), the conserved quantity minus energy and kinetic energy; None if nothing is conserved."""
        if not self._conserves:
            return None
        if self.links == 0:
            return torch.zeros_like(state.kinetic)
        goal = self._kT * torch.ones_like(state.eta)
        goal[:, 0] *= self._freedom
        return _chain_energy(state.eta, state.eta_momenta, goal, goal * self._tau**2)


class CellPropagator(Propagator):
    """NPT: atoms and cell under a pressure, each with a chain (Martyna, Tobias and Klein): `begin_cell_step`."""

    joins = False

    def __init__(
        self, physics: EnsembleSettings, freedom: np.ndarray, atoms: np.ndarray, device: torch.device
    ) -> None:
        """`freedom`, `atoms`: (S,), momenta of each system that move, and its atoms."""
        super().__init__(physics, freedom, device)
        self._flexible, self._period = physics.flexible, physics.pdamp * units.fs
        inertia = (atoms + 1) * units.kB * (physics.temperature or 0.0) * self._period**2
        self._inertia = torch.as_tensor(inertia, dtype=torch.float64, device=device)

    def _cell_widths(self) -> dict[str, int]:
        return {"cell_momenta": 6, "xi": self.links, "xi_momenta": self.links}

    def first_half(self, state: State) -> Moved:
        first = begin_cell_step(
            state.positions, state.momenta, state.forces, state.inverse_mass, state.batch, state.scale,
            state.flow, state.virial, state.cell, state.cell_momenta, state.xi, state.xi_momenta, state.eta,
            state.eta_momenta, self._freedom, self._inertia, self.dt, self._kT, self._tau, self._pressure,
            self._period, self._flexible,
        )  # fmt: skip
        return Moved(first.positions, first.cell, first._asdict())

    def second_half(
        self, state: State, moved: Moved, result: ForceResult, origin: ListOrigin, sel: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        at, tally = moved.new, without_moves(state.tally, origin)
        second = end_cell_step(
            moved.positions, origin.positions, at["momenta"], result.forces, state.inverse_mass, state.batch,
            result.atom_energy, result.nearest, result.within, sel, at["moves"], origin.cell, result.virial,
            moved.cell, at["cell_momenta"], at["xi"], at["xi_momenta"], at["eta"], at["eta_momenta"],
            self._freedom, self._inertia, tally, self.dt, self._kT, self._tau, self._pressure,
            self._period, origin.cutoff, self._flexible,
        )  # fmt: skip
        tally = with_offsets(second.tally, state.tally, origin, moved.cell)
        return {**at, **vars(result), **second._asdict(), "tally": tally}

    def bath_energy(self, state: State) -> torch.Tensor | None:
        of_atoms = super().bath_energy(state)
        if of_atoms is None:
            return None
        a, b, c = state.cell.unbind(1)
        volume = (torch.linalg.cross(a, b) * c).sum(1).abs()
        # Off-diagonal entries count twice.
        squares = state.cell_momenta.square() @ state.cell_momenta.new_tensor([1.0, 1, 1, 2, 2, 2])
        goal = self._kT * torch.ones_like(state.xi)
        mass = goal * self._period**2
        goal[:, 0] *= 6 if self._flexible else 1
        mass[:, 0] *= 9
        of_cell = self._pressure * volume + squares / (2 * self._inertia)
        return of_atoms + of_cell + _chain_energy(state.xi, state.xi_momenta, goal, mass)


def make_propagator(
    physics: EnsembleSettings, freedom: np.ndarray, atoms: np.ndarray, device: torch.device
) -> Propagator:
    """The ensemble's; `freedom`, `atoms`: (S,), momenta of each system that move, and its atoms."""
    if physics.ensemble == "npt":
        return CellPropagator(physics, freedom, atoms, device)
    return Propagator(physics, freedom, device)


def without_moves(tally: torch.Tensor, origin: ListOrigin) -> torch.Tensor:
    """The tally for `end_cell_step` before `with_offsets`: without distances of earlier steps."""
    if origin.offset == 0:
        return tally
    return torch.cat([torch.full_like(tally[:, :1], -torch.inf), tally[:, 1:]], 1)  # `TALLY` begins with them


def with_offsets(
    tally: torch.Tensor, before: torch.Tensor, origin: ListOrigin, cell: torch.Tensor
) -> torch.Tensor:
    """The tally of `end_cell_step` after the tally `before`. Where there are virtual atoms, their distances from their
    places in the strained list count: with an atom at x + v after the strain x -> x (1 + D), its virtual atom at the
    offset a is at (x + a) (1 + D) + v - a D."""
    if origin.offset == 0:
        return tally
    a, b, c = origin.cell.unbind(1)
    across = [torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)]
    volume = (a * across[0]).sum(1).abs()
    strain = (torch.stack(across, 2) @ (cell - origin.cell)).flatten(1).norm(dim=1) / volume
    moved2 = (tally[:, 0].sqrt() + origin.offset * strain).square()
    return torch.cat([torch.maximum(moved2, before[:, 0])[:, None], tally[:, 1:]], 1)


def _chain_energy(
    eta: torch.Tensor, momenta: torch.Tensor, goal: torch.Tensor, mass: torch.Tensor
) -> torch.Tensor:
    """(S,), of chains at `eta` with the target `goal`; all (S, M)."""
    return (goal * eta + momenta.square() / (2 * mass)).sum(1)
