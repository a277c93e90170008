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
    """Within this context only this process has a lock on the file. The file says which process has it.

    The system releases the lock when the process ends, for whatever reason. The file alone does not mean that there is
    a lock. Without locks (on some network file systems) or a folder for the file, nothing is locked.

    Args:
        path: a file that only serves as the lock.
        remove: whether to remove the file at the end.

    Raises:
        BusyError: the lock is taken.
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
    """As `locked`, but waits until the lock is free, and by default keeps the file. Gives whether it has the lock:
    False if the file system has no locks."""
    file = _take(path, wait=True)
    try:
        yield file is not None
    finally:
        if file is not None:
            if remove:
                path.unlink(missing_ok=True)
            os.close(file)


def _take(path: Path, *, wait: bool = False) -> int | None:
    """The open file with the lock; None if nothing can be locked."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # the folder is missing or not writable: the caller's own write reports it
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
    with suppress(OSError):  # the lock is valid even if the disk is full
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return file


def _is_there(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
