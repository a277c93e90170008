"""The options of a run: ensemble, parameters, length and files; checked before the start."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Literal, get_args

from mdops.errors import InputError
from mdops.flags import require_flags, require_numbers, require_path, require_whole

Ensemble = Literal["nve", "nvt", "npt"]
Thermostat = Literal["nose-hoover", "langevin"]

_MOST_RAMP_STAGES, _SHORTEST_RAMP_STAGE = 100, 100  # a GPU needs new graphs for each


@dataclasses.dataclass(frozen=True)
class EnsembleSettings:
    """The equations of motion; a restart must have the same.

    Attributes:
        ensemble: nve (velocity Verlet), nvt, or npt (Martyna-Tobias-Klein).
        temperature: K; for nve only that of the initial velocities.
        timestep: fs.
        thermostat: for nvt: a Nose-Hoover chain or Langevin dynamics.
        friction: for Langevin dynamics, 1/ps.
        tdamp: period of the Nose-Hoover chain, fs.
        pressure: GPa.
        pdamp: period of the barostat, fs.
        flexible: npt changes the whole cell, not only its volume.
        final_temperature: K, final_pressure: GPa: the targets of the thermostats and the barostat after `ramp_steps`
            steps. They change linearly, in 100 stages, or fewer, of 100 steps. None: they stay constant. With a ramp
            no energy is conserved.
        ramp_steps: the number of steps of the ramp.
        seed: for the initial velocities and Langevin's noise.
        checkpoint_every: steps between checkpoints; 0 chooses by the number of atoms. Neighbour lists are rebuilt
            there, so this number affects the last bits of a trajectory.
    """

    ensemble: Ensemble = "nve"
    temperature: float | None = None
    timestep: float = 1.0
    thermostat: Thermostat = "nose-hoover"
    friction: float = 2.0
    tdamp: float = 100.0
    pressure: float = 0.0
    pdamp: float = 1000.0
    flexible: bool = False
    final_temperature: float | None = None
    final_pressure: float | None = None
    ramp_steps: int = 0
    seed: int = 0
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("ensemble", get_args(Ensemble)), ("thermostat", get_args(Thermostat))):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}, expected {', '.join(choices)}")
        require_flags(flexible=self.flexible)
        require_whole(ramp_steps=self.ramp_steps, seed=self.seed, checkpoint_every=self.checkpoint_every)
        given = {name: getattr(self, name) for name in ("timestep", "friction", "tdamp", "pressure", "pdamp")}
        maybe = {name: getattr(self, name) for name in ("temperature", "final_temperature", "final_pressure")}
        require_numbers(**given, **{name: value for name, value in maybe.items() if value is not None})
        for name in ("timestep", "friction", "tdamp", "pdamp"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, expected a positive number")
        if not math.isfinite(self.pressure):
            raise InputError(f"pressure is {self.pressure}, expected a number in GPa")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}, expected K, not negative")
        if self.ensemble != "nve" and not self.temperature:
            raise InputError(f"{self.ensemble} needs a temperature above zero (--temperature, in K)")
        self._check_unused()
        self._check_ramps()
        if self.checkpoint_every < 0 or self.seed < 0:
            raise InputError("seed and the steps between checkpoints must not be negative")

    def _check_unused(self) -> None:
        """Options of another ensemble or thermostat show that this one was not meant."""
        nvt, langevin = self.ensemble == "nvt", self.thermostat == "langevin"
        taken = {
            "thermostat": nvt,
            "friction": nvt and langevin,
            "tdamp": self.ensemble == "npt" or (nvt and not langevin),
            **dict.fromkeys(("pressure", "pdamp", "flexible"), self.ensemble == "npt"),
        }
        for name, is_taken in taken.items():
            value = getattr(self, name)
            if not is_taken and value != getattr(type(self), name):
                own = f"{self.ensemble} by {self.thermostat}" if nvt else self.ensemble
                raise InputError(
                    f"{name} is {value}, and {own} has no {name}: give another ensemble or thermostat"
                )

    def _check_ramps(self) -> None:
        if self.final_temperature is not None:
            if self.ensemble == "nve":
                raise InputError("nve has no thermostat whose temperature could change: give nvt or npt")
            if not 0 < self.final_temperature < math.inf:
                raise InputError(f"final_temperature is {self.final_temperature}, expected K above zero")
        if self.final_pressure is not None:
            if self.ensemble != "npt":
                raise InputError(f"{self.ensemble} has no pressure that could change: give npt")
            if not math.isfinite(self.final_pressure):
                raise InputError(f"final_pressure is {self.final_pressure}, expected a number in GPa")
        if self.ramp_steps < 0 or self.has_ramp != (self.ramp_steps > 0):
            raise InputError(
                f"ramp_steps is {self.ramp_steps}: a final temperature or pressure is reached in a number of steps, "
                "and nothing else is"
            )

    @property
    def has_ramp(self) -> bool:
        return self.final_temperature is not None or self.final_pressure is not None

    @property
    def _ramp_stages(self) -> int:
        """How many there are."""
        return min(self.ramp_steps, _MOST_RAMP_STAGES, max(1, self.ramp_steps // _SHORTEST_RAMP_STAGE))

    def ramp_stage(self, step: int) -> int:
        """The ramps' stage of the step after `step` steps; the number of stages after the ramps."""
        return min(step * self._ramp_stages // self.ramp_steps, self._ramp_stages) if self._ramp_stages else 0

    def ramp_stage_end(self, step: int) -> float:
        """After how many steps another stage begins."""
        stages, now = self._ramp_stages, self.ramp_stage(step)
        return -(-(now + 1) * self.ramp_steps // stages) if now < stages else math.inf

    def goals(self, step: int) -> tuple[float, float]:
        """Temperature, K, and pressure, GPa, of the step after `step` steps: each stage has the mean of its ramp."""
        stages, now = self._ramp_stages, self.ramp_stage(step)
        part = 1.0 if now >= stages else (now + 0.5) / stages

        def between(first: float, last: float | None) -> float:
            return first if last is None else first + part * (last - first)

        return between(self.temperature or 0.0, self.final_temperature), between(
            self.pressure, self.final_pressure
        )

    def next_checkpoint(self, step: int, atoms: int, *, on_gpu: bool = False) -> int:
        """The step of the first checkpoint after `step`. Without `checkpoint_every`, the first ones come after 10 steps
        (on a GPU 100), 20, 40 and so on: even a slow model has one after seconds."""
        every = self.checkpoint_steps(atoms, on_gpu=on_gpu)
        regular = (step // every + 1) * every
        if self.checkpoint_every:
            return regular
        early = 100 if on_gpu else 10
        while early <= step:
            early *= 2
        return early if early < every else regular

    def checkpoint_steps(self, atoms: int, *, on_gpu: bool = False) -> int:
        """Steps between checkpoints: `checkpoint_every`, or some ten seconds of work."""
        if self.checkpoint_every:
            return self.checkpoint_every
        if on_gpu:
            return max(1000, min(50_000, 300_000_000 // max(atoms, 1)))
        return max(10, min(1000, 2_000_000 // max(atoms, 1)))


@dataclasses.dataclass(frozen=True)
class Relaxation:
    """The target of a relaxation; a restart must have the same.

    Attributes:
        fmax: eV/A: a structure is relaxed when no force is larger. Where its cell moves the force on that counts,
            too (the virial of an atom on average, row by row, eV), and forces are those by the positions in the
            strain of the beginning, as of ASE's `FrechetCellFilter`.
        cell: "fixed", or the part that changes: its "volume", or "all".
        pressure: GPa, for a cell that changes.
    """

    fmax: float = 0.01
    cell: Literal["fixed", "volume", "all"] = "fixed"
    pressure: float = 0.0

    def __post_init__(self) -> None:
        require_numbers(fmax=self.fmax, pressure=self.pressure)
        if not 0 < self.fmax < math.inf:
            raise InputError(f"fmax is {self.fmax}, expected a positive number in eV/A")
        if self.cell not in ("fixed", "volume", "all"):
            raise InputError(f"cell is {self.cell!r}, expected fixed, volume, all")
        if not math.isfinite(self.pressure):
            raise InputError(f"pressure is {self.pressure}, expected a number in GPa")
        if self.pressure and self.cell == "fixed":
            raise InputError("a pressure acts on a cell that moves: let its volume, or all of it, relax")


def same_file(a: Path, b: Path) -> bool:
    """Whether they name the same file, even if it is not there yet."""
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


@dataclasses.dataclass(frozen=True)
class Output:
    """The files of a run, and how often they are written.

    Attributes:
        steps: steps of the whole run, including those before a restart.
        interval: steps between frames, and between lines of the log.
        trajectory: .traj or .xyz/.extxyz, or None.
        log: a text file, or None.
        checkpoint: the state from which a restart continues.
        restart: continue from the checkpoint; start a new run if there is neither a checkpoint nor output.
        overwrite: start a new run and replace existing files.
    """

    steps: int
    checkpoint: Path
    interval: int = 100
    trajectory: Path | None = None
    log: Path | None = None
    restart: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        require_flags(restart=self.restart, overwrite=self.overwrite)
        require_whole(steps=self.steps, interval=self.interval)
        for name in ("checkpoint", "trajectory", "log"):
            value = getattr(self, name)
            if value is not None or name == "checkpoint":
                object.__setattr__(self, name, require_path(name, value))
        if self.steps < 0 or self.interval < 1:
            raise InputError(
                f"a run of {self.steps} steps with a frame every {self.interval}: expected 0 steps or more, "
                "and a frame every 1 or more"
            )
        if self.trajectory is not None and self.trajectory.suffix not in (".traj", ".xyz", ".extxyz"):
            raise InputError(f"the trajectory {self.trajectory} must end in .traj, .xyz or .extxyz")
        files = [f for f in (self.trajectory, self.log, self.checkpoint) if f is not None]
        for first, second in itertools.combinations(files, 2):
            if same_file(first, second):
                also = "" if first == second else f": {first} and {second} are one"
                raise InputError(f"trajectory, log and checkpoint must be different files{also}")
        for folder in {f.absolute().parent for f in files}:
            if not folder.is_dir():
                raise InputError(f"there is no folder {folder} to write into")
