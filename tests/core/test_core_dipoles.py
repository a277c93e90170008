"""Models of dipoles in the C core, and of charges beyond the cutoff (core.md, "Dipoles and charges")."""

import json

import ase
import numpy as np
import pytest
from core_library import DIPOLES, INVALID, SHORT_RANGE, UNSUPPORTED, CoreError, List, Model
from dipole_models import DPA1, SE_E2_A, dipole_model, in_fields, random_model, with_charges
from safetensors.numpy import load_file

import mdops
from mdops.cli import main
from mdops.errors import UnsupportedModelError
from mdops.long_range import DipoleCharge

KINDS = {
    "se_e2_a": (SE_E2_A, (0,), {}),
    "of all types": (SE_E2_A, (0, 1), {}),
    "type_one_side": (SE_E2_A | {"type_one_side": True}, (1,), {"activation_function": "gelu", "resnet_dt": False}),
    "dpa1": (DPA1, (0,), {}),
    "strip": (DPA1 | {"tebd_input_mode": "strip", "set_davg_zero": True}, (0, 1), {"numb_fparam": 1}),
}  # fmt: skip


def system(seed=0):
    random = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*(np.arange(4),) * 3, indexing="ij"), -1).reshape(-1, 3)
    cell = np.diag([8.0, 8.4, 8.8]) + np.tril(random.uniform(-0.5, 0.5, (3, 3)), -1)
    positions = (grid + 0.1) / 4 @ cell + random.uniform(-0.3, 0.3, (64, 3))
    return positions, random.integers(0, 2, 64), cell, random.normal(size=(64, 3))


def atoms_of(positions, types, cell):
    return ase.Atoms([("O", "H")[t] for t in types], positions, cell=cell, pbc=True)


def assert_near(got, wanted, tolerance):
    for name, value in wanted.items():
        error = np.abs(got[name] - value).max() / np.abs(value).max()
        assert error < tolerance, f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_dipoles_and_what_fields_do_to_the_atoms(tmp_path, kind, threads):
    descriptor, types_with, fitting = KINDS[kind]
    potential = dipole_model(descriptor, types_with, **fitting)
    if fitting.get("numb_fparam"):
        potential.model.fitting.fparam.average.fill_(0.3)
    potential.save(tmp_path / "dipole.safetensors", core=["float32", "float64"])
    positions, types, cell, field = system()
    fparam = [0.7] if fitting.get("numb_fparam") else None
    wanted = in_fields(potential, atoms_of(positions, types, cell), field, fparam)
    exact = 2e-8 if kind == "strip" else 1e-12  # the core's knots are others there
    for precision, tolerance in (("float64", exact), ("float32", 2e-5)):
        model = Model(tmp_path / "dipole.safetensors", precision, threads=threads, part=DIPOLES)
        assert [bool(x) for x in model.info().has_dipole[:2]] == [t in types_with for t in (0, 1)]
        assert not model.info().charges and model.info().beta == 0 and not model.info().lacks_charges
        found = model.compute(positions, types, cell, fparam=fparam, field=field)
        assert_near(found, wanted, tolerance)
        np.testing.assert_allclose(found["atom_virial"].sum(0).T, found["virial"], atol=1e-4)
        assert found["atom_energy"].sum() == pytest.approx(found["energy"])
        assert not found["dipole"][~np.isin(types, types_with)].any()
        without = model.compute(positions, types, cell, fparam=fparam)
        assert np.array_equal(without["dipole"], found["dipole"])
        assert without["energy"] == 0 and not without["forces"].any() and not without["virial"].any()


def test_ghosts_and_virtual_atoms(tmp_path):
    """Of a cluster of which half of the atoms are ghosts, and some are virtual."""
    potential = dipole_model()
    potential.save(tmp_path / "dipole.safetensors", core=["float64"])
    positions, types, _, field = system()
    types = np.where(np.arange(64) % 7 == 3, -1, types)
    wide, present = np.diag([60.0] * 3), types >= 0
    field[32:] = 0
    wanted = in_fields(potential, atoms_of(positions[present], types[present], wide), field[present])
    rows = [[j for j in range(64) if j != i] for i in range(32)]
    model = Model(tmp_path / "dipole.safetensors", part=DIPOLES)
    near = List(np.where(present, types, -1), 32, rows, 2)
    found = model.compute(positions, near=near, field=field[:32])
    assert not found["dipole"][~present[:32]].any() and not found["forces"][~present].any()
    np.testing.assert_allclose(
        found["dipole"][present[:32]], wanted["dipole"][: present[:32].sum()], atol=1e-14
    )
    np.testing.assert_allclose(found["forces"][present], wanted["forces"], atol=1e-13)
    np.testing.assert_allclose(found["virial"], wanted["virial"], atol=1e-13)


