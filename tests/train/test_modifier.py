"""Trainings beside charges (DPLR, the section `modifier`), and the models that come of them."""

import shutil
from pathlib import Path

import ase
import numpy as np
import pytest
import torch
from ase.calculators.singlepoint import SinglePointCalculator
from dipole_models import dipole_model
from safetensors import safe_open
from small_systems import write_system

import mdops
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.data.labels import labels_of
from mdops.domain import Domain
from mdops.errors import ConfigError, DataError, ModelFileError, UnsupportedModelError
from mdops.io import read_model
from mdops.loading import load_charges
from mdops.md import Engine, EnsembleSettings
from mdops.train import Trainer, parse_config
from mdops.train.loop import charges as charges_of_training

DATA = Path(__file__).parents[1] / "data"
DIPOLES = DATA / "outputs" / "dipole.dp"
SECTION = {
    "type": "dipole_charge",
    "model_name": str(DIPOLES),
    "model_charge_map": [-8],
    "sys_charge_map": [6, 1],
    "ewald_h": 1.0,
    "ewald_beta": 0.4,
}


def labelled():
    """The two frames of DeePMD-kit's reference, with labels."""
    rng = np.random.default_rng(5)
    with np.load(DATA / "outputs" / "dipole.npz") as found:
        symbols = [("O", "H")[t] for t in found["types"]]
        frames = [
            ase.Atoms(symbols, x, cell=cell, pbc=True)
            for x, cell in zip(found["positions"], found["cell"], strict=True)
        ]
    for atoms in frames:
        forces, stress = rng.normal(size=(len(atoms), 3)), rng.normal(size=6) / 100
        atoms.calc = SinglePointCalculator(atoms, energy=rng.normal(), forces=forces, stress=stress)
    return frames


