"""Kernels rebuilt for one model and this machine (docs/how-to/jit.md).

    built = mdops.jit.build(model)      # compiles once, measures, and uses the faster kernels

Only `build` compiles. Models of the same sizes then find the kernels in the cache by themselves.
Modules that need PyTorch are imported when first used: the toolchain and the cache work without it.
"""

from typing import TYPE_CHECKING
from typing import Any as _Any

from mdops.errors import JitError
from mdops.files.cache import Entry, cache_folder, clear, entries
from mdops.jit.builder import is_forbidden

if TYPE_CHECKING:
    from mdops.jit.kernels import Build, build, in_use

__all__ = [
    "Build",
    "Entry",
    "JitError",
    "build",
    "cache_folder",
    "clear",
    "entries",
    "in_use",
    "is_forbidden",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        if name not in ("Build", "build", "in_use"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mdops.jit import kernels  # imports PyTorch

        globals()[name] = found = getattr(kernels, name)
        return found
