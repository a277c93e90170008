"""Datasets in LMDB, in the layout of DeePMD-kit: a record of msgpack for each frame, of any number of atoms, and one
that says what is there. They need the packages lmdb and msgpack."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mdops.data.frame_set import FrameSet
from mdops.data.labels import LABELS, PARAMETERS, Labels, is_of_frame
from mdops.errors import DataError, InputError

HEAD = b"__metadata__"
_CHUNK = 1024  # frames of a block
# DeePMD-kit's names of what a record holds, and others that it takes for them.
_OTHERS = {
    "coords": "coord", "cells": "box", "energies": "energy", "forces": "force", "atom_types": "atype",
    "virials": "virial",
}  # fmt: skip


def is_lmdb(path: Path) -> bool:
    """Whether it is such a dataset, by its name or by what is in the folder."""
    return path.suffix == ".lmdb" or (path / "data.mdb").is_file()


def read_lmdb(path: Path, type_map: list[str], known: Labels = LABELS) -> Iterator[FrameSet]:
    """The frames in their order, in blocks of one number of atoms and the same labels. Frames of one number of atoms
    are a system of their own, as for batches of DeePMD-kit.

    Raises:
        InputError: the packages that it needs are not installed.
        DataError: it is not such a dataset, or is damaged; the message names the frame.
    """
    with _Reader(path) as reader:
        index = _index(reader, type_map)
        block: list[_Frame] = []
        for number in range(reader.frames):
            frame = _Frame(reader, number, index, known)
            if block and (frame.key != block[0].key or len(block) == _CHUNK):
                yield _joined(path, block)
                block = []
            block.append(frame)
        if block:
            yield _joined(path, block)


def elements_of_lmdb(path: Path) -> list[str]:
    """Its own type map; without one, its types' numbers in order."""
    with _Reader(path) as reader:
        if reader.elements is not None:
            return reader.elements
        most = max(
            int(reader.array(k, reader.record(k), "atype").max(initial=0)) for k in range(reader.frames)
        )
        return [str(t) for t in range(most + 1)]


def systems_of_lmdb(path: Path) -> np.ndarray | None:
    """For each frame, the number of the system that it came from; None if the dataset does not tell."""
    with _Reader(path) as reader:
        found = reader.systems
        if found is None:
            return None
        if len(found) != reader.frames or any(type(n) is not int or n < 0 for n in found):
            raise DataError(f"{path}: frame_system_ids are not numbers of systems, one for each frame")
        return np.array(found, np.int64)


def packages() -> tuple[Any, Any]:
    """The modules lmdb and msgpack. Raises InputError, with what to do, where they are not installed."""
    try:
        import lmdb
        import msgpack
    except ImportError as error:
        raise InputError(
            f"datasets in LMDB need two more packages: pip install lmdb msgpack ({error})"
        ) from error
    return lmdb, msgpack


class _Reader:
    """An open dataset: how many `frames` it has, the `elements` of its types and the `systems` of its frames if it has
    them, and the records."""

    def __init__(self, path: Path) -> None:
        lmdb, self._msgpack = packages()
        self.path, self._error = path, lmdb.Error
        if not (path / "data.mdb").is_file():
            raise DataError(f"{path}: is not an LMDB database: it has no data.mdb")
        try:
            self._file = lmdb.open(str(path), readonly=True, lock=False, readahead=True)
            last, page = self._file.info()["last_pgno"], self._file.stat()["psize"]
        except lmdb.Error as error:
            raise DataError(f"{path}: is not an LMDB database, or is damaged: {error}") from None
        # What is behind the end of the file would end the process when it is read.
        if (path / "data.mdb").stat().st_size < (last + 1) * page:
            self._file.close()
            raise DataError(f"{path}: is truncated: data.mdb lacks pages that it refers to")
        self._transaction = self._file.begin()
        head = self._unpacked(HEAD, "__metadata__")
        frames, self._format = head.get("nframes"), head.get("frame_idx_fmt", "012d")
        self.elements, self.systems = head.get("type_map"), head.get("frame_system_ids")
        names = self.elements
        if names is not None and not (
            isinstance(names, list) and names and all(isinstance(n, str) for n in names)
        ):
            raise DataError(f"{path}: its type_map is {names!r}, expected elements")
        if type(frames) is not int or frames < 1 or not isinstance(self._format, str):
            raise DataError(f"{path}: __metadata__ tells of {frames!r} frames")
        self.frames: int = frames

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._transaction.abort()
        self._file.close()

    def record(self, number: int) -> dict[str, Any]:
        """What is said of a frame, by DeePMD-kit's names."""
        try:
            key = format(number, self._format).encode()
        except ValueError:
            raise DataError(
                f"{self.path}: frame_idx_fmt is {self._format!r}, expected a format of numbers"
            ) from None
        found = {}
        for name, value in self._unpacked(key, f"frame {number}").items():
            name = _OTHERS.get(name, name)
            for short in ("find_", ""):
                name = (
                    name.replace(f"{short}atomic_", f"{short}atom_")
                    if name.startswith(f"{short}atomic_")
                    else name
                )
            found[name] = value
        return found

    def _unpacked(self, key: bytes, what: str) -> dict[str, Any]:
        try:
            raw = self._transaction.get(key)
        except self._error as error:
            raise DataError(f"{self.path}: {what} cannot be read: {error}") from None
        if raw is None:
            raise DataError(f"{self.path}: has no {what}")
        try:
            found = self._msgpack.unpackb(raw, raw=False, strict_map_key=False)
        except Exception as error:
            # msgpack has no base of its errors, and some are those of Python.
            raise DataError(f"{self.path}: {what} is not a record of msgpack: {error}") from None
        if not isinstance(found, dict):
            raise DataError(f"{self.path}: {what} is {type(found).__name__}, expected names and values")
        return {name: value for name, value in found.items() if isinstance(name, str)}

    def array(self, number: int, record: dict[str, Any], name: str) -> np.ndarray:
        """A value of a record. Raises DataError if it is missing, or no numbers."""
        value = record.get(name)
        if isinstance(value, dict):
            said = {key.decode() if isinstance(key, bytes) else key: part for key, part in value.items()}
            try:
                dtype = np.dtype(said["type"])
                if dtype.kind not in "fiu":
                    raise TypeError(f"{dtype} is not a type of numbers")
                flat = np.frombuffer(said["data"], dtype)
                return flat.reshape([int(n) for n in said["shape"]] if "shape" in said else -1)
            except (KeyError, TypeError, ValueError, SyntaxError) as error:
                raise DataError(f"{self.path}, frame {number}: {name} is not an array: {error}") from None
        if isinstance(value, int | float):
            return np.array([value], np.float64)
        raise DataError(
            f"{self.path}, frame {number}: {name} is {'missing' if value is None else 'no array'}"
        )


