"""Errors of the system that say which file they are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of the file to what the system says of writing into it, as of a full disk.

    Raises:
        OSError: what was raised within, with the name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno is None:  # NumPy tells in words how much it wrote
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
