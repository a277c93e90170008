"""The structures of an engine: checked, and as one system of tensors in any order of atoms."""

from collections.abc import Collection, Iterable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.constraints import FixAtoms

from mdops.errors import InputError
from mdops.md.engine.force_provider import spatial_order
from mdops.md.motion import check_masses, check_momenta, check_npt, degrees_of_freedom
from mdops.md.options import EnsembleSettings
from mdops.models.charge_spin import charge_spin_defaults
from mdops.potential import Potential
from mdops.system import System, as_numbers, as_real, atom_spins, atom_types, charges_and_spins


class Structures:
    """S structures with N atoms in all, one after the other.

    Attributes:
        starts: (S + 1,): structure s has the atoms starts[s] up to starts[s + 1].
        freedom: (S,), degrees of freedom.
        positions, momenta: (N, 3), masses: (N,), cells: (S, 3, 3): the initial ones.
        fixed: (N,) bool, atoms that do not move.
    """

    def __init__(
        self,
        frames: Sequence[Atoms],
        potential: Potential,
        physics: EnsembleSettings,
        fparam: Any,
        aparam: Any,
        *,
        unused: Collection[str] = (),
        may_fix: bool = False,
    ) -> None:
        """`unused`: those of "fparam" and "aparam" that only other models take. `may_fix`: atoms may have ASE's
        `FixAtoms`.

        Raises InputError for what the engine cannot move.
        """
        if not frames:
            raise InputError("the engine has no structures to move")
        self._names = [f"system {s}: " if len(frames) > 1 else "" for s in range(len(frames))]
        for atoms, name in zip(frames, self._names, strict=True):
            _check(atoms, physics, name, may_fix=may_fix)
        self.freedom = np.array([degrees_of_freedom(atoms, physics) for atoms in frames])
        if physics.ensemble != "nve" and self.freedom.min() < 1:
            name = self._names[int(self.freedom.argmin())]
            if physics.ensemble == "npt":
                raise InputError(f"{name}npt has no motion of atoms to act on here: repeat the cell")
            raise InputError(
                f"{name}a Nose-Hoover chain has no free momenta to act on here: use Langevin dynamics "
                '(thermostat="langevin")'
            )
        self.starts = np.cumsum([0, *(len(atoms) for atoms in frames)])
        self.positions = np.concatenate([as_real("positions", atoms.positions) for atoms in frames])
        self.momenta = np.concatenate([as_real("momenta", atoms.get_momenta()) for atoms in frames])
        self.masses = np.concatenate([as_real("masses", atoms.get_masses()) for atoms in frames])
        self.fixed = np.zeros(len(self.masses), bool)
        for first, atoms in zip(self.starts[:-1], frames, strict=True):
            for constraint in atoms.constraints:
                self.fixed[first + np.arange(len(atoms))[constraint.get_indices()]] = True
        self._types = atom_types(frames, potential.type_map)
        self.cells = np.array([as_real("cell", atoms.cell.array) for atoms in frames])
        self._pbc = np.array([atoms.pbc for atoms in frames])
        self._charge_spin = charges_and_spins(frames, charge_spin_defaults(potential.model))
        self._spins = None if potential.model.spin is None else atom_spins(frames)
        self._batch = np.repeat(np.arange(len(frames)), np.diff(self.starts))
        self._aparam_size = potential.parameter_sizes["aparam"]
        self._fparam = None if "fparam" in unused else self._frame_parameters(frames, fparam)
        self._aparam = None if "aparam" in unused else self._atom_parameters(frames, aparam)

    def order(self, positions: np.ndarray, cells: np.ndarray, edge: float) -> np.ndarray:
        """(N,): the atoms of each structure sorted in space (see `spatial_order`), the structures in turn."""
        parts = [
            first + spatial_order(positions[first:last], cell, pbc, edge)
            for first, last, cell, pbc in zip(
                self.starts[:-1], self.starts[1:], cells, self._pbc, strict=True
            )
        ]
        return np.concatenate(parts)

    def sorted(
        self, order: np.ndarray, positions: np.ndarray, cells: np.ndarray, device: torch.device
    ) -> tuple[System, torch.Tensor | None, torch.Tensor | None]:
        """In the order of `order`, with these positions and cells: the system, fparam and aparam."""

        def sort(values: np.ndarray, dtype: torch.dtype = torch.float64) -> torch.Tensor:
            return torch.as_tensor(np.ascontiguousarray(values[order]), dtype=dtype, device=device)

        system = System(
            sort(positions),
            sort(self._types, torch.int32),
            torch.as_tensor(cells, dtype=torch.float64, device=device),
            torch.as_tensor(self._pbc, device=device),
            sort(self._batch, torch.int32),
            first_types=torch.as_tensor(self._types[self.starts[:-1]], dtype=torch.int32, device=device),
            charge_spin=None
            if self._charge_spin is None
            else torch.as_tensor(self._charge_spin, device=device),
            spins=None if self._spins is None else sort(self._spins),
        )
        fparam = None if self._fparam is None else torch.as_tensor(self._fparam, device=device)
        return system, fparam, None if self._aparam is None else sort(self._aparam)

    def _frame_parameters(self, frames: Sequence[Atoms], default: Any) -> np.ndarray | None:
        """(S, p): those of each structure's own, or the default, (p,) or (S, p)."""
        if default is not None:
            default = as_numbers("fparam", default)
            if default.ndim == 2 and len(default) != len(frames):
                raise InputError(f"fparam is of {len(default)} systems, and there are {len(frames)}")
            default = np.broadcast_to(default, (len(frames), default.shape[-1]))
        own = [
            atoms.info.get("fparam", None if default is None else default[s])
            for s, atoms in enumerate(frames)
        ]
        rows = [None if values is None else as_numbers("fparam", values).ravel() for values in own]
        return self._stack("fparam", rows, joined=False)

    def _atom_parameters(self, frames: Sequence[Atoms], default: Any) -> np.ndarray | None:
        """(N, q): those of each structure's own, or the default as `_for_each_atom` understands it."""
        if default is not None:
            default = self._for_each_atom(as_numbers("aparam", default))
        rows = [
            as_numbers("aparam", atoms.arrays["aparam"]).reshape(len(atoms), -1)
            if "aparam" in atoms.arrays
            else None if default is None else default[self.starts[s] : self.starts[s + 1]]
            for s, atoms in enumerate(frames)
        ]  # fmt: skip
        return self._stack("aparam", rows, joined=True)

    def _for_each_atom(self, values: np.ndarray) -> np.ndarray:
        """(N, q) from (N, q), or from (q,) for all atoms. A row of N numbers is one for each atom only if the model
        takes one: the meaning does not depend on the number of atoms."""
        atoms, q = int(self.starts[-1]), self._aparam_size
        rows = values
        if values.ndim == 1:
            rows = values[:, None] if q == 1 and len(values) == atoms else np.tile(values, (atoms, 1))
        if rows.ndim != 2 or len(rows) != atoms or q not in (0, rows.shape[1]):
            raise InputError(
                f"aparam has the shape {values.shape}, expected ({q},), for all atoms alike, or ({atoms}, {q})"
            )
        return rows

    def _stack(self, what: str, rows: Sequence[np.ndarray | None], *, joined: bool) -> np.ndarray | None:
        present = [row for row in rows if row is not None]
        if not present:
            return None
        width = present[0].shape[-1]
        for row, name in zip(rows, self._names, strict=True):
            if row is None or row.shape[-1] != width:
                own = "no" if row is None else f"{row.shape[-1]} numbers of"
                raise InputError(f"{name}{own} {what}, and others have {width}")
        return np.concatenate(present) if joined else np.stack(present)


def _check(atoms: Atoms, physics: EnsembleSettings, name: str, *, may_fix: bool) -> None:
    if len(atoms) == 0:
        raise InputError(f"{name}the engine has no atoms to move")
    check_masses(atoms, name)
    check_momenta(atoms, name)
    others = [type(c).__name__ for c in atoms.constraints if not isinstance(c, FixAtoms)]
    if may_fix and others:
        raise InputError(
            f"{name}of ASE's constraints the minimiser supports only FixAtoms, but this structure has "
            f"{', '.join(others)}: relax it with ASE's optimizers and mdops.calculator.MDOps"
        )
    if atoms.constraints and not may_fix:
        raise InputError(f"{name}the engine does not support constraints: use ASE's integrators")
    if physics.ensemble == "npt":
        check_npt(atoms, name)


def is_list_of_atoms(structures: Any) -> bool:
    """Whether it is a list, or the like, of ase.Atoms, which are themselves lists of atoms."""
    if isinstance(structures, Atoms) or not (
        isinstance(structures, Sized) and isinstance(structures, Iterable)
    ):
        return False
    return all(isinstance(atoms, Atoms) for atoms in structures)
