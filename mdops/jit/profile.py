"""Where the time of a model's steps goes: its kernels built with the profiler, and what calls them."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mdops.jit import kernels, trace
from mdops.jit.stages import Stages
from mdops.jit.trace import Span

if TYPE_CHECKING:
    from ase import Atoms

    from mdops.potential import Potential

HOST, GPU = 1, 2  # processes of the trace
TIMESTEP, TEMPERATURE = 0.5, 300.0  # fs, K
OUTSIDE = "around the kernels"  # of a step's evaluation: arguments, results, threads that wait
_MOST_EVENTS = 4_000_000


@dataclass(frozen=True)
class Profile:
    """What was recorded.

    Attributes:
        spans: of all steps.
        steps: how many.
        total: how long they took by another clock, ns: Python's around each step, on a GPU CUDA's events.
        key: of the kernels that ran.
        search: how long a neighbour search takes, ns, whenever one is due.
        windows: begin and end of each step, ns; none on a GPU.
    """

    spans: list[Span]
    steps: int
    total: float
    key: str
    search: float
    windows: list[tuple[int, int]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """As a file that ui.perfetto.dev opens."""
        trace.write(path, self.spans, {HOST: "mdops", GPU: "GPU"})

    def table(self) -> str:
        """Of stages. What they lack of a step is what was between them: on a GPU, kernels that begin and end."""
        stages = trace.table(self.spans, self.steps, self.total)
        return f"{stages}\na neighbour search takes {1e-6 * self.search:.4f} ms, when one is due"


def profile(model: "Potential", atoms: "Atoms", steps: int, *, skin: float = 1.0) -> Profile:
    """Runs steps along thermal velocities with kernels that record their stages.

    Raises:
        JitError: the model is of an evaluator without such kernels, or they cannot be built.
    """
    entry = kernels.entry_for(model, profiler=True)
    before = kernels.in_use(model)
    kernels.install(model, entry)
    kernels.use(model, entry.key, True)
    try:
        steady = _Steps(model, atoms, skin)
        run = _on_gpu if model.device.type == "cuda" else _on_cpu
        return run(steady, Stages(entry.path), steps, entry.key)
    finally:
        kernels.use(model, entry.key, False)
        if before is not None:
            kernels.use(model, before, True)


class _Steps:
    """Atoms on their way, a step a call."""

    def __init__(self, model: "Potential", atoms: "Atoms", skin: float) -> None:
        from ase import units

        from mdops.system import from_atoms
        from mdops.verlet import VerletList

        self.model, self.system = model, from_atoms([atoms], model.type_map, model.device)
        speed = np.sqrt(units.kB * TEMPERATURE / atoms.get_masses())[:, None]
        move = speed * np.random.default_rng(0).standard_normal((len(atoms), 3)) * TIMESTEP * units.fs
        self._move = self.system.positions.new_tensor(move)
        self._skin = skin
        self._lists = VerletList(model.cutoff, skin, ntypes=len(model.type_map))
        self._evaluator = model.evaluator()
        self._parameters = kernels.blank_parameters(model, len(atoms))
        self.spans: list[Span] = []
        self._done = 0

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self.spans.append(Span(name, begin, time.perf_counter_ns(), (HOST, threading.get_native_id())))

    def move(self) -> None:
        """Back and forth, so that the structure stays as it is however many steps there are."""
        self.system.positions += self._move if self._done // 40 % 2 == 0 else -self._move
        self._done += 1

    def neighbors(self) -> Any:
        s, builds, begin = self.system, self._lists.builds, time.perf_counter_ns()
        near = self._lists.update(s.positions, s.cell, s.pbc, s.types, s.batch)
        name = "neighbour list checked" if self._lists.builds == builds else "neighbour search"
        self.spans.append(Span(name, begin, time.perf_counter_ns(), (HOST, threading.get_native_id())))
        return near

    def evaluate(self, near: Any) -> Any:
        return self._evaluator(self.system, near, **self._parameters, check=False)[0]

    def step(self) -> None:
        """With a span for each part."""
        near = self.neighbors()
        with self.span(OUTSIDE):
            answers = self.evaluate(near)
        with self.span("sums over atoms"):
            self.model.with_sums(answers, self.system)

    def search(self) -> float:
        """The time of a neighbour search, ns: all atoms move so far together that the list no longer holds."""
        self.system.positions += max(1.0, self._skin)
        self._synchronize()
        begin = time.perf_counter_ns()
        s = self.system
        self._lists.update(s.positions, s.cell, s.pbc, s.types, s.batch)
        self._synchronize()
        return time.perf_counter_ns() - begin

    def _synchronize(self) -> None:
        if self.model.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.model.device)


def _on_cpu(run: _Steps, stages: Stages, steps: int, key: str) -> Profile:
    run.step()
    search = run.search()
    run.step()
    run.spans.clear()
    windows = []
    stages.record(_MOST_EVENTS)
    for _ in range(steps):
        run.move()
        begin = time.perf_counter_ns()
        run.step()
        windows.append((begin, time.perf_counter_ns()))
    found = _spans(stages, HOST)
    stages.record(0)
    total = sum(end - begin for begin, end in windows)
    return Profile([*run.spans, *found], steps, total, key, search, windows)


def _spans(stages: Stages, process: int) -> list[Span]:
    names, events = stages.names, stages.events()
    return [
        Span(names[stage], begin, end, (process, thread)) for begin, end, stage, thread in events.tolist()
    ]


def _on_gpu(run: _Steps, stages: Stages, steps: int, key: str) -> Profile:
    """The evaluation of a step as a CUDA graph, again and again, so that the GPU never waits for the host."""
    import torch

    device = run.model.device
    run.neighbors()
    search = run.search()
    near = run.neighbors()
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run.evaluate(near)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run.evaluate(near)
        graph.replay()
        torch.cuda.synchronize()
        stages.record(_MOST_EVENTS)
        begin.record()
        for _ in range(steps):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found = _spans(stages, GPU)
        stages.record(0)
    return Profile(found, steps, 1e6 * begin.elapsed_time(end), key, search)
