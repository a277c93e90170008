"""One training in a folder at a time."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mdops.errors import InputError
from mdops.train.parallel import Processes

NAME = ".mdops-train.lock"


@contextmanager
def one_training(folder: Path, processes: Processes) -> Iterator[None]:
    """While this lasts, no other training can begin or run in the folder.

    The first of the processes holds a lock on a file there, which says who it is. The system gives the lock back when
    that process ends, however it does; the file stays, and means nothing by itself. Where there are no locks (some
    network file systems), or no folder yet, nothing is locked.

    Raises InputError, in all processes, if another training has the lock.
    """
    held: list[int] = []

    def take() -> None:
        held.extend(_locked(folder))

    processes.from_first(take)
    try:
        yield
    finally:
        for file in held:
            os.close(file)


def _locked(folder: Path) -> list[int]:
    """The file that holds the lock, nothing where there can be none."""
    try:
        file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # no folder, or one that cannot be written to: whoever writes a checkpoint says so
        return []
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.read(file, 200).decode(errors="replace").strip()
        os.close(file)
        raise InputError(
            f"{folder}: another training runs in this folder ({who or 'it does not say which'}): wait until it ends, "
            "or choose another folder (--output)"
        ) from None
    except OSError:
        os.close(file)
        return []
    with suppress(OSError):  # a full disk is no reason to give the lock back
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return [file]
