"""Steps to profile: atoms move with thermal velocities, with a neighbour list that is checked in each step."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from ase import Atoms, units

from mdops.evaluators.context import EvaluationContext
from mdops.jit import kernels
from mdops.jit.trace import HOST, Span
from mdops.tracing import capturing
from mdops.verlet import VerletList

TIMESTEP, TEMPERATURE = 0.5, 300.0  # fs, K
_BACK_AFTER = 40  # steps

Part = Callable[[str], AbstractContextManager[Any]]  # records the `with` block under a name


class Steps:
    """Moving atoms; each call is a step.

    Attributes:
        system: the atoms.
        spans: the spans that `span` recorded.
        captures: whether the evaluation can be a CUDA graph.
    """

    def __init__(self, model: EvaluationContext, atoms: Atoms, skin: float) -> None:
        self.model, self.system = model, model.system_of([atoms])
        speed = np.sqrt(units.kB * TEMPERATURE / atoms.get_masses())[:, None]
        move = speed * np.random.default_rng(0).standard_normal((len(atoms), 3)) * TIMESTEP * units.fs
        rows = 2 if self.system.paired else 1  # of an atom
        self._move = self.system.positions.new_tensor(move).repeat_interleave(rows, 0)
        self._skin = skin
        self._lists = VerletList(model.cutoff, skin, ntypes=len(model.type_map))
        self._evaluator = model.evaluator()
        self._parameters = kernels.blank_parameters(model, self.system.atoms)
        self.captures = model.device.type == "cuda" and bool(self._evaluator.captures)
        if self.captures:  # atoms cannot be found by type during a capture
            self.system.find_atoms_by_type(len(model.type_map))
        self.spans: list[Span] = []
        self._done = 0

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records the begin and end of the `with` block."""
        begin = time.perf_counter_ns()
        yield
        self.spans.append(Span(name, begin, time.perf_counter_ns(), (HOST, threading.get_native_id())))

    def move(self) -> None:
        """Moves atoms back and forth, so that the structure stays similar for any number of steps."""
        self.system.positions += self._move if self._done // _BACK_AFTER % 2 == 0 else -self._move
        self._done += 1

    def neighbors(self) -> Any:
        s = self.system
        return self._lists.update(s.positions, s.cell, s.pbc, s.types, s.batch)

    def evaluate(self, near: Any) -> Any:
        with torch.no_grad():
            return self._evaluator(self.system, near, **self._parameters, check=False)[0]

    def step(self, part: Part, evaluation: str) -> None:
        """A step whose parts are recorded, the evaluation under that name."""
        with part("neighbour list"):
            near = self.neighbors()
        with part(evaluation):
            answers = self.evaluate(near)
        with part("sums over atoms"):
            self.model.with_sums(answers, self.system)

    def search(self) -> float:
        """The time of a neighbour search, ns: all atoms are moved together, so far that the list is no longer valid."""
        times = []
        for _ in range(3):
            self.system.positions += max(1.0, self._skin)
            self.synchronize()
            begin = time.perf_counter_ns()
            self.neighbors()
            self.synchronize()
            times.append(time.perf_counter_ns() - begin)
        return statistics.median(times)

    def synchronize(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)


def captured(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph of the current device, replayed once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, stream=side):
        work()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def replayed(graph: torch.cuda.CUDAGraph, steps: int, on_step: Callable[[int], None]) -> float:
    """The time of this number of replays in a row, ns, from CUDA's events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for step in range(steps):
        graph.replay()
        on_step(step + 1)
    end.record()
    torch.cuda.synchronize()
    return 1e6 * begin.elapsed_time(end)
