"""Loads the compiled ops."""

import pathlib

import torch

import mdops
from mdops.errors import LibraryError


def library_path(name: str) -> pathlib.Path | None:
    """The library `name` in the installed package, or None. An editable install has two package folders."""
    for folder in mdops.__path__:
        path = pathlib.Path(folder, "lib", name)
        if path.is_file():
            return path
    return None


def load() -> None:
    """Registers the ops as `torch.ops.mdops.*`; does nothing the second time.

    Raises LibraryError when the library is missing or does not load; `mdops doctor` explains.
    """
    path = library_path("libmdops.so")
    if path is None:
        raise LibraryError(
            "libmdops.so is not in the mdops package. Build it with `pip install --no-build-isolation .`"
        )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise LibraryError(f"{path} does not load into PyTorch {torch.__version__}: {error}") from error
