"""How a training shows that it goes on: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mdops.train.trainer import Report

_BAR_EVERY, _LINE_EVERY = 0.2, 15.0  # s
_SHOWN = {  # factor and unit of each RMSE
    "energy": (1000, "meV/atom"),
    "forces": (1, "eV/A"),
    "virial": (1000, "meV/atom"),
    "atom_energy": (1000, "meV"),
}


def describe(errors: Mapping[str, float]) -> str:
    """The root of the loss, and the RMSEs of a report, in one line."""
    parts = [f"loss {errors['loss']:.3g}"]
    for name, (factor, unit) in _SHOWN.items():
        if name in errors:
            parts.append(f"{name} {factor * errors[name]:.3g} {unit}")
    return ", ".join(parts)


class TrainingProgress:
    """Shows step, loss, RMSEs, speed and time left on stderr; used in a `with`.

    Attributes:
        latest: the last report, None before the first.
    """

    def __init__(self, first: int, last: int) -> None:
        """Steps done already, and steps of the whole training."""
        self._first, self._last = first, last
        console = Console(stderr=True)
        self._bar = _Bar(console, first, last) if console.is_terminal else None
        self._begin = self._shown = time.perf_counter()
        self.latest: Report | None = None

    def __enter__(self) -> "TrainingProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, report: Report) -> None:
        """Takes the errors to show from now on."""
        self.latest = report

    def update(self, step: int) -> None:
        """After each step; shows it if the last showing is long enough ago."""
        now = time.perf_counter()
        if now - self._shown < (_LINE_EVERY if self._bar is None else _BAR_EVERY) and step < self._last:
            return
        self._shown = now
        speed = (step - self._first) / max(now - self._begin, 1e-9)
        if self._bar is not None:
            self._bar.show(step, f"{speed:.3g} steps/s", self._told())
        else:
            left = f"{speed:.3g} steps/s  {(self._last - step) / speed:.0f} s left"
            print(f"step {step}/{self._last}  {self._told()}  {left}", file=sys.stderr, flush=True)

    def _told(self) -> str:
        """The latest errors: those of validation where there is one."""
        if self.latest is None:
            return ""
        if self.latest.validation is not None:
            return f"validation: {describe(self.latest.validation)}"
        return f"training: {describe(self.latest.training)}"


class _Bar(Progress):
    """The bar, with a line of errors above it."""

    def __init__(self, console: Console, first: int, last: int) -> None:
        self._told = Text()
        super().__init__(
            BarColumn(),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=5,
        )
        self._only = self.add_task("", total=last, completed=first, speed="")

    def show(self, step: int, speed: str, told: str) -> None:
        self._told = Text(told)
        self.update(self._only, completed=step, speed=speed)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._told:
            yield self._told
        yield from super().get_renderables()
