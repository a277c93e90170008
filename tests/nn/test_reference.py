"""Every model option against DeePMD-kit's own answers, in every way of computing."""

import pytest
import torch
from reference_cases import (
    CASES,
    DATA,
    OVERFLOWING,
    ROUNDED,
    SHARED,
    SHARED_CASES,
    loaded,
    model_path,
    references,
    relative_error,
)
from torch_reference import evaluate

from mdops import load
from mdops.io import read_model

# Largest error of energies, and of what is differentiated.
EXACT, SPLINE, FLOAT32 = (1e-9, 1e-9), (1e-7, 1e-7), (5e-6, 3e-5)
# Of one system no force is above 0.005 eV/A, while its atoms' energies are some eV: it is off by 3.4e-5 of that.
CANCELLING = {("base", "tiny_cell"): (5e-6, 5e-5)}


def check(potential, folder, tolerance):
    """With and without the atomic virial: without it, one op may do the whole step."""
    for case in references(folder):
        limits = CANCELLING.get((folder.name, case.name), tolerance) if tolerance == FLOAT32 else tolerance
        for atom_virial in (False, True):
            result = potential.evaluate(case.system, None, case.fparam, case.aparam, atom_virial=atom_virial)
            for name in result.keys() & case.answers.keys():
                assert result[name].dtype == torch.float64
                error = relative_error(result[name], case.answers[name])
                assert error < limits["energy" not in name], f"{case.name}: {name} is off by {error:.1e}"


@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_float64(case, spline):
    potential = loaded(case, spline=spline)
    tolerance = FLOAT32 if case in ROUNDED else SPLINE if spline else EXACT
    check(potential, DATA / case, tolerance)


@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_float32(case, spline):
    potential = loaded(case, "float32", spline=spline)
    check(potential, DATA / case, FLOAT32)


@pytest.mark.parametrize(("dtype", "spline"), [("float64", False), ("float64", True), ("float32", True)])
@pytest.mark.parametrize("case", SHARED_CASES)
def test_shared_models(case, dtype, spline):
    if not (SHARED / case).is_dir():
        pytest.skip("../shared is not here")
    tolerance = FLOAT32 if dtype == "float32" else SPLINE if spline else EXACT
    check(load(SHARED / case / "model.dp", dtype=dtype, spline=spline), SHARED / case, tolerance)


@pytest.mark.parametrize("case", ["two_side", "exclude_types", "fparam_aparam", *OVERFLOWING])
def test_the_dense_reference_agrees_with_deepmd_kit(case):
    """The tests use tests/nn/torch_reference.py for models and structures that the files do not have."""
    tree = read_model(model_path(case)).model
    for reference in references(DATA / case):
        system = reference.system
        for frame in range(system.count):
            chosen = system.batch == frame
            result = evaluate(
                tree,
                system.positions[chosen],
                system.types[chosen],
                system.cell[frame] if bool(system.pbc.any()) else None,
                None if reference.fparam is None else reference.fparam[frame],
                None if reference.aparam is None else reference.aparam[chosen],
            )
            assert relative_error(result["forces"], reference.answers["forces"][chosen]) < 1e-9
            assert relative_error(result["energy"], reference.answers["energy"][frame]) < 1e-9
            assert relative_error(result["virial"], reference.answers["virial"][frame]) < 1e-9
