"""Boxes of atoms for timings and self tests."""

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers

from mdops.errors import InputError
from mdops.evaluators.context import EvaluationContext

_MOST_ELEMENTS = 4
DENSITY = 0.1  # atoms/A^3, about that of water and of many solids


def sample_elements(model: EvaluationContext) -> list[str]:
    """Elements for a model's box: all that it knows, but only a few if many types share places for neighbours."""
    known = [name for name in model.model.elements if name in atomic_numbers]
    if not known:
        raise InputError(f"no type of the model is a chemical element: {', '.join(model.type_map)}")
    return known[:_MOST_ELEMENTS] if all(spec.mixed for spec in model.neighbors) else known


def sample_atoms(count: int, elements: list[str], model: EvaluationContext) -> Atoms:
    """`sample_box`, with magnetic moments of length 1 in several directions if the model takes some."""
    atoms = sample_box(count, elements)
    if model.model.spin is not None:
        angles = np.arange(count)
        atoms.set_initial_magnetic_moments(np.stack([np.cos(angles), np.sin(angles), 0.0 * angles], 1))
    return atoms


def sample_box(count: int, elements: list[str]) -> Atoms:
    """A periodic cube of `count` atoms, on a lattice with displacements from a formula. Of two elements a third
    of the atoms is the first; more elements have equal shares."""
    edge, side = (count / DENSITY) ** (1 / 3), int(np.ceil(count ** (1 / 3) - 1e-9))
    lattice = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3)
    lattice = lattice[np.arange(count) * len(lattice) // max(count, 1)]
    shifts = 0.3 * np.sin(np.arange(3 * count).reshape(-1, 3) ** 2 % 101)
    numbers = np.arange(count)
    kinds = (numbers % 3 > 0).astype(int) if len(elements) == 2 else numbers % len(elements)
    symbols = [elements[kind] for kind in kinds]
    return Atoms(symbols, lattice * (edge / side) + shifts, cell=[edge] * 3, pbc=True)
