"""Simulations of one structure, and of many small ones at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.md.engine.frame import BatchFrame, Frame
from mdops.md.engine.simulation import Simulation
from mdops.md.engine.structures import is_list_of_atoms


class Engine(Simulation[Atoms, Frame]):
    """A simulation of one structure. `Simulation` describes how it works, and its arguments.

    engine = Engine(atoms, mdops.load("model.dp", device="cuda"), EnsembleSettings("nvt", 300))
    for frame in engine.run(10_000, every=100):
        print(frame.step, frame.energy)
    """

    def _frames(self, structures: Atoms) -> list[Atoms]:
        if not isinstance(structures, Atoms):
            raise InputError("Engine simulates one ase.Atoms; use BatchEngine for a list of them")
        return [structures]

    def _of_each(self, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return [values]

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return int(self._freedom[0])

    def temperature(self, kinetic: float) -> float:
        """K, of a kinetic energy in eV."""
        return float(self._temperatures(np.array([kinetic]))[0])

    @property
    def mean_temperature(self) -> float:
        """K, over all steps since the engine was made; 0 before any."""
        return float(self._mean_temperatures()[0])

    def _give(self, frame: BatchFrame) -> Frame:
        return frame[0]


class BatchEngine(Simulation[Sequence[Atoms], BatchFrame]):
    """Simulations of S structures side by side, each as if it were alone: with its own cell and pbc, temperature,
    thermostats, barostat and conserved energy. They share the time step, the ensemble and the device; one small
    structure would use only part of that. `Simulation` describes the arguments.

        engine = BatchEngine(molecules, mdops.load("model.dp", device="cuda"), EnsembleSettings("nvt", 300))
        for frames in engine.run(10_000, every=100):
            print(frames.step, frames.energy, frames[7].positions)
    """

    def _frames(self, structures: Sequence[Atoms]) -> list[Atoms]:
        if not is_list_of_atoms(structures):
            raise InputError("BatchEngine simulates a list of ase.Atoms; use Engine for one of them")
        return list(structures)

    def _of_each(self, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return values

    @property
    def freedom(self) -> np.ndarray:
        """(S,), degrees of freedom of each structure."""
        return self._freedom

    def temperature(self, kinetic: np.ndarray) -> np.ndarray:
        """(S,), K, of kinetic energies in eV."""
        return self._temperatures(kinetic)

    @property
    def mean_temperature(self) -> np.ndarray:
        """(S,), K, over all steps since the engine was made; 0 before any."""
        return self._mean_temperatures()

    def _give(self, frame: BatchFrame) -> BatchFrame:
        return frame
