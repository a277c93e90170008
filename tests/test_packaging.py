"""The pins, the source distribution, and what the project says of itself."""

import re
import tarfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mdops

ROOT = Path(__file__).parents[1]
# PyTorch's CUDA builds bring these; their versions follow from torch's.
OF_CUDA = re.compile(r"nvidia-|cuda-|triton")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def closure(name: str, extras: tuple[str, ...]) -> set[str]:
    """Everything an installed distribution needs, directly or not."""
    found: set[str] = set()
    todo = [(name, extras)]
    while todo:
        name, extras = todo.pop()
        for text in distribution(name).requires or []:
            needed = Requirement(text)
            wanted = needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (*extras, ""))
            key = canonicalize_name(needed.name)
            if not wanted or OF_CUDA.match(key) or key in found:
                continue
            if key != "mdops":
                found.add(key)
            todo.append((key, tuple(needed.extras)))
    return found


def test_everything_is_pinned():
    try:
        needed = closure("mdops", ("dev",))
    except PackageNotFoundError as error:
        pytest.skip(f"the development tools are not installed: {error}")
    assert needed - pins().keys() == set()


def test_build_requirements_are_pinned():
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^requires = \[(.*)\]$", text, re.MULTILINE)
    for needed in map(Requirement, re.findall(r'"([^"]+)"', listed)):
        assert needed.specifier.contains(pins()[canonicalize_name(needed.name)]), str(needed)


def test_source_distribution(tmp_path, monkeypatch):
    sdist = pytest.importorskip("scikit_build_core.build.sdist")
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / sdist.build_sdist(str(tmp_path), None)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    built_from = {
        str(f.relative_to(ROOT)) for folder in ("source", "mdops") for f in (ROOT / folder).rglob("*.[ch]*")
    }
    required = {"pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "CITATION.cff", "mdops/py.typed"}
    assert required | built_from <= names
    assert {str(f.relative_to(ROOT)) for f in (ROOT / "mdops").rglob("*.py")} <= names
    assert not [n for n in names if n.startswith((".venv", "build", "tests/data", "demo"))]
    assert not [n for n in names if n.endswith((".so", ".pyc"))]


def test_versions_agree():
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert mdops.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["version"] == project["version"]
    assert (cited["title"], cited["license"]) == (project["name"], project["license"])
    assert cited["keywords"] == project["keywords"]


def test_python_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", c) for c in project["classifiers"]]
    oldest = min(int(match[1]) for match in listed if match)
    assert project["requires-python"] == f">=3.{oldest}"
    assert f"Python 3.{oldest} or later" in (ROOT / "README.md").read_text()
