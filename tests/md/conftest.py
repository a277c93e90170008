"""The model and the atoms of these tests."""

from pathlib import Path

import pytest
from ase.build import bulk

from mdops.nn import load

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"


@pytest.fixture(scope="session")
def potential():
    return load(MODEL)


@pytest.fixture
def alloy(potential):
    """32 atoms, with a calculator."""
    from mdops.calculator import MDOps

    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.symbols[::4] = "Al"
    atoms.calc = MDOps(potential)
    return atoms
