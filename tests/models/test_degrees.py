"""DPA-1 with moments of higher degrees (`lmax`), against DeePMD-kit's NumPy backend."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms

import mdops
from mdops.calculator import MDOps
from mdops.errors import ModelFileError
from mdops.io import read_model
from mdops.models import dpa1, model_of_tree

REFERENCE = Path(__file__).parents[1] / "data/reference_degrees"
CASES = sorted(folder.name for folder in REFERENCE.iterdir())
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


def reference(case):
    with np.load(REFERENCE / case / "systems.npz") as arrays:
        return dict(arrays)


def structure(potential, want):
    names = [potential.type_map[t] for t in want["types"]]
    return Atoms(names, positions=want["positions"], cell=want["cell"], pbc=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_energies_are_deepmd_kits(case, device):
    """Its forces are differences of energies over 2e-4 A, good to 1e-7."""
    want = reference(case)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        potential = mdops.load(REFERENCE / case / "model.dp", dtype=dtype, device=device, spline=False)
        assert potential.evaluator().name == "autograd"
        got = potential.compute(structure(potential, want))
        assert np.abs(got["atom_energy"] - want["atom_energy"]).max() < tolerance
        assert np.abs(got["forces"] - want["forces"]).max() < max(tolerance, 1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_splines_have_the_same_answers(case, device):
    """Of the evaluator that simulations take, and of autograd."""
    atoms = structure(mdops.load(REFERENCE / case / "model.dp"), reference(case))
    exact = mdops.load(REFERENCE / case / "model.dp", dtype="float64", spline=False).compute(atoms)
    size = np.abs(exact["forces"]).max()
    for dtype, tolerance in (("float64", 1e-7), ("float32", 3e-5)):
        potential = mdops.load(REFERENCE / case / "model.dp", dtype=dtype, device=device)
        if device == "cuda" and dtype == "float64" and potential.model.descriptor.layers:
            continue  # a layer is one op there in float32
        assert potential.evaluator().name == "fused sums"
        assert potential.evaluator().captures == (device == "cuda")
        got = potential.compute(atoms)
        for name in ("forces", "virial"):
            off = np.abs(got[name] - exact[name]).max()
            assert off < tolerance * max(size, np.abs(exact[name]).max())
        assert np.abs(got["atom_energy"] - exact["atom_energy"]).max() < tolerance


def test_runs_of_atoms_change_nothing(monkeypatch):
    atoms = structure(mdops.load(REFERENCE / CASES[1] / "model.dp"), reference(CASES[1])).repeat((2, 2, 1))
    want = mdops.load(REFERENCE / CASES[1] / "model.dp", dtype="float64").compute(atoms)
    monkeypatch.setattr(dpa1, "_ATOMS_IN_CACHE", 7)
    got = mdops.load(REFERENCE / CASES[1] / "model.dp", dtype="float64").compute(atoms)
    for name in ("energy", "forces", "virial"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_files_keep_them(case, tmp_path):
    potential = mdops.load(REFERENCE / case / "model.dp", dtype="float64")
    atoms = structure(potential, reference(case))
    want = potential.compute(atoms)["forces"]
    for name in ("model.dp", "model.yaml", "model.safetensors"):
        potential.save(tmp_path / name)
        assert np.array_equal(mdops.load(tmp_path / name, dtype="float64").compute(atoms)["forces"], want)
    tree = read_model(tmp_path / "model.dp").model["descriptor"]
    assert tree["lmax"] == potential.model.descriptor.options.lmax and tree["@version"] == 4
    plain = mdops.load(
        REFERENCE.parent / "reference_kinds/dpa1_smooth/model.dp"
    )  # for versions before 3.2, too
    assert "lmax" not in plain.model.descriptor.to_tree()


@pytest.mark.parametrize("case", CASES)
def test_turning_the_box_changes_no_energy(case):
    atoms = structure(mdops.load(REFERENCE / case / "model.dp"), reference(case))
    atoms.calc = MDOps(REFERENCE / case / "model.dp", dtype="float64")
    energy = atoms.get_potential_energy()
    atoms.rotate(37, (1, 2, 3), rotate_cell=True)
    assert abs(atoms.get_potential_energy() - energy) < 1e-11


@pytest.mark.parametrize("case", CASES)
def test_stress_is_the_slope_of_the_energy(case):
    atoms = structure(mdops.load(REFERENCE / case / "model.dp"), reference(case))
    atoms.calc = MDOps(REFERENCE / case / "model.dp", dtype="float64")
    stress, cell, energies = atoms.get_stress(voigt=False), atoms.cell.copy(), []
    for strain in (1e-5, -1e-5):
        atoms.set_cell(cell @ (np.eye(3) + np.diag([strain, 0, 0])), scale_atoms=True)
        energies.append(atoms.get_potential_energy())
    assert abs((energies[0] - energies[1]) / 2e-5 / cell.volume - stress[0, 0]) < 1e-8


@pytest.mark.parametrize("gain", [None, np.ones(2)])
def test_files_without_their_weights_are_refused(gain):
    tree = read_model(REFERENCE / "dpa1_lmax4_strip/model.dp").model
    arrays = tree["descriptor"]["@variables"]
    if gain is None:
        del arrays["degree_gain_raw"]
    else:
        arrays["degree_gain_raw"] = gain
    with pytest.raises(ModelFileError, match="degree_gain_raw"):
        model_of_tree(tree)
