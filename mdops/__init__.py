"""Deep Potential molecular dynamics in PyTorch: ops, models and an ASE calculator.

Public names and modules are imported when they are first used, so that `mdops --version` does not load PyTorch.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from mdops import jit, ops
    from mdops.core import get_include
    from mdops.loading import load
    from mdops.potential import Potential

__version__ = _version("mdops")
__all__ = ["Potential", "__version__", "get_include", "jit", "load", "ops"]

_PLACES = {"Potential": "mdops.potential", "get_include": "mdops.core", "load": "mdops.loading"}

if not TYPE_CHECKING:  # otherwise type checkers would accept misspelt names

    def __getattr__(name: str) -> _Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'mdops' has no attribute {name!r}")
        if name in _PLACES:
            found = getattr(_import_module(_PLACES[name]), name)
            globals()[name] = found
            return found
        try:
            return _import_module(f"mdops.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"mdops.{name}":
                raise
            raise AttributeError(f"module 'mdops' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*globals(), *__all__]
