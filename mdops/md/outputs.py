"""Trajectory and log files that can be cut back to the mark of a checkpoint, if they are unchanged up to it."""

import base64
import fcntl
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import ase.io
import numpy as np
from ase import Atoms
from ase.io.trajectory import TrajectoryWriter
from ase.io.ulm import N1

from mdops.errors import InputError
from mdops.files.named import naming
from mdops.md.options import Output

Mark = dict[str, Any]

_ULM_HEADER = 48  # bytes: tag, version, number of frames, place of the table of frames
_TAIL = 1 << 16  # bytes before a mark, which identify a file


class TextFile:
    """Text appended in whole pieces."""

    def __init__(self, path: Path, mark: Mark | None) -> None:
        """Opens at `mark`, cutting off the rest; a new file without one.

        Raises InputError for a file that another run writes."""
        self._path = path
        self._file: BinaryIO = _opened(path, mark)

    def write(self, text: str) -> None:
        with naming(self._path):
            self._file.write(text.encode())
            self._file.flush()

    def mark(self) -> Mark:
        """The end of the file, after a flush to disk."""
        with naming(self._path):
            os.fsync(self._file.fileno())
            length = self._file.seek(0, os.SEEK_END)
        return {"length": length, "digest": _digest(self._path, length)}

    def close(self) -> None:
        with naming(self._path):  # a full disk may have left data in it
            self._file.close()


def with_columns(atoms: Atoms) -> Atoms:
    """The atoms with their magnetic forces as an array, if their results have some, and then with their virial, which
    is not symmetric: ASE writes results only of properties that it knows. Training data in extended XYZ have the same
    names."""
    results = getattr(atoms.calc, "results", {})
    if "force_mag" not in results:
        return atoms
    shown = atoms.copy()
    shown.calc = atoms.calc
    shown.set_array("force_mag", results["force_mag"], float, (3,))
    if atoms.pbc.all():
        shown.info["virial"] = results["virial"]
    return shown


class ExtxyzTrajectory(TextFile):
    """Frames in extended XYZ."""

    def write_frame(self, atoms: Atoms) -> None:
        buffer = io.StringIO()
        ase.io.write(buffer, with_columns(atoms), format="extxyz")
        text = buffer.getvalue()
        if text.count("\n") != len(atoms) + 2:
            broken = [name for name, value in atoms.info.items() if "\n" in f"{name}{value}"]
            raise InputError(
                f"{self._path}: extended XYZ has no place for line breaks, and the structure's `info` has some "
                f"({', '.join(map(repr, broken))}): write .traj, or take them away"
            )
        self.write(text)


class AseTrajectory:
    """Frames in ASE's .traj, whose header counts them: a mark has the header too."""

    def __init__(self, path: Path, mark: Mark | None) -> None:
        """As of `TextFile`."""
        self._path, self._held = path, _opened(path, mark)
        if mark is not None and mark["length"]:
            with path.open("r+b") as file:
                file.write(base64.b64decode(mark["header"]))
        self._writer = TrajectoryWriter(str(path), "a")

    def write_frame(self, atoms: Atoms) -> None:
        with naming(self._path):
            self._writer.write(atoms)

    def mark(self) -> Mark:
        file = self._writer.backend.fd
        with naming(self._path):
            file.flush()
            os.fsync(file.fileno())
        with self._path.open("rb") as written:
            header = written.read(_ULM_HEADER)
        length = self._path.stat().st_size
        digest = _digest(self._path, length, header)
        return {"length": length, "digest": digest, "header": base64.b64encode(header).decode()}

    def close(self) -> None:
        try:
            with naming(self._path):
                self._writer.close()
        finally:
            self._held.close()


Trajectory = ExtxyzTrajectory | AseTrajectory


def open_files(output: Output, marks: Mapping[str, Mark]) -> tuple[Trajectory | None, TextFile | None]:
    """The trajectory, by its suffix, and the log, at their marks or as new files.

    Raises InputError, with nothing changed, if one does not match its mark, or another run writes it."""
    trajectory: Trajectory | None = None
    for name, path in (("trajectory", output.trajectory), ("log", output.log)):
        if path is not None:
            _require_same(path, marks.get(name))
    if output.trajectory is not None:
        make = AseTrajectory if output.trajectory.suffix == ".traj" else ExtxyzTrajectory
        trajectory = make(output.trajectory, marks.get("trajectory"))
    with closed_on_error(lambda: close_all(trajectory)):
        return trajectory, None if output.log is None else TextFile(output.log, marks.get("log"))


@contextmanager
def closed_on_error(close: Callable[[], None]) -> Iterator[None]:
    """Closes files on an error within: whoever keeps the error, such as a notebook, keeps no file."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # of the same full disk
            close()
        raise


def close_all(*files: Trajectory | TextFile | None) -> None:
    """Closes every file, even if one cannot write its remaining data."""
    with ExitStack() as closing:
        for file in files:
            if file is not None:
                closing.callback(file.close)


def begins_like(path: Path, whole: Path) -> bool:
    """Whether a file of a run, perhaps cut off anywhere, is the beginning of another file."""
    found, wanted = path.read_bytes(), whole.read_bytes()
    if path.suffix == ".traj":  # numbers of the header are written last
        found, wanted = (data[:24] + data[_ULM_HEADER + 8 :] for data in (found, wanted))
    return wanted.startswith(found)


def hold(path: Path, file: BinaryIO) -> None:
    """Locks an open file against other runs. Raises InputError if one has it, under any name."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(
            f"{path}: another run writes this file, under another name: wait until it ends, or give the files of this "
            "run other names"
        ) from None
    except OSError:
        pass  # some network file systems have no locks


def _opened(path: Path, mark: Mark | None) -> BinaryIO:
    """Locked, for appending at `mark`."""
    file = path.open("ab")
    hold(path, file)
    length = 0 if mark is None else mark["length"]
    if path.stat().st_size > length:
        os.truncate(path, length)
    return file


def _require_same(path: Path, mark: Mark | None) -> None:
    """Raises InputError unless the file is unchanged before the mark."""
    length = 0 if mark is None else mark["length"]
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise InputError(
            f"{path} has {size} bytes, and had {length} when the checkpoint was made: it was moved or changed"
        )
    header = base64.b64decode(mark["header"]) if mark is not None and "header" in mark else None
    if mark is not None and length and _digest(path, length, header) != mark["digest"]:
        raise InputError(
            f"{path} is not what this run wrote before its checkpoint: it belongs to another run, or was "
            "changed. It was left as it is; start again with --overwrite or other names"
        )


def _digest(path: Path, length: int, header: bytes | None = None) -> str:
    """Of the last bytes before `length`. `header`: of an ASE trajectory at that time; its header and table of frames
    change later."""
    first = max(0, length - _TAIL) if header is None else max(_ULM_HEADER, length - _TAIL)
    with path.open("rb") as file:
        file.seek(first)
        data = bytearray(file.read(length - first))
    if header is not None and len(header) == _ULM_HEADER:
        _, frames, table = np.frombuffer(header, "<i8", offset=24).tolist()
        rooms = 1
        while frames > rooms:
            rooms *= N1
        low, high = (min(max(end - first, 0), len(data)) for end in (table, table + 8 * rooms))
        data[low:high] = bytes(high - low)
    return sha256(data).hexdigest()[:16]
