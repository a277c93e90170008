"""How much memory there is for this process."""

import contextlib
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory() -> int:
    """The machine's memory, or its container's if that is less, in bytes."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        machine = min(machine, int(_CGROUP.read_text()))
    return machine
