"""A molecular dynamics run with files, checkpoints and restarts."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io.jsonio import encode

from mdops.digest import digest
from mdops.errors import InputError
from mdops.flags import require_flags, require_kinds
from mdops.md import checkpoint as checkpoints
from mdops.md.checkpoint import Checkpoint
from mdops.md.engine import Engine, Frame
from mdops.md.engine.restraints import Restraint, identity, placed
from mdops.md.files import Background, Files, existing, one_run, require_beginning
from mdops.md.guard import Guard
from mdops.md.integrators import conserved_energy, make_integrator
from mdops.md.log import LogState
from mdops.md.motion import check_masses, degrees_of_freedom, set_velocities, temperature
from mdops.md.options import EnsembleSettings, Output
from mdops.md.outputs import closed_on_error
from mdops.md.progress import Reporter, ns_per_day
from mdops.models.charge_spin import charge_spin_defaults
from mdops.potential import Potential
from mdops.system import atom_spins, charges_and_spins


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of this call: its `steps` (without those before a restart) in `seconds`; and of the whole run, with
    all steps: the mean temperature (K), the drift of the conserved energy (eV/atom; None if there is none), and the
    step at its `end`, which is less than those asked for if it was stopped."""

    steps: int
    seconds: float
    ns_per_day: float
    temperature: float
    drift: float | None
    end: int


def run(
    atoms: Atoms,
    physics: EnsembleSettings,
    output: Output,
    *,
    new_velocities: bool = False,
    engine: bool | None = None,
    restraints: Sequence[Restraint] = (),
    stops: Callable[[], bool] | None = None,
) -> Summary:
    """Simulate atoms that have an `MDOps` calculator; afterwards they are in the last state.

    Every `physics.checkpoint_steps` steps, and more often in the beginning, the files are flushed to disk, the
    state is saved, and neighbour lists are rebuilt. A restart cuts trajectory and log back to the last checkpoint and
    continues from there; its results are those of the unbroken run, to the last bit.

    Args:
        atoms, physics, output: the structure, its equations of motion, and the files.
        new_velocities: draw velocities even if the structure has some.
        engine: run on the model's device (`mdops.md.engine`), or through ASE's integrators (nve and Langevin
            dynamics); by default those run structures with constraints, and the engine all others.
        restraints: `Tether` and `Distance`, which only the engine supports. Tethers hold atoms at their positions at
            the start of the run, before any restart.
        stops: called between steps. If it returns True, the run saves its state and ends; after a restart it has the
            same results as if it had gone on.

    Raises:
        InputError: a structure, option or file that does not fit, or a file that another run writes.
        UnstableRunError: the run blew up.
        OutsideDomainError: the calculator's guard stopped it.
    """
    require_flags(new_velocities=new_velocities, **({} if engine is None else {"engine": engine}))
    require_kinds(atoms=(atoms, Atoms), physics=(physics, EnsembleSettings), output=(output, Output))
    if not hasattr(atoms.calc, "models"):
        raise InputError("the atoms have no calculator MDOps: set atoms.calc = MDOps(model)")
    for potential in atoms.calc.models:
        potential.require_energies("a simulation")
    if engine is None:
        engine = not atoms.constraints
    simulation = _Simulation(atoms, physics, output, new_velocities, restraints, stops)
    with one_run(output):
        return (_EngineRun if engine else _AseRun)(simulation).go()


@dataclasses.dataclass(frozen=True)
class _Simulation:
    """The arguments of `run` for both ways of running."""

    atoms: Atoms
    physics: EnsembleSettings
    output: Output
    new_velocities: bool
    restraints: Sequence[Restraint]
    stops: Callable[[], bool] | None


