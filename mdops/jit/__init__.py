"""Kernels rebuilt for one model and this machine (docs/how-to/jit.md).

    built = mdops.jit.build(model)      # compiles once, measures, and uses what is faster

Nothing is compiled unless `build` is called; what it built, models of the same sizes find in the cache by themselves.
"""

from mdops.errors import JitError
from mdops.files.cache import Entry, cache_folder, clear, entries
from mdops.jit.builder import is_forbidden
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
