"""Arrays in memory, or in files mapped into it when there is much."""

import math
import os
import tempfile
from typing import Any

import numpy as np

from mdops.errors import DataError
from mdops.memory import memory

# A training has four of these: data and neighbour lists, to train on and to validate.
_SHARE = 1 / 8
_ALIGNED = 64  # bytes
_MORE = 4  # a new file is at least this part of the earlier ones


def default_limit() -> int:
    """An eighth of the memory, in bytes, divided by the processes of a training on this machine."""
    return int(memory() * _SHARE) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class Storage:
    """Gives out arrays: in memory up to `limit` bytes in all, beyond it mapped from files in `folder`.

    A file holds several arrays, as a process may not have many files open. The files have no names: they are gone when
    the process ends, however it ends.
    """

    def __init__(self, limit: int | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        """`limit` is `default_limit()` by default.

        `folder`: where mapped files go; the system's folder for temporary files (TMPDIR) by default.
        """
        self.limit, self.folder, self.used = default_limit() if limit is None else limit, folder, 0
        self._free = np.empty(0, np.uint8)  # of the last file
        self._mapped = 0  # bytes of all files

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of zeros. Raises DataError if the disk has no room for it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self.used += size
        if self.used <= self.limit or size == 0:
            return np.zeros(shape, dtype)
        room = -(-size // _ALIGNED) * _ALIGNED
        if room > len(self._free):
            more = max(room, self._mapped // _MORE)
            self._free, self._mapped = self._file(more), self._mapped + more
        found, self._free = self._free[:size], self._free[room:]
        return found.view(dtype).reshape(shape)

    def _file(self, size: int) -> np.ndarray:
        """The bytes of a new file."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            try:
                # All of its blocks now: a full disk would end the process at the first write into the map.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise DataError(
                    f"{self.folder or tempfile.gettempdir()}: no room for {size / 2**30:.2f} GiB of training data "
                    f"({error.strerror}); TMPDIR in the environment names another folder"
                ) from None
            return np.memmap(file, np.uint8, "w+", shape=(size,))
