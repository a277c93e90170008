"""How a run shows that it goes on: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_BAR_EVERY, _LINE_EVERY = 0.2, 15.0  # s


def ns_per_day(steps: int, timestep: float, seconds: float) -> float:
    """Takes the time step in fs."""
    return steps * timestep * 1e-6 * 86400 / seconds if seconds > 0 else 0.0


class Reporter:
    """Shows step, time, temperature, speed and time left on stderr; used in a `with`."""

    def __init__(self, first: int, last: int, timestep: float) -> None:
        """Steps done already, steps of the whole run, and fs a step."""
        self._first, self._last, self._timestep = first, last, timestep
        console = Console(stderr=True)
        self._bar = _bar(console) if console.is_terminal else None
        self._begin = self._shown = time.perf_counter()
        self._task = None
        if self._bar is not None:
            self._task = self._bar.add_task("", total=last, completed=first, told="")

    def __enter__(self) -> "Reporter":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, temperature: float) -> None:
        """After each step; shows it if the last showing is long enough ago."""
        now = time.perf_counter()
        if now - self._shown < (_LINE_EVERY if self._bar is None else _BAR_EVERY) and step < self._last:
            return
        self._shown = now
        told = (
            f"{step * self._timestep / 1000:.3f} ps  {temperature:.0f} K  "
            f"{ns_per_day(step - self._first, self._timestep, now - self._begin):.3g} ns/day"
        )
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, told=told)
        else:
            left = (now - self._begin) / max(step - self._first, 1) * (self._last - step)
            print(f"step {step}/{self._last}  {told}  {left:.0f} s left", file=sys.stderr, flush=True)


def _bar(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=5,
    )
