"""Profiles with kernels that were built with the profiler and record their stages."""

import time
from collections.abc import Callable

import torch

from mdops.jit.stages import Stages
from mdops.jit.steps import Steps, captured, replayed
from mdops.jit.trace import GPU, HOST, Record, Span

OUTSIDE = "around the kernels"  # the rest of a step's evaluation: arguments, results, waiting threads
_MOST_EVENTS = 4_000_000


def record(run: Steps, stages: Stages, steps: int, on_step: Callable[[int], None]) -> Record:
    """Records this number of steps; on a GPU only their evaluation."""
    if run.model.device.type != "cuda":
        return _on_cpu(run, stages, steps, on_step)
    with torch.cuda.device(run.model.device):
        return _on_gpu(run, stages, steps, on_step)


def _on_cpu(run: Steps, stages: Stages, steps: int, on_step: Callable[[int], None]) -> Record:
    run.step(run.span, OUTSIDE)
    search = run.search()
    run.step(run.span, OUTSIDE)
    run.spans.clear()
    windows = []
    stages.record(_MOST_EVENTS)
    for step in range(steps):
        run.move()
        begin = time.perf_counter_ns()
        run.step(run.span, OUTSIDE)
        windows.append((begin, time.perf_counter_ns()))
        on_step(step + 1)
    found = _spans(stages, HOST)
    stages.record(0)
    total = sum(end - begin for begin, end in windows)
    # If there are no stages, no kernel of the library ran.
    return Record([*run.spans, *found] if found else [], steps, total, search, windows)


def _on_gpu(run: Steps, stages: Stages, steps: int, on_step: Callable[[int], None]) -> Record:
    """Records replays of the evaluation as a CUDA graph, so that the GPU never waits for the host."""
    run.neighbors()
    search = run.search()
    near = run.neighbors()
    graph = captured(lambda: run.evaluate(near))
    stages.record(_MOST_EVENTS)
    total = replayed(graph, steps, on_step)
    found = _spans(stages, GPU)
    stages.record(0)
    return Record(found, steps, total, search)


def _spans(stages: Stages, process: int) -> list[Span]:
    names, events = stages.names, stages.events()
    return [
        Span(names[stage], begin, end, (process, thread)) for begin, end, stage, thread in events.tolist()
    ]