class _Run:
    """A run between its first and last step: its files and its step."""

    kind = ""

    def __init__(self, simulation: _Simulation) -> None:
        self.atoms, self.physics, self.output = simulation.atoms, simulation.physics, simulation.output
        atoms, physics, output = self.atoms, self.physics, self.output
        self.stops = simulation.stops or (lambda: False)
        self.restraints = placed(simulation.restraints, atoms.get_positions())
        self.identity = self._identity()  # before anything moves: some constraints keep a history
        self.rng = np.random.default_rng(physics.seed)
        self.saved = last_checkpoint(output)
        if self.saved is None:
            set_velocities(atoms, physics, self.rng, anew=simulation.new_velocities)
        else:
            check_same(self.saved.physics, self.identity, output.checkpoint)
            checkpoints.restore_atoms(atoms, self.saved.arrays)
            self.rng.bit_generator.state = self.saved.random
        self.freedom = degrees_of_freedom(atoms, physics)
        self.files: Files | None = None
        self.step = 0 if self.saved is None else self.saved.step
        # The temperatures of all steps, K, and the conserved energy of the first, eV.
        self.sums: dict[str, float | None] = (
            {"temperature": 0.0, "conserved": None} if self.saved is None else self.saved.sums
        )

    def _identity(self) -> dict[str, Any]:
        """The options that a restart must share, by the user's names."""
        # The skin decides how long a list lasts, and so the order of sums of forces.
        same = dataclasses.asdict(self.physics) | {"integrator": self.kind, "skin": self.atoms.calc.skin}
        same |= {"restraints": identity(self.restraints), "masses": masses_identity(self.atoms)}
        same |= {"constraints": constraints_identity(self.atoms)}
        models = self.atoms.calc.models
        same |= {
            "charge_spin": charge_spin_identity(self.atoms, models),
            "magnetic_moments": moments_identity([self.atoms], models),
        }
        return same | models_identity(models) | _parameters(self.atoms)

    def _summary(self, first: int, seconds: float, conserved: float | None) -> Summary:
        """`conserved`: the energy at the end."""
        done, start = self.step - first, self.sums["conserved"]
        drift = None if conserved is None or start is None else (conserved - start) / len(self.atoms)
        mean = (self.sums["temperature"] or 0.0) / max(self.step, 1)
        return Summary(
            done, seconds, ns_per_day(done, self.physics.timestep, seconds), mean, drift, self.step
        )

    def _log_state(self, step: int, temperature: float, conserved: float | None) -> LogState:
        return LogState(step, step * self.physics.timestep, temperature, conserved)

    def _open(self, atoms: Atoms, state: LogState, inner: dict[str, np.ndarray]) -> None:
        """The files, at the marks of the checkpoint; for a new run, or one killed before its first frame, with that
        frame and a checkpoint with their marks."""
        if self.saved is not None and self.saved.marks:
            self.files = Files(self.output, self.saved.marks)
            return

        def begin(output: Output) -> Files:
            files = Files(output, {})
            with closed_on_error(files.close):
                files.write(atoms, state, heading=True)
            return files

        if self.saved is not None:
            require_beginning(self.output, lambda output: begin(output).close())
        self.files = begin(self.output)
        with closed_on_error(self.files.close):
            self._save(inner)

    def _save(self, inner: dict[str, np.ndarray]) -> None:
        """The current atoms, with the current marks of the files."""
        state = Checkpoint(
            step=self.step,
            physics=self.identity,
            random=dict(self.rng.bit_generator.state),
            sums=self.sums,
            marks={} if self.files is None else self.files.marks(),
            arrays=checkpoints.atom_arrays(self.atoms),
            inner=inner,
        )
        checkpoints.save(self.output.checkpoint, state)


class _AseRun(_Run):
    """Through ASE's integrators, step by step: structures with constraints."""

    kind = "ase"

    def __init__(self, simulation: _Simulation) -> None:
        if simulation.physics.has_ramp:
            raise InputError(
                "ramps of temperature and pressure need the engine, which supports no constraints"
            )
        if simulation.restraints:
            raise InputError("restraints need the engine, which supports no constraints")
        super().__init__(simulation)
        atoms = self.atoms
        check_masses(atoms)
        self.dynamics = make_integrator(atoms, self.physics, self.rng)
        atoms.calc.renew_lists()
        if self.saved is not None:
            atoms.calc.restore_lists(self.saved.inner)
        atoms.get_forces()
        if self.saved is None:
            self.sums["conserved"] = conserved_energy(self.dynamics)
            self._checkpoint()
            atoms.get_forces()  # the checkpoint lacks them, and the frame has them
        self._open(atoms, self._state(), {})

    def go(self) -> Summary:
        first, started = self.step, time.perf_counter()
        due = self.physics.next_checkpoint(first, len(self.atoms))
        guard = Guard(self.physics.timestep, self.physics.temperature)
        assert self.files is not None
        try:
            with Reporter(first, self.output.steps, self.physics.timestep) as reporter:
                while self.step < self.output.steps and not self.stops():
                    with guard.explain(self.step + 1):
                        self.dynamics.step()
                    self.step += 1
                    now = temperature(self.atoms, self.freedom)
                    guard.check(self.step, now)
                    self.sums["temperature"] = (self.sums["temperature"] or 0.0) + now
                    if self.step % self.output.interval == 0:
                        self.files.write(self.atoms, self._state())
                    # The checkpoint comes last: this step's frame precedes it.
                    if self.step in (due, self.output.steps):
                        self._checkpoint()
                        due = self.physics.next_checkpoint(self.step, len(self.atoms))
                    reporter.update(self.step, now)
                if self.step < self.output.steps:
                    self._save(self.atoms.calc.saved_lists())
        finally:
            self.files.close()
        return self._summary(first, time.perf_counter() - started, conserved_energy(self.dynamics))

    def _state(self) -> LogState:
        """What the log tells of the step."""
        now = temperature(self.atoms, self.freedom)
        return self._log_state(self.step, now, conserved_energy(self.dynamics))

    def _checkpoint(self) -> None:
        self._save({})
        # A restart starts with new lists, whose order decides the last bits of sums: so does this run.
        self.atoms.calc.renew_lists()


