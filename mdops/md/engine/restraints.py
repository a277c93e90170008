"""Restraints: energies that hold groups of atoms near positions or at distances, added to a model's."""

import dataclasses
import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from mdops.errors import InputError
from mdops.md.engine.state import ForceResult
from mdops.system import System


@dataclasses.dataclass(frozen=True)
class Tether:
    """E = k/2 sum_i |x_i - x0_i|^2: each atom of a group is held near a position.

    Attributes:
        atoms: their indices in the structure.
        stiffness: k, eV/A^2.
        places: x0, (n, 3), A, not wrapped, like positions; None: the initial positions.
    """

    atoms: Sequence[int]
    stiffness: float
    places: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Distance:
    """E = k/2 (|R| - length)^2, R from the centre of mass of one group of atoms to that of another.

    The nearest image of the other counts, in cells that are almost rectangular. Each group has to be whole: positions
    are not wrapped.

    Attributes:
        first, second: indices of the atoms in the structure.
        stiffness: k, eV/A^2.
        length: A.
        side: "both", or a wall: only if R is "above" or "below" the length.
    """

    first: Sequence[int]
    second: Sequence[int]
    stiffness: float
    length: float
    side: str = "both"


Restraint = Tether | Distance


def placed(restraints: Sequence[Restraint], positions: np.ndarray) -> list[Restraint]:
    """Sets missing places of tethers to the initial positions (N, 3), A. Raises InputError."""
    found: list[Restraint] = []
    for restraint in restraints:
        if isinstance(restraint, Tether) and restraint.places is None:
            _numbers(restraint.atoms, np.array([0, len(positions)]), 0, "")
            restraint = dataclasses.replace(restraint, places=positions[np.asarray(restraint.atoms)])
        found.append(restraint)
    return found


def identity(restraints: Sequence[Restraint]) -> str | None:
    """A digest of the restraints of one structure or several; None without any."""
    if not restraints:
        return None
    parts = []
    for restraint in restraints:
        values = dataclasses.asdict(restraint)
        places = values.pop("places", None)
        parts += [repr((type(restraint).__name__, {k: _plain(v) for k, v in values.items()})).encode()]
        parts += [] if places is None else [np.asarray(places, np.float64).tobytes()]
    return sha256(b"|".join(parts)).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | float) else np.asarray(value).tolist()


class Restraints:
    """Those of S structures side by side.

    Their energies count as those of the model's atoms do (a `Distance`'s as its first atom's), the virial of a
    `Distance` is in the virial, and a `Tether` has none. Atomic virials are the model's alone.

    Attributes:
        tethered: (S,) bool, the structures whose total momentum a tether changes.
    """

    def __init__(
        self,
        restraints: Sequence[Sequence[Restraint]],
        starts: np.ndarray,
        positions: np.ndarray,
        masses: np.ndarray,
    ) -> None:
        """`starts`: (S + 1,), of the structures' atoms among all; positions (N, 3), masses (N,).

        Raises InputError for impossible restraints.
        """
        systems = len(starts) - 1
        if len(restraints) != systems:
            raise InputError(f"restraints of {len(restraints)} structures, and there are {systems}")
        self.tethered = np.zeros(systems, bool)
        self._pairs: list[tuple[int, Distance, list[np.ndarray], list[np.ndarray]]] = []
        atoms, stiffness, places = [], [], []
        for s, own in enumerate(restraints):
            name = f"system {s}: " if systems > 1 else ""
            for restraint in own:
                _check(restraint, name)
                if isinstance(restraint, Tether):
                    self.tethered[s] = True
                    group = _numbers(restraint.atoms, starts, s, name)
                    atoms.append(group)
                    stiffness.append(np.full(len(group), float(restraint.stiffness)))
                    places.append(_places(restraint, positions[group], name))
                else:
                    groups = [_numbers(g, starts, s, name) for g in (restraint.first, restraint.second)]
                    if np.isin(groups[0], groups[1]).any():
                        raise InputError(f"{name}both groups of a distance have the same atom")
                    weights = [masses[g] / masses[g].sum() for g in groups]
                    self._pairs.append((s, restraint, groups, weights))
        self._atoms = np.concatenate(atoms) if atoms else np.empty(0, int)
        if len(np.unique(self._atoms)) < len(self._atoms):
            raise InputError("an atom is in two tethers")
        self._stiffness, self._places = (np.concatenate(x) if x else None for x in (stiffness, places))

    def on(self, system: System, inverse: torch.Tensor) -> "PlacedRestraints":
        """For the engine's order of atoms: `inverse` (N,) has the indices of the user's."""
        return PlacedRestraints(self, system, inverse)


