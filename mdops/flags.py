"""Checks of arguments that are True or False, numbers, or paths."""

import operator
import os
from pathlib import Path
from typing import Any

import numpy as np

from mdops.errors import InputError


def require_flags(**given: Any) -> None:
    """Raises InputError, with the argument's name, unless it is True or False: any text would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} is {value!r}, expected True or False")


def require_numbers(**given: Any) -> None:
    """Raises InputError, with the argument's name, unless it is a real number."""
    for name, value in given.items():
        try:
            if isinstance(value, str):
                raise TypeError
            float(value)
        except (TypeError, ValueError):
            raise InputError(f"{name} is {value!r}, expected a number") from None


def require_whole(**given: Any) -> None:
    """Raises InputError, with the argument's name, unless it is a whole number (2.0 is one, too)."""
    for name, value in given.items():
        try:
            operator.index(value)
        except TypeError:
            raise InputError(f"{name} is {value!r}, expected a whole number") from None


def require_kinds(**given: tuple[Any, type]) -> None:
    """Raises InputError, with the argument's name, unless the value is of the given class."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise InputError(f"{name} is of the type {type(value).__name__}, expected {kind.__name__}")


def require_path(name: str, value: Any) -> Path:
    """The path. Raises InputError, with the argument's name, for anything else, also for a name in bytes."""
    if (
        not isinstance(value, str | os.PathLike)
        or not isinstance(os.fspath(value), str)
        or not os.fspath(value)
    ):
        raise InputError(f"{name} is {value!r}, expected the path of a file")
    return Path(value)
