"""What an engine tells of one step, in the user's order of atoms."""

from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from mdops.calculator import voigt
from mdops.md.engine.state import State


@dataclass(frozen=True)
class Frame:
    """A step of a run, on the host.

    Attributes:
        step: how many were done.
        positions: (N, 3), A; momenta: (N, 3), ASE's unit; forces: (N, 3), eV/A.
        energy, kinetic: eV; atom_energy: (N,), eV.
        conserved: eV; None where nothing is (Langevin dynamics).
        virial: (3, 3), eV.
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

    def atoms(self, like: Atoms) -> Atoms:
        """A copy of `like` as it is at this step, with energies, forces and stress."""
        atoms = like.copy()
        atoms.calc = None
        atoms.arrays["positions"][:] = self.positions
        atoms.set_array("momenta", self.momenta, float, (3,))
        results = {"energy": self.energy, "free_energy": self.energy, "forces": self.forces}
        results["energies"] = self.atom_energy
        if atoms.pbc.all():
            results["stress"] = voigt(-self.virial / atoms.get_volume())
        atoms.calc = SinglePointCalculator(atoms, **results)
        return atoms


class Recording:
    """A frame on its way to the host: `frame` may be read once the work queued so far is done."""

    def __init__(self, step: int, state: State, bath: torch.Tensor | None, inverse: torch.Tensor) -> None:
        """`inverse`: (N,), the engine's place of each of the user's atoms."""
        self._step = step
        kinetic = state.kinetic
        conserved = kinetic if bath is None else state.energy + kinetic + bath
        per_atom = torch.cat([state.positions, state.momenta, state.forces, state.atom_energy[:, None]], 1)
        self._conserves = bath is not None
        self._per_atom = to_host(per_atom[inverse])
        self._scalars = to_host(
            torch.cat([torch.stack([state.energy, kinetic, conserved]), state.virial.flatten()])
        )

    def frame(self) -> Frame:
        per_atom, scalars = self._per_atom.numpy(), self._scalars.tolist()
        return Frame(
            step=self._step,
            positions=per_atom[:, :3].copy(),
            momenta=per_atom[:, 3:6].copy(),
            forces=per_atom[:, 6:9].copy(),
            energy=scalars[0],
            atom_energy=per_atom[:, 9].copy(),
            kinetic=scalars[1],
            conserved=scalars[2] if self._conserves else None,
            virial=np.array(scalars[3:]).reshape(3, 3),
        )


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, of which the values come when the device gets there."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
