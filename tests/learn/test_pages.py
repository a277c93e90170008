"""What the pages and examples on learning show works: keys, a cluster's command with a stand-in, inputs, the script."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from ase import units
from ase.build import bulk
from loop_cases import NETS, write_cells

from mdops.learn import learn, parse_config, read_config
from mdops.learn.config import CommandTeacherConfig, keys
from mdops.learn.labels import read_frames
from mdops.learn.teacher import make_teacher

ROOT = Path(__file__).parents[2]
SBATCH = """#!/bin/bash
# Runs the jobs of an array one after the other.
for word in "$@"; do case $word in --array=1-*) last=${word#--array=1-};; esac; done
for job in $(seq ${last%%%*}); do SLURM_ARRAY_TASK_ID=$job bash -c "${!#}" || exit 1; done
"""
TEACHER = ROOT / "tests/data/reference_kinds/dpa3_base/model.dp"
TINY = {
    "start": {"frames": 10},
    "explore": {"temperatures": [300], "steps": 10, "interval": 5},
    "students": {"number": 2, "steps": 10, "final_steps": 10, "input": {"model": NETS}},
    "select": {"frames": 2, "fresh": 2},
    "targets": {"frames": 2},
    "budget": {"calls": 16, "rounds": 1},
    "compute": {"processes": 1},
    "report": {"steps": 10},
}


def test_the_reference_has_every_key():
    text = (ROOT / "docs/reference/learn-input.md").read_text()
    for k in keys():
        assert f"| `{k.path}` | {k.type} | {k.unit} | {k.default} | {k.doc} |\n" in text, k.path


def test_the_command_for_clusters_labels_with_a_stand_in_for_slurm(tmp_path, monkeypatch):
    page = (ROOT / "docs/how-to/learn-dft.md").read_text()
    blocks = re.findall(r"Save this as `([\w.]+)`[^`]*```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in blocks] == ["teacher.py", "label.py", "label_all.sh"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "sbatch").write_text(SBATCH)
    (commands / "sbatch").chmod(0o755)
    (commands / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (commands / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    shown = yaml.safe_load(re.search(r"^teacher: \{type: command.*$", page, re.MULTILINE)[0])["teacher"]
    config = CommandTeacherConfig(shown["command"], shown["name"], 0, str(tmp_path))
    frames = [bulk("Cu", a=a, cubic=True) for a in (3.5, 3.7)]
    answers = make_teacher(config).label(frames, [0, 1], tmp_path)
    assert [abs(a.get_stress()[0]) > 1e-3 for a in answers] == [True, True]
    assert answers[0].get_potential_energy() != answers[1].get_potential_energy()


def test_the_input_of_an_example_is_read():
    config = read_config(ROOT / "examples/learn_distill.yaml")
    assert Path(config.start.structures[0]).parent == ROOT / "examples"


@pytest.mark.long
def test_a_model_of_dpa3_becomes_one_of_se_e2_a(tmp_path):
    """The input of the example, with fewer and smaller steps."""
    tree = yaml.safe_load((ROOT / "examples/learn_distill.yaml").read_text())
    tree = {name: {**tree.get(name, {}), **TINY.get(name, {})} for name in {**tree, **TINY}}
    tree["teacher"]["model"] = str(TEACHER)
    tree["start"]["structures"] = "start.extxyz"
    write_cells(tmp_path)
    result = learn(parse_config(tree, tmp_path), tmp_path / "out")
    assert result.model.is_file() and result.calls <= 16
    label = read_frames(tmp_path / "out/round-00/labels.extxyz")[0]
    assert label.info["teacher"].startswith("model.dp ")


@pytest.mark.long
def test_the_example_of_an_alloy(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--change", json.dumps(TINY)])
    runpy.run_path(str(ROOT / "examples/learn_alloy.py"), run_name="__main__")
    assert "meV/A on fresh frames, 16 calls" in capsys.readouterr().out


def test_the_example_of_a_liquid_starts_from_whole_molecules(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    cells = runpy.run_path(str(ROOT / "examples/learn_liquid.py"))["cells"]()
    for cell in cells:
        near = np.sort(cell.get_all_distances(mic=True)[cell.numbers == 8][:, cell.numbers == 1])
        assert near.shape == (16, 32)
        assert near[:, 1].max() < 1.0 < 1.4 < near[:, 2].min()  # A: two of its own, no other's
        density = cell.get_masses().sum() / units.kg * 1000 / (cell.get_volume() * 1e-24)
        assert abs(density - 1.0) < 1e-9  # g/cm3
    assert abs(cells[0].positions - cells[1].positions).max() > 0.1


@pytest.mark.long
def test_the_example_of_a_liquid(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tblite")
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--change", json.dumps(TINY)])
    runpy.run_path(str(ROOT / "examples/learn_liquid.py"), run_name="__main__")
    assert "meV/A on fresh frames" in capsys.readouterr().out
