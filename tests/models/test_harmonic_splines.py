"""DPA-4C by splines, against DeePMD-kit and against its nets."""

import math
import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from kind_cases import KINDS, LIMITS, alloy, cases, check_dynamics, new_potential
from reference_cases import on_device, references, relative_error
from test_dpa4c import INPUT

import mdops
from mdops.evaluators import base, length_splines
from mdops.evaluators.splines import FusedSums
from mdops.models import dpa4c
from mdops.models.dpa4c import DPA4C, DPA4COptions
from mdops.system import from_atoms
from mdops.tables import harmonic_tables
from mdops.tables.harmonic_tables import choose_intervals, functions, spline_error

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", cases("dpa4c"))
def test_deepmd_kits_answers(case, dtype, device):
    """With exclusions, parameters, three types and virtual atoms."""
    potential = mdops.load(KINDS / case / "model.dp", dtype=dtype, device=device)
    assert potential.evaluator().name == "fused sums"
    assert potential.evaluator().captures == (device == "cuda")
    limits = LIMITS["float32" if case.endswith("float32") else dtype]
    for one in references(KINDS / case):
        for atom_virial in (False, True):
            more = [t if t is None else t.to(device) for t in (one.fparam, one.aparam)]
            found = potential.evaluate(on_device(one.system, device), None, *more, atom_virial=atom_virial)
            for name in found.keys() & one.answers.keys():
                error = relative_error(found[name].cpu(), one.answers[name])
                assert error < limits["energy" not in name], f"{one.name}: {name} is off by {error:.1e}"


def test_runs_of_atoms_and_missing_types(monkeypatch):
    """Atoms in any order, of all types and of one, many at once and few."""
    potential = new_potential({**INPUT, "lmax": 3, "radial_modes": 2})
    potential.use_spline()
    atoms = alloy()
    wanted = potential.compute(atoms)
    pure = atoms.copy()
    pure.symbols[:] = "Al"
    of_pure = potential.compute(pure)
    monkeypatch.setattr(dpa4c, "_SLOTS_IN_CACHE", 1)
    for system, answers in ((atoms, wanted), (pure, of_pure)):
        found = potential.compute(system)
        exact = mdops.Potential(potential.model).compute(system)
        largest = np.abs(exact["forces"]).max()
        for name in ("energy", "forces", "virial", "atom_energy"):
            np.testing.assert_allclose(found[name], answers[name], rtol=1e-11, atol=1e-12)
        assert np.abs(found["forces"] - exact["forces"]).max() < 1e-8 * largest
    order = np.random.default_rng(0).permutation(len(atoms))
    found = potential.compute(atoms[order])
    np.testing.assert_allclose(found["forces"], wanted["forces"][order], atol=1e-12)


@pytest.mark.parametrize("spline", [True, False], ids=["splines", "nets"])
@pytest.mark.parametrize("device", DEVICES)
def test_few_atoms_and_none(device, spline):
    """No atoms, one, some that see none, and batches with an empty system among them."""
    potential = new_potential({**INPUT, "lmax": 3, "radial_modes": 2}).to(device)
    if spline:
        potential.use_spline()
    alone = Atoms("Al", positions=[[0, 0, 0]])
    far = Atoms("AlCu", positions=[[0, 0, 0], [50, 0, 0]])
    single = potential.compute(alone)["energy"]
    assert single != 0 and (potential.compute(alone)["forces"] == 0).all()
    both = potential.compute(far)
    assert (both["forces"] == 0).all() and both["atom_energy"][0] == pytest.approx(single, abs=1e-12)
    nothing = potential.evaluate(from_atoms([Atoms()], potential.type_map, device))
    assert nothing["forces"].shape == (0, 3) and nothing["atom_energy"].shape == (0,)
    assert nothing["virial"].shape == (1, 3, 3) and (nothing["energy"] == 0).all()
    batch = potential.evaluate(from_atoms([far, Atoms(), alloy()], potential.type_map, device))
    wanted = potential.compute(alloy())
    assert batch["energy"][1] == 0 and float(batch["energy"][2]) == pytest.approx(wanted["energy"], abs=1e-10)
    np.testing.assert_allclose(batch["forces"][2:].cpu(), wanted["forces"], atol=1e-12)


