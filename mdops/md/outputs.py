"""Trajectory and log files that can be cut back to where a checkpoint saw them."""

import base64
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import ase.io
from ase import Atoms
from ase.io.trajectory import TrajectoryWriter

from mdops.errors import InputError

Mark = dict[str, Any]

_ULM_HEADER = 48  # bytes: tag, version, number of frames, place of the table of frames


class TextFile:
    """Text that is appended in whole pieces."""

    def __init__(self, path: Path, mark: Mark | None) -> None:
        """Opens at `mark`, cutting off what came after it; anew without one."""
        _cut_back(path, mark)
        self._file: BinaryIO = path.open("ab")

    def write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()

    def mark(self) -> Mark:
        """The place reached, all before it being on the disk."""
        os.fsync(self._file.fileno())
        return {"length": self._file.seek(0, os.SEEK_END)}

    def close(self) -> None:
        self._file.close()


class ExtxyzTrajectory(TextFile):
    """Frames in extended XYZ."""

    def write_frame(self, atoms: Atoms) -> None:
        buffer = io.StringIO()
        ase.io.write(buffer, atoms, format="extxyz")
        self.write(buffer.getvalue())


class AseTrajectory:
    """Frames in ASE's .traj, whose header counts them: a mark has the header too."""

    def __init__(self, path: Path, mark: Mark | None) -> None:
        _cut_back(path, mark)
        self._path = path
        if mark is not None and mark["length"]:
            with path.open("r+b") as file:
                file.write(base64.b64decode(mark["header"]))
        self._writer = TrajectoryWriter(str(path), "a")

    def write_frame(self, atoms: Atoms) -> None:
        self._writer.write(atoms)

    def mark(self) -> Mark:
        file = self._writer.backend.fd
        file.flush()
        os.fsync(file.fileno())
        with self._path.open("rb") as written:
            header = written.read(_ULM_HEADER)
        return {"length": self._path.stat().st_size, "header": base64.b64encode(header).decode()}

    def close(self) -> None:
        self._writer.close()


def open_trajectory(path: Path, mark: Mark | None) -> ExtxyzTrajectory | AseTrajectory:
    """A trajectory, by the ending of its name, at `mark` or anew."""
    return AseTrajectory(path, mark) if path.suffix == ".traj" else ExtxyzTrajectory(path, mark)


def _cut_back(path: Path, mark: Mark | None) -> None:
    length = 0 if mark is None else mark["length"]
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise InputError(
            f"{path} has {size} bytes, and had {length} when the checkpoint was made: it was moved or changed"
        )
    if size > length:
        os.truncate(path, length)
