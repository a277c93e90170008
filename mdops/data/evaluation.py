"""A model's answers beside the labels of a dataset, and their errors."""

from dataclasses import dataclass

import numpy as np

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.data.labels import FRAME_LABELS
from mdops.data.neighbor_lists import PairLists
from mdops.errors import DataError, InputError
from mdops.potential import Potential

COMPARED = ("energy", "forces", "virial")
_BATCH_ATOMS = 4096


@dataclass(frozen=True)
class Errors:
    """Mean absolute and root mean square error of `count` values."""

    mae: float
    rmse: float
    count: int


@dataclass(frozen=True)
class Evaluation:
    """A dataset of F frames with N atoms in all, and what a model says of it.

    Attributes:
        data: the frames and their labels.
        predictions: energy (F,), forces (N, 3) and virial (F, 3, 3), eV and A.
    """

    data: Dataset
    predictions: dict[str, np.ndarray]

    def compared(self, name: str, frames: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Labels and predictions of "energy", "forces" or "virial", (n,) each: energies and virials per atom,
        forces and virials by component, of those frames (all by default) that have the label."""
        data = self.data
        if not data.has(name):
            return np.empty(0), np.empty(0)
        frames = np.arange(len(data)) if frames is None else frames
        frames = frames[data.present[name][frames]]
        if name not in FRAME_LABELS:
            places = [np.arange(data.offsets[f], data.offsets[f + 1]) for f in frames]
            rows = np.concatenate([np.empty(0, dtype=np.int64), *places])
            return data.labels[name][rows].ravel(), self.predictions[name][rows].ravel()
        label, prediction = data.labels[name][frames], self.predictions[name][frames]
        atoms = data.sizes()[frames].reshape(-1, *[1] * (label.ndim - 1))
        return (label / atoms).ravel(), (prediction / atoms).ravel()

    def errors(self, frames: np.ndarray | None = None) -> dict[str, Errors]:
        """The errors of each of `COMPARED` that any of those frames (all by default) has a label of."""
        found = {}
        for name in COMPARED:
            label, prediction = self.compared(name, frames)
            if label.size:
                error = prediction - label
                mae, rmse = np.abs(error).mean(), np.sqrt(np.square(error).mean())
                found[name] = Errors(float(mae), float(rmse), error.size)
        return found


def evaluate(potential: Potential, data: Dataset, lists: PairLists | None = None) -> Evaluation:
    """The model's answers for all frames, whose `lists` are made unless given.

    Raises DataError, naming the frame, where it has none, and UnsupportedModelError where it answers no energies."""
    potential.require_energies("the comparison with data")
    lists = lists or PairLists(data, potential.cutoff)
    batches = data.successive(np.arange(len(data)), _BATCH_ATOMS)
    parts = [part for frames in batches for part in _answers(potential, data, lists, frames)]
    return Evaluation(data, {name: np.concatenate([part[name] for part in parts]) for name in COMPARED})


def _answers(
    potential: Potential, data: Dataset, lists: PairLists, frames: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """The answers for a batch; each frame by itself if one has none, to name it."""
    batch = make_batch(data, lists, frames).taken_by(potential).to(potential.device)
    try:
        result = potential.evaluate(batch.system, batch.neighbors, batch.fparam, batch.aparam)
    except InputError as error:
        if len(frames) == 1:
            raise DataError(f"{data.name(int(frames[0]))}: {error}") from error
        return [part for frame in frames for part in _answers(potential, data, lists, frame[None])]
    return [{name: result[name].cpu().numpy() for name in COMPARED}]
