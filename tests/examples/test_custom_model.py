"""examples/custom_model.py: a kind of one's own trains, saves, loads and runs like any other."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

import mdops
from mdops.calculator import MDOps
from mdops.cli import main as command
from mdops.errors import InputError
from mdops.md import Engine, Physics
from mdops.models import registry
from mdops.train import Trainer, parse_config


@pytest.fixture
def example(examples):
    return importlib.import_module("custom_model")


@pytest.fixture
def trained(example, tmp_path):
    """A training of some steps, and the errors on the way."""
    trainer, reports = Trainer(parse_config(example.training_input(100)), tmp_path), []
    trainer.run(reports.append)
    return trainer, reports


def test_it_learns_and_a_saved_model_is_the_trained_one(example, trained, tmp_path):
    trainer, reports = trained
    errors = [report.training["forces"] for report in reports]
    assert errors[-1] < 0.6 * errors[0]
    atoms = example.first_frame(trainer.frames.data)
    loaded = mdops.load(tmp_path / "model.safetensors")
    assert isinstance(loaded.model.descriptor, example.GaussianMoments)
    # Weights are saved in float64, and were trained in float32.
    for name, value in trainer.potential.compute(atoms).items():
        np.testing.assert_allclose(loaded.compute(atoms)[name], value, rtol=1e-6, atol=1e-6)
    assert loaded.explain() == (
        "autograd: the model's own PyTorch operations, and their derivatives by autograd; "
        "no faster way is known for a standard model of gaussian_moments"
    )


def test_forces_are_slopes_and_turned_atoms_have_the_same_energy(example, trained, tmp_path):
    trainer, _ = trained
    potential = mdops.load(tmp_path / "model.safetensors", dtype="float64")
    atoms = example.first_frame(trainer.frames.data)
    answers, random, step = potential.compute(atoms), np.random.default_rng(0), 1e-5
    for _ in range(3):
        direction, energies = random.standard_normal(atoms.positions.shape), []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions += sign * step * direction
            energies.append(potential.compute(moved)["energy"][0])
        slope = (energies[0] - energies[1]) / (2 * step)
        assert slope == pytest.approx(-(answers["forces"] * direction).sum(), rel=1e-6)
    turn = np.linalg.qr(random.standard_normal((3, 3)))[0]
    turned = atoms.copy()
    turned.set_cell(atoms.cell.array @ turn, scale_atoms=False)
    turned.positions = atoms.positions @ turn
    assert potential.compute(turned)["energy"][0] == pytest.approx(answers["energy"][0], rel=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_runs_in_ase_and_in_the_engine(example, trained, tmp_path, device, dtype):
    trainer, _ = trained
    potential = mdops.load(tmp_path / "model.safetensors", device=device, dtype=dtype)
    atoms = example.first_frame(trainer.frames.data)
    atoms.calc = MDOps(potential)
    energy = atoms.get_potential_energy()
    frames = list(Engine(atoms, potential, Physics("nve", 100, timestep=1.0)).run(20, every=1))
    assert frames[0].energy == pytest.approx(energy, abs=1e-2)
    total = np.array([frame.energy + frame.kinetic for frame in frames])
    assert np.ptp(total) < 2e-3


@pytest.mark.usefixtures("trained")
def test_a_killed_training_goes_on(example, tmp_path):
    longer = example.training_input(110)
    again = Trainer(parse_config(longer), tmp_path, restart=True)
    assert again.step == 100
    again.run()
    assert again.step == 110 and mdops.load(tmp_path / "model.safetensors").source["training"]["step"] == 110


def test_the_command_line_knows_the_kind(example, examples, tmp_path, capsys, monkeypatch):
    """In a process that has not imported it; then its keys, its training, its model."""
    monkeypatch.delenv("MDOPS_KINDS", raising=False)
    path, file = tmp_path / "input.json", examples / "custom_model.py"
    path.write_text(json.dumps(example.training_input(3)))
    run = [sys.executable, "-m", "mdops"]
    refused = subprocess.run([*run, "train", path, "-o", tmp_path / "no"], capture_output=True, text=True)
    assert refused.returncode == 2 and "expected one of" in refused.stderr
    done = subprocess.run(
        [*run, "train", path, "-o", tmp_path / "yes", "--kinds", file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert command(["info", str(tmp_path / "yes" / "model.safetensors"), "--kinds", str(file)]) == 0
    assert "standard model with descriptor gaussian_moments" in capsys.readouterr().out


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such Python file"):
        registry.load_kinds(str(tmp_path / "nothing.py"))
    (tmp_path / "broken_kinds.py").write_text("1/0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        registry.load_kinds(str(tmp_path / "broken_kinds.py"))
