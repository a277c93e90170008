"""DeePMD-kit's tools, and mdops' timings, for models with magnetic moments."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from spin_models import DESCRIPTORS, crystal, model, training_input

import mdops
from mdops.cli import main
from mdops.data.evaluation import load_for
from mdops.deepmd import DeepPot, calc_model_devi, model_deviation
from mdops.errors import ConfigError, DataError, InputError, UnsupportedModelError
from mdops.jit.profile import profile
from mdops.jit.sample_box import sample_atoms, sample_elements
from mdops.learn.config import ModelTeacherConfig, parse_config
from mdops.learn.teacher import make_teacher
from mdops.models.registry import find
from mdops.quantization import quantize
from mdops.train import parse_config as training_config

TOOLS = Path(__file__).parents[1] / "data/reference_spin/tools"
MODELS = [str(TOOLS / f"{k}.dp") for k in range(2)]
LABELS = "coord", "box", "spin", "energy", "force", "force_mag", "virial"
KINDS = pytest.mark.parametrize("kind", DESCRIPTORS)


@pytest.fixture(scope="module")
def answers():
    """DeePMD-kit's, by system; "bias" has the energies of elements."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(TOOLS / "answers.npz") as arrays:
        for key in arrays:
            name, _, what = key.partition("/")
            found.setdefault(name, {})[what] = arrays[key]
    return found


@pytest.fixture(scope="module")
def data(answers, tmp_path_factory):
    """A folder with the systems."""
    folder = tmp_path_factory.mktemp("data")
    for name in "ab":
        place = folder / name / "set.000"
        place.mkdir(parents=True)
        np.savetxt(folder / name / "type.raw", answers[name]["types"], fmt="%d")
        (folder / name / "type_map.raw").write_text("Ni\nO\n")
        for label in LABELS:
            np.save(place / f"{label}.npy", answers[name][label].reshape(2, -1))
    return folder


def given(one):
    """Positions, cells and types."""
    return one["coord"], one["box"], one["types"]


def test_descriptors_are_deepmd_kits(answers, data, tmp_path):
    potential = DeepPot(MODELS[0], spline=False)
    assert main(["eval-desc", "-m", MODELS[0], "-s", str(data), "-o", str(tmp_path)]) == 0
    for name in "ab":
        one = answers[name]
        found = potential.eval_descriptor(*given(one), spin=one["spin"])
        assert found.shape == one["descriptor"].shape
        np.testing.assert_allclose(found, one["descriptor"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), one["descriptor"], rtol=0, atol=1e-13)


@KINDS
def test_descriptors_need_moments_and_change_with_them(kind):
    potential, atoms = DeepPot(model(kind)), crystal()
    moments, types = atoms.get_initial_magnetic_moments(), [0] * 4 + [1] * 4
    at = atoms.positions, atoms.cell.array, types
    with pytest.raises(InputError, match="has magnetic moments, but none are given"):
        potential.eval_descriptor(*at)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    rotation *= np.linalg.det(rotation)
    found = potential.eval_descriptor(*at, spin=moments)
    both = potential.eval_descriptor(at[0] @ rotation, at[1] @ rotation, types, spin=moments @ rotation)
    one = potential.eval_descriptor(*at, spin=moments @ rotation)
    assert found.shape[:2] == (1, 8)
    assert np.abs(both - found).max() < 1e-10 * np.abs(found).max()
    assert np.abs(one - found).max() > 1e-6 * np.abs(found).max()
    system = mdops.system.from_atoms([atoms], potential.potential.type_map)
    with pytest.raises(InputError, match="the system has none: see `system_with_spins`"):
        potential.potential.descriptors(system)


def test_eval_desc_needs_moments(answers, data, tmp_path, capsys):
    (tmp_path / "a").symlink_to(data / "a")
    bare = tmp_path / "bare/set.000"
    bare.mkdir(parents=True)
    for name in ("coord", "box"):
        np.save(bare / f"{name}.npy", answers["a"][name].reshape(2, -1))
    np.savetxt(tmp_path / "bare/type.raw", answers["a"]["types"], fmt="%d")
    for command in (
        ["eval-desc", "-m", MODELS[0], "-o", str(tmp_path / "desc")],
        ["model-devi", "-m", *MODELS, "-o", str(tmp_path / "devi")],
    ):
        assert main([*command, "-s", str(tmp_path / "bare")]) == 2
        assert "has no spin (spin.npy)" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "key"), [([], "deviation"), (["--real_error"], "error")])
