"""What the tests of the engines move."""

import dataclasses
from pathlib import Path

import numpy as np
from ase.build import bulk

from mdops.md import EnsembleSettings
from mdops.md.motion import set_velocities

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"
GRAPH_MODELS = {  # they pass messages
    kind: Path(__file__).parents[1] / "data" / "reference_kinds" / f"{kind}_base" / "model.dp"
    for kind in ("dpa2", "dpa3", "dpa4")
}

PHYSICS = {
    "nve": EnsembleSettings("nve", 300, 2),
    "nose-hoover": EnsembleSettings("nvt", 300, 2, tdamp=50),
    "langevin": EnsembleSettings("nvt", 300, 2, "langevin", friction=20),
    "npt": EnsembleSettings("npt", 300, 2, tdamp=50, pressure=1, pdamp=150),
    "flexible": EnsembleSettings("npt", 300, 2, tdamp=50, pressure=1, pdamp=150, flexible=True),
}


def alloy(physics, seed=0, repeat=2):
    atoms = bulk("Cu", a=4.0, cubic=True) * (repeat, repeat, repeat)
    atoms.symbols[::4] = "Al"
    atoms.info.clear()
    set_velocities(atoms, physics, np.random.default_rng(seed), anew=True)
    return atoms


def put_back(atoms, frame):
    """Atoms as they were at a frame."""
    atoms.set_cell(frame.cell)
    atoms.positions[:] = frame.positions
    atoms.set_momenta(frame.momenta)


def check_same_state(frame, expected):
    for field in ("positions", "momenta", "forces", "virial", "energy", "conserved", "cell"):
        assert np.array_equal(getattr(frame, field), getattr(expected, field)), field


def skewed(physics, seed=1):
    """In a triclinic cell."""
    atoms = alloy(physics, seed)
    atoms.set_cell(atoms.cell.array @ [[1, 0, 0], [0.1, 1, 0], [0, 0.05, 1.02]], scale_atoms=True)
    return atoms


def rounding(device, exact=1e-11, rough=2e-4):
    return exact if device == "cpu" else rough


def set_sel(potential, sel):
    """Other places for neighbours than the model was trained with."""
    descriptor = potential.model.descriptor
    descriptor.options = dataclasses.replace(descriptor.options, sel=list(sel))
