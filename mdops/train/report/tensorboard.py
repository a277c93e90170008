"""The scalars of a training in TensorBoard's files."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdops.data.labels import Labels
from mdops.errors import InputError


def require_tensorboard() -> Any:
    """PyTorch's writer. Raises InputError if TensorBoard is not installed."""
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise InputError(
            f"training.tensorboard: TensorBoard is not installed: pip install tensorboard ({error})"
        ) from None


class ScalarLog:
    """Charts of learning rate, loss and RMSEs, with the curves "training" and "validation"; used in a `with`."""

    def __init__(self, folder: Path, after: int, labels: Labels) -> None:
        """Begins a file in the folder; earlier files' steps beyond `after` are not shown."""
        # A slash would make a folder of charts.
        units = {name: label.unit.replace("/", " per ") for name, label in labels.items()}
        charts = {name: f"{label.noun} RMSE ({units[name]})" for name, label in labels.items()}
        self._charts = {"loss": "loss", **charts}
        self._writer = require_tensorboard()(str(folder), purge_step=after + 1)

    def rate(self, step: int, rate: float) -> None:
        """The learning rate of a step."""
        self._writer.add_scalar("learning rate", rate, step)

    def errors(self, step: int, curve: str, errors: Mapping[str, float]) -> None:
        """A point of each chart: "loss" (its root) and RMSEs, in eV and A."""
        for name, value in errors.items():
            self._writer.add_scalar(f"{self._charts[name]}/{curve}", value, step)

    def flush(self) -> None:
        """Flushes to disk: a kill then loses nothing."""
        self._writer.flush()

    def __enter__(self) -> "ScalarLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
