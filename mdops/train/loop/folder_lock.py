"""One training in a folder at a time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mdops.errors import InputError
from mdops.files.lock import BusyError, locked
from mdops.train.loop.distributed import Processes

NAME = ".mdops-train.lock"


@contextmanager
def one_training(folder: Path, processes: Processes) -> Iterator[None]:
    """While this lasts, no other training can begin or run in the folder.

    The first of the processes holds a lock on a file there (`mdops.files.lock`), which stays when it ends.

    Raises InputError, in all processes, if another training has the lock.
    """
    with ExitStack() as held:

        def take() -> None:
            try:
                held.enter_context(locked(folder / NAME, remove=False))
            except BusyError as who:
                raise InputError(
                    f"{folder}: another training runs in this folder ({who}): wait until it ends, or choose another "
                    "folder (--output)"
                ) from None

        processes.from_first(take)
        yield


def remove_unused(folder: Path) -> None:
    """Removes a folder without a training that holds only its lock."""
    with suppress(BusyError, OSError):
        with locked(folder / NAME, remove=True):
            pass
        folder.rmdir()
