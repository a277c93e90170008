"""DeePMD-kit's native model file: HDF5 with the tree as JSON in one attribute, and a dataset for every array."""

import io
import itertools
import json
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from mdops.errors import ModelFileError
from mdops.io.hdf5_classic import ClassicFile
from mdops.io.model_file import ModelFile
from mdops.io.serialized import header_of, model_file_from
from mdops.io.tree import Budget, mapping

SIGNATURE = b"\x89HDF\r\n\x1a\n"


class _Hdf5(Protocol):
    def text(self, name: str) -> str | None: ...
    def array(self, name: str) -> tuple[np.ndarray, int | None] | None: ...


def read_hdf5(path: Path) -> ModelFile:
    """Read a `.dp` (also named `.hlf` or `.hlo`) file. Raises ModelFileError.

    The classic layout, which has no checksums, is read by a reader of our own; the later ones, which have
    checksums over all their structure, by h5py.
    """
    data = path.read_bytes()
    stated = _stated_length(data)
    if stated > len(data):
        raise ModelFileError(f"it is cut short: {len(data)} of {stated} bytes are there")
    if data[8:9] in (b"\0", b"\1"):
        return _read(ClassicFile(data), len(data))
    with h5py.File(path, "r") as file:
        return _read(_LaterFile(file, len(data)), len(data))


def encode_hdf5(model: dict[str, Any], source: dict[str, Any]) -> memoryview:
    """The bytes of a `.dp` file, in the classic layout. Raises ModelFileError for data that it cannot hold."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=("earliest", "v108")) as file:
        header = _with_datasets(header_of(model, source), "", file, itertools.count(), False)
        file.attrs["json"] = json.dumps(header, separators=(",", ":"))
    return buffer.getbuffer()


def _with_datasets(
    node: Any, place: str, file: h5py.File, numbers: "itertools.count[int]", below_variables: bool
) -> Any:
    """The tree with the name of a new dataset in place of every array."""
    if isinstance(node, dict):
        return {
            key: _with_datasets(
                value, f"{place}.{key}".strip("."), file, numbers, below_variables or key == "@variables"
            )
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [
            _with_datasets(v, f"{place}[{i}]", file, numbers, below_variables) for i, v in enumerate(node)
        ]
    if below_variables and node is not None:
        array = np.asarray(node)
        if array.dtype.kind not in "fiu":
            raise ModelFileError(f"{place} holds {array.dtype}, which .dp files cannot store")
        return file.create_dataset(f"variable_{next(numbers):04d}", data=array).name
    if isinstance(node, np.ndarray):
        raise ModelFileError(f"{place} is an array outside of '@variables', which .dp files cannot store")
    return node


def _stated_length(data: bytes) -> int:
    """The length of the file by its superblock (0 where it is not known)."""
    offset = {0: 40, 1: 44, 2: 28, 3: 28}.get(data[8] if len(data) > 8 else -1)
    if offset is None:
        return 0
    return int.from_bytes(data[offset : offset + 8].ljust(8, b"\xff"), "little")


def _read(file: _Hdf5, size: int) -> ModelFile:
    text = file.text("json")
    if text is None:
        raise ModelFileError("it is an HDF5 file, but not a model of DeePMD-kit: it has no attribute 'json'")
    header = mapping(json.loads(text), "the attribute 'json'")
    return model_file_from(header, _Datasets(file), Budget(size), "HDF5 (.dp)")


class _Datasets:
    """Reads the datasets that the tree names, and checks that no two share bytes.

    The classic layout has no checksums: a changed address would silently give another dataset's numbers.
    """

    def __init__(self, file: _Hdf5) -> None:
        self.file = file
        self.spans: list[tuple[int, int]] = []

    def __call__(self, name: Any, place: str) -> np.ndarray:
        if not isinstance(name, str):
            raise ModelFileError(f"{place} should name a dataset, and is {name!r}")
        found = self.file.array(name)
        if found is None:
            raise ModelFileError(f"{place} names the dataset {name}, which is not there")
        array, start = found
        if start is not None:
            end = start + array.nbytes
            if any(start < other_end and other_start < end for other_start, other_end in self.spans):
                raise ModelFileError(f"{place} ({name}) shares bytes with another dataset")
            self.spans.append((start, end))
        return array


class _LaterFile:
    """A file in a later layout, through h5py."""

    def __init__(self, file: h5py.File, size: int) -> None:
        self.file = file
        self.bytes_left = (
            8 * size + 2**20
        )  # compressed datasets may be longer than the file, but not without bound

    def text(self, name: str) -> str | None:
        value = self.file.attrs.get(name)
        return value if isinstance(value, str) else None

    def array(self, name: str) -> tuple[np.ndarray, int | None] | None:
        dataset = self.file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            return None
        if dataset.dtype.kind not in "fiub":
            raise ModelFileError(f"the dataset {name} holds {dataset.dtype}, not numbers")
        self.bytes_left -= dataset.nbytes
        if self.bytes_left < 0:
            raise ModelFileError(f"the dataset {name} states more data than the file can hold")
        array = np.asarray(dataset[()])
        start = dataset.id.get_offset() if array.nbytes else None
        return array.astype(array.dtype.newbyteorder("="), copy=False), start
