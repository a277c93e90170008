"""Errors of the system that say which file they are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path, beside: Path | None = None) -> Iterator[None]:
    """Adds the name of the file to what the system says of writing into it, as of a full disk; and says that in the
    place of `beside`, which it is first written to.

    Raises:
        OSError: what was raised within, with the name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(beside or path):
            raise
        if error.errno is None:  # NumPy tells in words how much it wrote
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
