"""docs/reference/public.md names what is public: the `__all__` of modules, each name with a docstring."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))

from build_docs import public_modules  # noqa: E402

import mdops.ops  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "public.md"


def listed():
    """The page's table: names by module."""
    rows = re.findall(r"^\| `(mdops[\w.]*)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def test_page_and_modules_name_the_same():
    """`scripts/document_public.py` writes the table."""
    found = {name: importlib.import_module(name).__all__ for name in public_modules()}
    assert {name: sorted(names) for name, names in listed().items()} == {
        name: sorted(names) for name, names in found.items()
    }


def test_ops_that_the_page_lists_are_functions():
    """Not modules of that name, and of `mdops.ops` itself."""
    page = (ROOT / "docs/reference/ops.md").read_text()
    page = page[page.index("## Ops") : page.index("### About the library")]
    names = re.findall(r"^\* `(\w+)\(", page, re.MULTILINE)
    missing = [name for name in names if not inspect.isroutine(getattr(mdops.ops, name, None))]
    assert len(names) > 60 and not missing
    assert not [name for name in names if name not in mdops.ops.__all__]


@pytest.mark.parametrize("module", public_modules())
def test_public_names_are_there_and_say_what_they_are(module):
    there = importlib.import_module(module)
    for name in there.__all__:
        thing = getattr(there, name)
        if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
            told = inspect.getdoc(thing)
            # Those that Python makes for dataclasses and inherits tell nothing.
            assert told and thing.__doc__ and not told.startswith(f"{name}("), f"{module}.{name}"


def is_there(name):
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if part in getattr(found, "__annotations__", {}):  # a field of a dataclass
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_names_in_messages_docstrings_and_pages_are_there():
    """Such as the calculator, which is not `mdops.MDOps`."""
    sources = [*ROOT.glob("mdops/**/*.py"), ROOT / "README.md"]
    pages = [path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "notes"]
    other = {"mdops.h", "mdops.f90", "mdops.kinds"}  # files, and the name of entry points
    named = {
        name
        for path in (*sources, *pages)
        for name in re.findall(r"`(mdops(?:\.[A-Za-z_]\w*)+)[`(]", path.read_text())
    }
    assert "mdops.calculator.MDOps" in named
    assert sorted(name for name in named - other if not is_there(name)) == []
