"""Blocks of steps that run on the device while the host checks the previous blocks."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from ase import Atoms, units

from mdops.errors import InputError
from mdops.flags import require_flags, require_numbers, require_whole
from mdops.inputs import check_models, takes
from mdops.md.engine.committee import Committee
from mdops.md.engine.force_provider import Flags, ForceProvider, GraphSizes
from mdops.md.engine.frame import BatchFrame, Recording, to_host
from mdops.md.engine.propagators import Propagator, make_propagator
from mdops.md.engine.restraints import Restraints
from mdops.md.engine.state import BATH, TALLY, ForceResult, ListOrigin, State
from mdops.md.engine.structures import Structures
from mdops.md.guard import Guard, is_refusal, refused_as_input, warn_untrained_virials
from mdops.md.options import EnsembleSettings
from mdops.potential import Potential
from mdops.tracing import capturing

# The share of half the skin for a block to use: atoms vary from block to block.
_USE = 0.8
_LONGEST_BLOCK = 500

# Steps of one CUDA graph, which copies the state once, at its end; for few atoms, where launches take most of a step
# and memory for more states is small. In a ramp graphs only last for a stage.
_TOGETHER, _IN_RAMPS, _FEW_ATOMS = (8, 4, 2), (4,), 16384

# The names of the baths' variables in checkpoints.
_NAMES = dict(zip(BATH, ("eta", "p_eta", "p_cell", "xi", "p_xi"), strict=True))

G = TypeVar("G")
F = TypeVar("F")


class _Snapshot(NamedTuple):
    moving: torch.Tensor
    random: torch.Tensor | None


class _QueuedSteps(NamedTuple):
    """Queued steps, and the values that tell whether they are good once they are done."""

    first: int
    steps: int
    start: _Snapshot
    recordings: list[Recording]
    told: torch.Tensor
    done: torch.cuda.Event | None

    def read(self) -> tuple[dict[str, np.ndarray], list[int]]:
        """The tally, each column (S,); the length of the longest row, negative if the search refused its input; and
        the sizes of the graph (`ForceProvider.sizes`). Waits for the block."""
        if self.done is not None:
            self.done.synchronize()
        tally, (longest, _, *sizes) = self.told[:-6].reshape(-1, len(TALLY)), self.told[-6:].view(torch.int64)
        return dict(zip(TALLY, tally.numpy().T, strict=True)), [int(longest), *map(int, sizes)]


class Simulation(ABC, Generic[G, F]):
    """Steps of some systems, in blocks: the first step of each makes the neighbour list anew.

    The host queues a block, and the next one while it runs; then it reads the first one's tally. If an atom left
    the skin, a row of the list was too short or the model refused something, the block is discarded: the
    run goes back to its first step, and repeats it with shorter blocks, longer rows, or step by
    step with all checks (then an error names system, atom and step). Block lengths follow the atoms' speed. On
    a GPU the steps are replays of CUDA graphs. From the same start every run has the same bits.

    Attributes:
        step: how many are done and found good.
        builds: neighbour lists built; repeats: blocks that were repeated.
        potentials: the models; potential: the first of them.
        on_progress: called after each block with the steps done and the kinetic energies (S,) of the last ones, eV, on
            average; for one who waits.
        stops: called between steps; if it returns True, `run` ends with the last block that was found good.
    """

    _may_fix = False

    def __init__(
        self,
        structures: G,
        potential: Potential | Sequence[Potential],
        physics: EnsembleSettings,
        *,
        skin: float = 1.0,
        graphs: bool = True,
        step: int = 0,
        fparam: Any = None,
        aparam: Any = None,
        atom_virial: bool = False,
        restraints: Sequence[Any] | None = None,
    ) -> None:
        """Takes the atoms with their momenta (`mdops.md.motion.set_velocities` makes some).

        Args:
            structures: ase.Atoms (`Engine`), or a list of them of any sizes, elements, cells and pbc (`BatchEngine`).
            potential: a model, or several: atoms then move by the mean of their forces, and frames have deviations.
            skin: A.
            graphs: capture steps in CUDA graphs, if possible.
            step: the number of steps before.
            fparam: (p,), or (S, p) of a list; aparam: (q,), or (N, q), N being all atoms. Where the `info` and
                `arrays` of a structure have none.
            atom_virial: give those, in all frames.
            restraints: `Tether` and `Distance`; of a list of structures, a list for each.

        Raises:
            InputError: no atoms, constraints, npt without a cell that is periodic in three directions, an element
                the model does not know, or a skin that is negative; of a list it names the system by its number.
                Or no model, models of different elements, or what the model refuses: too many neighbours, atoms that
                coincide, parameters that are missing or not taken.
        """
        require_flags(graphs=graphs, atom_virial=atom_virial)
        require_numbers(skin=skin)
        require_whole(step=step)
        if step < 0:
            raise InputError(f"step is {step}, expected 0 or more")
        if not isinstance(physics, EnsembleSettings):
            raise InputError(f"{physics!r} is given as `physics`, expected EnsembleSettings(...)")
        if not 0 <= skin < math.inf:
            raise InputError(f"skin is {skin}, expected a length in A, not negative")
        frames = self._frames(structures)
        several = isinstance(potential, Sequence) and not isinstance(potential, str)
        self.potentials: list[Potential] = list(potential) if several else [potential]  # type: ignore[arg-type,list-item]
        check_models(self.potentials)
        self.potential = self.potentials[0]
        self._magnetic = any(model.model.spin is not None for model in self.potentials)
        if self._moves_cells(physics):
            warn_untrained_virials(self.potentials)
        # One for each model: types and parameters differ, the rest is the same.
        self._inputs = [
            Structures(
                frames, model, physics, fparam, aparam, unused=self._unused(model), may_fix=self._may_fix
            )
            for model in self.potentials
        ]
        self._structures = self._inputs[0]
        self.step, self.builds, self.repeats = step, 0, 0
        self.physics = physics
        self.on_progress: Callable[[int, np.ndarray], None] | None = None
        self.stops: Callable[[], bool] | None = None
        self._skin, self._use_graphs, self._atom_virial = float(skin), graphs, atom_virial
        self._guard = self._make_guard()
        self._freedom = self._structures.freedom
        self._restraints = None if restraints is None else self._restrained(restraints)
        self._propagator = self._make_propagator()
        self._stride, self._next, self._first = 1, 0, step  # _next: of the next block alone, if not 0
        self._heat = np.zeros(len(frames))  # eV, sums over the steps
        self._surface: Any = None
        self._aside: torch.cuda.Stream | None = None
        self._warned = False
        s = self._structures
        with refused_as_input():
            self._start(s.positions, s.momenta, s.cells, self._propagator.bath())

    def _moves_cells(self, physics: EnsembleSettings) -> bool:
        """Whether cells follow the pressure."""
        return physics.ensemble == "npt"

    def _make_guard(self) -> Guard:
        hottest = max(self.physics.temperature or 0.0, self.physics.final_temperature or 0.0)
        return Guard(self.physics.timestep, hottest)

    def _make_propagator(self) -> Propagator:
        sizes = np.diff(self._structures.starts)
        return make_propagator(self.physics, self._freedom, sizes, self.potential.device)

    def _rests(self) -> bool:
        """Whether nothing will move any more; called while the host waits for earlier steps."""
        return False

    def _restrained(self, restraints: Sequence[Any]) -> Restraints:
        """Checked. A tether changes momentum: more degrees are free."""
        s = self._structures
        if not isinstance(restraints, Sequence):
            raise InputError(f"restraints is {restraints!r}, expected a list of Tether and Distance")
        found = Restraints(self._of_each(restraints), s.starts, s.positions, s.masses)
        if self.physics.ensemble == "npt" and found.tethered.any():
            raise InputError(
                "a tether holds atoms at fixed positions, but npt scales all positions: use nvt or nve, or "
                "distance restraints"
            )
        self._freedom = np.where(found.tethered, 3 * np.diff(s.starts), self._freedom)
        return found

    @abstractmethod
    def _of_each(self, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Values for one structure, or for each, as one for each."""

    @abstractmethod
    def _frames(self, structures: G) -> list[Atoms]:
        """The atoms to move; raises InputError for anything else."""

    def _unused(self, model: Potential) -> list[str]:
        """Parameters that only other models take. Those that none takes go to all, which raise an error."""
        return [
            name
            for name in ("fparam", "aparam")
            if not takes(model, name) and any(takes(other, name) for other in self.potentials)
        ]

    def renew(self) -> None:
        """Sort the atoms again, and drop the list: later steps depend on the state alone."""
        now = self._now()
        bath = {name: getattr(self._state, name) for name in BATH}
        with self._guard.explain(self.step):
            self._start(now.positions, now.momenta, now.cell, bath)

    def _start(
        self,
        positions: np.ndarray,
        momenta: np.ndarray,
        cells: np.ndarray,
        bath: dict[str, torch.Tensor],
        order: np.ndarray | None = None,
    ) -> None:
        device = self.potential.device
        if order is None:
            order = self._structures.order(positions, cells, self.potential.cutoff / 2)
        self._order = torch.as_tensor(order, device=device)
        self._inverse = torch.as_tensor(np.argsort(order), device=device)
        capacity = 0 if self._surface is None else self._surface.capacity
        cells_move, surfaces = bath["cell_momenta"].numel() > 0, []
        for model, structures in zip(self.potentials, self._inputs, strict=True):
            own, fparam, aparam = structures.sorted(order, positions, cells, model.device)
            surfaces.append(
                ForceProvider(
                    model, own, self._skin, fparam, aparam, capacity, cells_move=cells_move,
                    atom_virial=self._atom_virial, magnetic=self._magnetic,
                )
            )  # fmt: skip
        self._surface = surfaces[0] if len(surfaces) == 1 else Committee(surfaces)
        system = surfaces[0].system
        sorted_momenta = torch.as_tensor(np.ascontiguousarray(momenta[order]), device=device)
        inertia = np.where(self._structures.fixed, np.inf, self._structures.masses)
        masses = torch.as_tensor(inertia[order], device=device)
        self._state = State.of(
            system, sorted_momenta, masses, bath, len(self.potentials), atom_virial=self._atom_virial,
            magnetic=self._magnetic,
        )  # fmt: skip
        self._graphs: dict[tuple[bool, int], torch.cuda.CUDAGraph] = {}  # by `_steps`' arguments
        self._placed = None if self._restraints is None else self._restraints.on(system, self._inverse)
        result = self._forces(system.positions, system.cell, carefully=True)
        for name, value in vars(result).items():
            if name in self._state.moving:
                getattr(self._state, name).copy_(value)
        energy = result.atom_energy[self._inverse].cpu().numpy()
        self._state.energy.copy_(torch.as_tensor(np.add.reduceat(energy, self._structures.starts[:-1])))

    @property
    def inner(self) -> dict[str, np.ndarray]:
        """The variables of thermostats and barostats, and all else for a restart besides positions, momenta and
        cells."""
        inner = {"stride": np.array(self._stride), "capacity": np.array(self._surface.capacity)}
        inner["room"] = np.array(self._surface.room)
        for name, key in _NAMES.items():
            if getattr(self._state, name).numel():
                inner[key] = getattr(self._state, name).cpu().numpy().copy()
        if self._propagator.generator is not None:
            inner["random"] = self._propagator.generator.get_state().numpy().copy()
        return inner

    @inner.setter
    def inner(self, values: dict[str, np.ndarray]) -> None:
        if "order" in values:
            now, bath = self._now(), {name: getattr(self._state, name) for name in BATH}
            self._start(now.positions, now.momenta, now.cell, bath, values["order"])
        for name, key in _NAMES.items():
            if getattr(self._state, name).numel():
                getattr(self._state, name).copy_(torch.as_tensor(values[key]))
        if self._propagator.generator is not None:
            self._propagator.generator.set_state(torch.as_tensor(values["random"]))
        self._stride, self._surface.capacity = int(values["stride"]), int(values["capacity"])
        if "room" in values:  # not in checkpoints of 0.1
            self._surface.room = GraphSizes(*map(int, values["room"]))  # earlier ones have no ghosts
        if "order" in values:
            self._state.memory.copy_(torch.as_tensor(values["memory"]))
            self._next = int(values["next"])
        self._graphs.clear()

    @property
    def halted(self) -> dict[str, np.ndarray]:
        """`inner`, and what makes a restart go on as this engine would without `renew`."""
        own = {"order": self._order, "memory": self._state.memory}
        arrays = {name: value.cpu().numpy().copy() for name, value in own.items()}
        return self.inner | arrays | {"next": np.array(self._next)}

    def frame(self) -> F:
        """The current state; waits for the device."""
        return self._give(self._now())

    @abstractmethod
    def _give(self, frame: BatchFrame) -> F:
        """A frame as the caller wants it."""

    def _now(self) -> BatchFrame:
        with self._on_device():
            recording = self._record(self.step)
            if self.potential.device.type == "cuda":
                torch.cuda.synchronize()
        return recording.frame()

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the potential's GPU current: it owns streams, events and graphs."""
        device = self.potential.device
        return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()

    def _temperatures(self, kinetic: np.ndarray) -> np.ndarray:
        """(S,), K, of kinetic energies in eV; 0 where nothing can move."""
        return np.where(self._freedom > 0, 2 * kinetic / (np.maximum(self._freedom, 1) * units.kB), 0.0)

    def _mean_temperatures(self) -> np.ndarray:
        """(S,), K, over all steps since the engine was made; 0 before any."""
        return self._temperatures(self._heat / max(self.step - self._first, 1))

    def run(self, steps: int, every: int = 0) -> Iterator[F]:
        """Does `steps` steps; gives the frames of those whose number divides by `every` (0: none).

        A caller who stops before the end leaves the engine at the last step found good.

        Raises:
            UnstableRunError: the run blew up; the frames before were yielded.
            InputError: `steps` or `every` is no whole number, or negative.
        """
        require_whole(steps=steps, every=every)
        if steps < 0 or every < 0:
            raise InputError(f"steps is {steps} and every is {every}, expected 0 or more")
        end, queued = self.step + steps, self.step
        pending: deque[_QueuedSteps] = deque()
        try:
            while self.step < end and not (queued == self.step and self._rests()):
                if self._is_stopped():
                    break
                if queued < end and len(pending) <= self._ahead:
                    planned = self._steps_at_once(queued, end)
                    self._next = 0
                    with self._on_device():
                        block = self._queue(queued, planned, every)
                    if block is not None:
                        pending.append(block)
                        queued += block.steps
                    else:
                        yield from self._go_carefully(planned, every)
                        queued = self.step
                    continue
                block = pending.popleft()
                tally, counts = block.read()
                flags = self._flags(tally, *counts)
                if self._is_good(flags):
                    self.step = block.first + block.steps
                    self._heat += tally["heat"]
                    self._adapt(block.steps, flags)
                    if self.on_progress is not None:
                        self.on_progress(self.step, tally["heat"] / block.steps)
                    for recording in block.recordings:
                        yield self._give(recording.frame())
                    continue
                pending.clear()
                self._restore(block.start)
                self.repeats += 1
                if not self._mend(block.steps, flags):
                    yield from self._go_carefully(block.steps, every)
                queued = self.step
        finally:
            if pending:
                self._restore(pending[0].start)
                if self._ahead:  # it was queued before the last block changed the stride
                    self._next = pending[0].steps

    def _is_stopped(self) -> bool:
        return self.stops is not None and self.stops()

    @property
    def _ahead(self) -> int:
        """Blocks queued while one runs."""
        return 1 if self._surface.captures else 0

    def _steps_at_once(self, first: int, end: int) -> int:
        """Of a block; all its steps have the same targets."""
        return int(min(self._next or self._stride, end - first, self.physics.ramp_stage_end(first) - first))

    def _queue(self, first: int, steps: int, every: int) -> _QueuedSteps | None:
        """Queues a block; None if the potential refused a step at once (then it reads the device itself)."""
        start, recordings = self._snapshot(), []
        if self._propagator.set_targets(first):
            self._graphs.clear()  # targets are constants
        self._prepare()
        try:
            k = 0
            while k < steps:
                if k and not self._surface.captures and (self._rests() or self._is_stopped()):
                    steps = k
                    break
                left = min(steps - k, every - (first + k) % every if every else steps)
                together = (n for n in _TOGETHER if k > 0 and n <= left and (False, n) in self._graphs)
                count = next(together, 1)
                self._replay(count, rebuild=k == 0)
                k += count
                if every and (first + k) % every == 0:
                    recordings.append(self._record(first + k))
        except Exception as error:
            if not is_refusal(error):
                raise
            self._restore(start)
            return None
        self.builds += 1
        return _QueuedSteps(first, steps, start, recordings, *self._tell())

    def _tell(self) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """The tally, the length of the longest row and the graph's sizes, copied to the host while the next block runs:
        waiting for a copy costs some 15 us."""
        counts = (self._surface.needed.view(torch.float64), self._surface.sizes.view(torch.float64))
        told = torch.cat([self._state.tally.reshape(-1), *counts])
        if told.device.type == "cpu":
            return told, None
        if self._aside is None:
            self._aside = torch.cuda.Stream()
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            host, done = to_host(told), torch.cuda.Event()
            done.record()
        told.record_stream(self._aside)
        return host, done

    def _flags(self, tally: dict[str, np.ndarray], longest: int, *graph: int) -> Flags:
        worst = {name: float(np.max(tally[name])) for name in ("moved2", "overflow", "closeness", "energy")}
        hottest = float(np.max(self._temperatures(tally["kinetic"])))
        length = math.inf if longest < 0 else float(longest)
        return Flags(**worst, temperature=hottest, longest=length, graph=GraphSizes(*graph))

    def _mend(self, steps: int, flags: Flags) -> bool:
        """Longer rows, capacity for a larger graph or a shorter block, after a bad one; False if none helps."""
        half = self._skin / 2
        if self._surface.capacity < flags.longest < math.inf:
            self._surface.grow(int(flags.longest))
            self._graphs.clear()
            return True
        if flags.finite and not self._has_room(flags):
            self._surface.widen(flags.graph)
            self._graphs.clear()
            return True
        if half**2 < flags.moved2 < math.inf and steps > 1:
            self._stride = max(1, min(steps - 1, int(steps * _USE * half / math.sqrt(flags.moved2))))
            return True
        return False

    def _has_room(self, flags: Flags) -> bool:
        return all(size <= room for size, room in zip(flags.graph, self._surface.room, strict=True))

    def _is_good(self, flags: Flags) -> bool:
        if flags.closeness > -self._surface.r_min and not self._warned and flags.closeness < 0:
            self._warned = True
            self._surface.warn_extrapolated()
        return (
            flags.finite
            and flags.longest <= self._surface.capacity
            and self._has_room(flags)
            and flags.moved2 <= (self._skin / 2) ** 2
            and flags.overflow <= 0
            and flags.closeness < 0
            and self._guard.allows(flags.temperature)
        )

    def _adapt(self, steps: int, flags: Flags) -> None:
        """The next block's length, from how much of the skin this one used."""
        if self._skin == 0:
            return
        # The first step builds the list; atoms move in the others.
        used = math.sqrt(flags.moved2) / (self._skin / 2)
        wanted = int(1 + _USE * max(steps - 1, 1) / max(used, 1e-3))
        if steps == self._stride or wanted < self._stride:
            most = min(_LONGEST_BLOCK, self._stride + max(1, self._stride // 2))
            self._stride = max(1, min(most, wanted))

    def _go_carefully(self, steps: int, every: int) -> Iterator[F]:
        """Steps with their own lists and all checks on the host."""
        state, surface = self._state, self._surface
        for k in range(steps):
            if k and self._rests():
                break
            self._propagator.set_targets(self.step)
            with self._guard.explain(self.step + 1):
                moved = self._propagator.first_half(state)
                result = self._forces(moved.positions, moved.cell, carefully=True)
            origin = ListOrigin(moved.positions, moved.cell, surface.cutoff)
            state.take(self._propagator.second_half(state, moved, result, origin, surface.sel))
            kinetic = state.kinetic.cpu().numpy()
            self._guard.check(self.step + 1, self._temperatures(kinetic))
            self._heat += kinetic
            self.step += 1
            if self.on_progress is not None:
                self.on_progress(self.step, kinetic)
            if every and self.step % every == 0:
                yield self.frame()
        self._graphs.clear()  # the rows may have become longer

    def _prepare(self) -> None:
        """Captures graphs if there are none."""
        if self._graphs or not (self._use_graphs and self._surface.captures):
            return
        start = self._snapshot()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for rebuild in (True, False):
                self._steps(1, rebuild=rebuild)
        torch.cuda.current_stream().wait_stream(stream)
        pool = torch.cuda.graph_pool_handle()
        together = _IN_RAMPS if self.physics.has_ramp else _TOGETHER
        # Steps with ghosts, for virials of messages, are long enough one by one.
        several = (
            together if len(self._state.positions) <= _FEW_ATOMS and not self._surface.room.ghosts else ()
        )
        for rebuild, count in [(True, 1), *((False, count) for count in (1, *several))]:
            graph = torch.cuda.CUDAGraph()
            if self._propagator.generator is not None:
                graph.register_generator_state(self._propagator.generator)
            # A stream of this GPU: PyTorch would take one of the GPU that captured first.
            with capturing(graph, pool=pool, stream=stream):
                self._steps(count, rebuild=rebuild)
            self._graphs[rebuild, count] = graph
        # Each capture sets the random numbers' offset to 0, in `stream`: not after a replay has set its own.
        torch.cuda.current_stream().wait_stream(stream)
        self._restore(start)

    def _replay(self, count: int, *, rebuild: bool) -> None:
        if self._graphs:
            self._graphs[rebuild, count].replay()
        else:
            self._steps(count, rebuild=rebuild)

    def _steps(self, count: int, *, rebuild: bool) -> None:
        """So many steps; the first builds a list if asked, and begins a tally."""
        state, surface = self._state, self._surface
        moved = self._propagator.first_half(state)
        if rebuild:
            state.clear_tally()
            surface.rebuild(moved.positions, moved.cell)
        result = self._forces(moved.positions, moved.cell)
        for _ in range(count - 1):
            state, moved = self._propagator.next_step(state, moved, result, surface.origin, surface.sel)
            result = self._forces(moved.positions, moved.cell)
        self._state.take(self._propagator.second_half(state, moved, result, surface.origin, surface.sel))

    def _forces(self, positions: torch.Tensor, cell: torch.Tensor, *, carefully: bool = False) -> ForceResult:
        """Of the models and the restraints; with its own list and all checks if asked."""
        surface = self._surface
        result: ForceResult = (
            surface.forces_carefully(positions, cell, self._order, self._inverse)
            if carefully
            else surface.forces(positions, cell)
        )
        return result if self._placed is None else self._placed.apply(result, positions, cell)

    def _record(self, step: int) -> Recording:
        bath = self._propagator.bath_energy(self._state)
        return Recording(step, self._state, bath, self._inverse, self._structures.starts)

    def _snapshot(self) -> _Snapshot:
        generator = self._propagator.generator
        return _Snapshot(self._state.memory.clone(), None if generator is None else generator.get_state())

    def _restore(self, saved: _Snapshot) -> None:
        self._state.memory.copy_(saved.moving)
        if self._propagator.generator is not None and saved.random is not None:
            self._propagator.generator.set_state(saved.random)
