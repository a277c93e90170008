"""Pictures of the report: energy conservation, pair distributions, the structure."""

from pathlib import Path

import numpy as np
from ase import Atoms
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imsave

from study.render import render
from study.simulation import Run, pair_distributions

COLORS = ("#1f6fb2", "#d1495b", "#2e8b57", "#8a5fb0", "#b8860b", "#4a4e69")


def conservation_plot(model: Run, reference: Run, path: Path) -> None:
    """Total energy and temperature of both runs over time."""
    figure, (energy, heat) = _panels(2)
    for run, color in ((reference, "0.6"), (model, COLORS[0])):
        energy.plot(run.times, 1000 * run.energies, color=color, lw=1.2, label=_drift_text(run))
        heat.plot(run.times, run.temperatures, color=color, lw=1.2, label=run.label)
    largest = 1000 * max(np.abs(run.energies).max() for run in (model, reference))
    energy.set(ylabel="total energy (meV/atom)", ylim=(-2 * largest, 3 * largest) if largest > 0 else None)
    heat.set(ylabel="temperature (K)")
    for axes in (energy, heat):
        axes.set(xlabel="time (ps)", xlim=(model.times[0], model.times[-1]))
        axes.legend(frameon=False, loc="upper right", fontsize="small")
    figure.savefig(path, dpi=150)


def _drift_text(run: Run) -> str:
    return f"{run.label}: drift {run.drift * 1e6:+.1f} µeV/atom/ps"


def distribution_plot(model: Run, reference: Run, cutoff: float, width: float, path: Path) -> float:
    """Both pair distributions on one axis, lines for the model and dots for the reference.

    Returns how much of the area under the reference's curves the differences between the two take up, 0 .. 1.
    """
    figure, (axes,) = _panels(1)
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
    figure.savefig(path, dpi=150)
    difference = sum(np.abs(ours[pair] - theirs[pair]).sum() for pair in ours)
    return float(difference / sum(curve.sum() for curve in theirs.values()))


def _start(r: np.ndarray, curves: dict[str, np.ndarray]) -> float:
    """A bit before the first distance that occurs."""
    occupied = np.any([curve > 0.01 * curve.max() for curve in curves.values()], axis=0)
    return max(float(r[np.argmax(occupied)]) - 0.3, 0.0)


def structure_picture(atoms: Atoms, path: Path) -> None:
    """The atoms with their cell or bonds, on a transparent ground."""
    imsave(path, render(atoms, scale=0.75 if atoms.pbc.any() else 0.5))


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    panels = [figure.add_subplot(1, count, k + 1) for k in range(count)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels
