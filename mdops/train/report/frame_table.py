"""A table with the errors of every frame."""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mdops.data.evaluation import COMPARED, Evaluation
from mdops.files.named import naming

_COLUMNS = (
    *("source", "frame", "atoms", "energy/eV", "predicted_energy/eV", "energy_error/(eV/atom)"),
    *("force_mae/(eV/A)", "force_rmse/(eV/A)", "largest_force_error/(eV/A)", "virial_rmse/(eV/atom)"),
)


def write_table(evaluation: Evaluation, path: str | os.PathLike[str]) -> None:
    """Writes a line of comma-separated values for each frame; what has no label stays empty."""
    # Names of files may hold what the locale has no letters for: their bytes are kept.
    with (
        naming(Path(path)),
        Path(path).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows(_row(evaluation, frame) for frame in range(len(evaluation.data)))


def _row(evaluation: Evaluation, frame: int) -> list[str]:
    data, errors = evaluation.data, dict[str, np.ndarray]()
    for name in COMPARED:
        label, prediction = evaluation.compared(name, np.array([frame]))
        errors[name] = prediction - label

    def cell(name: str, measure: Callable[[np.ndarray], float]) -> str:
        return f"{measure(errors[name]):.6g}" if errors[name].size else ""

    source, first = data.sources[data.source[frame]]
    return [
        source,
        str(frame - first),
        str(data.offsets[frame + 1] - data.offsets[frame]),
        f"{data.labels['energy'][frame]:.9f}" if errors["energy"].size else "",
        f"{evaluation.predictions['energy'][frame]:.9f}",
        cell("energy", lambda e: e[0]),
        cell("forces", lambda e: np.abs(e).mean()),
        cell("forces", lambda e: np.sqrt(np.square(e).mean())),
        cell("forces", lambda e: np.abs(e).max()),
        cell("virial", lambda e: np.sqrt(np.square(e).mean())),
    ]
