"""Ops answer broken calls with errors or with results of the documented shapes; the fuzzer sees those that do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "fuzz_ops.py"
BROKEN = """
import dataclasses, os, time, types
import torch

def on_meta(x):
    return x.device.type == "meta"

def a_shape(x):
    return x.clone() if on_meta(x) else torch.zeros(7, 7)

def b_input(x):
    return x.clone() if on_meta(x) else x.fill_(7).clone()

def c_dies(x):
    return x.clone() if on_meta(x) else os.abort()

def d_hangs(x):
    return x.clone() if on_meta(x) else time.sleep(1000)

def e_right(x):
    os.write(2, b"says more than a pipe holds" * 10000)
    return x.clone()

def f_unwritten(x):
    return torch.empty(100)

def samples(device, dtype):
    ops = (a_shape, b_input, c_dies, d_hangs, e_right, f_unwritten)
    made = [types.SimpleNamespace(op=f.__name__, function=f, args=(torch.arange(5).to(dtype),)) for f in ops]
    return [s for s in made for _ in range(2)]
"""


def fuzz(*options, path=""):
    env = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, env=env, timeout=250
    )


@pytest.mark.long
def test_broken_calls_are_answered():
    """The same on every machine: about 50 of each op. A longer run by hand takes others: see CONTRIBUTING.md."""
    done = fuzz("--calls", "8500")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8500 calls" in done.stdout and "0 findings" in done.stdout
    assert " 0 gave results" not in done.stdout


def test_what_is_wrong_is_found_and_can_be_had_again(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    options = ("--samples", "broken:samples", "--patience", "2", "--seed", "3")
    done = fuzz(*options, "--calls", "6", path=tmp_path)
    assert done.returncode == 1 and "6 calls, 1 gave results, 0 were refused, 5 findings" in done.stdout
    for text in (
        "call 0: result 0 is",
        "call 1: changed an argument",
        "call 2: the process died of signal 6",
    ):
        assert text in done.stdout
    assert "call 3: no end after 2 s\n    d_hangs; " in done.stdout
    assert "call 5: result 0 is another in a second call" in done.stdout
    assert "again: fuzz_ops.py --device cpu --seed 3 --samples broken:samples --only 2" in done.stdout
    again = fuzz(*options, "--only", "2", path=tmp_path)
    assert again.returncode == 1 and "c_dies; " in again.stdout and "signal 6" in again.stdout
