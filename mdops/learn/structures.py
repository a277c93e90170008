"""The initial structures, and structures made from them: displaced, strained, with atoms exchanged."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.files.structures import read_structures
from mdops.learn.config import StartConfig


def start_structures(config: StartConfig) -> list[Atoms]:
    """All frames of the files (or those of FILE@INDEX), without labels and velocities. Raises InputError for files that
    ASE cannot read."""
    found: list[Atoms] = []
    for name in config.structures:
        try:
            frames = read_structures(name)
        except InputError as error:
            raise InputError(f"start.structures: {error}") from error
        found += [
            Atoms(
                atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc, info={"from": Path(name).name}
            )
            for atoms in frames
        ]
    return found


def elements_of(structures: Sequence[Atoms]) -> list[str]:
    """The structures' elements in order of appearance: the students' types."""
    return list(dict.fromkeys(symbol for atoms in structures for symbol in atoms.get_chemical_symbols()))


def first_set(structures: Sequence[Atoms], config: StartConfig, random: np.random.Generator) -> list[Atoms]:
    """`config.frames` structures with random strains, and displacements from a tenth of `rattle` up to all of it."""
    made = []
    for k in range(config.frames):
        atoms = changed(structures[k % len(structures)], random, strain=config.strain, swap=config.swap)
        scale = config.rattle * random.uniform(0.1, 1.0)
        atoms.positions += scale * random.standard_normal((len(atoms), 3))
        made.append(atoms)
    return made


def changed(atoms: Atoms, random: np.random.Generator, *, strain: float, swap: bool) -> Atoms:
    """A copy, with a random strain if it is periodic, and with up to a quarter of the atoms exchanged."""
    made = atoms.copy()
    if strain > 0 and made.pbc.any():
        drawn = random.normal(0, strain, (3, 3))
        both = np.outer(made.pbc, made.pbc)
        matrix = np.eye(3) + np.where(both, (drawn + drawn.T) / 2, 0.0)
        made.set_cell(made.cell.array @ matrix, scale_atoms=False)
        made.positions = made.positions @ matrix
    if swap and len(set(made.numbers)) > 1:
        numbers = made.numbers.copy()
        for _ in range(random.integers(0, max(len(made) // 8, 1) + 1)):
            i, j = random.choice(len(made), 2, replace=False)
            numbers[[i, j]] = numbers[[j, i]]
        made.numbers = numbers
    return made
