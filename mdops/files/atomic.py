"""Files that are replaced as a whole: what is there is always complete, whenever the writing is killed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mdops.files.named import naming


@contextlib.contextmanager
def replacing(path: Path, *, beside: str | None = None, goes_on: bool = False) -> Iterator[BinaryIO]:
    """Gives a file to write to and read, beside the one at the path. At the end it is flushed to the disk, and put in
    the place of that in one step; after an error within it is removed.

    Args:
        path: the file; its folder must be there.
        beside: the name to write under in the same folder, by default that of the file with `.new` behind. A write that
            is killed leaves it there, and the next one writes over it. Where several processes may write the file at
            once, each needs a name of its own.
        goes_on: the file begins with what a write before left there, and stays there after an error, for the next one;
            not where nothing was written, or the error is of the file.

    Raises:
        OSError: it cannot be written; what was there is still there, and nothing beside it.
    """
    temporary = path.with_name(path.name + ".new" if beside is None else beside)
    try:
        with naming(path, temporary):
            begun = goes_on and temporary.is_file()
            with temporary.open("r+b") if begun else temporary.open("w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        if not goes_on or isinstance(error, OSError) or not temporary.stat().st_size:
            temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems do not sync folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def replace_file(path: Path, data: bytes | memoryview, *, beside: str | None = None) -> None:
    """`replacing`, with data that are there as a whole."""
    with replacing(path, beside=beside) as file:
        file.write(data)
