"""Messages of a long run: the stage, calls made, time spent and left; on stderr and in learn.log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mdops.learn.config import Config
from mdops.learn.rounds import Summary


class Told:
    """Lines with the time of day, for people."""

    def __init__(self, top: Path, config: Config) -> None:
        self._path, self._config, self._begun = top / "learn.log", config, time.perf_counter()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def stage(self, what: str, done: list[Summary], calls: int) -> None:
        """A line before a stage; `calls`: number made so far."""
        spent = f"{calls} of {self._config.budget.calls} calls spent"
        passed = (time.perf_counter() - self._begun) / 60
        left = seconds_left(self._config, done)
        more = "" if left is None else f", about {max(left / 60, 0.1):.1f} min left"
        self.say(f"round {len(done)}: {what}; {spent}, {passed:.1f} min{more}")


def seconds_left(config: Config, done: list[Summary]) -> float | None:
    """Estimated time to the end if the whole budget is used, from earlier rounds; None before the first exploration."""
    last = done[-1] if done else None
    if last is None or last.kind != "explore":
        return None
    calls = config.budget.calls - sum(s.calls for s in done) - config.targets.frames
    rounds = min(
        max(calls // (config.select.frames + config.select.fresh), 0),
        config.budget.rounds - sum(s.kind == "explore" for s in done),
    )
    each = sum(last.seconds.values())
    longer = last.seconds.get("training", 0.0) * config.students.final_steps / config.students.steps
    return rounds * each + longer + each - last.seconds.get("training", 0.0)


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the time of a stage."""
    start = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
