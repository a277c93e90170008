"""One GPU shared by tests in several processes: most run side by side, those that fill its memory alone."""

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / f"mdops-gpu-tests-{os.getuid()}"


@contextmanager
def gpu_lock(*, alone, folder=FOLDER):
    """While this lasts, no test runs that is alone, or none at all if this one is."""
    folder.mkdir(exist_ok=True)
    with (folder / "gate").open("w") as gate, (folder / "gpu").open("w") as gpu:
        # Who waits to be alone holds the gate: no other gets in before it.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(gpu, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
