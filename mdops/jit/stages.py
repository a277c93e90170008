"""The stages recorded by kernels that were built with the profiler (source/op/common/profiler.h)."""

import ctypes
from pathlib import Path

import numpy as np

from mdops.errors import JitError

_EVENT = np.dtype([("begin", "i8"), ("end", "i8"), ("stage", "i4"), ("thread", "i4")])
_Record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
_Events = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class KernelTable(ctypes.Structure):
    """The table of a library of rebuilt kernels, as in source/op/common/kernel_table.h."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("family", ctypes.c_char_p),
        ("stages", ctypes.POINTER(ctypes.c_char_p)),
        ("record", _Record),
        ("events", _Events),
    ]


def kernel_table(library: Path) -> KernelTable:
    """The table of a library, which is loaded if necessary."""
    function = ctypes.CDLL(str(library)).mdops_kernel_table
    function.restype = ctypes.POINTER(KernelTable)
    return function().contents


class Stages:
    """The recorder in a library that was built with the profiler."""

    def __init__(self, library: Path) -> None:
        self._table = kernel_table(library)
        if not self._table.stages:
            raise JitError(f"{library} was built without the profiler")
        self.names: list[str] = []
        while (name := self._table.stages[len(self.names)]) is not None:
            self.names.append(name.decode())

    def record(self, most: int) -> None:
        """Records the next `most` stages; 0 ends the recording."""
        if self._table.record(most):
            raise JitError(f"no memory to record {most} stages")

    def events(self) -> np.ndarray:
        """The recorded stages: begin and end (ns), stage (index of its name), thread."""
        count = self._table.events(None, 0)
        found = np.zeros(count, _EVENT)
        self._table.events(found.ctypes.data, count)
        return found
