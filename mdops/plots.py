"""Figures with panels side by side, made without a display. They need matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mdops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = 4.0  # of a panel, in inches


def require_matplotlib() -> None:
    """Raises InputError, with what to do, if plots cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(f"plots need matplotlib: pip install matplotlib ({error})") from error


def require_picture(path: Path) -> None:
    """Raises InputError if matplotlib is missing or cannot write files with this suffix."""
    require_matplotlib()
    known = figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise InputError(
            f"{path}: the suffix {path.suffix!r} is not that of a picture, such as {', '.join(known)}"
        )


def figure(panels: int, height: float) -> "Figure":
    """A figure with this number of panels, `figure.axes`; `height` is in units of their width."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(_SIZE * panels, _SIZE * height), layout="constrained")
    made.subplots(1, panels)
    return made


def logarithmic(axes: "Axes", *names: Literal["x", "y"]) -> None:
    """Makes these axes logarithmic, with plain numbers as labels: 1, 2 and 5 of each decade if there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in names:
        axes.set(**{f"{name}scale": "log"})
        low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(which="both", color="0.92")
