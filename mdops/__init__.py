"""Deep Potential molecular dynamics in PyTorch: ops, models and an ASE calculator."""

from importlib.metadata import version as _version
from typing import Any as _Any

__version__ = _version("mdops")
__all__ = ["Potential", "__version__", "get_include", "jit", "load", "ops"]

try:
    from mdops import jit, ops
    from mdops.core import get_include
    from mdops.loading import load
    from mdops.potential import Potential
except ImportError as _error:
    # `mdops doctor` must be able to run and say why: whatever needs the ops raises the error instead.
    _failure = _error

    def __getattr__(name: str) -> _Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _failure
