"""A molecular dynamics run with files, checkpoints and restarts."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.md import checkpoint as checkpoints
from mdops.md import log
from mdops.md.checkpoint import Checkpoint
from mdops.md.guard import Guard
from mdops.md.integrators import conserved_energy, inner_state, make_integrator, set_inner_state
from mdops.md.motion import degrees_of_freedom, set_velocities, temperature
from mdops.md.options import Output, Physics
from mdops.md.outputs import AseTrajectory, ExtxyzTrajectory, TextFile, open_trajectory
from mdops.md.progress import Reporter, ns_per_day


@dataclasses.dataclass(frozen=True)
class Summary:
    """What this call did: `steps` of it (those before a restart not counted) in `seconds`; the mean
    temperature (K), and how far the conserved energy went (eV/atom; None if there is none)."""

    steps: int
    seconds: float
    ns_per_day: float
    temperature: float
    drift: float | None


def run(atoms: Atoms, physics: Physics, output: Output, *, new_velocities: bool = False) -> Summary:
    """Run atoms that have an `MDOps` calculator; they end up in the last state.

    Every `physics.checkpoint_steps` steps the files are brought to the disk, the state is saved, and
    neighbour lists begin anew. A restart cuts trajectory and log back to the last checkpoint and goes on from
    there; it computes what the unbroken run would have, to the last bit.

    Raises:
        InputError: a structure, option or file that does not fit.
        UnstableRunError: the run blew up.
    """
    return _Run(atoms, physics, output, new_velocities).go()


class _Run:
    """A run between its first and its last step."""

    def __init__(self, atoms: Atoms, physics: Physics, output: Output, new_velocities: bool) -> None:
        self.atoms, self.physics, self.output = atoms, physics, output
        self.rng = np.random.default_rng(physics.seed)
        saved = _last_checkpoint(output)
        if saved is None:
            set_velocities(atoms, physics, self.rng, anew=new_velocities)
        else:
            _check_same(saved.physics, _as_dict(physics), output.checkpoint)
            checkpoints.restore_atoms(atoms, saved.arrays)
            self.rng.bit_generator.state = saved.random
        self.freedom = degrees_of_freedom(atoms, physics)
        self.trajectory: ExtxyzTrajectory | AseTrajectory | None = None
        self.log: TextFile | None = None
        self.dynamics = make_integrator(atoms, physics, self.rng)
        if saved is not None:
            set_inner_state(self.dynamics, saved.inner)
        self.step = 0 if saved is None else saved.step
        self.every = physics.checkpoint_steps(len(atoms))
        atoms.calc.renew_lists()
        atoms.get_forces()
        self._open(saved)

    def go(self) -> Summary:
        first, begin = self.step, time.perf_counter()
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
            self._close()
        done, seconds = self.step - first, time.perf_counter() - begin
        end = conserved_energy(self.dynamics)
        drift = None if end is None or kept is None else (end - kept) / max(len(self.atoms), 1)
        speed = ns_per_day(done, self.physics.timestep, seconds)
        return Summary(done, seconds, speed, total / max(done, 1), drift)

    def _open(self, saved: Checkpoint | None) -> None:
        """The files, at the place of the checkpoint; a new run begins with one, and with frame 0."""
        output = self.output
        if saved is None:
            self._checkpoint()
        marks: dict[str, Any] = {} if saved is None else saved.marks
        if output.trajectory is not None:
            self.trajectory = open_trajectory(output.trajectory, marks.get("trajectory"))
        if output.log is not None:
            self.log = TextFile(output.log, marks.get("log"))
        if not marks:
            self.atoms.get_forces()  # the checkpoint has forgotten them, and the frame holds them
            self._frame(heading=True)

    def _write(self) -> None:
        """What is due after a step. The checkpoint comes last: it has this step's frame behind it."""
        if self.step % self.output.interval == 0:
            self._frame()
        if self.step % self.every == 0 or self.step == self.output.steps:
            self._checkpoint()

    def _frame(self, heading: bool = False) -> None:
        if self.trajectory is not None:
            frame = self.atoms.copy()
            frame.calc = self.atoms.calc
            frame.info |= {"step": self.step, "time_fs": self.step * self.physics.timestep}
            self.trajectory.write_frame(frame)
        if self.log is not None:
            line = log.columns(self.dynamics, self.step, temperature(self.atoms, self.freedom))
            self.log.write(log.text(line, heading=heading))

    def _checkpoint(self) -> None:
        files: dict[str, Any] = {"trajectory": self.trajectory, "log": self.log}
        state = Checkpoint(
            step=self.step,
            physics=_as_dict(self.physics),
            random=dict(self.rng.bit_generator.state),
            marks={name: file.mark() for name, file in files.items() if file is not None},
            arrays=checkpoints.atom_arrays(self.atoms),
            inner=inner_state(self.dynamics),
        )
        checkpoints.save(self.output.checkpoint, state)
        # A restart begins with new lists, whose order decides the last bits of sums: so does this run.
        self.atoms.calc.renew_lists()

    def _close(self) -> None:
        for file in (self.trajectory, self.log):
            if file is not None:
                file.close()


def _as_dict(physics: Physics) -> dict[str, Any]:
    return dataclasses.asdict(physics)


def _last_checkpoint(output: Output) -> Checkpoint | None:
    """What to go on from; None for a run that begins.

    Raises InputError if files of an earlier run are in the way, or changed since their checkpoint.
    """
    written = [f for f in (output.trajectory, output.log, output.checkpoint) if f is not None and f.exists()]
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


def _check_same(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"{name} ({saved.get(name)}, now {now[name]})" for name in now if saved.get(name) != now[name]]
    if changed:
        raise InputError(f"{path} is of a run with other {', '.join(changed)}: a restart must have the same")
