"""Errors of the system that say which file they are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path, beside: Path | None = None) -> Iterator[None]:
    """Adds the file's name to the system's errors of writing to it, such as a full disk. Errors about `beside`, the
    temporary file that is written first, name the file instead.

    Raises:
        OSError: the error that was raised within, with the name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(beside or path):
            raise
        if error.errno is None:  # an error of NumPy, whose text says how much it wrote
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
