"""FIRE: minimises the energies of atoms and cells, for many systems side by side.

E. Bitzek et al., Phys. Rev. Lett. 97, 170201 (2006), with the steps of ASE's `FIRE`. Cells move as with ASE's
`FrechetCellFilter`: a cell is h = h_0 exp(L)^T, and the coordinates are n L, for n atoms, and positions in the initial
strain, x exp(-L)^T.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from ase import units

from mdops.md.engine.propagators import Moved, Propagator, with_offsets, without_moves
from mdops.md.engine.state import ForceResult, ListOrigin, State
from mdops.md.options import EnsembleSettings, Relaxation
from mdops.nn.sums import sum_systems
from mdops.ops import end_cell_step, end_step

_TIME, _MIX = 0.1, 0.1  # of the first step; the mixing of the force's direction
_LONGEST_TIME, _LONGEST_STEP = 1.0, 0.2
_WAIT, _GROW, _SHRINK, _FADE = 5, 1.1, 0.5, 0.99

# The columns of a row of `eta`.
_COLUMNS = ("time", "mix", "downhill", "steps", "done", "force")
DONE, STEPS, FORCE = (_COLUMNS.index(name) for name in ("done", "steps", "force"))


class Fire(Propagator):
    """Moves a state by one step of FIRE; converged systems do not move.

    Of a `State`, `momenta` are FIRE's velocities, `eta` (S, 6) the columns above, and where cells move
    `cell_momenta` (S, 18) L and its velocity, `xi` (S, 9) h_0.
    """

    joins = False

    def __init__(
        self, relaxation: Relaxation, cells: np.ndarray, sizes: np.ndarray, device: torch.device
    ) -> None:
        """`cells`: (S, 3, 3), A; `sizes`: (S,), atoms."""
        super().__init__(EnsembleSettings("nve"), np.ones(len(sizes)), device)
        self._relaxation = relaxation
        self._moves_cells = relaxation.cell != "fixed"
        self._pressure = relaxation.pressure * units.GPa
        self._cells = torch.as_tensor(cells, dtype=torch.float64, device=device)
        self._sizes = torch.as_tensor(sizes, dtype=torch.float64, device=device)
        zeros, systems = self._freedom.new_zeros, len(sizes)
        self._empty = zeros(systems, 0)
        self._zeros = zeros(systems, 6)
        one = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64, device=device)
        # For `end_cell_step`: atoms and cells do not move.
        still = torch.cat([one, 0 * one, one, 0 * one, one[:1]])
        self._still = still.expand(systems, -1).contiguous()

    def bath(self) -> dict[str, torch.Tensor]:
        systems, zeros = len(self._cells), self._freedom.new_zeros
        start = {"time": _TIME, "mix": _MIX}
        eta = [zeros(systems) + start.get(name, 0.0) for name in _COLUMNS]
        moving = self._moves_cells
        return {
            "eta": torch.stack(eta, 1),
            "eta_momenta": self._empty,
            "cell_momenta": zeros(systems, 18 if moving else 0),
            "xi": self._cells.flatten(1).clone() if moving else self._empty,
            "xi_momenta": self._empty,
        }

    def bath_energy(self, state: State) -> torch.Tensor | None:
        return None

    def judge(self, state: State) -> None:
        """Which systems have converged, by the current forces."""
        state.eta.copy_(self._judged(state.eta, self._downhill(state, vars(state)), state.batch))

    def first_half(self, state: State) -> Moved:
        batch = state.batch.long()
        eta = {name: state.eta[:, k] for k, name in enumerate(_COLUMNS)}
        force, velocity = self._downhill(state, vars(state)), self._velocity(state)
        power = self._dot(force, velocity, state.batch)
        length = (self._dot(velocity, velocity, state.batch) / self._dot(force, force, state.batch)).sqrt()
        first, down = eta["steps"] == 0, power > 0
        # An uphill step ends at rest.
        old = torch.where(down, 1 - eta["mix"], 0.0)
        new = torch.where(down, eta["mix"] * length, 0.0)
        patient = down & (eta["downhill"] > _WAIT)
        time = torch.where(patient, (eta["time"] * _GROW).clamp(max=_LONGEST_TIME), eta["time"])
        time = torch.where(down | first, time, eta["time"] * _SHRINK)
        mix = torch.where(patient, eta["mix"] * _FADE, torch.where(down | first, eta["mix"], _MIX))
        velocity = velocity.times(old, batch).plus(force.times(new + time, batch))
        way = velocity.times(time, batch)
        far = self._dot(way, way, state.batch).sqrt()
        moves = (eta["done"] == 0).to(far.dtype)
        factor = moves * torch.where(far > _LONGEST_STEP, _LONGEST_STEP / far, 1.0)
        x, cell, log = self._moved(state, way.times(factor, batch), moves)
        values = {
            "time": time, "mix": mix, "downhill": torch.where(down, eta["downhill"] + 1, 0.0),
            "steps": eta["steps"] + moves, "done": eta["done"], "force": eta["force"],
        }  # fmt: skip
        rest = {"momenta": velocity.atoms, "eta": torch.stack([values[name] for name in _COLUMNS], 1)}
        if self._moves_cells:
            assert velocity.cell is not None
            rest |= {
                "cell_momenta": torch.cat([log, velocity.cell], 1).flatten(1),
                "cell": cell,
                "xi": state.xi.clone(),
            }
        return Moved(x, cell, {"positions": x, **rest, "eta_momenta": self._empty, "xi_momenta": self._empty})

    def second_half(
        self, state: State, moved: Moved, result: ForceResult, origin: ListOrigin, sel: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The measured values of a step, by the ops of dynamics, without motion."""
        nothing, none = torch.zeros_like(moved.positions), self._empty
        atoms = (
            moved.positions, origin.positions, nothing, result.forces, state.inverse_mass, state.batch,
            result.atom_energy, result.nearest, result.within, sel,
        )  # fmt: skip
        if self._moves_cells:
            ended = end_cell_step(
                *atoms, self._still, origin.cell, result.virial, moved.cell, self._zeros, none, none, none, none,
                self._freedom, self._freedom, without_moves(state.tally, origin), 0.0, 1.0, 1.0, 0.0, 1.0,
                origin.cutoff, False,
            )._asdict()  # fmt: skip
            ended["tally"] = with_offsets(ended["tally"], state.tally, origin, moved.cell)
        else:
            ended = end_step(*atoms, none, none, self._freedom, state.tally, 0.0, 1.0, 1.0)._asdict()
        new = {**ended, **vars(result), **moved.new}
        new["eta"] = self._judged(new["eta"], self._downhill(state, new | {"cell": moved.cell}), state.batch)
        return new

    def _judged(self, eta: torch.Tensor, force: "_Coordinates", batch: torch.Tensor) -> torch.Tensor:
        """The columns, with the largest force of each system, and whether it is small enough."""
        squares = force.atoms.square().sum(1)
        most = squares.new_zeros(len(eta)).scatter_reduce(0, batch.long(), squares, "amax")
        if force.cell is not None:
            most = torch.maximum(most, force.cell.square().sum(2).amax(1))
        largest = most.sqrt()
        done = torch.maximum(eta[:, DONE], (largest < self._relaxation.fmax).to(eta.dtype))
        return torch.cat([eta[:, :DONE], done[:, None], largest[:, None]], 1)

    def _velocity(self, state: State) -> "_Coordinates":
        if not self._moves_cells:
            return _Coordinates(state.momenta, None)
        return _Coordinates(state.momenta, state.cell_momenta.view(-1, 6, 3)[:, 3:])

    def _downhill(self, state: State, new: Mapping[str, torch.Tensor]) -> "_Coordinates":
        """Minus the gradient by the coordinates, of the forces, virial, cell and strain in `new`."""
        forces = torch.where(state.inverse_mass[:, None] > 0, new["forces"], 0.0)
        if not self._moves_cells:
            return _Coordinates(forces, None)
        log = new["cell_momenta"].view(-1, 6, 3)[:, :3]
        strain, back = _exp(log), _exp(-log)
        volume = torch.linalg.cross(new["cell"][:, 0], new["cell"][:, 1]).mul(new["cell"][:, 2]).sum(1).abs()
        one = torch.eye(3, dtype=log.dtype, device=log.device)
        virial = (new["virial"] + new["virial"].mT) / 2 - self._pressure * volume[:, None, None] * one
        if self._relaxation.cell == "volume":
            virial = virial.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * one
        # The adjoint of the derivative of exp at L is the derivative at L^T: a block of the exponential of both.
        slope = virial @ back.mT
        block = torch.cat([torch.cat([log.mT, slope], 2), torch.cat([torch.zeros_like(log), log.mT], 2)], 1)
        cell = _exp(block)[:, :3, 3:] / self._sizes[:, None, None]
        return _Coordinates((forces[:, None] @ strain[state.batch.long()])[:, 0], cell)

    def _moved(
        self, state: State, way: "_Coordinates", moves: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Positions, cells and L after a displacement; unchanged if `moves` (S,) is 0."""
        if way.cell is None:
            return state.positions + way.atoms, state.cell, state.cell_momenta
        batch, moving = state.batch.long(), moves[:, None, None] > 0
        log = state.cell_momenta.view(-1, 6, 3)[:, :3]
        new = log + way.cell / self._sizes[:, None, None]
        strain, back = _exp(new), _exp(-log)
        x = (state.positions[:, None] @ back.mT[batch])[:, 0] + way.atoms
        x = torch.where(moving[batch, 0], (x[:, None] @ strain.mT[batch])[:, 0], state.positions)
        cell = torch.where(moving, state.xi.view(-1, 3, 3) @ strain.mT, state.cell)
        return x, cell, torch.where(moving, new, log)

    def _dot(self, a: "_Coordinates", b: "_Coordinates", batch: torch.Tensor) -> torch.Tensor:
        """(S,)"""
        of_atoms = sum_systems((a.atoms * b.atoms).sum(1), batch, len(self._cells))
        return of_atoms if a.cell is None or b.cell is None else of_atoms + (a.cell * b.cell).sum((1, 2))


class _Coordinates(NamedTuple):
    """Values for the coordinates of all systems: of atoms (N, 3), and of cells (S, 3, 3) if they move."""

    atoms: torch.Tensor
    cell: torch.Tensor | None

    def times(self, factor: torch.Tensor, batch: torch.Tensor) -> "_Coordinates":
        """Each system's times a number, (S,)."""
        cell = None if self.cell is None else factor[:, None, None] * self.cell
        return _Coordinates(factor[batch, None] * self.atoms, cell)

    def plus(self, other: "_Coordinates") -> "_Coordinates":
        cell = None if self.cell is None or other.cell is None else self.cell + other.cell
        return _Coordinates(self.atoms + other.atoms, cell)


def _exp(m: torch.Tensor) -> torch.Tensor:
    """Of (S, n, n); PyTorch's own reads norms from the device. Exact to rounding for strains up to 2."""
    squarings, terms = 5, 12
    one = torch.eye(m.shape[1], dtype=m.dtype, device=m.device)
    small, result = m / 2**squarings, one.expand_as(m)
    for k in range(terms, 0, -1):
        result = one + small @ result / k
    for _ in range(squarings):
        result = result @ result
    return result