def test_forces_by_sums_are_those_by_pairs(monkeypatch):
    """As a GPU has them, of two systems, with types that are not there, and parameters."""
    case = KINDS / "dpa4c_base"
    potential, one = mdops.load(case / "model.dp", dtype="float64"), references(case)[0]
    wanted = potential.evaluate(one.system, None, one.fparam, one.aparam)
    batch = from_atoms([alloy(), alloy()[:5]], potential.type_map)
    of_batch = potential.evaluate(batch)
    monkeypatch.setattr(FusedSums, "_has_sums_alone", True)
    monkeypatch.setattr(base, "pair_forces", None)
    found = potential.evaluate(one.system, None, one.fparam, one.aparam)
    both = potential.evaluate(batch)
    for name in ("energy", "forces", "virial"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(both[name], of_batch[name], rtol=1e-12, atol=1e-12)


def test_changed_weights_get_new_splines():
    potential = new_potential(INPUT)
    potential.use_spline()
    before = potential.compute(alloy())
    with torch.no_grad():
        potential.model.descriptor.frequencies.mul_(1.1)
    after, exact = potential.compute(alloy()), mdops.Potential(potential.model).compute(alloy())
    largest = np.abs(exact["forces"]).max()
    assert np.abs(after["forces"] - exact["forces"]).max() < 1e-8 * largest
    assert np.abs(after["forces"] - before["forces"]).max() > 1e-3 * largest


@pytest.mark.parametrize("basis", ["bessel", "gaussian"])
def test_the_error_falls_with_the_knots_and_is_kept(basis):
    options = DPA4COptions(rcut=5.0, channels=8, basis_type=basis, n_radial=8, precision="float64")
    descriptor = DPA4C.random(options, ["Cu", "Al"], [0], torch.float64)
    coarse, fine = (spline_error(descriptor, (0, 1), intervals) for intervals in (80, 160))
    assert coarse / fine > 20  # the slopes' fifth power is 32
    intervals, error = choose_intervals(descriptor, (0, 1), 1e-6)
    assert error <= 1e-6 and spline_error(descriptor, (0, 1), max(intervals // 2, 8)) > 1e-6
    # At the knots the splines are the functions, of the centre's type first.
    tables = harmonic_tables.harmonic_tables(descriptor, (0, 1), 1e-5, 2**20)
    r = torch.arange(3, dtype=torch.float64) * (5.0 / tables.intervals)
    first = tables.coefficients.unflatten(1, (2, -1))[0, 1, : tables.intervals + 5]
    found = torch.tensor([1, 26, 66, 26, 1], dtype=torch.float64) / 120 @ first[:5]
    wanted = functions(descriptor, r, torch.tensor([0]), torch.tensor([1]))[0, 0, 0]
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
    torch.testing.assert_close(tables.pieces[0, 1, 0, 0], wanted, atol=1e-9, rtol=0)


def test_where_no_splines_are_made_the_nets_run(monkeypatch):
    monkeypatch.setattr(length_splines, "_MOST_NUMBERS", 100)
    potential = new_potential(INPUT)
    potential.use_spline()
    with pytest.warns(UserWarning, match="there are no splines for 2 types"):
        found = potential.compute(alloy())
    np.testing.assert_array_equal(
        found["forces"], mdops.Potential(potential.model).compute(alloy())["forces"]
    )
    monkeypatch.undo()
    monkeypatch.setattr(harmonic_tables, "_MOST", 32)
    descriptor = potential.model.descriptor
    assert harmonic_tables.harmonic_tables(descriptor, (0, 1), 1e-8, 2**20) is None


def test_nets_that_are_not_finite_have_no_splines(monkeypatch):
    descriptor = new_potential(INPUT).model.descriptor
    exact = harmonic_tables.functions
    monkeypatch.setattr(harmonic_tables, "functions", lambda *args: exact(*args) * math.nan)
    assert math.isnan(spline_error(descriptor.double_copy(), (0, 1), 64))
    assert choose_intervals(descriptor, (0, 1), 1e-5) is None


def test_ase_and_engine():
    potential = new_potential(INPUT)
    potential.use_spline()
    assert potential.splines() == "splines with knots for the types that there are"
    check_dynamics(potential)


def test_an_exported_program_has_the_nets():
    potential = mdops.load(KINDS / "dpa4c_base" / "model.dp", dtype="float64")
    system = from_atoms([alloy()], potential.type_map)
    near = potential.neighbor_list(system)
    names = ("neighbors", "images", "counts")
    given = {name: getattr(system, name) for name in ("positions", "types", "cell", "batch")}
    given |= {name: getattr(near, name) for name in names}
    found = potential.export().module()(**given)
    wanted = mdops.Potential(potential.model).evaluate(system, near)
    torch.testing.assert_close(found["forces"], wanted["forces"], rtol=0, atol=1e-13)


def test_exact_nets_are_taken_where_asked_for():
    potential = mdops.load(KINDS / "dpa4c_base" / "model.dp", spline=False)
    assert potential.evaluator().name == "autograd" and "spline=False" in potential.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potential.use_spline()
    assert potential.evaluator().name == "fused sums"
    assert potential.evaluator("differentiate").name == potential.evaluator("train").name == "autograd"