def test_model_devi_has_columns_of_magnetic_forces(options, key, answers, data, tmp_path):
    path = tmp_path / "model_devi.out"
    command = ["model-devi", "--no-spline", "-m", *MODELS, "-s", str(data), "-o", str(path), *options]
    assert main(command) == 0
    head = path.read_text().splitlines()[1].split()
    assert head == ["#", "step", *(f"{of}_devi_{what}" for what in ("v", "fr", "fm") for of in ("max", "min", "avg")),
                    "devi_e"]  # fmt: skip
    table = np.loadtxt(path)[:, 1:]
    np.testing.assert_allclose(table, np.concatenate([answers[name][key] for name in "ab"]), rtol=1e-6)
    potentials = [DeepPot(path, spline=False) for path in MODELS]
    for name in "ab":
        one, n = answers[name], len(answers[name]["types"])
        labels = {k: one[k] / (n if k in ("energy", "virial") else 1) for k in LABELS} if options else None
        found = calc_model_devi(*given(one), potentials, spin=one["spin"], real_data=labels)
        np.testing.assert_allclose(found[:, 1:], one[key], rtol=1e-9)
        with pytest.raises(
            InputError, match="real_data has no force_mag: give energy, force, virial, force_mag"
        ):
            lacking = dict.fromkeys(("energy", "force", "virial"), 0)
            calc_model_devi(*given(one), potentials, spin=one["spin"], real_data=lacking)


def test_relative_and_atomic_deviations_of_magnetic_forces(answers, data, tmp_path):
    models = [mdops.load(path, dtype="float64", spline=False) for path in MODELS]
    read = load_for(models[0], [data / "a"], labelled=False)
    plain, relative = model_deviation(models, read), model_deviation(models, read, relative=0.5)
    one = answers["a"]
    magnetic = [DeepPot(m).eval(*given(one), spin=one["spin"])[3].reshape(-1, 3) for m in models]
    wanted = plain.force_mag / (np.linalg.norm(np.mean(magnetic, axis=0), axis=1) + 0.5)
    np.testing.assert_allclose(relative.force_mag, wanted, rtol=1e-9)
    assert (plain.force_mag[:4] > 0).all() and (plain.force_mag[4:8] == 0).all()  # nickel and oxygen
    table = plain.table(atomic=True)
    assert table.shape == (2, 10 + 8)
    np.testing.assert_array_equal(table[:, 10:], plain.forces.reshape(2, 8))
    potentials, path = [DeepPot(m) for m in models], tmp_path / "out"
    calc_model_devi(*given(one), potentials, path, spin=one["spin"], atomic=True)
    np.testing.assert_allclose(np.loadtxt(path)[:, 1:], table, rtol=1e-6)
    assert path.read_text().splitlines()[1].split()[-2:] == ["devi_e", "atm_devi_f(N)"]


def test_deviations_of_vectors_and_virtual_atoms_of_other_lengths(answers, data):
    """Each model places its own virtual atoms."""
    near, far = (mdops.load(MODELS[0], dtype="float64") for _ in range(2))
    far.model.options.spin = {**far.model.options.spin, "virtual_scale": [0.4, 0.0]}
    one = answers["a"]
    energies = [DeepPot(m).eval(*given(one), spin=one["spin"])[0][:, 0] / 8 for m in (near, far)]
    found = model_deviation([near, far], load_for(near, [data / "a"], labelled=False))
    np.testing.assert_allclose(found.energy, np.std(energies, axis=0), rtol=1e-9)
    assert found.energy.min() > 0
    vectors = model("dpa4")
    found = model_deviation([vectors, vectors], load_for(vectors, [data / "a"], labelled=False))
    assert found.force_mag.shape == (16,) and not found.force_mag.any()
    with pytest.raises(InputError, match="the same elements in the same order"):
        model_deviation([near, vectors], load_for(near, [data / "a"], labelled=False))


def test_models_with_and_without_moments_are_not_compared(data):
    magnetic = model("dpa4")
    section = training_input("dpa4", "nowhere")
    del section["model"]["spin"], section["loss"]
    options = training_config(section).model
    other = mdops.Potential(find("model", options.KIND).random(options, 3, torch.float64)).eval()
    with pytest.raises(InputError, match="have magnetic moments, and the others have none"):
        model_deviation([magnetic, other], load_for(magnetic, [data], labelled=False))


