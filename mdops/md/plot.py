"""A picture of a run's log. It needs matplotlib."""

from pathlib import Path

import numpy as np

from mdops.errors import InputError
from mdops.plots import figure

_PANELS = {
    "T/K": "temperature (K)",
    "Epot/eV": "potential energy (eV)",
    "conserved/eV": "conserved energy (eV)",
    "density/(g/cm^3)": "density (g/cm³)",
}

_FEW = 50  # lines; so few are drawn with points: one alone draws no line


def read_log(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log by their names. Raises InputError for a file that is not the log of a run."""
    lines = path.read_text(encoding="utf-8").splitlines()
    names = lines[0].lstrip("#").split() if lines else []
    try:
        table = np.array([[float(word) for word in line.split()] for line in lines[1:]])
        return dict(zip(names, table.reshape(-1, len(names)).T, strict=True))
    except ValueError as error:
        raise InputError(f"{path} is not the log of a run: {error}") from error


def plot_log(log: Path, picture: Path) -> None:
    """Draws temperature, energies and density of a log over time, if present.

    Raises InputError for a file that is not the log of a run, and for a format that matplotlib does not write."""
    table = read_log(log)
    shown = [name for name in _PANELS if name in table and np.isfinite(table[name]).any()]
    if not shown or "time/ps" not in table:
        raise InputError(
            f"{log} is not the log of a run: it has the columns {', '.join(table) or 'of no name'}"
        )
    drawn = figure(len(shown), 0.8)
    for axes, name in zip(drawn.axes, shown, strict=True):
        times = table["time/ps"]
        axes.plot(times, table[name], lw=1, marker="." if len(times) < _FEW else None)
        axes.set_title(_PANELS[name], fontsize="medium")
        axes.set_xlabel("time (ps)")
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.locator_params(nbins=5)
        axes.grid(color="0.92")
    try:
        drawn.savefig(picture, dpi=150)
    except ValueError as error:
        raise InputError(f"{picture}: {error}") from error
