"""Arguments that are True or False."""

from typing import Any

import numpy as np

from mdops.errors import InputError


def require_flags(**given: Any) -> None:
    """Raises InputError, which names the argument, for what is neither True nor False: any text would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} is {value!r}, expected True or False")
