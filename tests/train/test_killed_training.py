"""A training that is killed (SIGKILL) at random moments, and restarted, is the one that was not killed."""

import random
import signal
import time

import pytest
import torch
from processes import start
from test_trainer import config

import mdops
from mdops.errors import ConfigError
from mdops.io import read_model
from mdops.train.loop.trainer import Trainer

KILLS, STEPS = 8, 100


def train(folder, save_freq):
    options = config(save_freq=save_freq, numb_steps=STEPS, disp_freq=50, max_ckpt_keep=2)
    try:
        trainer = Trainer(options, folder, restart=True)
    except ConfigError as error:  # killed before the first checkpoint
        assert "has no checkpoint" in str(error)
        trainer = Trainer(options, folder)
    trainer.run()


def newest(folder):
    """The step of the last checkpoint."""
    return max((int(path.stem.split("-")[1]) for path in folder.glob("*.pt")), default=0)


def is_of_a_checkpoint(folder):
    """Whether there is a model, which must then be whole, and of a checkpoint: the last one, but for kills between
    the two files."""
    path = folder / "model.safetensors"
    if not path.exists():
        return False
    step = read_model(path).source["training"]["step"]
    assert newest(folder) - KILLS <= step <= newest(folder)
    return True


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_and_restarted(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    undisturbed = start(train, whole, STEPS)

    chance, kills, half_written, models = random.Random(0), 0, 0, 0
    for k in range(KILLS):
        before = {path.name for path in killed.iterdir()}
        process = start(train, killed, 1)
        # After some steps, every second time as soon as a checkpoint is seen to be written.
        last = newest(killed) + chance.randint(0, 8)
        while process.is_alive() and newest(killed) < last:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        while process.is_alive() and k % 2 and not list(killed.glob("*.pt.new")):
            pass
        process.kill()
        process.join(30)
        kills += process.exitcode == -signal.SIGKILL
        half_written += any(p.suffix == ".new" and p.name not in before for p in killed.iterdir())
        models += is_of_a_checkpoint(killed)
    assert kills == KILLS and half_written >= 1 and models >= KILLS - 2

    process = start(train, killed, 1)
    process.join(200)
    undisturbed.join(200)
    assert process.exitcode == undisturbed.exitcode == 0
    assert (killed / "lcurve.out").read_bytes() == (whole / "lcurve.out").read_bytes()
    one, two = (mdops.load(folder / "model.safetensors") for folder in (whole, killed))
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not list(killed.glob("*.new")) and not list(killed.glob(".*.tmp"))
