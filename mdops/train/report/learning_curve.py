"""The learning curve, in DeePMD-kit's columns."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdops.data.labels import Label
from mdops.errors import InputError
from mdops.files.atomic import replace_file
from mdops.files.named import naming

_WIDTH = 12


@dataclass(frozen=True)
class Report:
    """The data of a line of the learning curve.

    Attributes:
        step: steps done. rate: the learning rate of the last.
        training: "loss" (its root) and RMSEs of the last batch before its step: eV/atom, eV/A.
        validation: the same of the validation batches after it, None without any.
        branch: which model, where several are trained together.
    """

    step: int
    rate: float
    training: dict[str, float]
    validation: dict[str, float] | None
    branch: str = ""


class LearningCurve:
    """A text file with a line for each report: step, the root of the loss, RMSEs, and the learning rate.

    Energies and virials are per atom. With validation, each value of the training batch follows that of the
    validation batches. Columns without data are nan.
    """

    def __init__(self, path: Path, terms: Sequence[Label], validation: bool, after: int = 0) -> None:
        """Begins the file, or continues one after the step `after`: later lines are dropped."""
        self._path, self._terms, self._validation = path, list(terms), validation
        lines = [self._header()]
        if after and path.is_file():
            whole = path.read_text(encoding="utf-8").rpartition("\n")[0]  # a full disk leaves half a line
            lines += [line for line in whole.splitlines() if _step(line) in range(1, after + 1)]
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, ("\n".join(lines) + "\n").encode())

    def _header(self) -> str:
        names = ["rmse", *(f"rmse_{label.short}" for label in self._terms)]
        ends = ("val", "trn") if self._validation else ("trn",)
        columns = [f"{name}_{end}" for name in names for end in ends]
        return "# " + " ".join(text.ljust(_WIDTH) for text in ["step", *columns, "lr"])

    def write(
        self,
        step: int,
        training: Mapping[str, float],
        validation: Mapping[str, float] | None,
        rate: float,
    ) -> None:
        """Adds a line. The mappings have "loss" (its root) and the RMSE of each term."""
        values = []
        for name in ("loss", *(label.name for label in self._terms)):
            if self._validation:
                values.append((validation or {}).get(name, math.nan))
            values.append(training.get(name, math.nan))
        text = " ".join(f"{value:.2e}".rjust(_WIDTH) for value in values)
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{step:>8d} {text} {rate:>10.1e}\n")


def read_curve(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The columns of a learning curve, mdops' or DeePMD-kit's, by name ("step", "rmse_f_val", ..., "lr").

    Raises InputError for another file.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            names = file.readline().removeprefix("#").split()
            rows = [line.split() for line in file if not line.startswith("#")]
        columns = np.array(rows, dtype=float).reshape(-1, len(names)).T
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is not a learning curve: {error}") from None
    if names[:1] != ["step"] or not columns.size:
        raise InputError(
            f"{path}: is not a learning curve: expected a line of column names, and lines of numbers"
        )
    return dict(zip(names, columns, strict=True))


def _step(line: str) -> int:
    """The step of a line, -1 of a comment."""
    first = line.split(maxsplit=1)[:1]
    return int(first[0]) if first and first[0].isdigit() else -1
