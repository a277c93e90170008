"""The tutorial's chain from data to a simulation, with a shorter training: benchmarks/first_day.py has it whole."""

import importlib
import shlex
import sys
from pathlib import Path

import ase.io
import pytest

from mdops.cli import main

SHORTER = {"mdops train": ["--steps", "400"], "mdops md": ["--time", "0.1"]}


@pytest.fixture
def first_day(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    yield importlib.import_module("first_day")
    sys.modules.pop("first_day")


@pytest.mark.long
def test_the_tutorial_leads_from_data_to_a_simulation(first_day, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script, commands = first_day.chain()
    assert commands[0] == "python copper.py" and [c.split()[1] for c in commands[1:]] == [
        "train",
        "test",
        "relax",
        "md",
    ]
    exec(script, {})
    said = {}
    for command in commands[1:]:
        more = next((more for begin, more in SHORTER.items() if command.startswith(begin)), [])
        assert main([*shlex.split(command)[1:], *more]) == 0, command
        said[command.split()[1]] = capsys.readouterr()
    assert "not on virials" not in said["relax"].err + said["md"].err
    errors = first_day.test_errors(said["test"].out)
    assert errors["energy"] < 25 and errors["virial"] < 150
    expected = first_day.lattice_constant_of_emt()
    assert expected == pytest.approx(3.590, abs=2e-3)
    assert first_day.lattice_constant(Path("relaxed.extxyz")) == pytest.approx(expected, abs=0.05)
    volumes = [atoms.get_volume() / len(atoms) for atoms in ase.io.read("npt.extxyz", ":")]
    assert all(11 < volume < 12.5 for volume in volumes)
