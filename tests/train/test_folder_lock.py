"""Two trainings do not write into one folder; what is left of one that is gone hinders nobody."""

import fcntl
import os
import signal
import time

import pytest
from processes import start, together
from test_trainer import config, stop_after

from mdops.errors import InputError
from mdops.train import Trainer
from mdops.train.loop.distributed import Processes
from mdops.train.loop.folder_lock import NAME, one_training


def endless(folder):
    Trainer(config(numb_steps=10**6, save_freq=10**6), folder).run(
        on_step=lambda step: (folder / "runs").touch()
    )


@pytest.fixture
def running(tmp_path):
    """A training in another process, in its steps."""
    process = start(endless, tmp_path)
    while process.is_alive() and not (tmp_path / "runs").exists():
        time.sleep(0.01)
    yield process
    process.kill()
    process.join(30)


def test_a_second_training_is_refused_until_the_first_is_dead(tmp_path, running):
    before = (tmp_path / "lcurve.out").read_bytes()
    says = rf"another training runs in this folder \(process {running.pid} on .+\): wait .*--output"
    for restart in (False, True):
        with pytest.raises(InputError, match=says):
            Trainer(config(), tmp_path, restart=restart)
    assert (tmp_path / "lcurve.out").read_bytes()[: len(before)] == before
    running.kill()
    running.join(30)
    assert running.exitcode == -signal.SIGKILL and (tmp_path / NAME).exists()
    Trainer(config(numb_steps=2), tmp_path).run()


def test_a_training_that_was_made_before_does_not_run_beside_another(tmp_path):
    one, two = Trainer(config(numb_steps=5), tmp_path), Trainer(config(numb_steps=5), tmp_path)

    def meanwhile(step):
        with pytest.raises(InputError, match=f"another training runs .*process {os.getpid()} on"):
            two.run()

    one.run(on_step=meanwhile)
    assert two.step == 0
    two.run()
    with pytest.raises(KeyboardInterrupt):
        Trainer(config(), tmp_path).run(stop_after(8))
    assert Trainer(config(), tmp_path, restart=True).step == 6


def refused(folder):
    """In several processes: one training, which the first of them locks for all; then one where the lock is taken."""
    Trainer(config(numb_steps=3), folder).run()
    processes = Processes.current()
    with open(folder / NAME) as file:
        if processes.is_first:
            fcntl.flock(file, fcntl.LOCK_EX)
        processes.wait()
        with pytest.raises(InputError, match="another training runs in this folder"):
            Trainer(config(), folder)
    (folder / f"refused-{processes.rank}").touch()


def test_processes_of_one_training_share_its_lock(tmp_path):
    folder = tmp_path / "run"
    assert together(tmp_path, refused, folder) == [0, 0]
    assert (folder / "model.safetensors").exists()
    assert sorted(path.name for path in folder.glob("refused-*")) == ["refused-0", "refused-1"]


@pytest.mark.parametrize("where", ["nowhere", "unwritable", "no locks"])
def test_where_there_are_no_locks_nothing_is_refused(tmp_path, monkeypatch, where):
    folder = tmp_path / "absent" if where == "nowhere" else tmp_path
    if where == "unwritable":
        (folder / NAME).mkdir()

    def none(*_):
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patch:
        if where == "no locks":
            patch.setattr(fcntl, "flock", none)
        with one_training(folder, Processes()), one_training(folder, Processes()):
            pass
    assert folder.exists() == (where != "nowhere")
