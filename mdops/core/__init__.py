"""The C core: models in programs without PyTorch and Python (docs/reference/core.md)."""

from pathlib import Path

from mdops.errors import LibraryError
from mdops.files import package

__all__ = ["compile_flags", "get_include", "library", "link_flags"]

LIBRARY = "libmdops_core.so.4"  # and MDOPS_API_VERSION of mdops.h


def get_include() -> str:
    """The folder of `mdops.h`, and of the Fortran module `mdops.f90`. Raises LibraryError where it is not there."""
    return str(_found("include", "mdops.h").parent)


def library() -> Path:
    """The shared library. Raises LibraryError where it is not there."""
    return _found("lib", LIBRARY)


def compile_flags() -> list[str]:
    """The flags for a C compiler."""
    return [f"-I{get_include()}"]


def link_flags() -> list[str]:
    """The flags that link a program with the library at its current path."""
    folder = library().parent
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-l:{LIBRARY}"]


def _found(folder: str, name: str) -> Path:
    path = package.find(folder, name)
    if path is None:
        raise LibraryError(f"{name} is not in the mdops package: install mdops again")
    return path
