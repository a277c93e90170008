"""A training ends the same whether it was stopped or not, and writes what DeePMD-kit writes."""

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import mdops
from mdops.errors import ConfigError, DivergedError, InputError
from mdops.train import checkpoint
from mdops.train.config import parse_config
from mdops.train.trainer import Trainer

EMT = Path(__file__).parents[1] / "data" / "training" / "emt"


def tree(**training):
    data = {"systems": str(EMT), "batch_size": 3}
    return {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"rcut": 4.0, "neuron": [4, 8], "axis_neuron": 3, "rcut_smth": 2.0},
            "fitting_net": {"neuron": [12, 12]},
        },
        "learning_rate": {"start_lr": 2e-3, "stop_lr": 1e-5, "decay_steps": 3},
        "loss": {"start_pref_v": 0.1, "limit_pref_v": 1.0},
        "training": {
            "training_data": data,
            "validation_data": {**data, "numb_btch": 2},
            "numb_steps": 17,
            "seed": 5,
            "disp_freq": 4,
            "save_freq": 6,
            "enable_ema": True,
            "gradient_max_norm": 100.0,
            **training,
        },
    }


def config(**training):
    return parse_config(tree(**training))


def stop_after(step):
    def stop(report):
        if report.step >= step:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_stopped_run_ends_with_the_bits_of_one_that_was_not(tmp_path, precision):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir(), stopped.mkdir()
    expected = Trainer(config(precision=precision), whole).run()
    for at in (8, 12):  # both after a checkpoint and some steps
        with pytest.raises(KeyboardInterrupt):
            Trainer(config(precision=precision), stopped, restart=at > 8).run(stop_after(at))
    again = Trainer(config(precision=precision), stopped, restart=True)
    assert again.step == 6
    found = again.run()
    for a, b in zip(expected.state_dict().values(), found.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert (whole / "lcurve.out").read_bytes() == (stopped / "lcurve.out").read_bytes()


def test_learning_curve_has_deepmd_kits_columns(tmp_path):
    reports = []
    Trainer(config(), tmp_path).run(reports.append)
    lines = (tmp_path / "lcurve.out").read_text().splitlines()
    names = ["rmse", "rmse_e", "rmse_f", "rmse_v"]
    columns = [f"{name}_{end}" for name in names for end in ("val", "trn")]
    assert lines[0].split() == ["#", "step", *columns, "lr"]
    table = np.loadtxt(tmp_path / "lcurve.out")
    assert table[:, 0].tolist() == [1, 4, 8, 12, 16] == [report.step for report in reports]
    assert np.isfinite(table).all() and table[0, -1] == 2e-3
    first = reports[0]
    assert table[0, 5] == pytest.approx(first.validation["forces"], rel=0.01)
    assert table[0, 6] == pytest.approx(first.training["forces"], rel=0.01)


def test_model_is_saved_and_runs(tmp_path):
    potential = Trainer(config(), tmp_path).run()
    loaded = mdops.load(tmp_path / "model.safetensors")
    assert loaded.type_map == ["Cu", "Al"] and loaded.sel == potential.sel


def test_old_checkpoints_are_removed(tmp_path):
    Trainer(config(save_freq=3, max_ckpt_keep=2), tmp_path).run()
    names = [path.name for path in checkpoint.checkpoints(tmp_path, "model.ckpt")]
    assert names == ["model.ckpt-15.pt", "model.ckpt-17.pt"]


def test_failing_write_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    trainer = Trainer(config(), tmp_path)
    trainer.save()
    before = (tmp_path / "model.ckpt-0.pt").read_bytes()

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        trainer.save()
    assert (tmp_path / "model.ckpt-0.pt").read_bytes() == before


def test_no_or_bad_checkpoint_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"has no checkpoint model\.ckpt-<step>\.pt"):
        Trainer(config(), tmp_path, restart=True)
    (tmp_path / "model.ckpt-3.pt").write_bytes(b"PK\x03\x04 half of it")
    with pytest.raises(InputError, match=r"model\.ckpt-3\.pt: is no checkpoint"):
        Trainer(config(), tmp_path, restart=True)


def test_epochs_and_random_seeds(tmp_path):
    given = copy.deepcopy(tree(numb_epoch=1.5))
    del given["training"]["numb_steps"], given["training"]["seed"]
    one, two = (Trainer(parse_config(given), tmp_path) for _ in range(2))
    assert one.steps == 11 and one.seed != two.seed  # an epoch has 7 batches


@pytest.mark.gpu
def test_a_gpu_trains_as_the_cpu_does(tmp_path):
    """And its checkpoint goes on on the CPU."""
    options = config(precision="float64", disp_freq=1)
    reports = {}
    for device in ("cpu", "cuda"):
        (tmp_path / device).mkdir()
        reports[device] = []
        trainer = Trainer(options, tmp_path / device, device=device)
        assert trainer.potential.device.type == device
        trainer.run(reports[device].append)
    for one, two in zip(reports["cpu"], reports["cuda"], strict=True):
        assert one.training == pytest.approx(two.training, rel=1e-6)
        assert one.validation == pytest.approx(two.validation, rel=1e-6)
    (tmp_path / "cuda" / "model.ckpt-17.pt").unlink()
    found = Trainer(options, tmp_path / "cuda", restart=True)
    assert found.step == 12 and found.potential.device.type == "cpu"
    found.run()
    expected = mdops.load(tmp_path / "cpu" / "model.safetensors", dtype="float64")
    for a, b in zip(expected.parameters(), found.potential.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_files_may_lie_in_folders_below(tmp_path):
    names = {"save_ckpt": "checkpoints/model", "disp_file": "logs/curve.out"}
    Trainer(config(numb_steps=6, **names), tmp_path).run()
    assert (tmp_path / "checkpoints" / "model-6.pt").is_file() and (tmp_path / "logs" / "curve.out").is_file()
    assert Trainer(config(numb_steps=6, **names), tmp_path, restart=True).step == 6


def test_a_training_that_diverges_stops_and_keeps_its_good_checkpoints(tmp_path):
    trainer = Trainer(config(), tmp_path)

    def ruin(step):
        if step == 9:  # after the checkpoint of step 6
            with torch.no_grad():
                next(trainer.potential.parameters()).fill_(np.nan)

    with pytest.raises(
        DivergedError, match=r"up to step 12: the loss is nan; .*model\.ckpt-6\.pt is from before"
    ):
        trainer.run(on_step=ruin)
    with pytest.raises(DivergedError, match="weights are not finite"):
        trainer.save()
    assert [path.name for path in checkpoint.checkpoints(tmp_path, "model.ckpt")] == ["model.ckpt-6.pt"]
    assert not (tmp_path / "model.safetensors").exists()
