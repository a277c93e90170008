"""Blocks of steps that run on the device while the host looks at the blocks before."""

import math
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from ase import Atoms, units

from mdops.errors import InputError
from mdops.md.engine.frame import Frame, Recording, to_host
from mdops.md.engine.propagators import make_propagator
from mdops.md.engine.state import State
from mdops.md.engine.surface import Flags, Surface, spatial_order
from mdops.md.guard import Guard
from mdops.md.motion import degrees_of_freedom
from mdops.md.options import Physics
from mdops.nn import Potential
from mdops.nn.system import System, element_types

# Of half the skin, how much a block should use up: atoms vary from block to block.
_USE = 0.8
_LONGEST_BLOCK = 500


class _Block(NamedTuple):
    """Steps that were queued, and what tells whether they are good once they are done."""

    first: int
    steps: int
    start: "_Snapshot"
    recordings: list[Recording]
    flags: torch.Tensor
    done: torch.cuda.Event | None

    def read(self) -> tuple[Flags, float]:
        """The flags, and the sum over the steps of the kinetic energy; waits for the block."""
        if self.done is not None:
            self.done.synchronize()
        *flags, heat = self.flags.tolist()
        return Flags(*flags), heat


class _Snapshot(NamedTuple):
    moving: list[torch.Tensor]
    inner: list[torch.Tensor]
    random: torch.Tensor | None


