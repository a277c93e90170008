"""The memory of this process: its size, and what happens to freed memory."""

import contextlib
import ctypes
import os
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_KEPT, _LARGEST = 1 << 30, 32 << 20  # bytes; the latter is glibc's maximum
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory() -> int:
    """The machine's memory, or its container's limit if that is lower, in bytes."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # there is no container, or it has no limit ("max")
        machine = min(machine, int(_CGROUP.read_text(encoding="ascii")))
    return machine


def keep_freed_memory() -> None:
    """Lets the C library keep up to 1 GiB of freed memory for later allocations.

    A training step, or a step of a model that passes messages, allocates and frees the same tensors again and again.
    glibc returns such memory to the system, and the fresh pages then take a tenth of a step. Other C libraries are not
    changed.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