class _EngineRun(_Run):
    """On the model's device, from checkpoint to checkpoint; a thread writes the files."""

    kind = "engine"

    def __init__(self, simulation: _Simulation) -> None:
        super().__init__(simulation)
        atoms, physics, calculator = self.atoms, self.physics, self.atoms.calc
        self.engine = Engine(
            atoms,
            calculator.models,
            physics,
            skin=calculator.skin,
            step=self.step,
            fparam=calculator.parameters.get("fparam"),
            aparam=calculator.parameters.get("aparam"),
            restraints=self.restraints or None,
        )
        self.engine.stops = self.stops
        self.on_gpu = self.engine.potential.device.type == "cuda"
        if self.saved is not None:
            self.engine.inner = self.saved.inner
        frame = self.engine.frame()
        if self.saved is None:
            self.sums["conserved"] = frame.conserved
            self._save(self.engine.inner)
        self.before = self.sums["temperature"] or 0.0
        self._open(frame.atoms(atoms), self._state(frame), self.engine.inner)

    def go(self) -> Summary:
        first, started, end = self.step, time.perf_counter(), self.engine.frame()
        writer = Background()
        try:
            with Reporter(first, self.output.steps, self.physics.timestep) as reporter:
                self.engine.on_progress = lambda step, kinetic: reporter.update(
                    step, self.engine.temperature(kinetic[0])
                )
                while self.step < self.output.steps and not self.stops():
                    end = self._segment(writer, first)
        finally:
            writer.close()
            assert self.files is not None
            self.files.close()
        return self._summary(first, time.perf_counter() - started, end.conserved)

    def _segment(self, writer: Background, first: int) -> Frame:
        """Runs to the next checkpoint, or until it is to stop, and writes it; `first`: where this call began."""
        due = self.physics.next_checkpoint(self.step, len(self.atoms), on_gpu=self.on_gpu)
        last = min(self.output.steps, due)
        for frame in self.engine.run(last - self.step, self.output.interval):
            writer.do(functools.partial(self._frame, frame))
            if (guard := self.atoms.calc.guard) is not None:
                when = f"at step {frame.step}"
                guard.check(frame.atoms(self.atoms), frame.forces, frame.forces_std, when)
        frame = self.engine.frame()
        writer.drain()
        self.step = self.engine.step
        self.sums["temperature"] = self.before + self.engine.mean_temperature * (self.step - first)
        self.atoms.set_cell(frame.cell)
        self.atoms.arrays["positions"][:] = frame.positions
        self.atoms.set_array("momenta", frame.momenta, float, (3,))
        if self.step < last:
            self._save(self.engine.halted)
        else:
            self._save(self.engine.inner)
            # A restart starts with new lists, whose order decides the last bits of sums: so does this run.
            self.engine.renew()
        return frame

    def _state(self, frame: Frame) -> LogState:
        """What the log tells of it."""
        return self._log_state(frame.step, self.engine.temperature(frame.kinetic), frame.conserved)

    def _frame(self, frame: Frame) -> None:
        assert self.files is not None
        self.files.write(frame.atoms(self.atoms), self._state(frame))


