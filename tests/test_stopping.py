"""Signals that ask commands to end, sent to real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import socket

import pytest
from ase.build import bulk
from ase.io import write

from mdops.cli import main
from mdops.md.checkpoint import read
from mdops.stopping import StopSignal

DATA = Path(__file__).parent / "data"
MODEL = str(DATA / "formats" / "model.dp")
MDOPS = [sys.executable, "-m", "mdops"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.symbols[::4] = "Al"
    atoms.rattle(0.1)
    write("start.xyz", atoms)


def write_input(steps):
    """Of a training whose rates do not depend on the number of steps."""
    data = {"systems": str(DATA / "training" / "emt"), "batch_size": 2}
    training = {"training_data": data, "numb_steps": steps, "seed": 5, "disp_freq": 1, "save_freq": 10**6}
    model = {
        "type_map": ["Cu", "Al"],
        "descriptor": {"rcut": 4.0, "neuron": [4, 8], "axis_neuron": 3},
        "fitting_net": {"neuron": [8, 8]},
    }
    tree = {"model": model, "training": training, "learning_rate": {"decay_rate": 0.9}}
    Path("input.json").write_text(json.dumps(tree))


@pytest.fixture(autouse=True)
def no_ignored_signals():
    """Processes that shells start in the background ignore Ctrl-C, and so would their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def started(*command, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen([*MDOPS, *command], env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(path, size, process):
    """Until the file has so many bytes."""
    while not path.exists() or path.stat().st_size < size:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_simulation_saves_its_state(number, code):
    command = ["md", "start.xyz", "-m", MODEL, "-T", "300", "--timestep", "2", "--interval", "5"]
    command += ["--checkpoint-every", "100000", "--restart", "-o"]
    process = started(*command, "a.xyz", "--steps", "1000000")
    wait_for(Path("a.xyz"), 100_000, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    at = read(Path("a.restart")).step
    said = (
        f"mdops: {number.name}: wrote a.restart after step {at} of 1000000; the same command with "
        "--restart continues"
    )
    assert process.returncode == code and told.splitlines()[-1] == said and at > 0
    for name in ("a.xyz", "b.xyz"):
        assert main([*command, name, "--steps", str(at + 30)]) == 0
    for end in (".xyz", ".log"):
        assert Path(f"a{end}").read_bytes() == Path(f"b{end}").read_bytes()


def test_a_relaxation_saves_its_state():
    command = ["relax", "start.xyz", "-m", MODEL, "--fmax", "1e-12", "--interval", "1", "-o", "r.xyz"]
    process = started(*command, "--steps", "1000000")
    wait_for(Path("r.log"), 1000, process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143 and not Path("r.xyz").exists()
    assert f"wrote r.restart after {read(Path('r.restart')).step} steps" in told.splitlines()[-1]


def newest(folder):
    return max(int(path.stem.split("-")[1]) for path in Path(folder).glob("model.ckpt-*.pt"))


@pytest.mark.long
def test_a_training_saves_a_checkpoint():
    write_input(10**6)
    process = started("train", "input.json", "--output", "run")
    wait_for(Path("run", "lcurve.out"), 1000, process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    at = newest("run")
    said = (
        f"mdops: SIGTERM: wrote run/model.ckpt-{at}.pt after step {at} of 1000000; the same command with "
        "--restart continues"
    )
    assert process.returncode == 143 and told.splitlines()[-1] == said
    write_input(at + 20)  # an earlier end
    assert main(["train", "input.json", "--output", "run", "--restart"]) == 0
    assert main(["train", "input.json", "--output", "whole"]) == 0
    for name in ("lcurve.out", "model.safetensors"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.long
def test_processes_end_together_if_one_gets_the_signal():
    write_input(10**6)
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    both = [started("train", "input.json", "--output", "run", **together, RANK=str(k)) for k in range(2)]
    wait_for(Path("run", "lcurve.out"), 1000, both[0])
    both[1].send_signal(signal.SIGTERM)
    told = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [143, 143]
    at = newest("run")
    assert f"mdops: SIGTERM: wrote run/model.ckpt-{at}.pt after step {at}" in told[0].splitlines()[-1]
    assert "SIGTERM" not in told[1] and "Traceback" not in told[0] + told[1]


LOOP = """
import sys, time
from mdops.stopping import StopSignal
with StopSignal() as stop:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if stop():
            print("noted", flush=True)
            while True:
                time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_later_signal_ends_the_process_and_an_immediate_one_does_not(number):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == b"noted\n"
    process.send_signal(number)
    time.sleep(0.3)
    assert process.poll() is None
    time.sleep(1)
    process.send_signal(number)
    assert process.wait(timeout=60) == -number
    process.stdout.close()


def test_handlers_are_those_of_before_at_the_end_and_ignored_signals_stay_ignored(monkeypatch):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop() and signal.getsignal(signal.SIGTERM) == stop._note
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop() and stop.stopped("").exit_code == 143
        assert signal.getsignal(signal.SIGTERM) == before[0]
        # As if another library had set the handlers.
        monkeypatch.setattr(signal, "getsignal", lambda number: None)
        with StopSignal() as stop:
            assert not stop._before
    finally:
        signal.signal(signal.SIGINT, before[1])
