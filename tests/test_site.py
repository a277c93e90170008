"""The site of the documentation (`make docs`) has every public name, and none of its links is dead."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_addresses_outside_of_the_project_have_the_right_form():
    """Whether they answer, `scripts/check_links.py` finds where there is a network."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        check_links = importlib.import_module("check_links")
    finally:
        sys.path.pop(0)
    found = check_links.addresses()
    assert "CITATION.cff" in found["https://arxiv.org/abs/1805.09003"]
    assert {address: check_links.why_not_form(address) for address in found} == dict.fromkeys(found)
    for wrong in (
        "http://semver.org/",
        "https://semver",
        "https:/semver.org/",
        "https://arxiv.org/abs/18.09003",
    ):
        assert check_links.why_not_form(wrong) is not None


def test_every_public_name_has_its_place(tmp_path):
    pytest.importorskip("mkdocs")
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/build_docs.py", tmp_path / "site"], capture_output=True, text=True
    )
    assert made.returncode == 0, (
        made.stdout + made.stderr
    )  # strict: of dead links, and of docstrings that err
    pages = {path.stem: path.read_text() for path in (tmp_path / "site" / "api").glob("*.html")}
    assert "mdops.ops" in pages
    for name, page in pages.items():
        places, there = set(re.findall(r'id="([\w.]+)"', page)), importlib.import_module(name)
        for public in there.__all__:
            if callable(getattr(there, public)):
                assert places & {f"{name}.{public}", f"{name}.{public}.{public}"}, f"{name}.{public}"
    assert "examples/md.py" in (tmp_path / "site/docs/tutorials/examples.html").read_text()
