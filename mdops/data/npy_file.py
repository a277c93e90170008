"""Arrays in .npy files, of which few are open at a time."""

import math
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mdops.errors import DataError

_SMALL = 1 << 16  # bytes of a file that is read at once
_MAPPED = 32  # files


def read_npy(path: Path) -> Any:
    """The array of a small file; of a larger one a `NpyArray`.

    Raises DataError if it is no file of real numbers."""
    try:
        is_small = path.stat().st_size <= _SMALL
        array = np.load(path, mmap_mode=None if is_small else "r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        # NumPy takes whatever is no .npy file for a pickle, and tells how to open that.
        what = "it is no .npy file of numbers, or damaged" if "ickle" in str(error) else error
        raise DataError(f"{path}: {what}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim == 0:
        kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) and array.ndim else "no array"
        raise DataError(f"{path}: holds {kind}, expected an array of real numbers")
    return array if is_small else NpyArray(_Map(path, array), 0, array.shape)


class _Map:
    """A file that is mapped into memory while it is among the last ones that were used."""

    _last: ClassVar["deque[_Map]"] = deque()

    def __init__(self, path: Path, array: np.ndarray) -> None:
        self.path = path
        self._array: np.ndarray | None = array
        self._keep()

    def _keep(self) -> None:
        self._last.append(self)
        while len(self._last) > _MAPPED:
            self._last.popleft()._array = None

    def array(self) -> np.ndarray:
        found = self._array
        if found is None:
            try:
                found = self._array = np.load(self.path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise DataError(f"{self.path}: changed while it was read: {error}") from None
            self._keep()
        return found


class NpyArray:
    """Successive rows of an array in a file. Processes may not have as many files open, or maps, as there are systems
    in large data: so slices and reshaped arrays are of this kind, too, and other indices read the numbers."""

    def __init__(self, file: _Map, start: int, shape: tuple[int, ...]) -> None:
        self._file, self._start, self.shape = file, start, shape

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def reshape(self, *shape: int) -> "NpyArray":
        """Of a whole array."""
        return NpyArray(self._file, self._start, shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        rows = self._file.array().reshape(-1, *self.shape[1:])[self._start : self._start + len(self)]
        return np.array(rows, dtype=dtype) if copy else np.asarray(rows, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return NpyArray(self._file, self._start + start, (max(stop - start, 0), *self.shape[1:]))
        return np.asarray(self)[key]
