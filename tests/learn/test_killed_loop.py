"""A loop that is killed (SIGKILL) at random moments loses no label, and ends with the data of one that was not."""

import multiprocessing
import random
import time

import pytest
import torch
from loop_cases import tiny

from mdops.learn import learn

KILLS = 5


def run(place, out):
    torch.set_num_threads(1)
    learn(tiny(place, report={"steps": 0}), out)


def made(out):
    """What the teacher said so far: the text of each label."""
    return {path: path.read_bytes() for path in out.glob("round-*/labels/*.extxyz")}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_and_called_again(learned, tmp_path):
    whole, _, place = learned
    out, chance, killed = tmp_path / "out", random.Random(1), 0
    context = multiprocessing.get_context("fork")
    seconds = 1.0  # the whole loop takes three and more
    for _ in range(KILLS):
        process = context.Process(target=run, args=(place, out))
        process.start()
        process.join(chance.uniform(0.1, seconds))
        if process.is_alive():
            killed += 1
        process.kill()
        process.join(30)
        before = made(out)
        time.sleep(0.05)
        assert all(path.read_bytes() == text for path, text in before.items())
    last = context.Process(target=run, args=(place, out))
    last.start()
    last.join(200)
    assert last.exitcode == 0 and killed >= 2
    files = sorted(path.relative_to(whole) for path in whole.glob("round-*/labels.extxyz"))
    assert len(files) == 3
    for file in files:
        assert (out / file).read_bytes() == (whole / file).read_bytes(), file
