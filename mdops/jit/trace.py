"""Spans of time on tracks: a file for Perfetto or chrome://tracing, and a table of where the time went."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Processes. If several are busy, only the last one counts: those before it wait for it, or surround it.
AROUND, HOST, GPU = 0, 1, 2
_MOST_ROWS, _LONGEST_NAME = 30, 60  # of a table


@dataclass(frozen=True)
class Span:
    """An activity of a thread, or of a GPU's warp, from begin to end, ns. Spans of a track are nested or disjoint."""

    name: str
    begin: int
    end: int
    track: tuple[int, int]  # process and thread, as in the file


@dataclass(frozen=True)
class Record:
    """The profile of some steps.

    Attributes:
        spans: of all steps.
        steps: their number.
        total: their time from another clock, ns: Python's around each step, or CUDA's events.
        search: the time of a neighbour search, ns, if one is due.
        windows: begin and end of each step from Python's clock, ns; empty for replays of a CUDA graph.
        text: the trace as a file, if another program made it.
        bare: the time of a step without the profiler, ns, if profiling may take time.
    """

    spans: list[Span]
    steps: int
    total: float
    search: float
    windows: Sequence[tuple[int, int]] = ()
    text: bytes = b""
    bare: float | None = None


def as_text(spans: Iterable[Span], processes: dict[int, str]) -> bytes:
    """JSON in Chrome's trace format, for ui.perfetto.dev. Times begin with the first span."""
    ordered = sorted(spans, key=lambda s: (s.begin, -s.end))
    start = ordered[0].begin if ordered else 0
    events: list[dict] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in processes.items()
    ]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "ts": (span.begin - start) / 1000,  # us
            "dur": (span.end - span.begin) / 1000,
            "pid": span.track[0],
            "tid": span.track[1],
        }
        for span in ordered
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode()


def shares(spans: Sequence[Span]) -> dict[str, int]:
    """The wall time of each name, ns. Every moment is divided equally among the innermost spans of all busy tracks of
    the process with the highest number. The sum is the time in which any track was busy."""
    stacks: dict[tuple[int, int], list[str]] = {}
    busy_of: dict[int, Counter[str]] = {process: Counter() for process in (GPU, HOST, AROUND)}
    found: dict[str, float] = {}
    # At the same moment, ends come before begins; inner ends come before outer ones, outer begins before inner ones.
    moments = [(s.end, 0, -s.begin, s) for s in spans if s.end > s.begin]
    moments += [(s.begin, 1, -s.end, s) for s in spans if s.end > s.begin]
    before = 0
    for time, begins, _, span in sorted(moments, key=lambda m: m[:3]):
        now = next(filter(None, busy_of.values()), None)
        if time > before and now is not None:
            part = (time - before) / now.total()
            for name, count in now.items():
                found[name] = found.get(name, 0.0) + part * count
        before = time
        stack, busy = stacks.setdefault(span.track, []), busy_of[span.track[0]]
        if stack:
            _drop(busy, stack[-1])
        if begins:
            stack.append(span.name)
        else:
            stack.remove(span.name) if stack[-1] != span.name else stack.pop()
        if stack:
            busy[stack[-1]] += 1
    return {name: round(time) for name, time in found.items()}


def _drop(busy: "Counter[str]", name: str) -> None:
    busy[name] -= 1
    if not busy[name]:
        del busy[name]


def table(spans: Sequence[Span], steps: int, total: float, kind: str = "stage") -> str:
    """Where the time went, one line per name: milliseconds, share of a step, and occurrences in a step. After the first
    names, the rest shares a line."""
    counts = Counter(span.name for span in spans)
    rows = [
        (_short(name), time, counts[name])
        for name, time in sorted(shares(spans).items(), key=lambda row: -row[1])
    ]
    covered, others = sum(time for _, time, _ in rows), rows[_MOST_ROWS:]
    if len(others) > 1:
        sums = (sum(column) for column in list(zip(*others, strict=True))[1:])
        rows[_MOST_ROWS:] = [(f"{len(others)} others", *sums)]
    width = max(28, *(len(name) + 2 for name, _, _ in rows)) if rows else 28
    lines = [f"{kind:<{width}}{'ms/step':>10}{'share':>8}{'times/step':>12}"]
    lines += [
        f"{name:<{width}}{1e-6 * time / steps:10.4f}{time / total:8.1%}{count / steps:12.1f}"
        for name, time, count in rows
    ]
    lines.append(f"{'all':<{width}}{1e-6 * covered / steps:10.4f}{covered / total:8.1%}")
    lines.append(
        f"{'between them':<{width}}{1e-6 * (total - covered) / steps:10.4f}{1 - covered / total:8.1%}"
    )
    lines.append(f"{'a step':<{width}}{1e-6 * total / steps:10.4f}")
    return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
