"""Plots of a model's errors: parity plots, and the learning curve. They need matplotlib."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mdops.data.evaluation import Errors, Evaluation
from mdops.data.labels import LABELS, Label
from mdops.errors import InputError
from mdops.plots import figure, logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVES = {"rmse": "root of the loss"} | {
    f"rmse_{label.short}": f"{label.noun} RMSE ({label.unit.replace('/A', '/Å')})"
    for label in LABELS.values()
}
_ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "trn": ("training batch", {"color": "0.65", "lw": 1}),
    "val": ("validation", {"color": "C0", "lw": 1.6}),
}


def parity_plot(evaluation: Evaluation, path: str | os.PathLike[str]) -> None:
    """Draws predictions over labels, a panel for each quantity with labels in the data."""
    errors = evaluation.errors()
    drawn = figure(len(errors), 1.1)
    for axes, (name, error) in zip(drawn.axes, errors.items(), strict=True):
        _parity(axes, evaluation.data.known[name], *evaluation.compared(name), error)
    drawn.savefig(path, dpi=150)


def _parity(axes: "Axes", of: Label, label: np.ndarray, prediction: np.ndarray, error: Errors) -> None:
    factor = of.factor
    title = f"{of.noun} per atom" if of.per_atom else f"{of.component}s"
    unit = of.shown_unit.removesuffix("/atom").replace("/A", "/Å")
    if of.name == "energy":  # only differences matter, and are far smaller
        mean = label.mean()
        title = f"{title}, relative to {mean:.6g} eV"
        label, prediction = label - mean, prediction - mean
    label, prediction = factor * label, factor * prediction
    both = np.concatenate([label, prediction])
    margin = 0.05 * float(np.ptp(both)) or 1.0
    ends = (float(both.min()) - margin, float(both.max()) + margin)
    axes.plot(ends, ends, color="0.6", lw=1)
    many = len(label) > 1000
    axes.plot(label, prediction, ".", ms=2 if many else 5, alpha=0.4 if many else 0.8, mew=0)
    axes.set_title(title, fontsize="medium")
    axes.set(xlabel=f"reference ({unit})", ylabel=f"model ({unit})", xlim=ends, ylim=ends)
    axes.set_box_aspect(1)
    axes.locator_params(nbins=5)
    text = f"MAE {factor * error.mae:.3g} {unit}\nRMSE {factor * error.rmse:.3g} {unit}"
    axes.text(0.04, 0.96, text, transform=axes.transAxes, va="top")


def learning_curve_plot(curve: dict[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Draws a learning curve of `mdops.train.report.learning_curve.read_curve`, a panel for each quantity."""
    columns = dict.fromkeys(name.rpartition("_")[0] for name in curve if name.startswith("rmse"))
    shown = [name for name in columns if any(_drawn(curve, f"{name}_{end}") for end in _ENDS)]
    if not shown:
        raise InputError(f"the learning curve has nothing to draw; its columns are {', '.join(curve)}")
    drawn = figure(len(shown), 0.8)
    for axes, name in zip(drawn.axes, shown, strict=True):
        for end, (label, style) in _ENDS.items():
            if _drawn(curve, f"{name}_{end}"):
                axes.plot(curve["step"], curve[f"{name}_{end}"], label=label, **style)
        axes.set_title(_CURVES.get(name, name.replace("_", " ")), fontsize="medium")
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=5)
        logarithmic(axes, "y")
    drawn.axes[0].legend(frameon=False)
    drawn.savefig(path, dpi=150)


def _drawn(curve: dict[str, np.ndarray], column: str) -> bool:
    """Whether a column is there and has numbers."""
    return column in curve and bool(np.isfinite(curve[column]).any())
