"""Arguments that are True or False, numbers, or paths."""

import operator
import os
from pathlib import Path
from typing import Any

import numpy as np

from mdops.errors import InputError


def require_flags(**given: Any) -> None:
    """Raises InputError, which names the argument, for what is neither True nor False: any text would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} is {value!r}, expected True or False")


def require_numbers(**given: Any) -> None:
    """Raises InputError, which names the argument, for what is no real number."""
    for name, value in given.items():
        try:
            if isinstance(value, str):
                raise TypeError
            float(value)
        except (TypeError, ValueError):
            raise InputError(f"{name} is {value!r}, expected a number") from None


def require_whole(**given: Any) -> None:
    """Raises InputError, which names the argument, for what is no whole number, 2.0 too."""
    for name, value in given.items():
        try:
            operator.index(value)
        except TypeError:
            raise InputError(f"{name} is {value!r}, expected a whole number") from None


def require_kinds(**given: tuple[Any, type]) -> None:
    """Raises InputError, which names the argument, for a value that is not of its class."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise InputError(f"{name} is of the type {type(value).__name__}, expected {kind.__name__}")


def require_path(name: str, value: Any) -> Path:
    """The path; raises InputError, which names the argument, for what is none, a file's name as bytes too."""
    if (
        not isinstance(value, str | os.PathLike)
        or not isinstance(os.fspath(value), str)
        or not os.fspath(value)
    ):
        raise InputError(f"{name} is {value!r}, expected the path of a file")
    return Path(value)
