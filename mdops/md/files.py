"""The trajectory and the log of a run, and a thread that writes them while the run goes on."""

import dataclasses
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ase import Atoms

from mdops.errors import InputError
from mdops.files.lock import BusyError, locked
from mdops.md import log
from mdops.md.options import Output
from mdops.md.outputs import begins_like, close_all, hold, open_files


class Files:
    """A run's trajectory and log, if any; opened at the marks of a checkpoint, or as new files."""

    def __init__(self, output: Output, marks: dict[str, Any]) -> None:
        self._trajectory, self._log = open_files(output, marks)

    def write(self, atoms: Atoms, state: log.LogState, *, heading: bool = False) -> None:
        """A frame with the results of the calculator of `atoms`, and a line of the log."""
        if self._trajectory is not None:
            frame = atoms.copy()
            frame.calc = atoms.calc
            frame.info |= {"step": state.step, "time_fs": state.time}
            self._trajectory.write_frame(frame)
        if self._log is not None:
            self._log.write(log.text(log.columns(atoms, state), heading=heading))

    def marks(self) -> dict[str, Any]:
        """The ends of the files, after a flush to disk."""
        named = {"trajectory": self._trajectory, "log": self._log}
        return {name: file.mark() for name, file in named.items() if file is not None}

    def close(self) -> None:
        close_all(self._trajectory, self._log)


class Background:
    """A thread that runs one task after the other; its errors are raised at the next call here."""

    def __init__(self, most: int = 16) -> None:
        """`most`: tasks that may wait; then `do` waits."""
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(most)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="mdops-writer", daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        self._check()
        self._tasks.put(task)

    def drain(self) -> None:
        """Waits until all is done."""
        self._tasks.join()
        self._check()

    def close(self) -> None:
        """Waits, and ends the thread; raises nothing."""
        self._tasks.put(None)
        self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._try(task)
            self._tasks.task_done()

    def _try(self, task: Callable[[], None]) -> None:
        """Runs it, unless an earlier task failed."""
        if self._error is None:
            try:
                task()
            except BaseException as error:
                self._error = error


def require_beginning(output: Output, write: Callable[[Output], object]) -> None:
    """Checks files of a run killed before its first checkpoint: they are empty, or begin like those that `write` makes
    for an output. Raises InputError if not: then somebody else wrote them."""
    with tempfile.TemporaryDirectory(prefix="mdops") as folder:
        given = (output.trajectory, output.log)
        trajectory, log = own = [path and Path(folder, f"{k}{path.suffix}") for k, path in enumerate(given)]
        write(dataclasses.replace(output, checkpoint=Path(folder, "restart"), trajectory=trajectory, log=log))
        for path, written in zip(given, own, strict=True):
            if path and written and path.exists() and not begins_like(path, written):
                raise InputError(
                    f"{path} is of another run: {output.checkpoint} is from one that had not written "
                    "anything; start again with --overwrite or other names"
                )


def existing(output: Output) -> list[Path]:
    """The existing files of the output."""
    return [path for path in _all(output) if path.exists()]


@contextmanager
def one_run(output: Output) -> Iterator[None]:
    """In this context, no other run can write a file of the output. Raises InputError if one does."""
    with ExitStack() as held:
        for path in _all(output):
            _hold(held, path)
        yield


def _hold(held: ExitStack, path: Path) -> None:
    real = path.resolve()  # a link to the file of another run is that file
    try:
        held.enter_context(locked(real.with_name(f".{real.name}.lock"), remove=True))
    except BusyError as who:
        raise InputError(
            f"{path}: another run writes this file ({who}): wait until it ends, or give the files of this run other "
            "names (--trajectory, --log, --checkpoint)"
        ) from None
    if path.exists():
        with path.open("ab") as file:
            hold(path, file)  # under another name, such as a hard link's, it has no lock


def _all(output: Output) -> list[Path]:
    return [path for path in (output.trajectory, output.log, output.checkpoint) if path is not None]
