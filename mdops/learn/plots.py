"""Pictures of the report. They need matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdops.learn.rounds import Summary
from mdops.learn.unseen import Unseen
from mdops.md.compare import Run
from mdops.md.compare_plot import conservation_plot, distribution_plot
from mdops.plots import figure, logarithmic


def rounds_plot(rounds: Sequence[Summary], target: float, path: Path) -> None:
    """Force error on fresh frames against the number of training labels, and the share of stopped runs."""
    tested = [summary for summary in rounds if summary.kind != "first"]
    labels = [summary.labels for summary in tested]
    drawn = figure(2, 0.8)
    errors, stopped = drawn.axes
    errors.plot(labels, [1000 * summary.errors["forces"] for summary in tested], "o-")
    errors.axhline(1000 * target, color="0.6", ls="--", label="target")
    errors.set(xlabel="labels trained on", ylabel="force RMSE (meV/Å)")
    logarithmic(errors, "y")
    errors.legend(frameon=False)
    stopped.plot(labels, [100 * s.stopped / max(s.runs, 1) for s in tested], "o-")
    stopped.set(xlabel="labels trained on", ylabel="runs that were stopped (%)", ylim=(-2, 102))
    drawn.savefig(path, dpi=150)


def parity_plot(last: Unseen, path: Path) -> None:
    """Force components of the student against the teacher's, by temperature."""
    data = last.answers.data
    owner = np.repeat(np.arange(len(data)), data.sizes())
    heat = np.array([frame.info["temperature"] for frame in last.frames])
    drawn = figure(1, 1.0)
    axes = drawn.axes[0]
    for temperature in np.unique(heat[last.fresh])[::-1]:
        chosen = (last.fresh & (heat == temperature))[owner]
        label, found = data.labels["forces"][chosen], last.answers.forces[last.student][chosen]
        axes.plot(label.ravel(), found.ravel(), ".", ms=3, mew=0, label=f"{temperature:g} K")
    ends = np.array([*axes.get_xlim(), *axes.get_ylim()])
    axes.plot([ends.min(), ends.max()], [ends.min(), ends.max()], color="0.6", lw=1, zorder=0)
    axes.set(xlabel="teacher (eV/Å)", ylabel="student (eV/Å)")
    axes.legend(frameon=False, fontsize="small")
    drawn.savefig(path, dpi=150)


def deviation_plot(tested: Sequence[Unseen], target: float, level: float, path: Path) -> None:
    """Errors of frames against the committee's deviation, with a colour for each round."""
    drawn = figure(1, 0.8)
    axes = drawn.axes[0]
    for k, one in enumerate(tested):
        errors = one.answers.frame_errors(one.student)
        shade = str(0.8 - 0.6 * (k + 1) / len(tested)) if k + 1 < len(tested) else "C0"
        axes.plot(one.answers.deviation, errors, "o", ms=3, color=shade, label=f"round {one.number}")
    axes.axhline(target, color="0.6", ls="--", lw=1)
    axes.axvline(level, color="C3", ls=":", lw=1)
    axes.set(xlabel="largest deviation of a force (eV/Å)", ylabel="force RMSE of the frame (eV/Å)")
    logarithmic(axes, "x", "y")
    axes.legend(frameon=False, fontsize="small")
    drawn.savefig(path, dpi=150)


def dynamics(ours: Run, theirs: Run, reach: float, width: float, folder: Path) -> dict[str, str]:
    """Draws energy.png and distribution.png of both runs; returns numbers for the report."""
    conservation_plot(ours, theirs, folder / "energy.png")
    difference = distribution_plot(ours, theirs, reach, width, folder / "distribution.png")
    rows = {"difference of the pair distributions": f"{100 * difference:.1f} % of their area"}
    for run in (ours, theirs):
        rows[f"{run.label}: energy drift"] = f"{1e6 * run.drift:+.1f} µeV/atom/ps"
        rows[f"{run.label}: time of a step"] = f"{1e6 * run.step_seconds / len(run.frames[0]):.1f} µs/atom"
    rows["speed of the student"] = f"{theirs.step_seconds / ours.step_seconds:.1f} times the teacher's"
    return rows
