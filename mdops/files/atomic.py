"""Replaces files as a whole: a file is always complete, even if the process is killed while it writes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mdops.files.named import naming


@contextlib.contextmanager
def replacing(path: Path, *, beside: str | None = None, goes_on: bool = False) -> Iterator[BinaryIO]:
    """Opens a temporary file in the folder of `path`, to write and read. At the end the file is flushed to the disk and
    replaces `path` in one step. After an error it is removed.

    Args:
        path: the file to replace; its folder must exist.
        beside: the name of the temporary file; by default the name of `path` with `.new` appended. A write that is
            killed leaves this file, and the next write overwrites it. If several processes may write `path` at once,
            each needs its own name.
        goes_on: the temporary file begins with what an earlier write left in it. After an error it stays for the next
            write, unless it is empty or the error is an OSError.

    Raises:
        OSError: the file cannot be written. `path` is unchanged, and the temporary file is removed.
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
    """As `replacing`, for data that are in memory."""
    with replacing(path, beside=beside) as file:
        file.write(data)
