"""A small model, a small box, and the expected results."""

import time

import numpy as np
import torch

from mdops.calculator import MDOps
from mdops.cli.sample_model import sample_model
from mdops.jit.sample_box import sample_box

# Results of exact nets in float64 (tests/cli/test_cli.py computes them again).
ENERGY = -3.218401386615649  # eV
FORCE = 0.014273643740028  # eV/A, root mean square of the components
_TOLERANCE = 1e-5  # of float32


def reference(dtype: torch.dtype, spline: bool) -> tuple[float, float]:
    """Energy (eV) and root mean square force (eV/A) of the test's box."""
    model = sample_model((30, 60), 5.0, (8, 16, 32), 4, (32, 32), dtype)
    if spline:
        model.use_spline()
    atoms = sample_box(60, ["O", "H"])
    atoms.calc = MDOps(model)
    return atoms.get_potential_energy(), float(np.sqrt((atoms.get_forces() ** 2).mean()))


def self_test() -> str:
    """A description of the test, with its time.

    Raises:
        ArithmeticError: energy or forces differ from the expected results.
    """
    start = time.perf_counter()
    energy, force = reference(torch.float32, spline=True)
    for name, value, expected in (("energy", energy, ENERGY), ("forces", force, FORCE)):
        if not abs(value - expected) <= _TOLERANCE * abs(expected):
            raise ArithmeticError(f"{name} of the test model: {value!r}, expected {expected!r}")
    return f"energy and forces of a test model are right ({time.perf_counter() - start:.1f} s)"
