"""Structures in files that ASE reads."""

import os
from typing import TYPE_CHECKING

from mdops.errors import InputError

if TYPE_CHECKING:
    from ase import Atoms


def read_structures(name: str) -> "list[Atoms]":
    """All frames of a file, or those that FILE@INDEX names. Raises InputError for what ASE does not read."""
    import ase.io

    # An index that is given as an argument would go before that of the name.
    index = None if "@" in os.path.basename(name) else ":"
    try:
        found = ase.io.read(name, index)
    except Exception as error:  # ASE's readers raise whatever comes up in them
        raise InputError(f"ASE cannot read {name}: {type(error).__name__}: {error}") from error
    return found if isinstance(found, list) else [found]
