"""A training ends the same whether it was stopped or not, and writes what DeePMD-kit writes."""

import copy
import os
import shutil

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from small_systems import EMT, alloy, stop_after

import mdops
from mdops.data.evaluation import evaluate
from mdops.errors import ConfigError, DivergedError, InputError
from mdops.io import read_model
from mdops.train import load_dataset
from mdops.train.config.read import parse_config
from mdops.train.loop import checkpoint
from mdops.train.loop import trainer as loop
from mdops.train.loop.trainer import Trainer


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


def denser(path):
    """Frames in a file, whose atoms have more neighbours than those of EMT."""
    frames = alloy(2)
    for atoms in frames:
        atoms.set_cell(0.8 * atoms.cell, scale_atoms=True)
        atoms.get_forces(), atoms.get_stress()
    ase.io.write(path, frames)
    return str(path)


def emt_frames():
    """The structures of EMT, as ASE sees them."""
    data = load_dataset(EMT, ["Cu", "Al"])
    for k in range(len(data)):
        own = slice(data.offsets[k], data.offsets[k + 1])
        yield Atoms(data.types[own] + 1, data.positions[own], cell=data.cell[k], pbc=data.pbc[k])


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


@pytest.mark.parametrize("optimizer", ["AdaMuon", "HybridMuon"])
def test_a_stopped_run_with_another_optimizer_ends_with_the_same_bits(tmp_path, optimizer):
    options = parse_config({**tree(), "optimizer": {"type": optimizer}})
    whole = Trainer(options, tmp_path / "whole").run()
    with pytest.raises(KeyboardInterrupt):
        Trainer(options, tmp_path / "stopped").run(stop_after(8))
    found = Trainer(options, tmp_path / "stopped", restart=True).run()
    for a, b in zip(whole.state_dict().values(), found.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_denser_validation_data_are_measured_without_the_farthest_neighbours(tmp_path):
    dense = {"systems": denser(tmp_path / "dense.extxyz")}
    with pytest.warns(UserWarning, match=r"atoms of the validation data have up to .* sel is .*auto:2"):
        trainer = Trainer(config(validation_data=dense, numb_steps=1), tmp_path)
    assert trainer.potential.overflow == "truncate"
    reports = []
    trainer.run(reports.append)
    assert np.isfinite(reports[-1].validation["loss"])


def test_learning_curve_has_deepmd_kits_columns(tmp_path):
    reports = []
    Trainer(config(), tmp_path).run(reports.append)
    lines = (tmp_path / "lcurve.out").read_text().splitlines()
    names = ["rmse", "rmse_e", "rmse_f", "rmse_v"]
    columns = [f"{name}_{end}" for name in names for end in ("val", "trn")]
    assert lines[0].split() == ["#", "step", *columns, "lr"]
    table = np.loadtxt(tmp_path / "lcurve.out")
    assert table[:, 0].tolist() == [1, 4, 8, 12, 16, 17] == [report.step for report in reports]
    assert np.isfinite(table).all() and table[0, -1] == 2e-3
    first = reports[0]
    assert table[0, 5] == pytest.approx(first.validation["forces"], rel=0.01)
    assert table[0, 6] == pytest.approx(first.training["forces"], rel=0.01)


@pytest.mark.parametrize("spline", [True, False])
@pytest.mark.parametrize("enable_ema", [True, False])
def test_validation_is_of_the_weights_of_its_step(tmp_path, enable_ema, spline):
    """Of all frames, however many batches are asked for, the errors are those of the model that the step leaves."""
    tested = {"systems": str(EMT), "batch_size": 8, "numb_btch": 10**18}
    reports = []
    changes = {"validation_data": tested, "enable_ema": enable_ema, "spline": spline, "precision": "float64"}
    Trainer(config(numb_steps=16, **changes), tmp_path).run(reports.append)
    saved = mdops.load(tmp_path / "model.safetensors", dtype="float64")
    found = evaluate(saved, load_dataset(EMT, ["Cu", "Al"])).errors()
    assert reports[-1].step == 16
    for name, error in found.items():
        assert reports[-1].validation[name] == pytest.approx(error.rmse, rel=1e-5)


@pytest.mark.parametrize("enable_ema", [True, False])
def test_the_saved_model_answers_as_what_the_run_returns(tmp_path, enable_ema):
    potential = Trainer(config(precision="float64", enable_ema=enable_ema), tmp_path).run()
    loaded = mdops.load(tmp_path / "model.safetensors", dtype="float64")
    frames = list(emt_frames())[::5]
    for atoms in frames:
        atoms.symbols = [["Cu", "Al"][number - 1] for number in atoms.numbers]
    found, wanted = loaded.compute(frames), potential.eval().compute(frames)
    for name in ("energy", "forces", "virial"):  # but for the knots of training
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("again", [Trainer.run, Trainer.save])
def test_what_is_called_after_a_run_writes_what_the_run_wrote(tmp_path, again):
    """The model has the average of the weights then, and the trainer still knows which is which."""
    trainer = Trainer(config(precision="float64"), tmp_path)
    trainer.run()

    def written():
        model = mdops.load(tmp_path / "model.safetensors", dtype="float64", spline=False)
        state = checkpoint.load_checkpoint(tmp_path / "model.ckpt-17.pt")
        weights = [*state["branches"][""]["model"]["weights"].values(), *state["average"]["values"]]
        return [*model.parameters(), *weights, *(p.clone() for p in trainer.potential.parameters())]

    before = written()
    for _ in range(2):
        again(trainer)
        assert all(torch.equal(a, b) for a, b in zip(written(), before, strict=True))


def test_knots_follow_the_weights_however_seldom_there_are_reports(tmp_path, monkeypatch):
    """And the last step is reported."""
    monkeypatch.setattr(loop, "_KNOTS_EVERY", 5)
    looked, reports = [], []
    keep = loop.keep_spline
    monkeypatch.setattr(loop, "keep_spline", lambda p: looked.append(len(steps)) or keep(p))
    steps = []
    Trainer(config(disp_freq=1000), tmp_path).run(reports.append, steps.append)
    assert [report.step for report in reports] == [1, 17]
    assert looked == [0, 4, 9, 14, 16]  # after so many steps and one more


@pytest.mark.parametrize("enable_ema", [True, False])
def test_every_checkpoint_comes_with_a_model(tmp_path, enable_ema):
    """That which is validated: a training that ends there writes the same one."""
    stopped, ended = tmp_path / "stopped", tmp_path / "ended"
    learning_rate = tree()["learning_rate"] | {"decay_rate": 0.9}  # a function of the step alone
    options = [
        parse_config(tree(numb_steps=n, enable_ema=enable_ema) | {"learning_rate": learning_rate})
        for n in (17, 12)
    ]
    trainer = Trainer(options[0], stopped)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(stop_after(16))  # four steps after the checkpoint of step 12
    Trainer(options[1], ended).run()
    files = [read_model(folder / "model.safetensors") for folder in (stopped, ended)]
    assert [file.source["training"] for file in files] == [training(12, n) for n in (17, 12)]
    one, two = (mdops.load(folder / "model.safetensors").state_dict() for folder in (stopped, ended))
    assert all(torch.equal(a, two[name]) for name, a in one.items())
    # What LAMMPS computes with is in the last one alone.
    parts = [
        b"core.description" in (folder / "model.safetensors").read_bytes() for folder in (stopped, ended)
    ]
    assert parts == [False, True]
    averages = torch.load(stopped / "model.ckpt-12.pt")["state"]["average"]["values"]
    found = torch.nn.utils.parameters_to_vector(mdops.load(stopped / "model.safetensors").parameters())
    close = torch.allclose(found, torch.nn.utils.parameters_to_vector(averages), rtol=1e-6)
    assert close == enable_ema


def training(step, steps):
    """What a model says of its training."""
    return {
        "step": step,
        "steps": steps,
        "frames": 20,
        "labels": {"energy": 20, "forces": 20, "virial": 20},
    }


def test_a_model_tells_where_it_is_from(tmp_path):
    (tmp_path / "other").mkdir()
    trainer = Trainer(config(numb_steps=6), tmp_path)
    trainer.run()
    nearest = min(
        float(a.get_all_distances(mic=True)[np.triu_indices(len(a), 1)].min()) for a in emt_frames()
    )
    origin = {
        "software": "mdops",
        "version": mdops.__version__,
        "min_nbor_dist": pytest.approx(nearest, abs=1e-6),
    }
    source = mdops.load(tmp_path / "model.safetensors").source
    assert source == {**origin, "training": training(6, 6), "format": "mdops (.safetensors)"}
    mdops.load(tmp_path / "model.safetensors").save(tmp_path / "again.safetensors")
    assert read_model(tmp_path / "again.safetensors").source.items() >= source.items()
    model = tmp_path / "model.safetensors"
    began = {"began_with": {name: source[name] for name in ("software", "version", "format")}}
    Trainer(config(numb_steps=6), tmp_path / "other", init_model=model).run(stop_after(7))
    Trainer(config(numb_steps=9), tmp_path / "other", restart=True).run()
    found = mdops.load(tmp_path / "other" / "model.safetensors").source
    assert found == {**origin, **began, "training": training(9, 9), "format": "mdops (.safetensors)"}


def test_a_complete_training_writes_its_model_again(tmp_path):
    Trainer(config(), tmp_path).run()
    model = tmp_path / "model.safetensors"
    before, source = mdops.load(model).state_dict(), read_model(model).source
    model.unlink()
    (tmp_path / ".model.safetensors.123.tmp").write_bytes(b"of a process that was killed")
    Trainer(config(), tmp_path, restart=True).run()
    after = mdops.load(model).state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert read_model(model).source == source
    assert not list(tmp_path.glob(".model*"))
    model.unlink()
    Trainer(config(numb_steps=9), tmp_path, restart=True).run()  # now it is past its end
    assert read_model(model).source["training"] == training(17, 9)


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
    with pytest.raises(InputError, match=r"model\.ckpt-3\.pt: is not a checkpoint"):
        Trainer(config(), tmp_path, restart=True)


def test_epochs_and_random_seeds(tmp_path):
    changes = copy.deepcopy(tree(numb_epoch=1.5))
    del changes["training"]["numb_steps"], changes["training"]["seed"]
    one, two = (Trainer(parse_config(changes), tmp_path) for _ in range(2))
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


def test_a_loss_below_zero_is_reported_as_a_divergence(tmp_path):
    """Prefactors that fall with the rate are negative at rates far above that at the start."""
    given = tree(disp_freq=1)
    given["learning_rate"] = {"type": "cosine", "start_lr": 1e-3, "stop_lr": 1.0}
    given["loss"] = {"start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 0, "limit_pref_f": 0}
    with pytest.raises(DivergedError, match="the loss is nan"):
        Trainer(parse_config(given), tmp_path).run()


def test_numb_epoch_counts_the_odds_of_systems(tmp_path):
    shutil.copytree(EMT, tmp_path / "again")
    given = tree(numb_steps=None, numb_epoch=2)
    systems = [str(EMT), str(tmp_path / "again")]
    given["training"]["training_data"] = {"systems": systems, "batch_size": 3, "sys_probs": [3, 1]}
    trainer = Trainer(parse_config(given), tmp_path / "run")
    batches = -(-len(trainer.branches[""].frames.data) // 6)
    assert trainer.steps == 2 * 4 * batches


def test_a_training_that_diverges_stops_and_keeps_its_good_checkpoints(tmp_path):
    trainer = Trainer(config(), tmp_path)

    def ruin(step):
        if step == 9:  # after the checkpoint of step 6
            with torch.no_grad():
                next(trainer.potential.parameters()).fill_(np.nan)

    with pytest.raises(
        DivergedError, match=r"up to step 12: the loss is nan; .*model\.ckpt-6\.pt is the last good one"
    ):
        trainer.run(on_step=ruin)
    with pytest.raises(DivergedError, match="weights are not finite"):
        trainer.save()
    assert [path.name for path in checkpoint.checkpoints(tmp_path, "model.ckpt")] == ["model.ckpt-6.pt"]
    assert read_model(tmp_path / "model.safetensors").source["training"]["step"] == 6
