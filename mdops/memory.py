"""The memory of this process: how much there is, and what becomes of freed parts."""

import contextlib
import ctypes
import os
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_KEPT, _LARGEST = 1 << 30, 32 << 20  # bytes; the latter is what glibc takes at most
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory() -> int:
    """The machine's memory, or its container's if that is less, in bytes."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        machine = min(machine, int(_CGROUP.read_text(encoding="ascii")))
    return machine


def keep_freed_memory() -> None:
    """Lets the C library keep up to 1 GiB that was freed, for what is allocated next.

    A training step, and one of a model that passes messages, allocates and frees the same tensors again and again.
    glibc returns such memory to the system, whose fresh pages then cost a tenth of a step. Other C libraries are left
    as they are.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
