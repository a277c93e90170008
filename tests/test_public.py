"""docs/public.md names what is public: the `__all__` of modules, each name with a docstring."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import mdops

PAGE = Path(__file__).parents[1] / "docs" / "public.md"


def listed():
    """The page's table: names by module."""
    rows = re.findall(r"^\| `(mdops[\w.]*)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def public():
    """The modules that have an `__all__`."""
    names = [
        m.name for m in pkgutil.walk_packages(mdops.__path__, "mdops.") if not m.name.endswith("__main__")
    ]
    return [name for name in ["mdops", *names] if "__all__" in vars(importlib.import_module(name))]


def test_page_and_modules_name_the_same():
    found = {name: importlib.import_module(name).__all__ for name in public()}
    assert {name: sorted(names) for name, names in listed().items()} == {
        name: sorted(names) for name, names in found.items()
    }


@pytest.mark.parametrize("module", public())
def test_public_names_are_there_and_say_what_they_are(module):
    there = importlib.import_module(module)
    for name in there.__all__:
        thing = getattr(there, name)
        if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
            told = inspect.getdoc(thing)
            # Those that Python makes for dataclasses and inherits tell nothing.
            assert told and thing.__doc__ and not told.startswith(f"{name}("), f"{module}.{name}"
