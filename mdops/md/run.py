"""A molecular dynamics run with files, checkpoints and restarts."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mdops.digest import digest
from mdops.errors import InputError
from mdops.md import checkpoint as checkpoints
from mdops.md.checkpoint import Checkpoint
from mdops.md.engine import Engine, Frame
from mdops.md.engine.restraints import Restraint, identity, placed
from mdops.md.files import Background, Files, existing, one_run
from mdops.md.guard import Guard
from mdops.md.integrators import conserved_energy, make_integrator
from mdops.md.log import LogState
from mdops.md.motion import degrees_of_freedom, set_velocities, temperature
from mdops.md.options import Output, Physics
from mdops.md.progress import Reporter, ns_per_day
from mdops.potential import Potential


@dataclasses.dataclass(frozen=True)
class Summary:
    """What this call did: `steps` of it (those before a restart not counted) in `seconds`; the mean
    temperature (K), and how far the conserved energy went (eV/atom; None if there is none)."""

    steps: int
    seconds: float
    ns_per_day: float
    temperature: float
    drift: float | None


def run(
    atoms: Atoms,
    physics: Physics,
    output: Output,
    *,
    new_velocities: bool = False,
    engine: bool | None = None,
    restraints: Sequence[Restraint] = (),
) -> Summary:
    """Run atoms that have an `MDOps` calculator; they end up in the last state.

    Every `physics.checkpoint_steps` steps the files are brought to the disk, the state is saved, and
    neighbour lists are built anew. A restart cuts trajectory and log back to the last checkpoint and goes on from
    there; it computes what the unbroken run would have, to the last bit.

    Args:
        atoms, physics, output: the structure, its equations of motion, and the files.
        new_velocities: draw velocities even if the structure has some.
        engine: run on the model's device (`mdops.md.engine`), or through ASE's integrators (nve and Langevin
            dynamics); by default those run structures with constraints, and the engine all others.
        restraints: `Tether` and `Distance`, which the engine alone has. Tethers hold atoms where the run, before any
            restart, finds them.

    Raises:
        InputError: a structure, option or file that does not fit, or a file that another run writes.
        UnstableRunError: the run blew up.
    """
    if engine is None:
        engine = not atoms.constraints
    simulation = _Simulation(atoms, physics, output, new_velocities, restraints)
    with one_run(output):
        return (_EngineRun if engine else _AseRun)(simulation).go()


@dataclasses.dataclass(frozen=True)
class _Simulation:
    """The arguments of `run` that either way of running has."""

    atoms: Atoms
    physics: Physics
    output: Output
    new_velocities: bool
    restraints: Sequence[Restraint]


class _Run:
    """A run between its first and its last step: its files and its place."""

    kind = ""

    def __init__(self, simulation: _Simulation) -> None:
        self.atoms, self.physics, self.output = simulation.atoms, simulation.physics, simulation.output
        atoms, physics, output = self.atoms, self.physics, self.output
        self.restraints = placed(simulation.restraints, atoms.get_positions())
        self.rng = np.random.default_rng(physics.seed)
        self.saved = last_checkpoint(output)
        if self.saved is None:
            set_velocities(atoms, physics, self.rng, anew=simulation.new_velocities)
        else:
            check_same(self.saved.physics, self._identity(), output.checkpoint)
            checkpoints.restore_atoms(atoms, self.saved.arrays)
            self.rng.bit_generator.state = self.saved.random
        self.freedom = degrees_of_freedom(atoms, physics)
        self.files: Files | None = None
        self.step = 0 if self.saved is None else self.saved.step

    def _identity(self) -> dict[str, Any]:
        """What a restart must have in common, by the names that its user knows."""
        # The skin decides how long a list lives, and so in which order forces are summed.
        same = dataclasses.asdict(self.physics) | {"integrator": self.kind, "skin": self.atoms.calc.skin}
        same |= {"restraints": identity(self.restraints)}
        return same | models_identity(self.atoms.calc.models) | _parameters(self.atoms)

    def _summary(self, first: int, seconds: float, temperature: float, drift: float | None) -> Summary:
        done = self.step - first
        speed = ns_per_day(done, self.physics.timestep, seconds)
        return Summary(done, seconds, speed, temperature, drift)

    def _log_state(self, step: int, temperature: float, conserved: float | None) -> LogState:
        return LogState(step, step * self.physics.timestep, temperature, conserved)

    def _open(self) -> None:
        """The files, at the place of the checkpoint."""
        self.files = Files(self.output, {} if self.saved is None else self.saved.marks)

    @property
    def _is_new(self) -> bool:
        """Whether nothing has been written yet: a new run, or one killed before its first frame."""
        return self.saved is None or not self.saved.marks

    def _save(self, inner: dict[str, np.ndarray]) -> None:
        """The atoms as they are now, with the files as far as they are now."""
        state = Checkpoint(
            step=self.step,
            physics=self._identity(),
            random=dict(self.rng.bit_generator.state),
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
                "temperature and pressure are ramped by the engine, which moves no structures with constraints"
            )
        if simulation.restraints:
            raise InputError("restraints are the engine's, which moves no structures with constraints")
        super().__init__(simulation)
        atoms = self.atoms
        self.dynamics = make_integrator(atoms, self.physics, self.rng)
        self.every = self.physics.checkpoint_steps(len(atoms))
        atoms.calc.renew_lists()
        atoms.get_forces()
        if self.saved is None:
            self._checkpoint()
        self._open()
        if self._is_new:
            atoms.get_forces()  # the checkpoint has forgotten them, and the frame holds them
            self._frame(heading=True)

    def go(self) -> Summary:
        first, started = self.step, time.perf_counter()
        kept, total = conserved_energy(self.dynamics), 0.0
        guard = Guard(self.physics.timestep, self.physics.temperature)
        try:
            with Reporter(first, self.output.steps, self.physics.timestep) as reporter:
                while self.step < self.output.steps:
                    with guard.explain(self.step + 1):
                        self.dynamics.step()
                    self.step += 1
                    now = temperature(self.atoms, self.freedom)
                    guard.check(self.step, now)
                    total += now
                    self._write()
                    reporter.update(self.step, now)
        finally:
            assert self.files is not None
            self.files.close()
        end = conserved_energy(self.dynamics)
        drift = None if end is None or kept is None else (end - kept) / max(len(self.atoms), 1)
        mean = total / max(self.step - first, 1)
        return self._summary(first, time.perf_counter() - started, mean, drift)

    def _write(self) -> None:
        """What is due after a step. The checkpoint comes last: it has this step's frame behind it."""
        if self.step % self.output.interval == 0:
            self._frame()
        if self.step % self.every == 0 or self.step == self.output.steps:
            self._checkpoint()

    def _frame(self, heading: bool = False) -> None:
        assert self.files is not None
        now = temperature(self.atoms, self.freedom)
        state = self._log_state(self.step, now, conserved_energy(self.dynamics))
        self.files.write(self.atoms, state, heading=heading)

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
        self.every = physics.checkpoint_steps(len(atoms), on_gpu=self.engine.potential.device.type == "cuda")
        if self.saved is None:
            self._save(self.engine.inner)
        else:
            self.engine.inner = self.saved.inner
        self._open()
        if self._is_new:
            self._frame(self.engine.frame(), heading=True)

    def go(self) -> Summary:
        first, started, start = self.step, time.perf_counter(), self.engine.frame()
        writer, end = Background(), start
        try:
            with Reporter(first, self.output.steps, self.physics.timestep) as reporter:
                self.engine.on_progress = lambda step, kinetic: reporter.update(
                    step, self.engine.temperature(kinetic[0])
                )
                while self.step < self.output.steps:
                    end = self._segment(writer)
        finally:
            writer.close()
            assert self.files is not None
            self.files.close()
        drift = None
        if start.conserved is not None and end.conserved is not None:
            drift = (end.conserved - start.conserved) / len(self.atoms)
        return self._summary(first, time.perf_counter() - started, self.engine.mean_temperature, drift)

    def _segment(self, writer: Background) -> Frame:
        """The steps up to the next checkpoint, and that."""
        last = min(self.output.steps, (self.step // self.every + 1) * self.every)
        for frame in self.engine.run(last - self.step, self.output.interval):
            writer.do(functools.partial(self._frame, frame))
        frame = self.engine.frame()
        writer.drain()
        self.step = last
        self.atoms.set_cell(frame.cell)
        self.atoms.arrays["positions"][:] = frame.positions
        self.atoms.set_array("momenta", frame.momenta, float, (3,))
        self._save(self.engine.inner)
        # A restart starts with new lists, whose order decides the last bits of sums: so does this run.
        self.engine.renew()
        return frame

    def _frame(self, frame: Frame, heading: bool = False) -> None:
        assert self.files is not None
        state = self._log_state(frame.step, self.engine.temperature(frame.kinetic), frame.conserved)
        self.files.write(frame.atoms(self.atoms), state, heading=heading)


def models_identity(models: Sequence[Potential]) -> dict[str, Any]:
    """What identifies the models of a run: a digest of weights and options, and the arguments of `load`."""
    identity: dict[str, Any] = {"number of models": len(models)}
    for k, model in enumerate(models, 1):
        name = "model" if len(models) == 1 else f"model {k}"
        identity[name] = digest(model)[:16]
        identity[f"dtype of the {name}"] = str(model.dtype).removeprefix("torch.")
        identity[f"matmul of the {name}"] = model.matmul
        identity[f"evaluation of the {name}"] = model.splines() or "exact nets"
        identity[f"overflow of the {name}"] = model.overflow
    return identity


def _parameters(atoms: Atoms) -> dict[str, Any]:
    """Frame and atomic parameters, the structure's or the calculator's: these themselves, and a digest of those."""
    fparam = atoms.info.get("fparam", atoms.calc.parameters.get("fparam"))
    aparam = atoms.arrays.get("aparam", atoms.calc.parameters.get("aparam"))
    return {
        "fparam": None if fparam is None else np.ravel(np.asarray(fparam, np.float64)).tolist(),
        "aparam": None
        if aparam is None
        else sha256(np.asarray(aparam, np.float64).tobytes()).hexdigest()[:16],
    }


def last_checkpoint(output: Output) -> Checkpoint | None:
    """What to go on from; None for a new run.

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
    go_on = "--restart to go on with that run, or " if checkpoint.exists() else ""
    raise InputError(f"{names}: already there; give {go_on}--overwrite to start anew")


def check_same(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"{name} ({saved.get(name)}, now {now[name]})" for name in now if saved.get(name) != now[name]]
    if changed:
        raise InputError(
            f"{path} is of a run with other {', '.join(changed)}: a restart must have the same; give what the run "
            "started with, or start anew with --overwrite or under other names"
        )
