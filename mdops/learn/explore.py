"""Dynamics with the committee: frames that may be worth a label."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.files.atomic import replace_file
from mdops.learn.config import ExploreConfig
from mdops.learn.jobs import Jobs
from mdops.learn.labels import read_frames, write_frames
from mdops.learn.structures import changed
from mdops.learn.students import committee
from mdops.md.engine import BatchEngine
from mdops.md.engine.frame import BatchFrame, Frame
from mdops.md.guard import UnstableRunError
from mdops.md.motion import set_velocities
from mdops.md.options import EnsembleSettings
from mdops.potential import Potential


@dataclass(frozen=True)
class Condition:
    """Runs side by side: the structures' indices, temperature (K), and pressure (GPa; None: constant volume)."""

    places: list[int]
    temperature: float
    pressure: float | None


@dataclass(frozen=True)
class Run:
    """A run that is done: the index of its structure, temperature (K), the planned and the actual number of steps, and
    whether it was stopped because the students diverged or disagreed."""

    place: int
    temperature: float
    pressure: float | None
    steps: int
    stopped: bool


def conditions(config: ExploreConfig, structures: int, together: bool) -> list[Condition]:
    """Every temperature with every pressure and structure. If `together`, a condition's structures form one batch."""
    pressures: list[float | None] = [*config.pressures] if config.ensemble == "npt" else [None]
    groups = [list(range(structures))] if together else [[k] for k in range(structures)]
    return [Condition(g, t, p) for t in config.temperatures for p in pressures for g in groups]


def explore(
    folder: Path,
    config: ExploreConfig,
    structures: Sequence[Atoms],
    *,
    swap: bool,
    number: int,
    device: str,
    high: float,
    seed: Sequence[int],
    jobs: Jobs,
) -> tuple[list[Atoms], list[Run]]:
    """Runs every condition that was not run yet. Returns the frames up to the deviation `high` (eV/A), whose `info`
    says where they come from, and the runs."""
    together = device != "cpu"
    made = folder / "explored"
    made.mkdir(exist_ok=True)
    work = [
        (
            folder,
            made / f"{k:03d}",
            config,
            c,
            [structures[p] for p in c.places],
            swap,
            number,
            device,
            high,
            (*seed, k),
        )
        for k, c in enumerate(conditions(config, len(structures), together))
        if not (made / f"{k:03d}.json").exists()
    ]
    for _ in jobs.run(_explore, work, here=together):
        pass
    frames, runs = [], []
    for path in sorted(made.glob("*.json")):
        runs += [Run(**told) for told in json.loads(path.read_text(encoding="utf-8"))]
        frames += read_frames(path.with_suffix(".extxyz"))
    return frames, runs


def _explore(
    folder: Path,
    path: Path,
    config: ExploreConfig,
    condition: Condition,
    structures: list[Atoms],
    swap: bool,
    number: int,
    device: str,
    high: float,
    seed: tuple[int, ...],
) -> None:
    """Runs one condition and writes its frames, then its runs, which mark it as done."""
    random = np.random.default_rng(seed)
    physics = EnsembleSettings(
        "nvt" if condition.pressure is None else "npt",
        condition.temperature,
        config.timestep,
        pressure=condition.pressure or 0.0,
        seed=int(random.integers(2**31)),
    )
    atoms = [changed(a, random, strain=config.strain, swap=swap) for a in structures]
    for one in atoms:
        set_velocities(one, physics, random, anew=True)
    recorder = _Recorder(condition, high)
    _run(atoms, list(range(len(atoms))), committee(folder, number, device), physics, config, 0, recorder)
    write_frames(path.with_suffix(".extxyz"), recorder.frames)
    runs = [
        asdict(
            Run(p, condition.temperature, condition.pressure, recorder.steps.get(k, 0), k in recorder.stopped)
        )
        for k, p in enumerate(condition.places)
    ]
    replace_file(path.with_suffix(".json"), json.dumps(runs).encode())


class _Recorder:
    """Keeps frames, and stops runs. `stopped` has the indices of stopped runs, `steps` each run's number of steps."""

    def __init__(self, condition: Condition, high: float) -> None:
        self._condition, self._high = condition, high
        self.frames: list[Atoms] = []
        self.stopped: set[int] = set()
        self.steps: dict[int, int] = {}

    def take(self, run: int, frame: Frame, like: Atoms, step: int) -> bool:
        """Whether the run may continue."""
        assert frame.forces_std is not None
        deviation = float(frame.forces_std.max())
        if not deviation <= self._high:
            self.stopped.add(run)
            return False
        self.steps[run] = step
        atoms = Atoms(like.numbers, frame.positions, cell=frame.cell, pbc=like.pbc)
        if atoms.pbc.any():
            atoms.wrap()
        atoms.info |= {
            "deviation": round(deviation, 6),
            "temperature": self._condition.temperature,
            "structure": self._condition.places[run],
            "step": step,
        }
        if self._condition.pressure is not None:
            atoms.info["pressure"] = self._condition.pressure
        self.frames.append(atoms)
        return True


def _run(
    atoms: list[Atoms],
    runs: list[int],
    models: list[Potential],
    physics: EnsembleSettings,
    config: ExploreConfig,
    first: int,
    recorder: _Recorder,
) -> None:
    """Moves structures side by side from step `first` on. If one is stopped, the others continue without it. If the
    batch ends with an error, each continues alone, to find the one with the error. In the first `interval`, frames are
    ten times as dense: early students are stopped there, and learn from the frames before the stop."""
    last: BatchFrame | None = None

    def now(k: int) -> Atoms:
        return atoms[k] if last is None else last[k].atoms(atoms[k])

    def go_on(left: list[int]) -> None:
        step = first if last is None else last.step
        _run([now(k) for k in left], [runs[k] for k in left], models, physics, config, step, recorder)

    try:
        engine = BatchEngine(atoms, models, physics, step=first)
        dense = min(max(config.interval - first, 0), config.steps - first)
        for frames in itertools.chain(
            engine.run(dense, max(config.interval // 10, 1)),
            engine.run(config.steps - first - dense, config.interval),
        ):
            last = frames
            good = [k for k, run in enumerate(runs) if recorder.take(run, frames[k], atoms[k], frames.step)]
            if len(good) < len(runs):
                break
        else:
            return
    except (UnstableRunError, InputError):
        if len(runs) == 1:
            recorder.stopped.add(runs[0])
            return
        for k in range(len(runs)):
            go_on([k])
        return
    if good:
        go_on(good)
