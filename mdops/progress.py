"""Shows the progress of a long run: a bar on a terminal, otherwise a line from time to time."""

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

_BAR_EVERY, _LINE_EVERY = 0.2, 15.0  # s

Self = TypeVar("Self", bound="StepProgress")


def tell_restart(first: int, last: int) -> None:
    """Prints on stderr from which step a run continues, if `first` of its `last` steps are done."""
    if first:
        print(f"continuing from step {first} of {last}", file=sys.stderr, flush=True)


class StepProgress:
    """Shows steps, remaining time and messages of a run on stderr; used in a `with`.

    A run calls `show` after each step for which `is_due` is true.

    Attributes:
        times: the lowest number of times to show, also in a short run.
    """

    times = 0

    def __init__(self, first: int, last: int, unit: str = "step") -> None:
        """The number of steps already done, the number in the whole run, and the name of a step."""
        self.first, self.last, self._unit = first, last, unit
        console = Console(stderr=True)
        self._bar = _Bar(console, first, last, unit) if console.is_terminal else None
        self._start = self._shown = time.perf_counter()
        self._shown_step = first

    def __enter__(self: Self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """Time since the run began."""
        return max(time.perf_counter() - self._start, 1e-9)

    def is_due(self, step: int) -> bool:
        """Whether the last output is long enough ago, or this is the last step."""
        pause = _LINE_EVERY if self._bar is None else _BAR_EVERY
        if self.times and (step - self._shown_step) * self.times >= self.last - self.first:
            return True
        return step >= self.last or time.perf_counter() - self._shown >= pause

    def show(self, step: int, status: str, above: str = "") -> None:
        """Shows the number of steps done, `status` beside the bar, and the line `above` it."""
        self._shown, self._shown_step = time.perf_counter(), step
        if self._bar is not None:
            self._bar.show(step, status, above)
            return
        left = self.seconds / max(step - self.first, 1) * (self.last - step)
        parts = [f"{self._unit} {step}/{self.last}", above, status, f"{left:.0f} s left"]
        print("  ".join(part for part in parts if part), file=sys.stderr, flush=True)


class _Bar(Progress):
    """The bar, with a line of text above it."""

    def __init__(self, console: Console, first: int, last: int, unit: str) -> None:
        self._above = Text()
        super().__init__(
            BarColumn(),
            TextColumn(unit + " {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=5,
        )
        self._only = self.add_task("", total=last, completed=first, status="")

    def show(self, step: int, status: str, above: str) -> None:
        self._above = Text(above)
        self.update(self._only, completed=step, status=status)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._above:
            yield self._above
        yield from super().get_renderables()
