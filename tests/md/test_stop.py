"""A run that is asked to stop between checkpoints, and restarted, is the run that went on."""

import ase.io
import pytest
import torch
from ase.constraints import FixAtoms
from engine_cases import MODEL, PHYSICS
from engine_cases import alloy as made

from mdops import load
from mdops.calculator import MDOps
from mdops.md import EnsembleSettings, Output, Relaxation, run
from mdops.md.checkpoint import read
from mdops.md.engine.force_provider import ForceProvider
from mdops.md.engine.simulation import Simulation
from mdops.md.relax import relax

STEPS = 130
CASES = {
    "nve": (EnsembleSettings("nve", 900, 2), 1, False),
    "chain": (EnsembleSettings("nvt", 300, 2, checkpoint_every=50), 1, False),
    "langevin": (EnsembleSettings("nvt", 300, 2, "langevin"), 1, False),
    "npt": (EnsembleSettings("npt", 300, 2, checkpoint_every=1000), 1, False),
    "ramp": (EnsembleSettings("nvt", 300, 2, final_temperature=400, ramp_steps=120), 1, False),
    "committee": (EnsembleSettings("nve", 300, 2), 2, False),
    "ase": (EnsembleSettings("nve", 900, 2, checkpoint_every=100), 1, True),
    "ase langevin": (EnsembleSettings("nvt", 900, 2, "langevin", checkpoint_every=100), 2, True),
}


def after(calls):
    """True from this call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


@pytest.fixture
def queued_ahead(monkeypatch):
    """Blocks are queued before the last one is judged, as on a GPU, but without CUDA graphs."""
    made = ForceProvider.__init__

    def initialize(self, *given, **options):
        made(self, *given, **options)
        self.captures = True

    monkeypatch.setattr(ForceProvider, "__init__", initialize)
    monkeypatch.setattr(Simulation, "_prepare", lambda self: None)


@pytest.mark.usefixtures("queued_ahead")
def test_a_stopped_run_with_blocks_ahead_ends_with_the_same_bytes(alloy, tmp_path):
    check(alloy, tmp_path, "npt", calls=4, more=1)


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_run_ends_with_the_same_bytes(alloy, tmp_path, name):
    check(alloy, tmp_path, name, calls=3, more=13)


def check(alloy, tmp_path, name, calls, more):
    """Stops a run after some calls, and its restarts after more of them."""
    physics, models, fixed = CASES[name]
    start, potentials = alloy.copy(), [load(MODEL) for _ in range(models)]
    start.rattle(0.1, seed=1)
    if models > 1:  # with lists of another length
        potentials[1] = load(MODEL, r_min=0.7)
    if fixed:
        start.set_constraint(FixAtoms([0]))
    ends = {}
    for way in ("whole", "stopped"):
        folder = tmp_path / way
        folder.mkdir()
        output = Output(STEPS, folder / "c", 7, folder / "md.xyz", folder / "log", restart=True)
        ends[way] = [0]
        while ends[way][-1] < STEPS:
            atoms = start.copy()
            atoms.calc = MDOps(potentials, skin=0.5)
            summary = run(atoms, physics, output, stops=after(calls) if way == "stopped" else None)
            assert summary.end == read(output.checkpoint).step
            ends[way].append(summary.end)
            calls += more
    assert ends["whole"] == [0, STEPS]
    between = [end for end in ends["stopped"] if end % 10 and end != STEPS]
    assert len(ends["stopped"]) > 4 and between, ends
    for file in ("md.xyz", "log"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()
    one, two = (read(tmp_path / way / "c") for way in ("whole", "stopped"))
    assert one.random == two.random
    for part in ("arrays", "inner"):
        mine, other = (getattr(state, part) for state in (one, two))
        assert mine.keys() == other.keys()
        for key in mine:
            assert torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(other[key])), key


@pytest.mark.parametrize("cell", ["fixed", "all"])
def test_a_stopped_relaxation_ends_with_the_same_bytes(tmp_path, cell):
    start = [made(PHYSICS["nve"], seed) for seed in (1, 2)]
    for atoms in start:
        atoms.rattle(0.15, seed=3)
    results = {}
    for way in ("whole", "stopped"):
        folder = tmp_path / way
        folder.mkdir()
        output = Output(400, folder / "c", 10, folder / "md.xyz", folder / "log", restart=True)
        stopped, calls = [], 5
        while not stopped or stopped[-1]:
            stops = after(calls) if way == "stopped" else None
            found = relax(
                start, load(MODEL), Relaxation(0.01, cell), output, result=folder / "r.xyz", stops=stops
            )
            stopped.append(found.stopped)
            assert (folder / "r.xyz").exists() != found.stopped
            calls += 30
        assert (len(stopped) > 2) == (way == "stopped")
        results[way] = [(folder / file).read_bytes() for file in ("md.xyz", "log", "r.xyz")]
    assert results["whole"] == results["stopped"]
    assert len(ase.io.read(tmp_path / "whole" / "r.xyz", ":")) == 2
