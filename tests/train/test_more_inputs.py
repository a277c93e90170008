"""Inputs that DeePMD-kit has in other forms: frozen parts, no steps, types of a fitting, and those of version 0."""

import numpy as np
import pytest
import torch
from small_systems import EMT, alloy, small_config, write_system

import mdops
from mdops.data.evaluation import evaluate
from mdops.errors import ConfigError, ModelFileError
from mdops.train import Trainer, load_dataset, parse_config

PART = {"descriptor": {"type": "se_atten_v2", "attn_layer": 0, "rcut": 4.0, "rcut_smth": 2.0, "sel": 60,
                       "neuron": [4, 8], "axis_neuron": 3, "tebd_dim": 4}, "fitting_net": {"neuron": [6]}}  # fmt: skip


def trained(folder, seed, types=("Cu", "Al")):
    tree = {"model": {**PART, "type_map": list(types)},
            "training": {"training_data": {"systems": str(EMT), "batch_size": 1}, "numb_steps": 2, "seed": seed,
                         "precision": "float64"}}  # fmt: skip
    Trainer(parse_config(tree), folder).run()
    return folder / "model.safetensors"


def linear(models, steps, **more):
    return parse_config({
        "model": {"type": "linear_ener", "type_map": ["Cu", "Al"], "models": models, **more},
        "training": {"training_data": {"systems": str(EMT), "batch_size": 1}, "numb_steps": steps,
                     "precision": "float64", "seed": 5},
    })  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    return [trained(folder / "a", 1), trained(folder / "b", 2, ("Al", "Cu"))]


def energies(path):
    model = mdops.load(path, dtype="float64")
    return evaluate(model, load_dataset(str(EMT), model.type_map)).predictions["energy"]


def test_the_mean_of_frozen_models_is_written_without_a_step(files, tmp_path):
    parts = [{"type": "frozen", "model_file": str(path)} for path in files]
    Trainer(linear(parts, 0), tmp_path).run()
    expected = (energies(files[0]) + energies(files[1])) / 2
    np.testing.assert_allclose(energies(tmp_path / "model.safetensors"), expected, rtol=1e-10)
    with pytest.raises(ConfigError, match="has no trainable weights"):
        Trainer(linear(parts, 1), tmp_path / "steps")


def test_a_frozen_part_stays_and_the_other_learns_the_rest(files, tmp_path):
    config = linear(
        [{"type": "frozen", "model_file": str(files[0])}, PART], 3, weights="sum", data_stat_nbatch=100
    )
    trainer = Trainer(config, tmp_path)
    fixed, learned = trainer.potential.model.models
    before = (
        [value.clone() for value in fixed.parameters()],
        [value.clone() for value in learned.parameters()],
    )
    old = mdops.load(files[0], dtype="float64").model
    torch.testing.assert_close(fixed.descriptor.std, old.descriptor.std)
    data = load_dataset(str(EMT), ["Cu", "Al"])
    left = evaluate(trainer.potential, data).predictions["energy"] - data.labels["energy"]
    np.testing.assert_allclose(
        data.composition().T @ left, 0, atol=1e-4
    )  # averages are of what the frozen one lacks
    trainer.run()
    assert all(torch.equal(a, b) for a, b in zip(fixed.parameters(), before[0], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(learned.parameters(), before[1], strict=True))
    Trainer(config, tmp_path, restart=True)


def test_a_frozen_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"nothing\.pb: there is no such file"):
        Trainer(linear([{"type": "frozen", "model_file": "nothing.pb"}], 0), tmp_path)


def test_no_steps_write_the_first_model(tmp_path):
    found = Trainer(small_config(training={"numb_steps": 0}), tmp_path).run()
    assert mdops.load(tmp_path / "model.safetensors").source["training"]["steps"] == 0
    assert found.model.out_bias.abs().max() > 0


@pytest.mark.parametrize("name", ["sel_type", "dipole_type"])
def test_types_of_a_fitting_are_those_that_answer(name):
    config = small_config(fitting={"type": "dipole", name: [1]})
    assert config.model.atom_exclude_types == [0]
    with pytest.raises(ConfigError, match=rf"model\.fitting_net\.{name}: is \[2\], expected types, 0 \.\. 1"):
        small_config(fitting={"type": "dipole", name: [2]})


V0 = {
    "use_smooth": True, "sel_a": [30, 30], "rcut": 4.0, "rcut_smth": 2.0, "filter_neuron": [4, 8],
    "filter_resnet_dt": False, "n_axis_neuron": 3, "n_neuron": [12, 12], "resnet_dt": True, "systems": "data",
    "set_prefix": "set", "stop_batch": 10, "batch_size": 1, "start_lr": 0.001, "decay_steps": 5000, "decay_rate": 0.95,
    "start_pref_e": 0.02, "limit_pref_e": 8, "start_pref_f": 1000, "limit_pref_f": 1, "start_pref_v": 0,
    "limit_pref_v": 0, "seed": 1, "disp_file": "lcurve.out", "disp_freq": 100, "numb_test": 2, "save_freq": 100,
    "save_ckpt": "model.ckpt", "disp_training": True, "time_training": True, "profiling": False,
    "coord_norm": True, "type_fitting_net": False,
    "_comment": "that's all",
}  # fmt: skip


def test_inputs_of_version_0_are_read(tmp_path, monkeypatch):
    write_system(tmp_path / "data", alloy(1))
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="the input is of DeePMD-kit 0"):
        config = parse_config(V0)
    descriptor, fitting = config.model.descriptor, config.model.fitting_net
    assert (descriptor.KIND, descriptor.sel) == ("se_e2_a", [30, 30])
    assert (descriptor.neuron, descriptor.axis_neuron) == ([4, 8], 3)
    assert (fitting.neuron, fitting.resnet_dt, config.model.type_map) == ([12, 12], True, ["Al", "Cu"])
    assert (config.learning_rate.decay_rate, config.loss.limit_pref_e) == (None, 8.0)
    assert config.learning_rate.stop_lr == pytest.approx(0.001 * 0.95 ** (10 / 5000), rel=1e-12)
    assert (config.training.numb_steps, config.training.training_data.systems) == (10, "data")
    with pytest.warns(UserWarning, match="the input is of DeePMD-kit 0"):
        local = parse_config({**V0, "use_smooth": False, "sel_r": [5, 6]}).model.descriptor
    assert (local.KIND, local.sel_a, local.sel_r, local.axis_rule) == ("loc_frame", [30, 30], [5, 6], [])
    with pytest.raises(ConfigError, match="filter_neurons: there is no such key"):
        parse_config({**V0, "filter_neurons": [1]})
