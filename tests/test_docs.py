"""What README and docs/ show is true: their links lead somewhere, their commands parse, their Python runs."""

import json
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from ase.build import molecule

import mdops
import mdops.md
from mdops.cli import COMMANDS, _parser
from mdops.train import Trainer, parse_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_names_of_files_lead_somewhere(page):
    text = page.read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) + re.findall(r'<img src="([^"]+)"', text)
    dead = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    # Names in quotes, such as `tests/train/test_step.py`; those with <placeholders> or * are patterns.
    files = re.findall(r"`((?:\.ci|mdops|tests|benchmarks|examples|scripts|source|docs)/[\w./-]+)`", text)
    assert not dead + [name for name in files if not (ROOT / name).exists()]


def test_code_names_pages_that_are_there():
    pages = {page.name for page in PAGES} | {"README.md"}
    code = [
        path
        for top in ("mdops", "tests", "scripts", "benchmarks", "examples")
        for path in (ROOT / top).rglob("*")
        if path.suffix in {".py", ".cpp", ".cu", ".h", ".c", ".f90", ".cmake"}
    ]
    named = {
        (name, str(path.relative_to(ROOT)))
        for path in code
        for name in re.findall(
            r"(?<![\w./-])(?!(?:mdops|ase)\.md)((?:docs/)?[\w/-]+\.md)\b", path.read_text()
        )
    }
    assert len(named) > 50
    dead = [
        (name, path)
        for name, path in named
        if not ((ROOT / name).exists() if name.startswith("docs/") else name in pages)
    ]
    assert not dead


def test_every_op_is_listed():
    schemas = (ROOT / "source" / "op" / "library.cpp").read_text()
    ops = set(re.findall(r'm\.def\(\s*"(\w+)\(', schemas))
    listed = set(
        re.findall(r"`(?:torch\.ops\.mdops\.)?(\w+)", (ROOT / "docs" / "reference" / "ops.md").read_text())
    )
    assert len(ops) > 15 and not ops - listed


def commands(text):
    """The `mdops` commands of a page, also those that `torchrun` starts, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [
        re.match(
            r" *(?:torchrun .* -m |mpirun .* )?"
            rf"mdops ((?:{'|'.join(COMMANDS)})\b[^#]*)",
            line,
        )
        for line in lines
    ]
    return [shlex.split(match[1]) for match in found if match]


def parses(command):
    try:
        return _parser().parse_args(command[:1] if command[0] == "lammps" else command)
    except SystemExit:
        return None


def test_commands_parse():
    found = {name: commands(page.read_text()) for name, page in zip(NAMES, PAGES, strict=True)}
    assert (
        len(found["README.md"]) >= 8
        and len(found["docs/reference/command-line.md"]) >= 6
        and found["docs/reference/training-input.md"]
    )
    for name, shown in found.items():
        for command in shown:
            assert parses(command), f"{name}: mdops {' '.join(command)} is no command"


def python(text):
    """The Python of a page: what is fenced as such, and what is indented and begins with an import or a Trainer."""
    fenced = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    indented = [re.sub("^    ", "", block, flags=re.MULTILINE).strip("\n") for block in blocks]
    return fenced + [block for block in indented if re.match(r"from |import |Trainer\(", block)]


def small_input():
    return {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": {"rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "axis_neuron": 3},
            "fitting_net": {"neuron": [8, 8]},
        },
        "training": {
            "training_data": {"systems": "water/data_0", "batch_size": 2},
            "numb_steps": 3,
            "seed": 1,
        },
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the pages speak of: data, structures, an input, and models of oxygen and hydrogen."""
    monkeypatch.chdir(tmp_path)
    for name in ("water/data_0", "water/data_3"):
        shutil.copytree(ROOT / "tests" / "data" / "training" / "emt", name)
        Path(name, "type_map.raw").write_text("O\nH\n")
    water = Atoms("OH2", molecule("H2O").positions, cell=[5, 5, 5], pbc=True, info={"energy": 1.0})
    ase.io.write("clusters.extxyz", [water] * 70)
    ase.io.write("structure.xyz", water)
    ase.io.write("POSCAR", water, sort=True)
    ase.io.write("water.pdb", water)
    Path("input.json").write_text(json.dumps(small_input()))
    Trainer(parse_config(small_input()), "first").run()
    for name in ("model.dp", "a.dp", "b.dp", "c.dp", "d.dp"):
        shutil.copy("first/model.safetensors", name)
    return tmp_path


RUN = {
    "README.md": 2,
    "docs/reference/calculator.md": 3,
    "docs/reference/command-line.md": 1,
    "docs/how-to/compile.md": 1,
    "docs/notes/cuda.md": 2,
    "docs/how-to/deepmd.md": 2,
    "docs/how-to/heat.md": 1,
    "docs/how-to/jit.md": 1,
    "docs/reference/ops.md": 3,
    "docs/how-to/programs.md": 2,
    "docs/reference/training-input.md": 5,
}
# There may be no GPU, and little time; the models here are of oxygen and hydrogen.
SHORTER = {
    '"cuda"': '"cpu"',
    "10_000, every=100": "20, every=10",
    "run(1000, every=100)": "run(40, every=20)",
    "n_steps=1000": "n_steps=5",
    'bulk("Cu", a=4.04': 'bulk("O", "fcc", a=4.04',
    "run(200,": "run(100,",
    "autobatcher=True": "autobatcher=False",
}


def test_all_pages_with_python_are_run():
    assert {name for name, page in zip(NAMES, PAGES, strict=True) if python(page.read_text())} == set(RUN)


@pytest.mark.parametrize(("page", "blocks"), RUN.items())
def test_python_runs(place, page, blocks):
    found = python((ROOT / page).read_text())
    assert len(found) >= blocks, "blocks went, or are not found any more"
    atoms = ase.io.read("structure.xyz")
    names = {"mdops": mdops, "atoms": atoms, "structures": [atoms], **vars(mdops.md)}
    names |= {"coords": atoms.positions[None], "cells": atoms.cell[None], "atom_types": [0, 1, 1]}
    for block in found:
        if any(
            find_spec(package) is None
            for package in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
        ):
            continue  # a program that mdops works with, and that is not installed
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        exec(compile(block, page, "exec"), names)
