"""Spans of time on tracks: a file for Perfetto or chrome://tracing, and a table of where the time went."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Span:
    """What a thread, or a warp of a GPU, did from begin to end, ns. Spans of a track lie in each other or apart."""

    name: str
    begin: int
    end: int
    track: tuple[int, int]  # process and thread, as the file has them


def write(path: Path, spans: Iterable[Span], processes: dict[int, str]) -> None:
    """A JSON file in Chrome's trace format, which ui.perfetto.dev opens. Times begin with the first span."""
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
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))


def shares(spans: Sequence[Span]) -> dict[str, int]:
    """The wall time of each name, ns: every moment belongs to the innermost spans of the tracks that are busy then, in
    equal parts. All together are the time in which any track was busy."""
    stacks: dict[tuple[int, int], list[str]] = {}
    busy: Counter[str] = Counter()
    found: dict[str, float] = {}
    # At one moment ends come first, inner before outer, then begins, outer before inner.
    moments = [(s.end, 0, -s.begin, s) for s in spans if s.end > s.begin]
    moments += [(s.begin, 1, -s.end, s) for s in spans if s.end > s.begin]
    before = 0
    for time, begins, _, span in sorted(moments, key=lambda m: m[:3]):
        if time > before and busy:
            part = (time - before) / busy.total()
            for name, count in busy.items():
                found[name] = found.get(name, 0.0) + part * count
        before = time
        stack = stacks.setdefault(span.track, [])
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


def table(spans: Sequence[Span], steps: int, total: float) -> str:
    """Where the time went, a line a name: milliseconds and share of a step, and how often it happened in one."""
    counts = Counter(span.name for span in spans)
    rows = sorted(shares(spans).items(), key=lambda row: -row[1])
    lines = [f"{'stage':<28}{'ms/step':>10}{'share':>8}{'times/step':>12}"]
    lines += [
        f"{name:<28}{1e-6 * time / steps:10.4f}{time / total:8.1%}{counts[name] / steps:12.1f}"
        for name, time in rows
    ]
    covered = sum(time for _, time in rows)
    lines.append(f"{'all':<28}{1e-6 * covered / steps:10.4f}{covered / total:8.1%}")
    lines.append(f"{'between them':<28}{1e-6 * (total - covered) / steps:10.4f}{1 - covered / total:8.1%}")
    lines.append(f"{'a step':<28}{1e-6 * total / steps:10.4f}")
    return "\n".join(lines)
