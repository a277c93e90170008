"""Simulations of one structure, and of many small ones at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.md.engine.frame import BatchFrame, Frame
from mdops.md.engine.simulation import Simulation
from mdops.md.options import Physics
from mdops.nn import Potential


class Engine(Simulation[Frame]):
    """A simulation of one structure; `Simulation` says how it works.

        engine = Engine(atoms, mdops.load("model.dp", device="cuda"), Physics("nvt", 300))
        for frame in engine.run(10_000, every=100):
            print(frame.step, frame.energy)

    Attributes:
        step: how many are done and found good.
        builds: neighbour lists made; repeats: blocks that were done again.
        freedom: degrees of freedom.
    """

    def __init__(
        self,
        atoms: Atoms,
        potential: Potential,
        physics: Physics,
        *,
        skin: float = 1.0,
        graphs: bool = True,
        step: int = 0,
        fparam: Any = None,
        aparam: Any = None,
    ) -> None:
        """Takes the atoms as they are, momenta included (`mdops.md.motion.set_velocities` makes some).

        Args:
            skin: A.
            graphs: capture steps in CUDA graphs, where that can be.
            step: what the first step comes after.
            fparam: (p,); aparam: (N, q) or (q,): where `atoms.info` and `atoms.arrays` have none.

        Raises:
            InputError: no atoms, constraints, npt, an element the model does not know, or a skin that is
                negative.
        """
        if not isinstance(atoms, Atoms):
            raise InputError("the engine moves one ase.Atoms; for a list of them there is BatchEngine")
        super().__init__([atoms], potential, physics, skin, graphs, step, fparam, aparam)
        self.freedom = int(self._freedom[0])

    def temperature(self, kinetic: float) -> float:
        """K, of a kinetic energy in eV."""
        return float(self._temperatures(np.array([kinetic]))[0])

    @property
    def mean_temperature(self) -> float:
        """K, over all steps since the engine was made; 0 before any."""
        return float(self._mean_temperatures()[0])

    def _give(self, frame: BatchFrame) -> Frame:
        return frame[0]


class BatchEngine(Simulation[BatchFrame]):
    """Simulations of S structures side by side, each as if it were alone: with its own cell and pbc, temperature,
    thermostats and conserved energy. They share the time step, the ensemble and the device, whose time they fill
    where one small structure cannot.

        engine = BatchEngine(molecules, mdops.load("model.dp", device="cuda"), Physics("nvt", 300))
        for frames in engine.run(10_000, every=100):
            print(frames.step, frames.energy, frames[7].positions)

    Attributes:
        step: how many are done and found good.
        builds: neighbour lists made; repeats: blocks that were done again.
        freedom: (S,), degrees of freedom of each structure.
    """

    def __init__(
        self,
        structures: Sequence[Atoms],
        potential: Potential,
        physics: Physics,
        *,
        skin: float = 1.0,
        graphs: bool = True,
        step: int = 0,
        fparam: Any = None,
        aparam: Any = None,
    ) -> None:
        """Takes the structures as they are, momenta included.

        Args:
            structures: any sizes, elements, cells and pbc.
            skin, graphs, step: as of `Engine`.
            fparam: (p,) or (S, p); aparam: (q,) or (N, q): where a structure's `info` and `arrays` have none.

        Raises:
            InputError: as `Engine`, naming the system by its number.
        """
        if isinstance(structures, Atoms) or not all(isinstance(atoms, Atoms) for atoms in structures):
            raise InputError("the batch engine moves a list of ase.Atoms; for one of them there is Engine")
        super().__init__(list(structures), potential, physics, skin, graphs, step, fparam, aparam)
        self.freedom = self._freedom

    def temperature(self, kinetic: np.ndarray) -> np.ndarray:
        """(S,), K, of kinetic energies in eV."""
        return self._temperatures(kinetic)

    @property
    def mean_temperature(self) -> np.ndarray:
        """(S,), K, over all steps since the engine was made; 0 before any."""
        return self._mean_temperatures()

    def _give(self, frame: BatchFrame) -> BatchFrame:
        return frame
