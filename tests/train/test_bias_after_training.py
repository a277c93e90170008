"""training.change_bias_after_training: DeePMD-kit's "change-by-statistic" after the last step."""

import contextlib

import numpy as np
import pytest
import torch
from processes import together
from small_systems import alloy, write_system
from test_branches import tree as several_models
from test_trainer import stop_after, tree

from mdops import load
from mdops.data.evaluation import evaluate
from mdops.train import Trainer, load_dataset, parse_config
from mdops.train.config.read import parse_input


@pytest.fixture
def folder(tmp_path):
    """Two compositions, so that the energies of both types are found."""
    frames = alloy(3, seed=1)
    for atoms in frames:
        atoms.symbols[:3] = "Al"
        atoms.get_forces(), atoms.get_stress()
    write_system(tmp_path / "data" / "one", alloy(3), ("Cu", "Al"))
    write_system(tmp_path / "data" / "two", frames, ("Cu", "Al"))
    return tmp_path / "data"


def input_of(folder, **training):
    data = {"systems": str(folder), "batch_size": 3}
    # Few steps, so that energies are far from their labels.
    return tree(
        training_data=data, validation_data=data, precision="float64", numb_steps=8, save_freq=100, **training
    )


def trained(folder, place, change=True, **options):
    config = parse_config(input_of(folder, change_bias_after_training=change, spline=False))
    Trainer(config, place, **options).run()
    return load(place / "model.safetensors", dtype="float64", spline=False)


def errors(model, data):
    """Of energies, (F,)."""
    return evaluate(model, data).predictions["energy"] - data.labels["energy"]


def test_the_bias_fits_the_errors_of_the_trained_model(folder, tmp_path):
    """Of the weights, not of their average, as in DeePMD-kit; nothing else changes."""
    plain, shifted = (trained(folder, tmp_path / str(change), change) for change in (False, True))
    for (name, a), b in zip(plain.named_parameters(), shifted.parameters(), strict=True):
        assert torch.equal(a, b), name
    curves = [(tmp_path / str(change) / "lcurve.out").read_text() for change in (False, True)]
    assert curves[0] == curves[1]
    data, bias = load_dataset(folder, ["Cu", "Al"]), []
    for change in (False, True):
        config = parse_config(input_of(folder, change_bias_after_training=change, spline=False))
        trainer = Trainer(config, tmp_path / str(change), restart=True)
        with trainer._in_place(False):
            left = errors(trainer.potential.eval(), data)
            fit = np.linalg.lstsq(data.composition().astype(float), left, rcond=None)[0]
        bias.append((fit, trainer.potential.model.out_bias.ravel().numpy()))
    assert np.abs(bias[0][0]).max() > 0.01 and np.abs(bias[1][0]).max() < 1e-9
    np.testing.assert_allclose(bias[1][1], bias[0][1] - bias[0][0], atol=1e-9)
    np.testing.assert_allclose(shifted.model.out_bias.ravel(), bias[1][1], atol=1e-12)


def several(folder, place):
    trained(folder, place)


def test_restarts_and_processes_find_the_same(folder, tmp_path):
    whole = trained(folder, tmp_path / "whole")
    config = parse_config(input_of(folder, change_bias_after_training=True, spline=False))
    config.training.save_freq = 4
    with contextlib.suppress(KeyboardInterrupt):
        Trainer(config, tmp_path / "stopped").run(stop_after(5))
    again = trained(folder, tmp_path / "stopped", restart=True)
    for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert together(tmp_path, several, folder, tmp_path / "two") == [0, 0]
    two = load(tmp_path / "two" / "model.safetensors", dtype="float64", spline=False)
    torch.testing.assert_close(two.model.out_bias, whole.model.out_bias, rtol=1e-8, atol=1e-10)


def test_every_branch_of_a_training_has_its_own(folder, tmp_path):
    systems, biases = {"a": str(folder / "one"), "b": str(folder / "two")}, []
    for change in (False, True):
        config = parse_input(several_models(systems, change_bias_after_training=change))
        trainer = Trainer(config, tmp_path / str(change))
        trainer.run()
        biases.append([b.potential.model.out_bias.clone() for b in trainer.branches.values()])
    one, two = (after - before for before, after in zip(*biases, strict=True))
    assert min(float(shift.abs().max()) for shift in (one, two, one - two)) > 1e-3