class Engine:
    """A simulation of one structure, in blocks of steps: the first step of each makes the neighbour list anew.

    The host queues a block, and while it runs the next one; then it reads the flags of the first. A block in
    which an atom left the skin, a row of the list was too short or the model had something to object to, is
    forgotten: the run goes back to its first step, and does it again with shorter blocks, longer rows, or step
    by step with all checks (then an error names atom and step). Block lengths follow the atoms' speed. On a GPU
    the steps are replays of CUDA graphs. Given the same start, every run has the same bits.

        engine = Engine(atoms, mdops.load("model.dp", device="cuda"), Physics("nvt", 300))
        for frame in engine.run(10_000, every=100):
            print(frame.step, frame.energy)

    Attributes:
        step: how many are done and found good.
        builds: neighbour lists made; repeats: blocks that were done again.
        freedom: degrees of freedom.
    """

    def __init__(
        self,
        atoms: Atoms,
        potential: Potential,
        physics: Physics,
        *,
        skin: float = 1.0,
        graphs: bool = True,
        step: int = 0,
        fparam: Any = None,
        aparam: Any = None,
    ) -> None:
        """Takes the atoms as they are, momenta included (`mdops.md.motion.set_velocities` makes some).

        Args:
            skin: A.
            graphs: capture steps in CUDA graphs, where that can be.
            step: what the first step comes after.
            fparam: (p,); aparam: (N, q) or (q,): where `atoms.info` and `atoms.arrays` have none.

        Raises:
            InputError: no atoms, constraints, npt, an element the model does not know, or a skin that is
                negative.
        """
        _check(atoms, physics, skin)
        self.step, self.builds, self.repeats = step, 0, 0
        self.physics, self.potential = physics, potential
        self.freedom = degrees_of_freedom(atoms, physics)
        self._atoms, self._skin, self._use_graphs = atoms, float(skin), graphs
        self._guard = Guard(physics.timestep, physics.temperature)
        self._propagator = make_propagator(physics, self.freedom, potential.device)
        self._stride, self._temperatures = 1, 0.0
        self._parameters = _parameters(atoms, fparam, aparam)
        self._surface: Any = None
        self._first = step
        self._heat = torch.zeros((), dtype=torch.float64, device=potential.device)
        self._warned = False
        self.renew(atoms.get_positions(), atoms.get_momenta())

    def renew(self, positions: np.ndarray | None = None, momenta: np.ndarray | None = None) -> None:
        """Sort the atoms anew, and forget the list: what comes next depends on the state alone.

        Args:
            positions, momenta: (N, 3), in the user's order; those of now by default.
        """
        if positions is None or momenta is None:
            now = self.frame()
            positions, momenta = now.positions, now.momenta
        atoms, device = self._atoms, self.potential.device
        order = spatial_order(positions, atoms.cell.array, atoms.pbc, self.potential.cutoff / 2)
        inverse = np.argsort(order)
        self._order, self._inverse = (torch.as_tensor(index, device=device) for index in (order, inverse))

        def sort(values: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
            return torch.as_tensor(np.ascontiguousarray(values), dtype=dtype, device=device)[self._order]

        types = element_types(atoms.get_chemical_symbols(), self.potential.type_map)
        system = System(
            sort(positions),
            sort(types, torch.int32),
            torch.as_tensor(atoms.cell.array.copy(), device=device)[None],
            torch.as_tensor(atoms.pbc.copy(), device=device)[None],
            torch.zeros(len(atoms), dtype=torch.int32, device=device),
        )
        given_f, given_a = self._parameters
        fparam = None if given_f is None else torch.as_tensor(given_f, device=device)
        aparam = None if given_a is None else sort(given_a)
        capacity = 0 if self._surface is None else self._surface.capacity
        self._surface = Surface(self.potential, system, self._skin, fparam, aparam, capacity)
        self._state = State.at_rest(system.positions, sort(atoms.get_masses()))
        self._state.momenta.copy_(sort(momenta))
        self._state.measure_kinetic()
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        with self._guard.explain(self.step):
            self._surface.update_carefully(self._state, self._order, self._inverse)

    @property
    def inner(self) -> dict[str, np.ndarray]:
        """The thermostat's variables, and what else a restart needs besides positions and momenta."""
        inner = {name: value.cpu().numpy().copy() for name, value in self._propagator.inner.items()}
        inner |= {"stride": np.array(self._stride), "capacity": np.array(self._surface.capacity)}
        if self._propagator.generator is not None:
            inner["random"] = self._propagator.generator.get_state().numpy().copy()
        return inner

    @inner.setter
    def inner(self, values: dict[str, np.ndarray]) -> None:
        for name, tensor in self._propagator.inner.items():
            tensor.copy_(torch.as_tensor(values[name]))
        if self._propagator.generator is not None:
            self._propagator.generator.set_state(torch.as_tensor(values["random"]))
        self._stride, self._surface.capacity = int(values["stride"]), int(values["capacity"])
        self._graphs.clear()

    def frame(self) -> Frame:
        """The state of now; waits for the device."""
        recording = self._record(self.step)
        if self.potential.device.type == "cuda":
            torch.cuda.synchronize(self.potential.device)
        return recording.frame()

    def temperature(self, kinetic: float) -> float:
        """K, of a kinetic energy in eV."""
        return 2 * kinetic / (self.freedom * units.kB) if self.freedom else 0.0

    @property
    def mean_temperature(self) -> float:
        """K, over all steps since the engine was made; 0 before any."""
        return self._temperatures / max(self.step - self._first, 1)

    def run(self, steps: int, every: int = 0) -> Iterator[Frame]:
        """Does `steps` steps; gives the frames of those whose number divides by `every` (0: none).

        A caller who stops before the end leaves the engine at the last step found good.

        Raises:
            UnstableRunError: the run blew up; the frames before have been given.
        """
        end, queued = self.step + steps, self.step
        pending: deque[_Block] = deque()
        try:
            while self.step < end:
                if queued < end and len(pending) <= self._ahead:
                    block = self._queue(queued, min(self._stride, end - queued), every)
                    if block is not None:
                        pending.append(block)
                        queued += block.steps
                    else:
                        yield from self._go_carefully(min(self._stride, end - queued), every)
                        queued = self.step
                    continue
                block = pending.popleft()
                flags, heat = block.read()
                if self._is_good(flags):
                    self.step = block.first + block.steps
                    self._temperatures += self.temperature(heat)
                    self._adapt(block.steps, flags)
                    for recording in block.recordings:
                        yield recording.frame()
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

    @property
    def _ahead(self) -> int:
        """Blocks queued while one runs."""
        return 1 if self._surface.captures else 0

    def _queue(self, first: int, steps: int, every: int) -> _Block | None:
        """Queues a block; None where the potential objected at once (it asks the device itself, then)."""
        start, recordings = self._snapshot(), []
        self._prepare()
        self._surface.clear_flags()
        self._heat.zero_()
        try:
            for k in range(steps):
                self._replay(rebuild=k == 0)
                if every and (first + k + 1) % every == 0:
                    recordings.append(self._record(first + k + 1))
        except InputError:
            self._restore(start)
            return None
        flags, done = to_host(torch.cat([self._surface.flags, self._heat[None]])), None
        if self.potential.device.type == "cuda":
            done = torch.cuda.Event()
            done.record()
        self.builds += 1
        return _Block(first, steps, start, recordings, flags, done)

    def _mend(self, steps: int, flags: Flags) -> bool:
        """Longer rows or a shorter block, after one that was bad; False where neither helps."""
        half = self._skin / 2
        if self._surface.capacity < flags.longest < math.inf:
            self._surface.grow(int(flags.longest))
            self._graphs.clear()
            return True
        if half**2 < flags.moved2 < math.inf and steps > 1:
            self._stride = max(1, min(steps - 1, int(steps * _USE * half / math.sqrt(flags.moved2))))
            return True
        return False

    def _is_good(self, flags: Flags) -> bool:
        if flags.closeness > -self._surface.r_min and not self._warned and flags.closeness < 0:
            self._warned = True
            warnings.warn(
                f"atoms come nearer than {self._surface.r_min:g} A, where the splines are extrapolated: the forces "
                "there are smooth but not the model's. Load it with a smaller r_min, or spline=False",
                stacklevel=4,
            )
        return (
            flags.finite
            and flags.longest <= self._surface.capacity
            and flags.moved2 <= (self._skin / 2) ** 2
            and flags.overflow == 0
            and flags.closeness < 0
            and self._guard.allows(self.temperature(flags.kinetic))
        )

    def _adapt(self, steps: int, flags: Flags) -> None:
        """The next block's length, from how much of the skin this one used up."""
        if self._skin == 0:
            return
        # The first step makes the list: atoms leave it in the others.
        used = math.sqrt(flags.moved2) / (self._skin / 2)
        wanted = int(1 + _USE * max(steps - 1, 1) / max(used, 1e-3))
        if steps == self._stride or wanted < self._stride:
            most = min(_LONGEST_BLOCK, self._stride + max(1, self._stride // 2))
            self._stride = max(1, min(most, wanted))

    def _go_carefully(self, steps: int, every: int) -> Iterator[Frame]:
        """Steps with a list of their own and all checks on the host."""
        for _ in range(steps):
            with self._guard.explain(self.step + 1):
                self._propagator.before(self._state)
                self._surface.update_carefully(self._state, self._order, self._inverse)
                self._propagator.after(self._state)
            now = self.temperature(float(self._state.kinetic))
            self._guard.check(self.step + 1, now)
            self._temperatures += now
            self.step += 1
            if every and self.step % every == 0:
                yield self.frame()
        self._graphs.clear()  # the rows may have become longer

    def _prepare(self) -> None:
        """Graphs, where there are none yet."""
        if self._graphs or not (self._use_graphs and self._surface.captures):
            return
        start = self._snapshot()
        stream = torch.cuda.Stream(self.potential.device)
        stream.wait_stream(torch.cuda.current_stream(self.potential.device))
        with torch.cuda.stream(stream):
            for rebuild in (True, False):
                self._one_step(rebuild=rebuild)
        torch.cuda.current_stream(self.potential.device).wait_stream(stream)
        pool = torch.cuda.graph_pool_handle()
        for rebuild in (True, False):
            graph = torch.cuda.CUDAGraph()
            if self._propagator.generator is not None:
                graph.register_generator_state(self._propagator.generator)
            with torch.cuda.graph(graph, pool=pool):
                self._one_step(rebuild=rebuild)
            self._graphs[rebuild] = graph
        self._restore(start)

    def _replay(self, *, rebuild: bool) -> None:
        if self._graphs:
            self._graphs[rebuild].replay()
        else:
            self._one_step(rebuild=rebuild)

    def _one_step(self, *, rebuild: bool) -> None:
        self._propagator.before(self._state)
        if rebuild:
            self._surface.rebuild(self._state)
        self._surface.update(self._state)
        self._propagator.after(self._state)
        self._surface.note_kinetic(self._state.kinetic)
        self._heat.add_(self._state.kinetic)

    def _record(self, step: int) -> Recording:
        return Recording(step, self._state, self._propagator.bath_energy(), self._inverse)

    def _snapshot(self) -> _Snapshot:
        generator = self._propagator.generator
        return _Snapshot(
            [t.clone() for t in self._state.moving],
            [t.clone() for t in self._propagator.inner.values()],
            None if generator is None else generator.get_state(),
        )

    def _restore(self, saved: _Snapshot) -> None:
        for tensor, value in zip(self._state.moving, saved.moving, strict=True):
            tensor.copy_(value)
        for tensor, value in zip(self._propagator.inner.values(), saved.inner, strict=True):
            tensor.copy_(value)
        if self._propagator.generator is not None and saved.random is not None:
            self._propagator.generator.set_state(saved.random)


def _check(atoms: Atoms, physics: Physics, skin: float) -> None:
    if len(atoms) == 0:
        raise InputError("the engine has no atoms to move")
    if atoms.constraints:
        raise InputError(
            "the engine moves all atoms: run structures with constraints through ASE's integrators"
        )
    if physics.ensemble == "npt":
        raise InputError("the engine keeps the cell: run npt through ASE's integrators")
    if not 0 <= skin < math.inf:
        raise InputError(f"skin is {skin}, expected a length in A, not negative")


def _parameters(atoms: Atoms, fparam: Any, aparam: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(p,) and (N, q)."""
    fparam, aparam = atoms.info.get("fparam", fparam), atoms.arrays.get("aparam", aparam)
    if fparam is not None:
        fparam = np.atleast_1d(np.asarray(fparam, float))
    if aparam is not None:
        aparam = np.asarray(aparam, float)
        if len(aparam) == len(atoms):
            aparam = aparam.reshape(len(atoms), -1)
        else:
            aparam = np.broadcast_to(aparam, (len(atoms), aparam.size))
    return fparam, aparam
