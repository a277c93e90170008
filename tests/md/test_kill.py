"""A run that is killed (SIGKILL) at random moments, and restarted, is the run that was not killed."""

import multiprocessing
import random
import signal
import time

import numpy as np
import pytest
import torch
from ase.io import read

from mdops.calculator import MDOps
from mdops.md import EnsembleSettings, Output, run

STEPS, KILLS = 240, 4


def simulate(folder, name, start, potential, physics, engine):
    torch.set_num_threads(1)
    atoms = start.copy()
    atoms.calc = MDOps(potential)
    output = Output(STEPS, folder / "c", 5, folder / name, folder / "log", restart=True)
    run(atoms, physics, output, engine=engine)


@pytest.mark.parametrize(
    ("name", "physics", "engine"),
    [
        ("md.traj", EnsembleSettings("nve", 300, 2, checkpoint_every=15), True),
        ("md.xyz", EnsembleSettings("nvt", 300, 2, checkpoint_every=20), True),
        ("md.traj", EnsembleSettings("nvt", 300, 2, "langevin", checkpoint_every=11), True),
        ("md.traj", EnsembleSettings("npt", 300, 2, checkpoint_every=40), True),
        ("md.xyz", EnsembleSettings("nve", 300, 2, checkpoint_every=25), False),
        ("md.traj", EnsembleSettings("nvt", 300, 2, "langevin", checkpoint_every=15), False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_and_restarted(alloy, potential, tmp_path, name, physics, engine):
    start = alloy.copy()
    folders = {kind: tmp_path / kind for kind in ("whole", "killed")}
    for folder in folders.values():
        folder.mkdir()
    # A fork shares the model that is loaded: no child has to import torch.
    context = multiprocessing.get_context("fork")

    def child(kind):
        process = context.Process(
            target=simulate, args=(folders[kind], name, start, potential, physics, engine)
        )
        process.start()
        return process

    whole = child("whole")
    whole.join(120)
    assert whole.exitcode == 0
    size = (folders["whole"] / name).stat().st_size

    chance, killed, trajectory = random.Random(0), 0, folders["killed"] / name
    for share in sorted(chance.uniform(0, 0.8) for _ in range(KILLS)):
        process = child("killed")
        while process.is_alive() and not (trajectory.exists() and trajectory.stat().st_size >= share * size):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.01))
        process.kill()
        process.join(30)
        killed += process.exitcode == -signal.SIGKILL
    last = child("killed")
    last.join(120)
    assert last.exitcode == 0 and killed >= 2

    for file in (name, "log"):
        assert (folders["killed"] / file).read_bytes() == (folders["whole"] / file).read_bytes()
    frames = read(folders["killed"] / name, ":")
    assert [f.info["step"] for f in frames] == list(range(0, STEPS + 1, 5))
    assert np.isfinite(frames[-1].positions).all()
