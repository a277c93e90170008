"""What README and docs/ show is true: their links lead somewhere, their commands parse, their Python runs."""

import contextlib
import json
import re
import runpy
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import ase.io
import pytest
import torch
from ase import Atoms
from ase.build import molecule

import mdops
import mdops.md
from mdops import Potential
from mdops.cli import COMMANDS, _parser, main
from mdops.models.registry import find
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
        for top in ("mdops", "source", "tests", "scripts", "benchmarks", "examples")
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


@pytest.mark.parametrize("folder", ["tutorials", "how-to", "reference", "explanation", "notes"])
def test_every_page_is_linked_from_its_folder(folder):
    pages = {page.name for page in (ROOT / "docs" / folder).glob("*.md")} - {"README.md"}
    index = (ROOT / "docs" / folder / "README.md").read_text()
    assert pages and not pages - set(re.findall(r"\]\(([\w-]+\.md)", index))


def test_pages_for_users_are_short_and_cite_no_commit():
    words = {name: len(page.read_text().split()) for name, page in zip(NAMES, PAGES, strict=True)}
    assert words["README.md"] <= 1000
    assert not {name: n for name, n in words.items() if name.startswith("docs/how-to/") and n > 800}
    for name, page in zip(NAMES, PAGES, strict=True):
        if name.startswith("docs/") and not name.startswith("docs/notes/"):
            assert not re.search(r"\bcommit [0-9a-f]{7}|\bat [0-9a-f]{7}\b", page.read_text()), name


def test_every_op_is_listed():
    schemas = (ROOT / "source" / "op" / "library.cpp").read_text()
    ops = set(re.findall(r"^([a-z]\w+)\(", schemas, re.MULTILINE))
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
        len(found["README.md"]) >= 5
        and len(found["docs/reference/command-line.md"]) >= 6
        and len(found["docs/tutorials/first-training.md"]) >= 6
    )
    for name, shown in found.items():
        for command in shown:
            assert parses(command), f"{name}: mdops {' '.join(command)} is no command"


FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"^\*Not run by (?:the tests|this page's test): [^*]+\*\n\n\Z", re.MULTILINE)
SAVE = re.compile(r"[Ss]ave this as `([\w.-]+)`[^`]*\Z")


def blocks(text):
    """(language, text, name of the file that the reader is told to save it as) of the blocks that the page has run.

    A block with "*Not run by the tests: REASON.*" in front of it is left out."""
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        name = SAVE.search(before[before.rfind("```") + 3 :])
        if not NOT_RUN.search(before):
            yield match[1], match[2], name and name[1]


def runs(text):
    """What of a page is run: its Python, and the commands of tutorials and how-to pages."""
    return [block for block in blocks(text) if block[0] in ("python", "sh") or block[2]]


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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with what the pages speak of: data, structures, an input, and models of two elements each."""
    place = tmp_path_factory.mktemp("pages")
    with contextlib.chdir(place):
        for name in ("water/data_0", "water/data_3"):
            shutil.copytree(ROOT / "tests" / "data" / "training" / "emt", name)
            Path(name, "type_map.raw").write_text("O\nH\n")
        water = Atoms("OH2", molecule("H2O").positions, cell=[5, 5, 5], pbc=True, info={"energy": 1.0})
        ase.io.write("clusters.extxyz", [water] * 70)
        ase.io.write("structure.xyz", water, format="extxyz")
        ase.io.write("POSCAR", water, sort=True)
        ase.io.write("water.pdb", water)
        Path("input.json").write_text(json.dumps(small_input()))
        Trainer(parse_config(small_input()), "first").run()
        for name in ("model.dp", "a.dp", "b.dp", "c.dp", "d.dp"):
            shutil.copy("first/model.safetensors", name)
        other = small_input()
        other["model"]["type_map"] = ["Cu", "Al"]
        other["model"]["descriptor"]["sel"] = [60, 60]
        other["training"]["training_data"]["systems"] = str(ROOT / "tests" / "data" / "training" / "emt")
        Trainer(parse_config(other), "second").run()
        other["model"] |= {"type_map": ["Ni", "O"], "spin": {"use_spin": ["Ni"], "virtual_scale": 0.3}}
        magnetic = find("model", "standard").random(parse_config(other).model, 0, torch.float64)
        Potential(magnetic).save("spin.dp")
        shutil.copy("second/model.safetensors", "copper.dp")
        head = mdops.load("model.dp")  # stands for a published model
        head.source["head"] = "HEAD"
        head.save("head.safetensors")
        published = Path("cache", "models", "DPA-3.1-3M.pt")
        published.parent.mkdir(parents=True)
        Path("head.safetensors").rename(published)
    return place


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    folder = tmp_path / "pages"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MDOPS_KINDS", "")  # to which `--kinds` adds
    monkeypatch.setenv("MDOPS_CACHE", str(folder / "cache"))
    return folder


COMMANDS_RUN = [name for name in NAMES if name.startswith(("docs/tutorials/", "docs/how-to/"))]
RUN = [
    name
    for name, page in zip(NAMES, PAGES, strict=True)
    if any(kind == "python" or name in COMMANDS_RUN for kind, *_ in runs(page.read_text()))
]


def test_pages_have_much_to_run():
    assert len(RUN) > 20 and "README.md" in RUN
    assert {Path(name).name for name in RUN} >= {
        *("first-model.md", "first-training.md", "first-simulation.md", "first-lammps.md"),
        *("relax.md", "restart.md", "new-descriptor.md", "ops.md", "own-training-loop.md"),
    }


def test_what_is_not_run_says_why():
    text = "Text.\n\n*Not run by the tests: it takes a day.*\n\n```sh\nmdops x\n```\n\n```sh\nmdops y\n```\n"
    assert [block[1] for block in runs(text)] == ["mdops y\n"]
    assert [block[1] for block in runs(text.replace(": it takes a day.*", ".*"))] == [
        "mdops x\n",
        "mdops y\n",
    ]


def run_commands(text):
    """Runs the commands of a block in this process; one that ends with an error, or is no command of mdops, fails."""
    for line in text.replace("\\\n", " ").splitlines():
        if not (words := shlex.split(line, comments=True)):
            continue
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
        else:
            assert words[0] == "mdops", f"{line}: the test runs mdops and python alone; say why it is not run"
            assert main(words[1:]) in (0, None), line


@pytest.mark.parametrize("page", RUN)
def test_page_runs_as_printed(place, page):
    names = {}
    if page not in COMMANDS_RUN:  # pages of reference show parts, of what came before
        atoms = ase.io.read("structure.xyz")
        names = {"mdops": mdops, "atoms": atoms, "structures": [atoms], **vars(mdops.md)}
    for kind, text, name in runs((ROOT / page).read_text()):
        if name:
            Path(name).write_text(text)
        elif kind == "sh" and page in COMMANDS_RUN:
            run_commands(text)
        elif kind == "python":
            needs = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
            if any(find_spec(package) is None for package in needs):
                pytest.skip(f"{page} needs a program that is not installed")
            exec(compile(text, page, "exec"), names)
