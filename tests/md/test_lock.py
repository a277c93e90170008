"""Two runs do not write the same files at the same time; what is left of a run that was killed hinders nobody."""

import dataclasses
import multiprocessing
import os
import signal
import time

import pytest
from ase.io.trajectory import TrajectoryWriter

from mdops.calculator import MDOps
from mdops.cli import main
from mdops.errors import InputError
from mdops.md import EnsembleSettings, Output, run
from mdops.md.options import Relaxation
from mdops.md.relax import relax

PHYSICS = EnsembleSettings("nve", 300, 2)


def output(folder, name, steps=5, **changes):
    run_files = Output(steps, folder / f"{name}.restart", 1, folder / f"{name}.traj", folder / f"{name}.log")
    return dataclasses.replace(run_files, **changes)


def endless(folder, atoms, potential):
    atoms.calc = MDOps(potential)
    run(atoms, PHYSICS, output(folder, "md", 10**6, interval=10))


@pytest.fixture
def running(alloy, potential, tmp_path):
    """A run in another process, in its steps."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=endless, args=(tmp_path, alloy.copy(), potential))
    process.start()
    log = tmp_path / "md.log"
    while process.is_alive() and not (log.exists() and log.stat().st_size > 500):
        time.sleep(0.01)
    yield process
    process.kill()
    process.join(30)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_run_is_refused_until_the_first_is_dead(alloy, tmp_path, running):
    before = (tmp_path / "md.log").read_bytes()
    says = rf"another run writes this file \(process {running.pid} on .+\): wait .*--trajectory"
    for changes in ({"restart": True}, {"overwrite": True}, {}):
        with pytest.raises(InputError, match=r"md\.traj: " + says):
            run(alloy, PHYSICS, output(tmp_path, "md", **changes))
    for shared in ("log", "checkpoint", "trajectory"):
        path = getattr(output(tmp_path, "md"), shared)
        with pytest.raises(InputError, match=rf"{path.name}: {says}"):
            run(alloy, PHYSICS, output(tmp_path, "other", restart=True, **{shared: path}))
    assert (tmp_path / "md.log").read_bytes()[: len(before)] == before
    assert run(alloy, PHYSICS, output(tmp_path, "other")).steps == 5
    running.kill()
    running.join(30)
    assert running.exitcode == -signal.SIGKILL
    assert run(alloy, PHYSICS, output(tmp_path, "md", overwrite=True)).steps == 5
    assert not list(tmp_path.glob(".*.lock")), "the locks go with their runs"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("which", ["trajectory", "log"])
def test_another_name_of_a_file_that_a_run_writes_is_refused(alloy, tmp_path, running, link, which):
    mine = output(tmp_path, "md")
    name = tmp_path / ("b" + getattr(mine, which).suffix)
    link(getattr(mine, which), name)
    for changes in ({"overwrite": True}, {"restart": True}):
        with pytest.raises(InputError, match="another run writes this file"):
            run(alloy, PHYSICS, output(tmp_path, "other", **{which: name}, **changes))
    size = name.stat().st_size
    while running.is_alive() and name.stat().st_size == size:
        time.sleep(0.01)
    assert name.stat().st_size > size > 500


def test_a_run_that_fails_gives_its_files_back(alloy, tmp_path):
    run(alloy, PHYSICS, output(tmp_path, "md"))
    for _ in range(2):
        with pytest.raises(InputError, match="exists already"):
            run(alloy, PHYSICS, output(tmp_path, "md"))
    assert not list(tmp_path.glob(".*.lock"))


@pytest.mark.parametrize("method", ["write", "close"])
@pytest.mark.parametrize("relaxes", [False, True])
def test_a_full_disk_leaves_no_file_held(alloy, potential, tmp_path, monkeypatch, method, relaxes):
    """The error, which a notebook keeps, holds what the run had; the same run begins anew nevertheless."""

    def go():
        files = output(tmp_path, "md", overwrite=True)
        if relaxes:
            relax([alloy], potential, Relaxation(), files)
        else:
            run(alloy, PHYSICS, files)

    def no_room(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(TrajectoryWriter, method, no_room)
        with pytest.raises(OSError, match="No space left") as kept:
            go()
    go()
    assert kept.value.filename.endswith("md.traj")


def test_a_lock_that_goes_while_another_waits_for_it_is_taken_anew(tmp_path, monkeypatch):
    """A file that its owner removes between the opening and the locking locks nothing."""
    import mdops.files.lock as lock

    path, opened = tmp_path / "lock", []
    real = os.open

    def open_and_lose(*args):
        file = real(*args)
        opened.append(file)
        if len(opened) == 1:
            path.unlink()
        return file

    with monkeypatch.context() as patch:
        patch.setattr(lock.os, "open", open_and_lose)
        with lock.locked(path, remove=True):
            patch.undo()
            assert len(opened) == 2 and path.exists()
            with (
                pytest.raises(lock.BusyError, match=f"process {os.getpid()} on"),
                lock.locked(path, remove=True),
            ):
                pass
    assert not path.exists()


def test_the_command_says_it_in_a_line(alloy, tmp_path, capsys):
    from engine_cases import MODEL

    from mdops.files.lock import locked

    atoms = alloy.copy()
    atoms.write(tmp_path / "start.xyz")
    command = ["md", str(tmp_path / "start.xyz"), "--model", str(MODEL), "-T", "300", "--steps", "2"]
    with locked(tmp_path / ".md.log.lock", remove=True):
        files = ["--trajectory", str(tmp_path / "md.traj"), "--log", str(tmp_path / "md.log")]
        assert main([*command, *files]) == 2
    assert "md.log: another run writes this file" in capsys.readouterr().err
