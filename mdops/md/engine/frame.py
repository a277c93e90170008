"""One step of a simulation on the host, in the user's order of atoms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from mdops.md.engine.state import State
from mdops.system import voigt


@dataclass(frozen=True)
class Frame:
    """A system at one step of a run, on the host.

    Attributes:
        step: the steps done.
        positions: (N, 3), A; momenta: (N, 3), ASE's unit; forces: (N, 3), eV/A.
        energy, kinetic: eV; atom_energy: (N,), eV.
        conserved: eV; None if nothing is (Langevin dynamics).
        virial: (3, 3), eV.
        cell: (3, 3), A, rows are lattice vectors.
        forces_std: (N,), eV/A, sqrt(mean_k |F_k - <F>|^2) of K models (other values are their means), and
            energy_std: eV, sqrt(mean_k (E_k - <E>)^2); None of one model.
        atom_virial: (N, 3, 3), eV, as of `mdops.Potential.evaluate`; None unless the engine was asked for it.
        force_mag: (N, 3), minus the derivatives of the energy by the magnetic moments, eV for a moment of one; None of
            models without moments.
    """

    step: int
    positions: np.ndarray
    momenta: np.ndarray
    forces: np.ndarray
    energy: float
    atom_energy: np.ndarray
    kinetic: float
    conserved: float | None
    virial: np.ndarray
    cell: np.ndarray
    forces_std: np.ndarray | None = None
    energy_std: float | None = None
    atom_virial: np.ndarray | None = None
    force_mag: np.ndarray | None = None

    def atoms(self, like: Atoms) -> Atoms:
        """A copy of `like` at this step, with energies, forces and stress, with atomic virials also `stresses`, with
        magnetic forces, and deviations of several models."""
        atoms = like.copy()
        atoms.calc = None
        atoms.set_cell(self.cell)
        atoms.arrays["positions"][:] = self.positions
        atoms.set_array("momenta", self.momenta, float, (3,))
        results = {"energy": self.energy, "free_energy": self.energy, "forces": self.forces}
        results["energies"] = self.atom_energy
        if atoms.pbc.all():
            results["stress"] = voigt(-self.virial / atoms.get_volume())
            if self.atom_virial is not None:
                results["stresses"] = voigt(-self.atom_virial / atoms.get_volume())
        calculator = atoms.calc = SinglePointCalculator(atoms, **results)
        calculator.name = "mdops"
        # As in the results of `MDOps`; ASE's own properties have no names for them.
        if self.forces_std is not None:
            calculator.results |= {"forces_std": self.forces_std, "energy_std": self.energy_std}
        if self.force_mag is not None:
            calculator.results |= {"force_mag": self.force_mag, "virial": self.virial}
        return atoms


@dataclass(frozen=True, eq=False)
class BatchFrame(Sequence[Frame]):
    """All S systems at one step of a run: a sequence of their frames, and the same as arrays over all N atoms.

    Attributes:
        step: the steps done.
        starts: (S + 1,): system s has the atoms starts[s] up to starts[s + 1].
        positions, momenta, forces: (N, 3); atom_energy: (N,), in units of `Frame`.
        energy, kinetic: (S,), eV; conserved: (S,), or None if nothing is.
        virial: (S, 3, 3), eV; cell: (S, 3, 3), A.
        forces_std: (N,); energy_std: (S,), of several models; or None.
        atom_virial: (N, 3, 3), or None; force_mag: (N, 3), or None.
        largest_force: (S,), eV/A, and converged: (S,) bool, of a minimiser; or None.
    """

    step: int
    starts: np.ndarray
    positions: np.ndarray
    momenta: np.ndarray
    forces: np.ndarray
    energy: np.ndarray
    atom_energy: np.ndarray
    kinetic: np.ndarray
    conserved: np.ndarray | None
    virial: np.ndarray
    cell: np.ndarray
    forces_std: np.ndarray | None = None
    energy_std: np.ndarray | None = None
    atom_virial: np.ndarray | None = None
    force_mag: np.ndarray | None = None
    largest_force: np.ndarray | None = None
    converged: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.energy)

    @overload
    def __getitem__(self, system: int) -> Frame: ...
    @overload
    def __getitem__(self, system: slice) -> list[Frame]: ...
    def __getitem__(self, system: int | slice) -> Frame | list[Frame]:
        if isinstance(system, slice):
            return [self[s] for s in range(*system.indices(len(self)))]
        s = range(len(self))[system]
        own = slice(self.starts[s], self.starts[s + 1])
        return Frame(
            step=self.step,
            positions=self.positions[own],
            momenta=self.momenta[own],
            forces=self.forces[own],
            energy=float(self.energy[s]),
            atom_energy=self.atom_energy[own],
            kinetic=float(self.kinetic[s]),
            conserved=None if self.conserved is None else float(self.conserved[s]),
            virial=self.virial[s],
            cell=self.cell[s],
            forces_std=None if self.forces_std is None else self.forces_std[own],
            energy_std=None if self.energy_std is None else float(self.energy_std[s]),
            atom_virial=None if self.atom_virial is None else self.atom_virial[own],
            force_mag=None if self.force_mag is None else self.force_mag[own],
        )


class Recording:
    """A frame in transfer to the host: read `frame` once the work queued so far is done."""

    def __init__(
        self, step: int, state: State, bath: torch.Tensor | None, inverse: torch.Tensor, starts: np.ndarray
    ) -> None:
        """`bath`: (S,), see `Propagator`; `inverse`: (N,), the engine's index of each of the user's atoms."""
        self._step, self._starts = step, starts
        kinetic = state.kinetic
        conserved = kinetic if bath is None else state.energy + kinetic + bath
        momenta = state.momenta * state.scale[state.batch.long(), None]
        columns = [state.positions, momenta, state.forces, state.atom_energy[:, None]]
        columns += [state.forces_std, state.model_energy]
        self._conserves, self._has_virials = bath is not None, len(state.atom_virial) > 0
        self._has_moments = len(state.force_mag) > 0
        if self._has_moments:
            columns.append(state.force_mag)
        if self._has_virials:
            columns.append(state.atom_virial.flatten(1))
        per_atom = torch.cat(columns, 1)
        self._per_atom = to_host(per_atom[inverse])
        energies = torch.stack([state.energy, kinetic, conserved], 1)
        self._per_system = to_host(torch.cat([energies, state.virial.flatten(1), state.cell.flatten(1)], 1))

    def frame(self) -> BatchFrame:
        per_atom, per_system = self._per_atom.numpy(), self._per_system.numpy()
        forces_std = energy_std = atom_virial = force_mag = None
        if self._has_virials:
            atom_virial, per_atom = per_atom[:, -9:].reshape(-1, 3, 3).copy(), per_atom[:, :-9]
        if self._has_moments:
            force_mag, per_atom = per_atom[:, -3:].copy(), per_atom[:, :-3]
        if per_atom.shape[1] > 10:
            forces_std = per_atom[:, 10].copy()
            energy_std = np.add.reduceat(per_atom[:, 11:], self._starts[:-1]).std(1)
        return BatchFrame(
            step=self._step,
            starts=self._starts,
            positions=per_atom[:, :3].copy(),
            momenta=per_atom[:, 3:6].copy(),
            forces=per_atom[:, 6:9].copy(),
            energy=per_system[:, 0].copy(),
            atom_energy=per_atom[:, 9].copy(),
            kinetic=per_system[:, 1].copy(),
            conserved=per_system[:, 2].copy() if self._conserves else None,
            virial=per_system[:, 3:12].reshape(-1, 3, 3).copy(),
            cell=per_system[:, 12:].reshape(-1, 3, 3).copy(),
            forces_std=forces_std,
            energy_std=energy_std,
            atom_virial=atom_virial,
            force_mag=force_mag,
        )


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host; its values arrive asynchronously."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
