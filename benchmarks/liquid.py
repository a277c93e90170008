"""A liquid learned from GFN2-xTB beside its teacher: force errors, dynamics, radial distributions.

    python examples/learn_liquid.py --out FOLDER/learned
    python benchmarks/liquid.py --out FOLDER [--json FILE]

The teacher is too slow for dynamics, so its distributions come from hybrid Monte Carlo, which is exact for any
reversible proposal. A trajectory of the student from new velocities proposes a configuration, and the
teacher's energy accepts or rejects it: one call of the teacher for 100 fs. The student's own distributions come
from the same walk with its own energy. The test frames for the student's forces are those that the teacher labelled in
its walk, accepted or not. No training used them.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet
from machine import machine, report

from mdops.calculator import MDOps
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.learn import parse_config
from mdops.learn.rounds import finished_rounds
from mdops.learn.teacher import Teacher, make_teacher
from mdops.loading import load
from mdops.md.compare import Run, simulate
from mdops.md.compare_plot import conservation_plot, distribution_plot

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from learn_liquid import tree
from study.sampling import hot_velocities

TEMPERATURE, TIMESTEP, STEPS = 300.0, 0.5, 200  # K, fs, steps per proposal
NVE = 40_000  # steps at constant energy
SETTLING, CALLS, LONG = 60, 120, 400  # proposals: of equilibration, of the teacher's walk, of the student's
REACH, WIDTH = 3.9, 0.1  # of distributions, A; half of the box


def walk(
    start: Atoms, student: MDOps, energy: Callable[[Atoms], float], proposals: int, seed: int
) -> tuple[list[Atoms], float]:
    """Configurations that hybrid Monte Carlo visits under `energy` (eV), and the share of accepted proposals."""
    random, now = np.random.default_rng(seed), start.copy()
    here, frames, accepted = energy(now), list[Atoms](), 0
    for _ in range(proposals):
        trial = now.copy()
        trial.calc = student
        hot_velocities(trial, TEMPERATURE, random)
        kinetic = trial.get_kinetic_energy()
        VelocityVerlet(trial, TIMESTEP * units.fs).run(STEPS)
        there = energy(trial)
        change = there + trial.get_kinetic_energy() - here - kinetic
        if random.random() < np.exp(min(0.0, -change / (units.kB * TEMPERATURE))):
            now, here, accepted = trial, there, accepted + 1
        frames.append(now.copy())
    return frames, accepted / proposals


def by_teacher(teacher: Teacher, path: Path) -> Callable[[Atoms], float]:
    """The teacher's energy. Each of its results is written to a file."""
    answers: list[Atoms] = []

    def energy(atoms: Atoms) -> float:
        bare = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
        (answer,) = teacher.label([bare], [0], path.parent)
        if isinstance(answer, str):
            raise RuntimeError(f"the teacher failed: {answer}")
        answers.append(answer)
        ase.io.write(path, answers)
        return float(answer.get_potential_energy())

    return energy


def by_student(student: MDOps) -> Callable[[Atoms], float]:
    return lambda atoms: float(student.get_potential_energy(atoms))


def shown(run: Run) -> dict[str, float]:
    """Energy conservation and speed of a run."""
    return {
        "picoseconds": float(run.times[-1]),
        "mean temperature": float(run.temperatures.mean()),
        "drift, eV/atom/ps": run.drift,
        "standard deviation of the energy, eV/atom": float(run.energies.std()),
        "seconds of a step": run.step_seconds,
    }


def walked(frames: list[Atoms], label: str) -> Run:
    empty = np.zeros(len(frames))
    return Run(label, empty, empty, empty, frames, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calls", type=int, default=CALLS, help=f"calls of the teacher; default: {CALLS}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    learned = args.out / "learned"
    rounds = finished_rounds(learned)
    teacher, student = (
        make_teacher(parse_config(tree(learned / "start.extxyz")).teacher),
        MDOps(learned / "model.safetensors"),
    )
    load_before = os.getloadavg()[0]
    settled, _ = walk(ase.io.read(learned / "start.extxyz"), student, by_student(student), SETTLING, 0)
    moving = settled[-1].copy()
    hot_velocities(moving, TEMPERATURE, np.random.default_rng(1))
    dynamics = simulate(moving, student, "student", timestep=TIMESTEP, steps=NVE, interval=20)
    began, cpu, path = time.perf_counter(), time.process_time(), args.out / "teacher.extxyz"
    theirs, accepted = walk(settled[-1], student, by_teacher(teacher, path), args.calls, 2)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    ours, own = walk(settled[-1], student, by_student(student), LONG, 3)
    halves = len(ours) // 2
    reference, plots = walked(theirs, "GFN2-xTB"), args.out / "plots"
    plots.mkdir(exist_ok=True)
    conservation_plot(dynamics, dynamics, plots / "energy.png")

    def difference(frames: list[Atoms], other: Run, name: str) -> float:
        return distribution_plot(walked(frames, "student"), other, REACH, WIDTH, plots / f"{name}.png")

    model = load(learned / "model.safetensors", overflow="extend")
    judged = load_dataset(path, model.model.type_map)
    found = evaluate(model, judged).errors()
    answer: dict[str, Any] = {
        "machine": machine() | {"load before and after": [load_before, os.getloadavg()[0]]},
        "atoms": len(ours[0]),
        "learn": {
            "calls": sum(s.calls for _, s in rounds),
            "minutes": sum(sum(s.seconds.values()) for _, s in rounds) / 60,
            "processor minutes": sum(s.cpu_seconds for _, s in rounds) / 60,
            "stages, s": {
                stage: sum(s.seconds.get(stage, 0.0) for _, s in rounds)
                for stage in {name: 0 for _, s in rounds for name in s.seconds}
            },
            "rounds": [
                {"labels": s.labels, "errors": s.errors, "stopped": s.stopped, "runs": s.runs}
                for _, s in rounds
            ],
        },
        "on the teacher's own frames": {
            "frames": len(judged),
            "force_rmse": found["forces"].rmse,
            "energy_rmse": found["energy"].rmse,
        },
        "constant energy": shown(dynamics),
        "teacher": {"accepted": accepted, "wall seconds of a call": wall / args.calls,
                    "processor seconds of a call": cpu / args.calls},
        "student": {"accepted": own},
        "radial distributions, share of the area": {
            "walks of student and teacher": difference(ours, reference, "distribution"),
            "the student's 20 ps and the teacher's walk": difference(dynamics.frames, reference, "nve"),
            "two halves of the teacher's walk": difference(
                theirs[: args.calls // 2], walked(theirs[args.calls // 2 :], "half"), "teacher"
            ),
            "two halves of the student's walk": difference(
                ours[:halves], walked(ours[halves:], "half"), "student"
            ),
        },
    }  # fmt: skip
    report(answer, args.json)


if __name__ == "__main__":
    main()
