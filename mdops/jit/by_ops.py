"""Profiles with PyTorch's own profiler (torch.profiler), for any model: ops, and on a GPU kernels."""

import contextlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from mdops.errors import JitError
from mdops.jit.steps import Steps, captured, replayed
from mdops.jit.trace import AROUND, GPU, HOST, Record, Span

OUTSIDE = "around the ops"  # the rest of a step: Python and PyTorch's calls
# Categories of PyTorch's trace that take time, and the process to which they belong.
_PROCESSES = {
    "user_annotation": AROUND, "cpu_op": HOST, "kernel": GPU, "gpu_memcpy": GPU, "gpu_memset": GPU,
}  # fmt: skip
# Events that PyTorch records for our ops with an autograd formula: the op itself, and a node of the formula.
_WITHIN_OP = re.compile(r"GeneratedBackwardFor_mdops_(\w+?)_default(Backward)?")


def record(run: Steps, steps: int, on_step: Callable[[int], None]) -> Record:
    """Records this number of steps; if possible, only their evaluation, as a CUDA graph."""
    if not run.captures:
        return _of_steps(run, steps, on_step)
    with torch.cuda.device(run.model.device):
        return _of_graph(run, steps, on_step)


def _of_steps(run: Steps, steps: int, on_step: Callable[[int], None]) -> Record:
    """Records steps from the host's call to the device's last kernel."""
    _one(run)
    search = run.search()
    bare = _bare(run, steps)
    windows = []
    activities = [ProfilerActivity.CPU]
    if run.model.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # The profiler is slower in its first step, which is not kept.
    with _profiled(activities, schedule(wait=0, warmup=1, active=steps)) as kept:
        for step in range(-1, steps):
            run.move()
            run.synchronize()
            begin = time.perf_counter_ns()
            _one(run)
            windows.append((begin, time.perf_counter_ns()))
            kept.next_step()
            on_step(step + 1)
    del windows[0]
    spans = _within_steps(kept.spans())
    if run.model.device.type == "cuda":
        _require_kernels(spans)
    total = sum(end - begin for begin, end in windows)
    return Record(spans, steps, total, search, windows, kept.text, bare)


def _one(run: Steps) -> None:
    with record_function(OUTSIDE):
        run.step(record_function, "evaluation")
        run.synchronize()


def _bare(run: Steps, steps: int) -> float:
    """The time of a step without the profiler, ns."""
    times = []
    for _ in range(steps):
        run.move()
        run.synchronize()
        begin = time.perf_counter_ns()
        _one(run)
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def _of_graph(run: Steps, steps: int, on_step: Callable[[int], None]) -> Record:
    """Records replays of the graph in a row, so that the GPU never waits for the host."""
    run.neighbors()
    search = run.search()
    near = run.neighbors()
    graph = captured(lambda: run.evaluate(near))
    bare = replayed(graph, steps, lambda _: None) / steps
    with _profiled([ProfilerActivity.CPU, ProfilerActivity.CUDA], None) as kept:
        graph.replay()  # the first replay under the profiler waits for it
        torch.cuda.synchronize()
        with record_function(OUTSIDE):
            total = replayed(graph, steps, on_step)
    spans = _require_kernels(_within_steps(kept.spans()))
    return Record(spans, steps, total, search, (), kept.text, bare)


class _Kept:
    """PyTorch's record, after the profiler has ended."""

    def __init__(self) -> None:
        self.text = b""
        self.next_step: Callable[[], None] = lambda: None

    def spans(self) -> list[Span]:
        """The recorded ops, annotations and kernels."""
        found = []
        events: list[dict[str, Any]] = json.loads(self.text)["traceEvents"]
        for event in events:
            process = _PROCESSES.get(event.get("cat", ""))
            name = _name(event["name"])
            if event["ph"] == "X" and process is not None and name is not None:
                begin, time = round(1000 * event["ts"]), round(1000 * event["dur"])
                found.append(Span(name, begin, begin + time, (process, event["tid"])))
        return found


def _name(told: str) -> str | None:
    """The name of an event in tables; None if the event only repeats or surrounds other events."""
    within = _WITHIN_OP.fullmatch(told)
    if within is not None:
        return f"mdops::{within[1]}, autograd" if within[2] else None
    if told.startswith("autograd::engine::"):
        return "autograd's engine"
    return None if told.startswith("ProfilerStep#") else told


@contextlib.contextmanager
def _profiled(activities: list[ProfilerActivity], plan: Any) -> Iterator[_Kept]:
    """Profiles the `with` block, or the steps that the plan keeps."""
    kept = _Kept()

    def keep(profiler: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            kept.text = path.read_bytes()

    with torch.profiler.profile(
        activities=activities, schedule=plan, on_trace_ready=keep, acc_events=True
    ) as profiler:
        kept.next_step = profiler.step
        yield kept


def _require_kernels(spans: list[Span]) -> list[Span]:
    """The spans; raises JitError if there are no GPU kernels among them."""
    kernels = [span for span in spans if span.track[0] == GPU]
    if not kernels:
        raise JitError("PyTorch's profiler recorded no kernels of the GPU: KINETO_LOG_LEVEL=1 tells why")
    return kernels


def _within_steps(spans: list[Span]) -> list[Span]:
    """The spans within steps; raises JitError if there are none."""
    steps = sorted((span.begin, span.end) for span in spans if span.name == OUTSIDE)
    if not steps:
        raise JitError("PyTorch's profiler recorded nothing")
    found, at = [], 0
    for span in sorted(spans, key=lambda s: s.begin):
        while at + 1 < len(steps) and steps[at + 1][0] <= span.begin:
            at += 1
        begin, end = steps[at]
        if begin <= span.begin and span.end <= end:
            found.append(span)
    return found