@pytest.mark.parametrize("mode", ["change", "set"])
def test_change_bias_finds_deepmd_kits_energies(mode, answers, data, tmp_path, capsys):
    path = tmp_path / "changed.dp"
    assert main(["change-bias", MODELS[0], "-s", str(data), "-m", mode, "-o", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["Ni", "O", "wrote"]
    bias = mdops.load(path, dtype="float64").model.out_bias.numpy()
    np.testing.assert_allclose(bias, answers["bias"][mode], rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["dpa1", "dpa4"])
def test_change_bias_takes_energies_of_elements(kind, tmp_path, capsys):
    path, change = tmp_path / "changed.dp", ["change-bias", str(tmp_path / "model.dp"), "-b"]
    model(kind).save(tmp_path / "model.dp")
    assert main([*change, "1", "2", "-o", str(path)]) == 0
    bias = mdops.load(path).model.out_bias.tolist()
    assert bias == ([1, 2] if kind == "dpa4" else [1, 2, 0, 0])  # with virtual atoms
    assert main([*change, "1", "2", "3", "4", "-o", str(tmp_path / "other.dp")]) == 2
    assert "has 4 energies, but the model's elements are Ni, O" in capsys.readouterr().err


@KINDS
def test_steps_that_are_timed_have_moments(kind, tmp_path, capsys):
    potential = model(kind)
    atoms = sample_atoms(24, sample_elements(potential), potential)
    assert set(atoms.symbols) == {"Ni", "O"}
    np.testing.assert_allclose(np.linalg.norm(atoms.get_initial_magnetic_moments(), axis=1), 1)
    with pytest.raises(InputError, match="the atoms have none: give them by"):
        profile(potential, Atoms(atoms.symbols, atoms.positions, cell=atoms.cell, pbc=True), 2)
    assert profile(potential, atoms, 2).table()
    potential.save(tmp_path / "model.dp")
    assert main(["bench", str(tmp_path / "model.dp"), "--atoms", "24", "--seconds", "0.01"]) == 0
    assert float(capsys.readouterr().out.splitlines()[-1].split()[5]) > 1  # neighbours


def test_learning_and_low_bit_nets_have_no_moments(tmp_path):
    tree = {"teacher": {"type": "ase", "calculator": "ase.calculators.emt.EMT"},
            "start": {"structures": "x"}, "explore": {"temperatures": [300]}}  # fmt: skip
    students = {"input": {"model": {"spin": {"use_spin": ["Ni"], "virtual_scale": 0.3}}}}
    assert parse_config(tree)
    with pytest.raises(ConfigError, match=r"students.input.model.spin: .* stay as they are in its dynamics"):
        parse_config({**tree, "students": students})
    with pytest.raises(UnsupportedModelError, match=r"teacher.model: .* train with `mdops train`"):
        make_teacher(ModelTeacherConfig(model=MODELS[0]))
    with pytest.raises(UnsupportedModelError, match="moments have no low-bit form"):
        quantize(model("se_e2_a"), "w8a8")


def test_dpdata_takes_and_gives_magnetic_quantities(answers):
    pytest.importorskip("dpdata", reason="dpdata is not installed (pip install 'mdops[dpdata]')")
    from mdops.dpdata import MDOpsDriver

    one = answers["a"]
    system = {"atom_names": ["O", "Ni"], "atom_types": 1 - one["types"], "coords": one["coord"],
              "cells": one["box"].reshape(2, 3, 3)}  # fmt: skip
    driver = MDOpsDriver(MODELS[0], spline=False)
    found = driver.label({**system, "spins": one["spin"]})
    wanted = DeepPot(MODELS[0], spline=False).eval(*given(one), spin=one["spin"])
    np.testing.assert_array_equal(found["energies"], wanted[0][:, 0])
    np.testing.assert_array_equal(found["force_mags"], wanted[3])
    with pytest.raises(InputError, match="none are given"):
        driver.label(system)


def test_data_that_lacks_magnetic_forces_has_no_errors_of_them(data, tmp_path):
    models = [mdops.load(path, dtype="float64") for path in MODELS]
    read = load_for(models[0], [data / "a"])
    labels = {name: array for name, array in read.labels.items() if name != "force_mag"}
    with pytest.raises(DataError, match="has no force_mag to compare with"):
        model_deviation(models, replace(read, labels=labels), real_error=True)
