"""Several processes train as one does, with real processes that talk by gloo."""

import contextlib
import io
import json
import os

import numpy as np
import pytest
import torch
from children import python
from processes import together
from small_systems import EMT, write_two_sizes
from test_full_validation import table as read_table
from test_full_validation import validating
from test_trainer import config, stop_after, tree

import mdops
from mdops.cli import main
from mdops.data.dataset import load_dataset
from mdops.errors import ConfigError, DataError, ParallelError
from mdops.train.config.read import parse_config
from mdops.train.loop import branch as training
from mdops.train.loop.distributed import Processes
from mdops.train.loop.frames import Frames
from mdops.train.loop.trainer import Trainer


@pytest.fixture
def mixed(tmp_path):
    """An input whose batches mix frames of two sizes, of which only some have a virial or forces."""
    write_two_sizes(tmp_path / "data", (5, 6), ("virial", "force"))
    data = {"systems": str(tmp_path / "data"), "batch_size": "mixed:5"}
    return parse_config(
        tree(training_data=data, validation_data={**data, "numb_btch": 2}, precision="float64", disp_freq=1)
    )


def gradients(config, folder):
    """Writes the gradients of the first steps, and what was reported of them."""
    trainer = Trainer(config, folder)
    found, stop = [], stop_after(3)

    def on_report(report):
        found.append(([p.grad.clone() for p in trainer.potential.parameters()], vars(report)))
        stop(report)

    with contextlib.suppress(KeyboardInterrupt):
        trainer.run(on_report)
    torch.save(found, folder / f"found-{trainer.processes.rank}.pt")


@pytest.mark.long
def test_gradients_are_those_of_one_process(mixed, tmp_path):
    mixed.training.gradient_max_norm = None
    gradients(mixed, tmp_path)
    expected = torch.load(tmp_path / "found-0.pt", weights_only=False)
    for count in (2, 3):
        assert together(tmp_path, gradients, mixed, tmp_path, count=count) == [0] * count
        for rank in range(count):
            found = torch.load(tmp_path / f"found-{rank}.pt", weights_only=False)
            for (ours, report), (theirs, reference) in zip(found, expected, strict=True):
                scale = max(float(g.abs().max()) for g in theirs)
                for a, b in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * scale)
                for part in ("training", "validation"):
                    assert report[part] == pytest.approx(reference[part], rel=1e-10)


def test_a_process_without_frames_has_no_weight(tmp_path):
    """Validation batches of one frame, and two processes."""
    small = config(precision="float64", gradient_max_norm=None, disp_freq=1)
    small.training.validation_data.batch_size = 1
    gradients(small, tmp_path)
    ((expected, reference), *_) = torch.load(tmp_path / "found-0.pt", weights_only=False)
    assert together(tmp_path, gradients, small, tmp_path) == [0, 0]
    ((found, report), *_) = torch.load(tmp_path / "found-1.pt", weights_only=False)
    assert report["validation"] == pytest.approx(reference["validation"], rel=1e-10)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def interrupted(whole, stopped):
    Trainer(config(), whole).run()
    try:
        Trainer(config(), stopped).run(stop_after(8))
    except KeyboardInterrupt:
        Trainer(config(), stopped, restart=True).run()


def test_restart_ends_with_the_same_bits(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir(), stopped.mkdir()
    assert together(tmp_path, interrupted, whole, stopped) == [0, 0]
    assert (whole / "lcurve.out").read_bytes() == (stopped / "lcurve.out").read_bytes()
    one, two = (mdops.load(folder / "model.safetensors") for folder in (whole, stopped))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def fails(folder):
    """The second process fails in its fourth step; the first is told so instead of waiting for it."""
    trainer, train_step = Trainer(config(numb_steps=10**6), folder), training.train_step

    def step(*args, **options):
        if trainer.processes.rank == 1 and trainer.step == 3:
            os._exit(7)
        return train_step(*args, **options)

    training.train_step = step
    with pytest.raises(ParallelError, match="another process of this training has stopped"):
        trainer.run()
    os._exit(5)  # its group cannot be left in order any more


def test_failure_of_a_process_ends_the_others(tmp_path):
    assert together(tmp_path, fails, tmp_path) == [5, 7]


def refused(folder):
    with pytest.raises(ConfigError, match=r"has no checkpoint model\.ckpt"):
        Trainer(config(), folder, restart=True)
    broken = config()
    broken.model.preset_out_bias = {"energy": [1.0]}  # seen by the first process, which makes the model
    with pytest.raises(ConfigError, match="preset_out_bias"):
        Trainer(broken, folder)
    small = config()
    small.training.training_data.batch_size = 1
    with pytest.raises(ConfigError, match=r"batches have 1 frames, fewer than the 2 processes"):
        Trainer(small, folder)


def test_errors_are_raised_in_every_process(tmp_path):
    assert together(tmp_path, refused, tmp_path) == [0, 0]


def torchrun(*args, folder):
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return python(*run, "-m", "mdops", "train", "input.json", *args, cwd=folder)


def refused_again(folder):
    """The command once more, in processes that have joined already."""
    os.chdir(folder)
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        assert main(["train", "input.json", "--output", "two"]) == 2
    assert "belongs to an earlier training" in told.getvalue()


@pytest.mark.long
def test_the_command_under_torchrun(tmp_path):
    (tmp_path / "input.json").write_text(json.dumps(tree(precision="float64")))
    done = torchrun("--output", "two", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("17 steps in") == 1 and "seed 5, 2 processes" in done.stderr
    (tmp_path / "one").mkdir()
    one = Trainer(config(precision="float64"), tmp_path / "one").run()
    two = mdops.load(tmp_path / "two" / "model.safetensors", dtype="float64")
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    expected = np.loadtxt(tmp_path / "one" / "lcurve.out")
    np.testing.assert_allclose(np.loadtxt(tmp_path / "two" / "lcurve.out"), expected, rtol=0.02)
    assert together(tmp_path, refused_again, tmp_path) == [0, 0]


def test_shares_and_counts_of_one_process(tmp_path):
    alone = Processes()
    assert alone.mean_gradients([]) is None and alone.sums([1.0]) == [1.0]
    frames = Frames(config().training.training_data, ["Cu", "Al"], ["Cu", "Al"], 4.0, 0)
    share = frames.share(0, alone)
    assert share.is_counted and share.counts["energy"] == 3 == len(share.frames)
    assert share.counts["forces"] == 96
    with pytest.raises(DataError, match="nothing"):
        alone.from_first(lambda: load_dataset(str(EMT / "nothing"), ["Cu"]))


def train(config, folder):
    Trainer(config, folder).run()


def test_a_full_validation_is_of_all_frames_once(tmp_path):
    options = {"numb_steps": 4, "precision": "float64"}
    Trainer(validating(options), tmp_path / "one").run()
    (tmp_path / "two").mkdir()
    assert together(tmp_path, train, validating(options), tmp_path / "two") == [0, 0]
    one, two = (read_table(tmp_path / name / "val.log")[0] for name in ("one", "two"))
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-4), name
    assert [p.name for p in sorted((tmp_path / "one").glob("best*"))] == [
        p.name for p in sorted((tmp_path / "two").glob("best*"))
    ]
