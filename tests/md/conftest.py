"""The model and the atoms of these tests."""

from pathlib import Path

import pytest
from ase.build import bulk

from mdops import load

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


@pytest.fixture(scope="session")
def models():
    """A potential for each device, loaded once; float64 on the CPU."""
    loaded = {}

    def model(device):
        if device not in loaded:
            loaded[device] = load(MODEL, device=device, dtype="float64" if device == "cpu" else "float32")
        return loaded[device]

    return model
