"""Traces as they were written, and how their spans add up to the time of the steps."""

import json
from pathlib import Path
from statistics import median

from mdops.jit.profile import Profile
from mdops.jit.trace import AROUND, GPU, HOST, Span, shares

_OF_PYTORCH = {"user_annotation": AROUND, "cpu_op": HOST, "kernel": GPU, "gpu_memcpy": GPU, "gpu_memset": GPU}


def spans_of(path: Path) -> list[Span]:
    """Of our own traces and of PyTorch's, without those of its profiler's own steps."""
    found = []
    for e in json.loads(path.read_text())["traceEvents"]:
        process = _OF_PYTORCH.get(e["cat"]) if "cat" in e else e["pid"]
        if e["ph"] == "X" and process is not None and not e["name"].startswith("ProfilerStep"):
            begin, end = round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"]))
            found.append(Span(e["name"], begin, end, (process, e["tid"])))
    return found


def covered(found: Profile, path: Path) -> float:
    """The median over the steps of what part of its time, by Python's clock, the spans in the file have."""
    spans = spans_of(path)
    if found.key is not None:  # the file begins with the first span
        start = min(span.begin for span in found.spans)
        windows = [(begin - start, end - start) for begin, end in found.record.windows]
    else:  # it has another clock, and a span around each step
        windows = [(s.begin, s.end) for s in spans if s.name == "around the ops"]
    times = [end - begin for begin, end in found.record.windows]
    assert len(times) == len(windows) == found.record.steps
    inside = [[s for s in spans if begin <= s.begin and s.end <= end] for begin, end in windows]
    return median(sum(shares(own).values()) / time for own, time in zip(inside, times, strict=True))