def tree(folder, *, modifier=None, model=None, loss=None, steps=2):
    if not (folder / "data").exists():
        write_system(folder / "data", labelled(), ("O", "H"))
    descriptor = {"type": "se_e2_a", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 3}
    return {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": descriptor | {"sel": "auto"},
            "fitting_net": {"neuron": [8]},
            "modifier": {**SECTION, **(modifier or {})},
            **(model or {}),
        },
        "loss": {"type": "ener", "start_pref_v": 0.1, "limit_pref_v": 0.1, **(loss or {})},
        "training": {
            "training_data": {"systems": str(folder / "data"), "batch_size": 1},
            "numb_steps": steps,
            "seed": 1,
            "precision": "float64",
        },
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a trained model."""
    place = tmp_path_factory.mktemp("trained")
    Trainer(parse_config(tree(place)), place).run()
    return place


def test_labels_are_less_what_deepmd_gives(tmp_path):
    data = Trainer(parse_config(tree(tmp_path)), tmp_path).frames.data
    before = load_dataset(tmp_path / "data", ["O", "H"])
    with np.load(DATA / "dipole_charge.npz") as found:
        for name, theirs in (("energy", "energy"), ("forces", "force"), ("virial", "virial")):
            expected = before.labels[name] - found[f"dipole_{theirs}"].reshape(before.labels[name].shape)
            np.testing.assert_allclose(
                data.labels[name], expected, atol=1e-9 * np.abs(found[f"dipole_{theirs}"]).max()
            )


def test_what_took_long_is_computed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(charges_of_training, "_LONG", 0.0)
    first = Trainer(parse_config(tree(tmp_path)), tmp_path).frames.data.labels
    assert len(list(tmp_path.glob("charges-*.npz"))) == 1
    monkeypatch.setattr(charges_of_training, "_computed", None)
    second = Trainer(parse_config(tree(tmp_path)), tmp_path).frames.data.labels
    for name in ("energy", "forces", "virial"):
        assert np.array_equal(first[name], second[name])
    with pytest.raises(TypeError):  # of other charges it has to be computed
        Trainer(parse_config(tree(tmp_path, modifier={"ewald_beta": 0.5})), tmp_path)


def test_a_loaded_model_adds_the_charges(folder):
    path = folder / "model.safetensors"
    whole, alone = (
        mdops.load(path, dtype="float64", modifier=with_charges) for with_charges in (True, False)
    )
    frames = labelled()
    charges = load_charges(SECTION, Path())
    own, short, found = charges.compute(frames), alone.compute(frames), whole.compute(frames)
    for name in ("energy", "atom_energy", "forces", "virial"):
        np.testing.assert_allclose(found[name], short[name] + own[name], atol=1e-12, err_msg=name)
        assert np.abs(own[name]).max() > 0.1, name
    atoms = frames[1]
    atoms.calc = MDOps(path, dtype="float64")
    assert atoms.get_potential_energy() == pytest.approx(found["energy"][1], abs=1e-9)
    assert atoms.get_potential_energies().sum() == pytest.approx(found["energy"][1], abs=1e-9)
    np.testing.assert_allclose(atoms.get_forces(), found["forces"][len(atoms) :], atol=1e-9)
    stress = -found["virial"][1] / atoms.get_volume()
    np.testing.assert_allclose(atoms.get_stress(voigt=False), stress, atol=1e-10)
    assert "stresses" not in atoms.calc.implemented_properties


@pytest.mark.filterwarnings("ignore:atoms of the training data have up to")
def test_charges_are_added_where_neighbours_are_left_out(tmp_path):
    """There the separate ops of the model answer."""
    few = {
        "type": "se_e2_a", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 3, "sel": [3, 3],
    }  # fmt: skip
    Trainer(parse_config(tree(tmp_path, model={"descriptor": few})), tmp_path).run()
    whole, alone = (
        mdops.load(tmp_path / "model.safetensors", dtype="float64", overflow="truncate", modifier=added)
        for added in (True, False)
    )
    frames = labelled()
    found, short = whole.compute(frames), alone.compute(frames)
    own = load_charges(SECTION, Path()).compute(frames)
    for name in ("energy", "forces", "virial"):
        np.testing.assert_allclose(found[name], short[name] + own[name], atol=1e-12, err_msg=name)
    assert whole.splines() == alone.splines() and whole.explain() == alone.explain()


def test_errors_are_those_of_whole_labels(folder):
    """Of the model with its charges on the labels as they are, and of the model alone on what it was trained on."""
    whole, alone = (
        mdops.load(folder / "model.safetensors", dtype="float64", modifier=added) for added in (True, False)
    )
    trainer = Trainer(parse_config(tree(folder)), folder, restart=True)
    expected = evaluate(alone, trainer.frames.data).errors()
    found = evaluate(whole, load_dataset(folder / "data", ["O", "H"])).errors()
    for name in ("energy", "forces", "virial"):
        assert found[name].rmse == pytest.approx(expected[name].rmse, rel=1e-9)


def test_the_section_stands_where_deepmd_has_it(folder, tmp_path):
    path = tmp_path / "model.dp"
    assert main(["convert", str(folder / "model.safetensors"), str(path)]) == 0
    assert read_model(path).source["model_def_script"]["modifier"] == {
        **SECTION,
        "model_charge_map": [-8.0],
        "sys_charge_map": [6.0, 1.0],
    }
    back = tmp_path / "back.safetensors"
    assert main(["convert", str(path), str(back)]) == 0
    atoms = labelled()[0]
    energies = [mdops.load(p, dtype="float64").compute(atoms)["energy"][0] for p in (path, back)]
    original = mdops.load(folder / "model.safetensors", dtype="float64").compute(atoms)["energy"][0]
    np.testing.assert_allclose(energies, original, atol=1e-9)


def test_the_dipole_model_is_found_beside_the_model(folder, tmp_path, monkeypatch):
    moved = tmp_path / "moved"
    moved.mkdir()
    config = tree(tmp_path, modifier={"model_name": "dw.dp"})
    shutil.copy(DIPOLES, tmp_path / "dw.dp")
    monkeypatch.chdir(tmp_path)
    Trainer(parse_config(config), tmp_path).run()
    shutil.move(tmp_path / "model.safetensors", moved)
    shutil.move(tmp_path / "dw.dp", moved)
    assert mdops.load(moved / "model.safetensors").modifier is not None
    (moved / "dw.dp").unlink()
    with pytest.raises(ModelFileError, match=r"dw\.dp: the dipole model of a modifier .* modifier=False"):
        mdops.load(moved / "model.safetensors")
    assert mdops.load(moved / "model.safetensors", modifier=False).modifier is None


def test_what_would_leave_the_charges_out_is_refused(folder, tmp_path, capsys):
    path, atoms = folder / "model.safetensors", labelled()[0]
    model = mdops.load(path, dtype="float64")
    calls = {
        "the engine": lambda: Engine(atoms, model, EnsembleSettings("nve")),
        "a part of a system in LAMMPS": lambda: Domain(model),
        "a program": model.export,
        "a Hessian": lambda: model.hessians(atoms),
        "virials of atoms": lambda: model.compute(atoms, atom_virial=True),
        "a differentiable energy": lambda: model(torch.tensor(atoms.positions), torch.tensor([0] * 7)),
    }
    for call in calls.values():
        with pytest.raises(UnsupportedModelError, match="long-range charges"):
            call()
    # The core has them; not of this model of dipoles.
    with pytest.raises(
        UnsupportedModelError, match=r"of its model of dipoles \(modifier\): the C core does not"
    ):
        model.save(tmp_path / "x.safetensors", core=["float64"])
    out = str(tmp_path / "y.safetensors")
    assert main(["convert", str(path), out, "--core"]) == 2
    assert main(["convert", str(path), out]) == 0
    assert "it has no part for the C core (C programs need it" in capsys.readouterr().out


def test_a_training_goes_on_beside_the_same_charges(folder, tmp_path):
    path = folder / "model.safetensors"
    begun = Trainer(parse_config(tree(tmp_path, steps=0)), tmp_path / "a", init_model=path).run()
    assert begun.modifier is None
    again = mdops.load(tmp_path / "a" / "model.safetensors", dtype="float64")
    atoms = labelled()[0]
    expected = mdops.load(path, dtype="float64").compute(atoms)["energy"]
    np.testing.assert_allclose(again.compute(atoms)["energy"], expected, atol=1e-9)
    without = tree(tmp_path)
    del without["model"]["modifier"]
    with pytest.raises(ConfigError, match="was trained with charges"):
        Trainer(parse_config(without), tmp_path / "b", init_model=path)


def test_inputs_that_make_no_sense_are_refused(tmp_path):
    dipoles = {"type": "dipole", "neuron": [8]}
    wrong = [
        (dict(modifier={"type": "other"}), r"modifier\.type: is 'other'"),
        (dict(modifier={"sys_charge_map": [6]}), "sys_charge_map: has 1 charges for the types O, H"),
        (dict(modifier={"ewald_h": 0}), r"ewald_h: is 0\.0, expected more than 0"),
        (dict(model={"fitting_net": dipoles}), "this model predicts no energies"),
        (dict(model={"spin": {"use_spin": [True, False], "virtual_scale": [0.3]}}), "magnetic moments"),
    ]
    for keys, message in wrong:
        with pytest.raises(ConfigError, match=message):
            parse_config(tree(tmp_path, **keys))
    config = parse_config(tree(tmp_path, model={"type_map": ["H", "O"]}))
    with pytest.raises(ConfigError, match="has the types O, H, expected those of the model, H, O"):
        Trainer(config, tmp_path)
    config = parse_config(tree(tmp_path, loss={"start_pref_h": 1, "limit_pref_h": 1}))
    with (
        pytest.warns(UserWarning, match="hessian"),
        pytest.raises(ConfigError, match=r"the loss is of hessian, too: set loss\.start_pref_h"),
    ):
        Trainer(config, tmp_path)
    config = parse_config(tree(tmp_path))
    (tmp_path / "data" / "nopbc").touch()
    with pytest.raises(DataError, match=r"set\.000, frame 0: charges beyond the cutoff"):
        Trainer(config, tmp_path)


def test_dipoles_may_be_those_of_their_atoms_alone(tmp_path):
    """As in DeePMD-kit's example for DPLR: atomic_dipole.npy has the oxygens of water alone."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    rng = np.random.default_rng(0)
    dipoles = rng.normal(size=(4, 3, 3))
    dipoles[:, 1:] = 0
    for folder, values in ((whole, dipoles), (part, dipoles[:, :1])):
        (folder / "set.000").mkdir(parents=True)
        (folder / "type.raw").write_text("1\n0\n0\n")
        (folder / "type_map.raw").write_text("H\nO\n")
        np.save(folder / "set.000" / "coord.npy", rng.normal(size=(4, 9)))
        np.save(folder / "set.000" / "box.npy", np.tile(9 * np.eye(3).ravel(), (4, 1)))
        np.save(folder / "set.000" / "atomic_dipole.npy", values.reshape(4, -1))
    known = labels_of(mdops.load(DIPOLES).model.outputs)
    read = [
        load_dataset(place, ["O", "H"], known=known, silent=["H"]).labels["atom_dipole"]
        for place in (whole, part)
    ]
    assert np.array_equal(*read) and np.array_equal(read[0][::3], dipoles[:, 0])
    with pytest.raises(DataError, match=r"atomic_dipole has shape \(4, 3\), expected 4 frames of 9 values"):
        load_dataset(part, ["O", "H"], known=known)


def test_a_trained_model_has_what_lammps_computes_with(tmp_path):
    """Both of its models: of energies, and of dipoles where the core has that."""
    dipole_model().save(tmp_path / "dw.dp")
    config = parse_config(tree(tmp_path, modifier={"model_name": str(tmp_path / "dw.dp")}))
    Trainer(config, tmp_path).run()
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert {"core.description", "core.charges.description"} <= set(file.keys())
