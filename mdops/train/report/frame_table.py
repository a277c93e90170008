"""A table with the errors of every frame."""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mdops.data.evaluation import Evaluation
from mdops.data.labels import LABELS
from mdops.files.named import naming

_PLACE = ("source", "frame", "atoms")
_COLUMNS = (
    *("energy/eV", "predicted_energy/eV", "energy_error/(eV/atom)"),
    *("force_mae/(eV/A)", "force_rmse/(eV/A)", "largest_force_error/(eV/A)", "virial_rmse/(eV/atom)"),
)


def write_table(evaluation: Evaluation, path: str | os.PathLike[str]) -> None:
    """Writes a line of comma-separated values for each frame; missing labels stay empty."""
    # The locale may lack letters of file names: their bytes are kept.
    with (
        naming(Path(path)),
        Path(path).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        is_of_energies = evaluation.data.known is LABELS
        cells = _of_energies if is_of_energies else _of_others
        columns = (
            _COLUMNS
            if is_of_energies
            else [f"{name}_{measure}" for name in evaluation.predictions for measure in ("mae", "rmse")]
        )
        writer.writerow((*_PLACE, *columns))
        for frame in range(len(evaluation.data)):
            writer.writerow([*_place(evaluation, frame), *cells(evaluation, frame)])


def _place(evaluation: Evaluation, frame: int) -> list[str]:
    data = evaluation.data
    source, first = data.sources[data.source[frame]]
    return [source, str(frame - first), str(data.offsets[frame + 1] - data.offsets[frame])]


def _errors(evaluation: Evaluation, frame: int) -> dict[str, np.ndarray]:
    """Prediction - label of each number of a frame; none without label."""
    pairs = {name: evaluation.compared(name, np.array([frame])) for name in evaluation.predictions}
    return {name: prediction - label for name, (label, prediction) in pairs.items()}


def _cell(error: np.ndarray, measure: Callable[[np.ndarray], float]) -> str:
    return f"{measure(error):.6g}" if error.size else ""


def _mae(error: np.ndarray) -> float:
    return float(np.abs(error).mean())


def _rmse(error: np.ndarray) -> float:
    return float(np.sqrt(np.square(error).mean()))


def _of_energies(evaluation: Evaluation, frame: int) -> list[str]:
    errors = _errors(evaluation, frame)
    return [
        f"{evaluation.data.labels['energy'][frame]:.9f}" if errors["energy"].size else "",
        f"{evaluation.predictions['energy'][frame]:.9f}",
        _cell(errors["energy"], lambda e: e[0]),
        _cell(errors["forces"], _mae),
        _cell(errors["forces"], _rmse),
        _cell(errors["forces"], lambda e: np.abs(e).max()),
        _cell(errors["virial"], _rmse),
    ]


def _of_others(evaluation: Evaluation, frame: int) -> list[str]:
    errors = _errors(evaluation, frame)
    return [_cell(error, measure) for error in errors.values() for measure in (_mae, _rmse)]