def test_a_file_of_a_model_with_charges_has_both_of_its_models(tmp_path):
    path = with_charges(tmp_path)
    positions, types, cell, field = system()
    energies = mdops.load(path, dtype="float64", modifier=False)
    atoms = atoms_of(positions, types, cell)
    short, wanted = Model(path, part=SHORT_RANGE), energies.compute(atoms)
    assert short.info().lacks_charges and not short.info().has_dipole
    found = short.compute(positions, types, cell)
    assert found["energy"] == pytest.approx(wanted["energy"][0], rel=1e-12)
    np.testing.assert_allclose(found["forces"], wanted["forces"], atol=1e-12)
    dipoles = Model(path, part=DIPOLES)
    info = dipoles.info()
    assert (info.charges[:2], info.dipole_charges[:2], info.beta) == ([6.0, 1.0], [-8.0, 0.0], 0.4)
    own = mdops.load(tmp_path / "dw.dp", dtype="float64")
    assert_near(
        dipoles.compute(positions, types, cell, field=field),
        in_fields(own, atoms, field), 1e-12,
    )  # fmt: skip
    assert isinstance(mdops.load(path).modifier, DipoleCharge)
    with pytest.raises(CoreError, match="MDOPS_SHORT_RANGE is the model without them") as raised:
        Model(path)
    assert raised.value.status == UNSUPPORTED
    names = load_file(path)
    about = json.loads(names["core.description"].tobytes())
    assert about["version"] == 6  # libraries from before take 5 at most
    assert json.loads(names["core.charges.description"].tobytes())["version"] == 6


def test_convert_writes_both(tmp_path, capsys):
    with_charges(tmp_path)
    assert main(["convert", str(tmp_path / "alone.safetensors"), str(tmp_path / "again.safetensors")]) == 0
    assert "cannot use it" not in capsys.readouterr().out
    assert Model(tmp_path / "again.safetensors", part=DIPOLES).info().beta == 0.4
    (tmp_path / "dw.dp").unlink()
    assert main(["convert", str(tmp_path / "alone.safetensors"), str(tmp_path / "third.safetensors")]) == 0
    told = capsys.readouterr().out
    assert (
        "it has no part for the C core (C programs need it, LAMMPS is faster with it)" in told
        and "dw.dp" in told
    )
    with pytest.raises(CoreError, match="no part for this library"):
        Model(tmp_path / "third.safetensors", part=SHORT_RANGE)
    with pytest.raises(UnsupportedModelError, match="model of dipoles the core's part has in it"):
        mdops.load(tmp_path / "alone.safetensors", modifier=False).save(
            tmp_path / "x.safetensors", core=["float64"]
        )


def test_wrong_parts_and_arguments_are_refused(tmp_path):
    dipole_model().save(tmp_path / "dipole.safetensors", core=["float64"])
    random_model(SE_E2_A, {}).save(tmp_path / "energy.safetensors", core=["float64"])
    positions, types, cell, field = system()
    for part in (SHORT_RANGE, 0):
        with pytest.raises(CoreError, match="it is a model of dipoles, and one of energies is asked for"):
            Model(tmp_path / "dipole.safetensors", part=part)
    with pytest.raises(CoreError, match="models of dipoles compute on the CPU"):
        Model(tmp_path / "dipole.safetensors", device="cuda", part=DIPOLES)
    with pytest.raises(CoreError, match="it is no model of dipoles, and has no charges"):
        Model(tmp_path / "energy.safetensors", part=DIPOLES)
    with pytest.raises(CoreError, match="part is none of") as raised:
        Model(tmp_path / "energy.safetensors", part=3)
    assert raised.value.status == INVALID
    assert Model(tmp_path / "energy.safetensors", part=SHORT_RANGE).info().lacks_charges == 0
    with pytest.raises(CoreError, match="field or dipole is given, and the model is not one of dipoles"):
        Model(tmp_path / "energy.safetensors").compute(positions, types, cell, field=field)


def test_models_that_the_core_has_not_say_why():
    hybrid = {"type": "hybrid", "list": [SE_E2_A, SE_E2_A | {"rcut": 3.0}]}
    with pytest.raises(UnsupportedModelError, match="it supports dipole models with one descriptor"):
        dipole_model(hybrid).save("never.safetensors", core=["float64"])
