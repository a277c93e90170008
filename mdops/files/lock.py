"""Locks on files, so that two processes do not write the same things."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class BusyError(Exception):
    """Another process, or another lock of this one, has the lock; the message says which."""


@contextmanager
def locked(path: Path, *, remove: bool) -> Iterator[None]:
    """While this lasts, nobody else can have a lock on the file, which says who has it.

    The system gives the lock back when the process ends, however it does; a file that is left means nothing by itself.
    Where there are no locks (some network file systems), or no folder for the file, nothing is locked.

    Args:
        path: a file for the lock alone.
        remove: the file at the end.

    Raises:
        BusyError: somebody has the lock.
    """
    file = _take(path)
    try:
        yield
    finally:
        if file is not None:
            if remove:
                path.unlink(missing_ok=True)
            os.close(file)


@contextmanager
def waiting(path: Path, *, remove: bool = False) -> Iterator[bool]:
    """As `locked`, but waits for whoever has the lock, and leaves the file unless it is to be removed. Gives whether
    there is a lock: False where the file system has none."""
    file = _take(path, wait=True)
    try:
        yield file is not None
    finally:
        if file is not None:
            if remove:
                path.unlink(missing_ok=True)
            os.close(file)


def _take(path: Path, *, wait: bool = False) -> int | None:
    """The file that holds the lock, None where there can be none."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # no folder, or one that cannot be written to: whoever writes there says so
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            who = os.read(file, 200).decode(errors="replace").strip()
            os.close(file)
            raise BusyError(who or "it does not say which") from None
        except OSError:
            os.close(file)
            return None
        if _is_there(path, file):
            break
        os.close(file)  # its last owner removed it before it could be locked
    with suppress(OSError):  # a full disk is no reason to give the lock back
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return file


def _is_there(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
