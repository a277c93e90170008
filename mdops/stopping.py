"""Signals that ask a process to end: its work saves its state first."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Launchers (`timeout`, torchrun, Slurm's srun) pass on signals that the process got, too. A signal within this time
# after the first, s, belongs to the same request.
_SAME = 1.0


class Stopped(Exception):
    """Work has saved its state because of a signal, and the process is to end.

    Attributes:
        exit_code: the shells' exit status of a process that the signal ended.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"{signal.Signals(number).name}: {message}")
        self.exit_code = 128 + number


class StopSignal:
    """In a `with`, the first SIGTERM or SIGINT is only noted; a call tells whether there was one. A later signal ends
    the process at once.

    Attributes:
        number: the signal that was noted, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._time = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # no other one may set handlers
            self._before = {
                number: signal.signal(number, self._note)
                for number in _SIGNALS
                # Ignored ones stay so (nohup), and those of handlers that Python cannot restore.
                if signal.getsignal(number) not in (signal.SIG_IGN, None)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.number is not None

    def stopped(self, message: str) -> Stopped:
        """The error to raise once the state is saved; without a signal, another process had got one, SIGTERM."""
        return Stopped(self.number or signal.SIGTERM, message)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._time = number, now
        elif now - self._time > _SAME:
            before = self._before[number]
            signal.signal(number, before)
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)