def models_identity(models: Sequence[Potential]) -> dict[str, Any]:
    """The identity of the models of a run: a digest of weights and options, and the arguments of `load`."""
    identity: dict[str, Any] = {"number of models": len(models)}
    for k, model in enumerate(models, 1):
        name = "model" if len(models) == 1 else f"model {k}"
        identity[name] = digest(model)[:16]
        identity[f"dtype of the {name}"] = str(model.dtype).removeprefix("torch.")
        identity[f"matmul of the {name}"] = model.matmul
        identity[f"evaluation of the {name}"] = model.splines() or "exact nets"
        identity[f"overflow of the {name}"] = model.overflow
    return identity


def masses_identity(atoms: Atoms) -> str:
    """Each element's mass, or if atoms of one differ a digest of all."""
    masses, symbols = atoms.get_masses(), np.array(atoms.get_chemical_symbols())
    each = {symbol: set(masses[symbols == symbol].tolist()) for symbol in dict.fromkeys(symbols.tolist())}
    if all(len(found) == 1 for found in each.values()):
        return ", ".join(f"{symbol} {found.pop()!r}" for symbol, found in each.items())
    return sha256(np.ascontiguousarray(masses, np.float64).tobytes()).hexdigest()[:16]


def constraints_identity(atoms: Atoms) -> list[str]:
    """Their identifying data; for long data a digest."""
    told = []
    for constraint in atoms.constraints:
        try:
            text = encode(constraint.todict())
        except (AttributeError, NotImplementedError):  # users' own may lack it
            text = f"{type(constraint).__name__} {np.asarray(constraint.get_indices()).tolist()}"
        told.append(
            text
            if len(text) < 80
            else f"{type(constraint).__name__} {sha256(text.encode()).hexdigest()[:16]}"
        )
    return told


def charge_spin_identity(atoms: Atoms, models: Sequence[Potential]) -> list[float] | None:
    """The structure's own charge and multiplicity, if models take them."""
    defaults = [default for model in models for default in charge_spin_defaults(model.model)]
    given = charges_and_spins([atoms], defaults) if defaults else None
    return None if given is None else given[0].tolist()


def moments_identity(frames: Sequence[Atoms], models: Sequence[Potential]) -> str | None:
    """A digest of the magnetic moments, if models take them."""
    if all(model.model.spin is None for model in models):
        return None
    return sha256(atom_spins(frames).tobytes()).hexdigest()[:16]


def _parameters(atoms: Atoms) -> dict[str, Any]:
    """Frame parameters, and a digest of atomic ones, of the structure or the calculator."""
    fparam = atoms.info.get("fparam", atoms.calc.parameters.get("fparam"))
    aparam = atoms.arrays.get("aparam", atoms.calc.parameters.get("aparam"))
    return {
        "fparam": None if fparam is None else np.ravel(np.asarray(fparam, np.float64)).tolist(),
        "aparam": None
        if aparam is None
        else sha256(np.asarray(aparam, np.float64).tobytes()).hexdigest()[:16],
    }


def last_checkpoint(output: Output) -> Checkpoint | None:
    """The checkpoint to continue; None for a new run.

    Raises InputError if files of an earlier run are in the way, or changed since their checkpoint.
    """
    written = existing(output)
    if output.restart and output.checkpoint.exists():
        saved = checkpoints.read(output.checkpoint)
        if saved.step > output.steps:
            raise InputError(f"{output.checkpoint} is at step {saved.step}, past the end at {output.steps}")
        for name in saved.marks:
            if getattr(output, name) is None:
                raise InputError(f"the run so far wrote a {name}: name it again")
        return saved
    if written and not output.overwrite:
        _refuse_overwriting(written, output.checkpoint)
    return None


def _refuse_overwriting(written: list[Path], checkpoint: Path) -> None:
    names = ", ".join(str(f) for f in written)
    go_on = "--restart to continue that run, or " if checkpoint.exists() else ""
    raise InputError(f"{names}: exists already; give {go_on}--overwrite to start again")


def check_same(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"{name} ({saved.get(name)}, now {now[name]})" for name in now if saved.get(name) != now[name]]
    if changed:
        raise InputError(
            f"{path} is of a run with other {', '.join(changed)}: a restart must have the same; give the "
            "options of the first run, or start again with --overwrite or other names"
        )
