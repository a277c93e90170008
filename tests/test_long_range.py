"""Charges beyond the cutoff, beside DeePMD-kit's modifier "dipole_charge"."""

import json
from math import erfc
from pathlib import Path

import ase
import ase.build
import numpy as np
import pytest
import torch
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator
from ase.neighborlist import neighbor_list

from mdops import load
from mdops.errors import InputError, UnsupportedModelError
from mdops.long_range import COULOMB, DipoleCharge, LongRange, mesh_energy, reciprocal_energy

DATA = Path(__file__).parent / "data"
KEYS = json.loads((DATA / "dipole_charge.json").read_text())


def charges(case="dipole", **more):
    return DipoleCharge(load(DATA / "outputs" / f"{case}.dp", dtype="float64"), **KEYS[case] | more)


def frames(case="dipole"):
    with np.load(DATA / "outputs" / f"{case}.npz") as found:
        symbols = [("O", "H")[t] for t in found["types"]]
        pairs = zip(found["positions"], found["cell"], strict=True)
        return [ase.Atoms(symbols, x, cell=cell, pbc=True) for x, cell in pairs]


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("case", KEYS)
def test_numbers_are_those_of_deepmd(case):
    got = charges(case).compute(frames(case))
    with np.load(DATA / "dipole_charge.npz") as expected:
        close(got["energy"], expected[f"{case}_energy"].ravel())
        close(got["forces"], expected[f"{case}_force"].reshape(-1, 3))
        close(got["virial"], expected[f"{case}_virial"].reshape(-1, 3, 3))


def test_the_sum_is_that_of_point_charges_less_what_gaussians_lack():
    """Of rock salt: the reciprocal part with its self energy, and the pairs' short part, make Madelung's constant."""
    a, beta = 4.0, 1.2
    atoms = ase.build.bulk("NaCl", "rocksalt", a=a, cubic=True)
    q = torch.tensor([1.0 if s == "Na" else -1.0 for s in atoms.symbols], dtype=torch.float64)
    long = reciprocal_energy(
        torch.tensor(atoms.positions), q, torch.tensor(atoms.cell.array), spacing=0.3, beta=beta
    )
    self_energy = COULOMB * beta / np.sqrt(np.pi) * float((q**2).sum())
    i, j, d = neighbor_list("ijd", atoms, 8.0)
    pairs = np.array([erfc(beta * r) / r for r in d])
    short = COULOMB / 2 * float((q[i] * q[j] * torch.from_numpy(pairs)).sum())
    energy = (float(long) - self_energy + short) / 4
    assert energy == pytest.approx(-1.7475645946 * COULOMB / (a / 2), rel=1e-7)


@pytest.mark.parametrize("case", KEYS)
def test_a_mesh_has_nearly_the_same_numbers(case):
    exact, mesh = (
        charges(case, mesh=False).compute(frames(case)),
        charges(case, mesh=True).compute(frames(case)),
    )
    for name in ("energy", "forces", "virial"):
        assert np.abs(mesh[name] - exact[name]).max() < 1e-6 * np.abs(exact[name]).max(), name


def test_a_mesh_of_many_charges_is_as_near():
    generator = np.random.default_rng(2)
    cell = torch.tensor(np.diag([14.0, 15.0, 16.5]) + np.tril(generator.uniform(-1, 1, (3, 3)), -1))
    where = torch.from_numpy(generator.uniform(-10, 30, (600, 3)))  # also outside of the cell
    q = torch.from_numpy(generator.normal(size=600))
    found = []
    for total in (reciprocal_energy, mesh_energy):
        x = where.clone().requires_grad_()
        energy = total(x, q, cell, 1.0, 0.4)
        found.append((float(energy.detach()), torch.autograd.grad(energy, x)[0]))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-7)
    assert float((found[1][1] - found[0][1]).abs().max() / found[0][1].abs().max()) < 1e-6


def test_forces_and_stress_are_slopes_of_the_energy():
    model, (atoms, _) = charges(), frames()
    found, step = model.compute(atoms), 1e-4

    def energy(change):
        moved = atoms.copy()
        change(moved)
        return model.compute(moved)["energy"][0]

    def shift(sign):
        return lambda moved: moved.positions.__setitem__((2, 1), moved.positions[2, 1] + sign * step)

    def stretch(sign):
        strain = np.eye(3)
        strain[0, 0] += sign * step
        return lambda moved: moved.set_cell(moved.cell.array @ strain, scale_atoms=True)

    slope = (energy(shift(1)) - energy(shift(-1))) / (2 * step)
    assert found["forces"][2, 1] == pytest.approx(-slope, rel=1e-5, abs=1e-6)
    slope = (energy(stretch(1)) - energy(stretch(-1))) / (2 * step)
    assert found["virial"][0, 0, 0] == pytest.approx(-slope, rel=1e-5)


def test_the_calculator_adds_what_the_labels_lack():
    model, (atoms, _) = charges(), frames()
    rest = LennardJones(sigma=1.5, epsilon=0.01, rc=4.0)
    atoms.calc = LongRange(rest, model)
    whole = {
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces(),
        "stress": atoms.get_stress(),
    }
    labelled = atoms.copy()
    labelled.calc = SinglePointCalculator(labelled, **whole)
    (short,) = model.without([labelled])
    atoms.calc = LennardJones(sigma=1.5, epsilon=0.01, rc=4.0)
    assert short.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-8)
    np.testing.assert_allclose(short.get_forces(), atoms.get_forces(), atol=1e-8)
    np.testing.assert_allclose(short.get_stress(), atoms.get_stress(), atol=1e-10)


def test_what_does_not_fit_is_refused():
    atoms = frames()[0]
    with pytest.raises(InputError, match="model_charge_map has 2 charges, and the model has dipoles of O"):
        charges(model_charge_map=[1.0, 2.0])
    with pytest.raises(InputError, match="sys_charge_map has 1 charges"):
        charges(sys_charge_map=[1.0])
    with pytest.raises(InputError, match="expected positive numbers"):
        charges(ewald_h=0.0)
    with pytest.raises(UnsupportedModelError, match="needs a model of dipoles"):
        DipoleCharge(load(DATA / "reference" / "base" / "model.dp"), [1.0], [1.0, 1.0])
    with pytest.raises(InputError, match="has no energy"):
        charges().without([atoms])
    atoms.pbc = False
    with pytest.raises(InputError, match="periodic images"):
        charges().compute(atoms)