class PlacedRestraints:
    """Restraints on the device, for atoms in the engine's order."""

    def __init__(self, of: Restraints, system: System, inverse: torch.Tensor) -> None:
        device = inverse.device

        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(np.ascontiguousarray(values), device=device)

        self._periodic = system.pbc.to(torch.float64)
        self._tethered = inverse[tensor(of._atoms)] if len(of._atoms) else None
        if self._tethered is not None:
            assert of._stiffness is not None and of._places is not None
            self._stiffness, self._places = tensor(of._stiffness), tensor(of._places)
        self._pairs = [
            (
                s,
                tensor(np.array([s])),
                restraint,
                [inverse[tensor(g)] for g in groups],
                [*map(tensor, weights)],
            )
            for s, restraint, groups, weights in of._pairs
        ]

    def apply(self, result: ForceResult, positions: torch.Tensor, cell: torch.Tensor) -> ForceResult:
        """A model's energies, forces and virials with those of the restraints at these positions and cells."""
        forces, energy, virial = result.forces, result.atom_energy, result.virial
        if self._tethered is not None:
            away = positions[self._tethered] - self._places
            forces = forces.index_add(0, self._tethered, -self._stiffness[:, None] * away)
            of_atoms = self._stiffness / 2 * away.square().sum(1)
            energy = energy.index_add(0, self._tethered, of_atoms)
        for s, own, restraint, (first, second), (a, b) in self._pairs:
            r = b @ positions[second] - a @ positions[first]
            r = r - self._nearest(r, cell[s], self._periodic[s])
            length = r.square().sum().sqrt()
            beyond = length - restraint.length
            if restraint.side != "both":
                beyond = beyond.clamp(min=0) if restraint.side == "above" else beyond.clamp(max=0)
            pull = restraint.stiffness * beyond / length * r  # dE/dR
            forces = forces.index_add(0, first, a[:, None] * pull).index_add(0, second, -b[:, None] * pull)
            energy = energy.index_add(0, first[:1], restraint.stiffness / 2 * beyond.square()[None])
            virial = virial.index_add(0, own, -torch.outer(r, pull)[None])
        return dataclasses.replace(result, forces=forces, atom_energy=energy, virial=virial)

    def _nearest(self, r: torch.Tensor, cell: torch.Tensor, periodic: torch.Tensor) -> torch.Tensor:
        """The lattice vector nearest to r; by the adjugate, as solving reads from the device."""
        a, b, c = cell.unbind()
        across = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)])
        volume = (a * across[0]).sum()
        # A direction that is not periodic may have no cell vector.
        turns = torch.where(periodic > 0, (across @ r / volume).nan_to_num(0.0, 0.0, 0.0).round(), 0.0)
        return turns @ cell


def _numbers(atoms: Sequence[int], starts: np.ndarray, system: int, name: str) -> np.ndarray:
    """Of all atoms."""
    found = np.asarray(atoms)
    size = starts[system + 1] - starts[system]
    if found.ndim != 1 or found.size == 0 or not np.issubdtype(found.dtype, np.integer):
        raise InputError(f"{name}a restraint has the atoms {atoms!r}, expected numbers of atoms")
    if found.min() < 0 or found.max() >= size:
        raise InputError(f"{name}a restraint has atoms {found.min()} to {found.max()}, and there are {size}")
    if len(np.unique(found)) < len(found):
        raise InputError(f"{name}a restraint has an atom twice")
    return starts[system] + found


def _places(tether: Tether, now: np.ndarray, name: str) -> np.ndarray:
    if tether.places is None:
        return now
    places = np.asarray(tether.places, np.float64)
    if places.shape != now.shape or not np.isfinite(places).all():
        raise InputError(
            f"{name}places of a tether have the shape {places.shape}, expected finite {now.shape}"
        )
    return places


def _check(restraint: Restraint, name: str) -> None:
    if not isinstance(restraint, Tether | Distance):
        raise InputError(f"{name}{restraint!r} is neither a Tether nor a Distance")
    if not 0 < restraint.stiffness < math.inf:
        raise InputError(
            f"{name}the stiffness of a restraint is {restraint.stiffness}, expected more than 0 eV/A^2"
        )
    if isinstance(restraint, Distance):
        if not 0 < restraint.length < math.inf:
            raise InputError(f"{name}the length of a distance is {restraint.length}, expected more than 0 A")
        if restraint.side not in ("both", "above", "below"):
            raise InputError(f"{name}side is {restraint.side!r}, expected both, above, below")
