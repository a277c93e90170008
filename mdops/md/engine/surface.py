"""Forces of a potential on the device, with a neighbour list that holds for several steps, and flags in place of
errors."""

import math
from typing import NamedTuple

import numpy as np
import torch

from mdops.md.engine.state import State
from mdops.nn import Potential
from mdops.nn.system import System
from mdops.ops import NeighborList, neighbor_list, neighbor_matrix


class Flags(NamedTuple):
    """The largest value over some steps of each thing that may go wrong; NaN where a step had one.

    Attributes:
        moved2: squared distance of an atom from where the list was made, A^2.
        longest: length of the longest row of a list; infinite where the search refused its input.
        overflow: 1 if an atom had more neighbours than the model's `sel`.
        closeness: minus the smallest distance of two atoms, A.
        kinetic: energy, eV. energy: absolute value, eV.
    """

    moved2: float
    longest: float
    overflow: float
    closeness: float
    kinetic: float
    energy: float

    @property
    def finite(self) -> bool:
        return not any(math.isnan(value) for value in self) and math.isfinite(self.energy + self.kinetic)


class Surface:
    """The potential energy surface of one system, its atoms in the engine's order.

    Attributes:
        potential: of which the forces are.
        capacity: places in a row of the list.
        captures: whether a step can be captured in a CUDA graph; otherwise the potential asks the device.
    """

    def __init__(
        self,
        potential: Potential,
        system: System,
        skin: float,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        capacity: int = 0,
    ) -> None:
        self.potential, self.system, self.skin = potential, system, skin
        self._fused = potential.fused()
        self._fparam, self._aparam = fparam, aparam
        self.capacity = capacity
        self.captures = self._fused is not None and potential.device.type == "cuda"
        self._reference = torch.zeros_like(system.positions)
        self._list: NeighborList | None = None
        self._longest = system.positions.new_zeros(())
        self._flags = system.positions.new_empty(len(Flags._fields))
        self._sel = torch.tensor(potential.sel, device=potential.device)
        self._nothing = system.positions.new_zeros(())

    @property
    def r_min(self) -> float:
        """Distances below are extrapolated, A."""
        return 0.0 if self.potential.grid is None else self.potential.grid.r_min

    @property
    def cutoff(self) -> float:
        """Of the list, A."""
        return self.potential.cutoff + self.skin

    def clear_flags(self) -> None:
        self._flags.fill_(-math.inf)

    @property
    def flags(self) -> torch.Tensor:
        return self._flags

    def grow(self, longest: int) -> None:
        """Room for rows of that length, and a sixteenth more, in whole vectors of eight."""
        self.capacity = -(-(longest + max(8, longest // 16)) // 8) * 8

    def rebuild(self, state: State) -> None:
        """A new list for the positions of now; what does not fit is told by the flags."""
        s = self.system
        neighbors, images, counts, needed = neighbor_matrix(
            state.positions, s.cell, s.pbc, s.batch, s.types, self.cutoff, len(self.potential.type_map),
            self.capacity,
        )  # fmt: skip
        self._list = NeighborList(neighbors, images, counts, self.cutoff)
        self._longest.copy_(torch.where(needed[0] < 0, math.inf, needed[0].double()))
        self._reference.copy_(state.positions)

    def update(self, state: State) -> None:
        """Energy, forces and virial by the list there is, and flags."""
        assert self._list is not None
        system = self._at(state)
        overflow, nearest = self._nothing, self._nothing + self.potential.cutoff
        if self._fused is None:
            result = self.potential.evaluate(system, self._list, self._fparam, self._aparam)
        else:
            with torch.no_grad():
                result, moments = self._fused(system, self._list, self._fparam, self._aparam)
            nearest = moments.nearest.min().double()
            if self.potential.overflow != "extend":
                overflow = (moments.within > self._sel).any().double()
        _write(state, result)
        moved2 = (state.positions - self._reference).square_().sum(1).max()
        self._note(moved2, self._longest, overflow, -nearest, self._nothing, state.energy.abs())

    def note_kinetic(self, kinetic: torch.Tensor) -> None:
        """To be called at the end of a step."""
        place = Flags._fields.index("kinetic")
        self._flags[place].copy_(torch.maximum(self._flags[place], kinetic))

    def update_carefully(self, state: State, order: torch.Tensor, inverse: torch.Tensor) -> None:
        """The same by a list of its own, on the atoms in the user's order: errors name the user's atoms.

        Raises InputError for what flags tell otherwise.
        """
        s = self.system
        system = System(state.positions[inverse], s.types[inverse], s.cell, s.pbc, s.batch)
        found = neighbor_list(
            system.positions, s.cell, s.pbc, system.types, self.cutoff, batch=s.batch,
            ntypes=len(self.potential.type_map),
        )  # fmt: skip
        if found.neighbors.shape[1] > self.capacity:
            self.grow(found.neighbors.shape[1])
        aparam = None if self._aparam is None else self._aparam[inverse]
        result = self.potential.evaluate(system, found, self._fparam, aparam)
        for name in ("forces", "atom_energy"):
            result[name] = result[name][order]
        _write(state, result)

    def _at(self, state: State) -> System:
        s = self.system
        return System(state.positions, s.types, s.cell, s.pbc, s.batch)

    def _note(self, *values: torch.Tensor) -> None:
        self._flags.copy_(torch.maximum(self._flags, torch.stack(values)))


def _write(state: State, result: dict[str, torch.Tensor]) -> None:
    state.forces.copy_(result["forces"])
    state.atom_energy.copy_(result["atom_energy"])
    state.energy.copy_(result["atom_energy"].sum())
    state.virial.copy_(result["virial"][0])


def spatial_order(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, edge: float) -> np.ndarray:
    """(N,): the atoms sorted by boxes of about `edge` (A), so that neighbours are near in memory."""
    if pbc.all():
        boxes = np.maximum(1, np.linalg.norm(cell, axis=1) // edge)
        place = np.linalg.solve(cell.T, positions.T).T % 1.0 * boxes
    else:
        place = positions / edge
    box = np.nan_to_num(np.floor(place))
    return np.lexsort((box[:, 2], box[:, 1], box[:, 0]))
