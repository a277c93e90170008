"""Spans of time on tracks: a file for Perfetto or chrome://tracing, and a table of where the time went."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Processes. Where several are busy, those before the last only wait for it, or surround it.
AROUND, HOST, GPU = 0, 1, 2
_MOST_ROWS, _LONGEST_NAME = 30, 60  # of a table


@dataclass(frozen=True)
class Span:
    """What a thread, or a warp of a GPU, did from begin to end, ns. Spans of a track lie in each other or apart."""

    name: str
    begin: int
    end: int
    track: tuple[int, int]  # process and thread, as the file has them


@dataclass(frozen=True)
class Record:
    """What a profile has of some steps.

    Attributes:
        spans: of all of them.
        steps: how many.
        total: how long they took by another clock, ns: Python's around each step, or CUDA's events.
        search: how long a neighbour search takes, ns, whenever one is due.
        windows: begin and end of each step by Python's clock, ns; none of a CUDA graph's replays.
        text: the trace as a file, if another program made it.
        bare: how long a step takes without the profiler, ns, if profiling may take time.
    """

    spans: list[Span]
    steps: int
    total: float
    search: float
    windows: Sequence[tuple[int, int]] = ()
    text: bytes = b""
    bare: float | None = None


def as_text(spans: Iterable[Span], processes: dict[int, str]) -> bytes:
    """JSON in Chrome's trace format, which ui.perfetto.dev opens. Times begin with the first span."""
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
    """The wall time of each name, ns: every moment belongs to the innermost spans of the tracks that are busy then, in
    equal parts: of the process with the highest number. All together are the time in which any track was busy."""
    stacks: dict[tuple[int, int], list[str]] = {}
    busy_of: dict[int, Counter[str]] = {process: Counter() for process in (GPU, HOST, AROUND)}
    found: dict[str, float] = {}
    # At one moment ends come first, inner before outer, then begins, outer before inner.
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
    """Where the time went, a line a name: milliseconds and share of a step, and how often it happened in one. Beyond
    the first names the others share a line."""
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
