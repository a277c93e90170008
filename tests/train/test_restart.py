"""A restart refuses inputs whose changes it would ignore, and takes those that it can follow."""

import copy

import pytest
from small_systems import EMT
from test_trainer import denser, tree

from mdops.errors import ConfigError, InputError
from mdops.train.config.read import parse_config
from mdops.train.loop import checkpoint
from mdops.train.loop.trainer import Trainer


def edited(place, value):
    """The input of the tests with another value at a path of keys."""
    found = copy.deepcopy(tree())
    *sections, last = place.split(".")
    node = found
    for name in sections:
        node = node.setdefault(name, {})
    node[last] = value
    return parse_config(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A training with one checkpoint, before its first step."""
    place = tmp_path_factory.mktemp("run")
    Trainer(parse_config(tree()), place).save()
    return place


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("model.descriptor.neuron", [8, 8], r"model\.descriptor\.neuron is \[8, 8\] and was \[4, 8\]"),
        ("model.descriptor.sel", [50, 50], r"model\.descriptor\.sel is \[50, 50\] and was 'auto'"),
        ("model.fitting_net.trainable", False, r"model\.fitting_net\.trainable is False and was True"),
        ("model.preset_out_bias", {"energy": [1.0, None]}, r"preset_out_bias"),
        ("model.type_map", ["Al", "Cu"], r"model\.type_map is \['Al', 'Cu'\]"),
        ("training.seed", 6, r"training\.seed is 6 and was 5"),
        ("training.precision", "float64", r"training\.precision is 'float64' and was 'float32'"),
        ("training.spline", False, r"training\.spline is False"),
        ("training.enable_ema", False, r"training\.enable_ema is False and was True"),
        ("optimizer.adam_beta2", 0.95, r"optimizer\.adam_beta2 is 0\.95 and was 0\.9"),
    ],
)
def test_a_change_that_would_be_ignored_is_refused(folder, place, value, says):
    with pytest.raises(ConfigError, match=says) as error:
        Trainer(edited(place, value), folder, restart=True)
    assert "model.ckpt-0.pt is of a training with another input" in str(error.value)


def test_every_change_is_named(folder):
    both = edited("optimizer.type", "AdamW")
    both.training.seed = 9
    with pytest.raises(ConfigError, match=r"optimizer\.type is 'AdamW' .*; training\.seed is 9"):
        Trainer(both, folder, restart=True)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("training.numb_steps", 21),
        ("training.save_freq", 2),
        ("training.disp_freq", 3),
        ("training.max_ckpt_keep", 1),
        ("training.gradient_max_norm", 10.0),
        ("training.training_data.systems", [str(EMT)]),
        ("training.training_data.batch_size", 4),
        ("training.validation_data.numb_btch", 1),
        ("loss.start_pref_e", 1.0),
        ("learning_rate.start_lr", 1e-4),
    ],
)
def test_a_change_that_has_an_effect_is_taken(folder, place, value):
    trainer = Trainer(edited(place, value), folder, restart=True)
    assert trainer.step == 0 and trainer.seed == 5
    if place == "training.numb_steps":
        assert trainer.steps == 21 == trainer.rate.steps
    if place.startswith("learning_rate"):
        assert trainer.rate(0) == 1e-4


def test_a_longer_training_goes_on(tmp_path):
    Trainer(parse_config(tree()), tmp_path).run()
    longer = Trainer(edited("training.numb_steps", 20), tmp_path, restart=True)
    assert longer.step == 17
    longer.run()
    assert longer.step == 20 and (tmp_path / "model.ckpt-20.pt").exists()


def test_a_checkpoint_of_another_version_is_told(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_FORMAT", "mdops training 1")
        Trainer(parse_config(tree()), tmp_path).save()
    with pytest.raises(InputError, match="is a checkpoint of another version of mdops"):
        Trainer(parse_config(tree()), tmp_path, restart=True)


def test_denser_data_of_a_restart_are_trained_on_without_the_farthest_neighbours(folder, tmp_path):
    new = edited("training.training_data.systems", denser(tmp_path / "dense.extxyz"))
    with pytest.warns(UserWarning, match="atoms of the training data have up to"):
        assert Trainer(new, folder, restart=True).potential.overflow == "truncate"
