"""The page about a learned model: its errors, and the domain in which it was tested."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mdops.applicability import describe_domain, domain_of
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.html import processor, write_page
from mdops.learn import plots
from mdops.learn.config import Config
from mdops.learn.rounds import Round, Summary
from mdops.learn.teacher import Teacher
from mdops.learn.trust import rank_correlation
from mdops.learn.unseen import Unseen, unseen
from mdops.loading import load
from mdops.md.compare import Run, simulate
from mdops.md.motion import set_velocities
from mdops.md.options import EnsembleSettings
from mdops.plots import require_matplotlib

Rounds = Sequence[tuple[Round, Summary]]
_REACH, _WIDTH = 6.0, 0.05  # range and bin width of pair distributions, A
_INTERVAL = 10  # steps between frames


def write_report(config: Config, top: Path, rounds: Rounds, teacher: Teacher, type_map: list[str]) -> bool:
    """Writes report.html and plots/. Returns False if matplotlib is missing."""
    try:
        require_matplotlib()
    except InputError:
        return False
    folder = top / "plots"
    folder.mkdir(exist_ok=True)
    number, device = config.students.number, config.compute.device
    tested = [unseen(r, s, number, device, type_map) for r, s in rounds if s.kind != "first"]
    last, model = tested[-1], load(top / "model.safetensors")
    figures = {
        "Errors on fresh frames, round by round": folder / "rounds.png",
        "Fresh frames of the last round, which no training used": folder / "parity.png",
        "The committee's deviation and its error, on frames not used by its training": folder
        / "deviation.png",
    }
    plots.rounds_plot([s for _, s in rounds], config.targets.forces, folder / "rounds.png")
    plots.parity_plot(last, folder / "parity.png")
    domain = domain_of(model)
    plots.deviation_plot(tested, config.targets.forces, domain["deviation"], folder / "deviation.png")
    tables = {
        "Errors": _errors(last),
        "The committee": _calibration(tested, config.targets.forces, domain["deviation"]),
        "Cost": _cost(rounds),
        "Where it was tested; it must not be used elsewhere": describe_domain(domain),
    }
    both = _dynamics(config, last, MDOps(model), teacher)
    if both is not None:
        tables["Dynamics"] = plots.dynamics(*both, _REACH, _WIDTH, folder)
        figures["Constant energy, from the same start"] = folder / "energy.png"
        figures["Distances between atoms in both runs"] = folder / "distribution.png"
    final = rounds[-1][1]
    write_page(
        top / "report.html",
        f"A potential for {', '.join(type_map)}, learned from {domain['teacher']}",
        f"{final.labels} labels, {final.runs} runs of dynamics in the last test, {final.stopped} of them stopped. "
        f"Target: {1000 * config.targets.forces:.3g} meV/A; found: {1000 * final.errors['forces']:.3g} meV/A.",
        tables,
        figures,
        [
            f"mdops info {top}/model.safetensors",
            f"mdops md STRUCTURE -m {top}/model.safetensors --guard warn ...",
        ],
        processor(),
    )
    return True


def _errors(last: Unseen) -> dict[str, str]:
    """Force errors on the fresh frames by temperature and element, energies by temperature."""
    data, frames = last.answers.data, last.frames
    off = last.answers.forces[last.student] - data.labels["forces"]
    energy = (last.answers.energies[last.student] - data.labels["energy"]) / data.sizes()
    owner = np.repeat(np.arange(len(data)), data.sizes())
    heat = np.array([frame.info["temperature"] for frame in frames])
    rows = {}
    for temperature in np.unique(heat[last.fresh]):
        chosen = last.fresh & (heat == temperature)
        parts = [
            f"{element} {1000 * _rms(off[chosen[owner] & (data.types == t)]):.3g}"
            for t, element in enumerate(data.type_map)
            if (chosen[owner] & (data.types == t)).any()
        ]
        told = f"{', '.join(parts)} meV/Å; {1000 * _rms(energy[chosen]):.3g} meV/atom"
        rows[f"{temperature:g} K, {int(chosen.sum())} frames (RMSE)"] = told
    return rows


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _calibration(tested: Sequence[Unseen], target: float, level: float) -> dict[str, str]:
    """How well the deviation predicts errors."""
    last = tested[-1]
    errors = np.concatenate([u.answers.frame_errors(u.student) for u in tested])
    deviation = np.concatenate([u.answers.deviation for u in tested])
    own = rank_correlation(last.answers.deviation, last.answers.frame_errors(last.student))
    return {
        "rank correlation of deviation and error, last round": "none" if own is None else f"{own:.2f}",
        "the same over all rounds": f"{rank_correlation(deviation, errors) or 0.0:.2f}",
        "fresh frames of the last round above the target": f"{100 * float((_last(last) > target).mean()):.0f} %",
        "largest deviation in the last test's dynamics": f"{level:.3g} eV/Å",
    }


def _last(last: Unseen) -> np.ndarray:
    return last.answers.frame_errors(last.student)[last.fresh]


def _cost(rounds: Rounds) -> dict[str, str]:
    calls = sum(s.calls for _, s in rounds)
    set_aside = sum(len(s.set_aside) for _, s in rounds)
    seconds: dict[str, float] = {}
    for _, summary in rounds:
        for stage, time_ in summary.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + time_
    times = {f"time: {stage}": f"{value:.0f} s" for stage, value in seconds.items()}
    cpu = sum(s.cpu_seconds for _, s in rounds)
    rows = {"calls of the teacher": f"{calls}, {set_aside} of them set aside", "rounds": f"{len(rounds)}"}
    return {**rows, **times, "processor time": f"{cpu:.0f} s"}


def _dynamics(config: Config, last: Unseen, student: MDOps, teacher: Teacher) -> tuple[Run, Run] | None:
    """Runs of both at constant energy from the same start; None if the teacher has no calculator, or is too slow."""
    calculator = teacher.calculator()
    steps = config.report.steps // _INTERVAL * _INTERVAL
    if calculator is None or steps == 0:
        return None
    fresh = [frame for frame, is_fresh in zip(last.frames, last.fresh, strict=True) if is_fresh]
    start = _start(fresh, config.explore.timestep)
    trial = start.copy()
    trial.calc = calculator
    trial.get_forces()
    trial.positions += 1e-3
    began = time.perf_counter()
    trial.get_forces()
    if (time.perf_counter() - began) * steps > config.report.seconds:
        return None
    options: dict[str, Any] = {"timestep": config.explore.timestep, "steps": steps, "interval": _INTERVAL}
    ours = simulate(start, student, "student", **options)
    theirs = simulate(start, calculator, "teacher", **options)
    return ours, theirs


def _start(fresh: list[Atoms], timestep: float) -> Atoms:
    """A frame of a middle temperature, with velocities."""
    chosen = sorted(fresh, key=lambda frame: frame.info["temperature"])[len(fresh) // 2]
    start = Atoms(chosen.numbers, chosen.positions, cell=chosen.cell, pbc=chosen.pbc)
    physics = EnsembleSettings("nve", chosen.info["temperature"], timestep)
    set_velocities(start, physics, np.random.default_rng(0), anew=True)
    return start
