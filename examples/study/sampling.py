"""Reference data: frames of hot molecular dynamics, labelled by any ASE calculator."""

from collections.abc import Iterator
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.langevin import Langevin

FRICTION = 0.02 / units.fs  # strong: neighbouring frames of a run should differ


def hot_velocities(atoms: Atoms, temperature: float, random: np.random.Generator) -> None:
    """Draws velocities from the Maxwell-Boltzmann distribution, with the centre of mass at rest."""
    width = np.sqrt(units.kB * temperature / atoms.get_masses())
    velocities = width[:, None] * random.standard_normal((len(atoms), 3))
    atoms.set_velocities(velocities - atoms.get_masses() @ velocities / atoms.get_masses().sum())


def hot_frames(
    atoms: Atoms,
    calculator: Calculator,
    random: np.random.Generator,
    *,
    temperature: float,
    timestep: float,
    frames: int,
    interval: int = 10,
) -> Iterator[Atoms]:
    """Frames of a Langevin run (K, fs), `interval` steps apart, with energy, forces and stress if there is one."""
    atoms = atoms.copy()
    atoms.calc = calculator
    hot_velocities(atoms, 2 * temperature, random)  # half of it becomes potential energy
    dynamics = Langevin(
        atoms, timestep * units.fs, temperature_K=temperature, friction=FRICTION, rng=random, fixcm=False
    )
    dynamics.run(2 * interval)  # until the frames do not depend on the start
    for _ in range(frames):
        dynamics.run(interval)
        frame = atoms.copy()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        if atoms.pbc.all():
            labels["stress"] = atoms.get_stress()
        frame.calc = SinglePointCalculator(frame, **labels)
        yield frame


def write_splits(runs: list[list[Atoms]], folder: Path) -> dict[str, list[Atoms]]:
    """Whole runs go to training, every tenth to validation and another tenth to testing, so that the test frames are
    independent of the training frames. Each set is a file."""
    splits: dict[str, list[Atoms]] = {"training": [], "validation": [], "test": []}
    for k, run in enumerate(runs):
        splits[{0: "test", 5: "validation"}.get(k % 10, "training")] += run
    folder.mkdir(parents=True, exist_ok=True)
    for name, frames in splits.items():
        ase.io.write(folder / f"{name}.extxyz", frames)
    return splits
