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


@pytest.mark.parametrize("module", public_modules())
def test_public_names_are_there_and_say_what_they_are(module):
    there = importlib.import_module(module)
    for name in there.__all__:
        thing = getattr(there, name)
        if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
            told = inspect.getdoc(thing)
            # Those that Python makes for dataclasses and inherits tell nothing.
            assert told and thing.__doc__ and not told.startswith(f"{name}("), f"{module}.{name}"
