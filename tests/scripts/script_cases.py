"""Scripts of benchmarks/ and scripts/ as modules of a test."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / name for name in ("benchmarks", "examples", "scripts")]


@contextlib.contextmanager
def loaded(path: str, missing: set[str] = frozenset()) -> Iterator[ModuleType]:
    """A script by its path in the project; what it imports of its folder, and others of theirs by the same names, is
    forgotten at the end. Without one of the packages that may be missing, the test is skipped."""
    before, places = dict(sys.modules), list(sys.path)
    sys.path.insert(0, str((ROOT / path).parent))
    try:
        sys.modules.pop(Path(path).stem, None)
        yield importlib.import_module(Path(path).stem)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in missing:
            raise
        pytest.skip(f"needs {error.name}")
    finally:
        sys.path[:] = places
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if before.get(name) is not module and file and Path(file).parent in SCRIPTS:
                sys.modules.pop(name)
                if name in before:
                    sys.modules[name] = before[name]
