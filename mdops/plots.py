"""Figures with panels side by side, without a display. They need matplotlib."""

from typing import TYPE_CHECKING

from mdops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = 4.0  # of a panel, inches


def require_matplotlib() -> None:
    """Raises InputError, with what to do, if plots cannot be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(f"plots need matplotlib: pip install matplotlib ({error})") from error


def figure(panels: int, height: float) -> "Figure":
    """With so many panels, `figure.axes`; their height is in their width."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(_SIZE * panels, _SIZE * height), layout="constrained")
    made.subplots(1, panels)
    return made
