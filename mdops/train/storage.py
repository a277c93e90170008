"""Arrays in memory, or in files mapped into it when there is much."""

import math
import os
import tempfile
from typing import Any

import numpy as np

DEFAULT_LIMIT = 4 * 2**30


class Storage:
    """Gives out arrays: in memory up to `limit` bytes in all, beyond it mapped from files in `folder`.

    The files have no names: they are gone when the process ends, however it ends.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT, folder: str | os.PathLike[str] | None = None) -> None:
        """`folder`: where mapped files go; the system's folder for temporary files unless told."""
        self.limit, self.folder, self.used = limit, folder, 0

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of zeros."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self.used += size
        if self.used <= self.limit or size == 0:
            return np.zeros(shape, dtype)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            return np.memmap(file, dtype, "w+", shape=shape)
