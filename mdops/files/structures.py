"""Structures in files that ASE reads."""

import os
from typing import TYPE_CHECKING

from mdops.errors import InputError

if TYPE_CHECKING:
    from ase import Atoms


def frames_file(name: str) -> str:
    """The part FILE of FILE or FILE@INDEX."""
    return name.rpartition("@")[0] if "@" in os.path.basename(name) else name


def read_named(name: str, index: str | None = None) -> "Atoms | list[Atoms]":
    """The frames that FILE or FILE@INDEX names: without an index the last one, a list for an index such as ":".

    Raises InputError if ASE cannot read the file or the file does not have the frames."""
    import ase.io

    try:
        found = ase.io.read(name, index)
    except StopIteration:  # raised for files that are read frame by frame
        found = []
    except FileNotFoundError as error:
        missing = error.filename or name
        where = "" if os.path.isabs(missing) else f" in {os.getcwd()}"
        raise InputError(f"{missing}: there is no such file{where}") from error
    except Exception as error:  # ASE's readers raise errors of any type
        raise InputError(f"ASE cannot read {name}: {type(error).__name__}: {error}") from error
    if not isinstance(found, list) or found:
        return found
    path = frames_file(name)
    number = name[len(path) + 1 :]
    raise InputError(f"{path} has no frame {number} (the first is 0)" if number else f"{path} has no frames")


def read_structures(name: str) -> "list[Atoms]":
    """All frames of a file, or those that FILE@INDEX names. Raises InputError as `read_named`."""
    # An index that is given as an argument would override the one in the name.
    found = read_named(name, None if "@" in os.path.basename(name) else ":")
    return found if isinstance(found, list) else [found]
