"""Plots of two runs side by side: energy conservation and pair distributions. They need matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mdops.md.compare import Run, pair_distributions
from mdops.plots import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#1f6fb2", "#d1495b", "#2e8b57", "#8a5fb0", "#b8860b", "#4a4e69")


def conservation_plot(model: Run, reference: Run, path: Path) -> None:
    """Total energy and temperature of both runs over time."""
    drawn, (energy, heat) = _panels(2)
    for run, color in ((reference, "0.6"), (model, COLORS[0])):
        energy.plot(run.times, 1000 * run.energies, color=color, lw=1.2, label=_drift_text(run))
        heat.plot(run.times, run.temperatures, color=color, lw=1.2, label=run.label)
    largest = 1000 * max(np.abs(run.energies).max() for run in (model, reference))
    energy.set(ylabel="total energy (meV/atom)", ylim=(-2 * largest, 3 * largest) if largest > 0 else None)
    heat.set(ylabel="temperature (K)")
    for axes in (energy, heat):
        axes.set(xlabel="time (ps)", xlim=(model.times[0], model.times[-1]))
        axes.legend(frameon=False, loc="upper right", fontsize="small")
    drawn.savefig(path, dpi=150)


def _drift_text(run: Run) -> str:
    return f"{run.label}: drift {run.drift * 1e6:+.1f} µeV/atom/ps"


def distribution_plot(model: Run, reference: Run, cutoff: float, width: float, path: Path) -> float:
    """Both pair distributions on one axis, lines for the model and dots for the reference.

    Returns the area of the differences over that under the reference's curves, 0 .. 1.
    """
    drawn, (axes,) = _panels(1)
    r, ours = pair_distributions(model.frames, cutoff, width)
    _, theirs = pair_distributions(reference.frames, cutoff, width)
    present = {pair: curve for pair, curve in ours.items() if curve.any() or theirs[pair].any()}
    for (pair, curve), color in zip(present.items(), COLORS, strict=False):
        axes.plot(r, curve, color=color, lw=1.5, label=f"{pair}, {model.label}")
        axes.plot(
            r, theirs[pair], "o", color=color, ms=3, mfc="none", mew=0.7, label=f"{pair}, {reference.label}"
        )
    periodic = bool(model.frames[0].pbc.all())
    axes.set(
        xlabel="distance (Å)", ylabel="g(r)" if periodic else "pairs per Å", xlim=(_start(r, ours), cutoff)
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    drawn.savefig(path, dpi=150)
    difference = sum(np.abs(ours[pair] - theirs[pair]).sum() for pair in ours)
    return float(difference / sum(curve.sum() for curve in theirs.values()))


def _start(r: np.ndarray, curves: dict[str, np.ndarray]) -> float:
    """A bit before the first distance that occurs."""
    occupied = np.any([curve > 0.01 * curve.max() for curve in curves.values()], axis=0)
    return max(float(r[np.argmax(occupied)]) - 0.3, 0.0)


def _panels(count: int) -> "tuple[Figure, list[Axes]]":
    made = figure(count, 1.0)
    made.set_size_inches(8.0, 4.0)
    for axes in made.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return made, list(made.axes)