def _index(reader: _Reader, type_map: list[str]) -> np.ndarray | None:
    """The model's type of each of the dataset's own, -1 of those that it lacks; None where they are the model's."""
    if reader.elements is None:
        return None
    return np.array([type_map.index(name) if name in type_map else -1 for name in reader.elements], np.int32)


class _Frame:
    """A record as arrays of the right shapes."""

    def __init__(self, reader: _Reader, number: int, index: np.ndarray | None, known: Labels) -> None:
        record, place = reader.record(number), f"{reader.path}, frame {number}"
        own = reader.array(number, record, "atype").reshape(-1).astype(np.int64)
        self.number, self.types, atoms = number, own.astype(np.int32), len(own)
        if index is not None:
            elements = reader.elements or []
            if ((own < -1) | (own >= len(index))).any():
                wrong = own[(own < -1) | (own >= len(index))][0]
                raise DataError(
                    f"{place}: has an atom of type {wrong}, and type_map has {len(index)} elements"
                )
            self.types = np.append(index, np.int32(-1))[own]
            lost = (self.types < 0) & (own >= 0)
            if lost.any():
                raise DataError(
                    f"{place}: has {elements[int(own[lost][0])]}, which the model's type_map lacks"
                )

        def shaped(name: str, shape: tuple[int, ...]) -> np.ndarray:
            array = reader.array(number, record, name)
            if array.size != int(np.prod(shape)):
                raise DataError(f"{place}: {name} has shape {array.shape}, expected {atoms} atoms: {shape}")
            return array.reshape(shape).astype(np.float64)

        self.positions = shaped("coord", (atoms, 3))
        box = record.get("box")
        self.cell = np.zeros((3, 3)) if box is None else shaped("box", (3, 3))
        self.periodic = bool(self.cell.any())
        self.labels: dict[str, np.ndarray] = {}
        files = {name: label.name for label in known.values() for name in label.files}
        for name, label in (files | {n: n for n in PARAMETERS}).items():
            found = record.get(f"find_{name}", 1.0)
            if record.get(name) is None or (isinstance(found, int | float) and not found):
                continue
            if label in known:
                if known[label].of_pairs:
                    matrix = shaped(name, (3 * atoms, 3 * atoms))
                    self.labels[label] = matrix.reshape(atoms, 3, atoms, 3).swapaxes(1, 2).reshape(-1, 3, 3)
                    continue
                values = reader.array(number, record, name).size
                self.labels[label] = shaped(name, known[label].shape_of(values, atoms))
            else:
                array = reader.array(number, record, name).astype(np.float64)
                whole = is_of_frame(label, known)
                width = array.size if whole else array.size // max(atoms, 1)
                self.labels[label] = shaped(name, (width,) if whole else (atoms, width))

    @property
    def key(self) -> tuple[Any, ...]:
        """What frames of one block share."""
        shapes = [(name, array.shape) for name, array in sorted(self.labels.items())]
        return len(self.types), self.periodic, *shapes


def _joined(path: Path, block: list[_Frame]) -> FrameSet:
    first = block[0]
    return FrameSet(
        f"{path} ({len(first.types)} atoms)",
        str(path),
        first.number,
        np.stack([frame.positions for frame in block]),
        np.stack([frame.types for frame in block]),
        np.stack([frame.cell for frame in block]),
        np.full(3, first.periodic),
        {name: np.stack([frame.labels[name] for frame in block]) for name in first.labels},
    )
