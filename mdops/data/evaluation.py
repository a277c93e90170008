"""A model's answers beside the labels of a dataset, and their errors."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mdops.data.batch import make_batch, scaled
from mdops.data.dataset import Dataset, load_dataset
from mdops.data.labels import labels_of
from mdops.data.neighbor_lists import PairLists
from mdops.data.spins import with_spins
from mdops.errors import DataError, InputError
from mdops.hessian import hessians
from mdops.models.charge_spin import charge_spin_defaults
from mdops.potential import Potential

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
        predictions: energy (F,), forces (N, 3) and virial (F, 3, 3), eV and A, or what else is compared.
    """

    data: Dataset
    predictions: dict[str, np.ndarray]

    def compared(self, name: str, frames: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Labels and predictions of "energy", "forces", "virial" or another label, (n,) each: what grows with the
        system per atom, and by component, of those frames (all by default) that have the label. Of a label that weighs
        another one, that of the other, of atoms whose weight is not zero."""
        data, of = self.data, self.data.known[name]
        if not data.has(name):
            return np.empty(0), np.empty(0)
        rows = self._rows(name, frames)
        label, prediction = data.labels[of.answer][rows], self.predictions[of.answer][rows]
        if not of.per_atom:
            return label.ravel(), prediction.ravel()
        atoms = data.counted(rows).reshape(-1, *[1] * (label.ndim - 1))
        return (label / atoms).ravel(), (prediction / atoms).ravel()

    def _rows(self, name: str, frames: np.ndarray | None) -> np.ndarray:
        """Where in the arrays the numbers of these frames stand that are compared, of a label that the data has."""
        data, of = self.data, self.data.known[name]
        frames = np.arange(len(data)) if frames is None else frames
        rows = data.rows(name, frames[data.present[name][frames]])
        rows = data.answering(name, rows) if of.of_atom else rows
        return rows[data.labels[name][rows] > 0] if of.weighs else rows

    def errors(self, frames: np.ndarray | None = None) -> dict[str, Errors]:
        """The errors of each label that is compared and that any of those frames (all by default) has; means by weight
        of a label that weighs another one."""
        found = {}
        for name, of in self.data.known.items():
            if of.answer not in self.predictions or of.projects:
                continue
            label, prediction = self.compared(name, frames)
            if label.size:
                error, weights = prediction - label, None
                if of.weighs:
                    own = self.data.labels[name][self._rows(name, frames)]
                    weights = np.repeat(own, error.size // own.size)
                mae, square = (np.average(x, weights=weights) for x in (np.abs(error), np.square(error)))
                found[name] = Errors(float(mae), float(np.sqrt(square)), error.size)
        return found


def load_for(potential: Potential, paths: Sequence[str | os.PathLike[str]], **options: Any) -> Dataset:
    """`load_dataset` with the labels that the model answers, and with magnetic moments if it takes them."""
    model = potential.model
    silent = [name for name, has in zip(model.type_map, model.has_energy.tolist(), strict=True) if not has]
    known = labels_of(model.outputs, model.spin is not None)
    return load_dataset(paths, model.type_map, known=known, silent=silent, **options)


def evaluate(potential: Potential, data: Dataset, lists: PairLists | None = None) -> Evaluation:
    """The model's answers for all frames, whose `lists` are made unless given.

    Raises DataError, naming the frame, where it has none, and InputError where the data's labels are of another kind of
    model (see `load_for`)."""
    spin = potential.model.spin
    if data.known != labels_of(potential.model.outputs, spin is not None):
        raise InputError(
            f"the data was read for labels of {', '.join(data.known)}, and the model answers "
            f"{', '.join(output.name for output in potential.model.outputs)}"
        )
    data = replace(data, silent=tuple(np.flatnonzero(~potential.model.has_energy.cpu().numpy()).tolist()))
    if spin is not None and data.spin is None:
        data = with_spins(data, spin)
    data.require_charges(charge_spin_defaults(potential.model))
    lists = lists or PairLists(data, potential.cutoff, masks=potential.model.masks)
    batches = data.successive(np.arange(len(data)), _BATCH_ATOMS)
    parts = [part for frames in batches for part in _answers(potential, data, lists, frames)]
    return Evaluation(data, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _answers(
    potential: Potential, data: Dataset, lists: PairLists, frames: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """The answers for a batch; each frame by itself if one has none, to name it."""
    batch = make_batch(data, lists, frames).taken_by(potential).to(potential.device)
    try:
        found = potential.evaluate(batch.system, batch.neighbors, batch.fparam, batch.aparam)
        result = dict(scaled(found, batch))
    except InputError as error:
        if len(frames) == 1:
            raise DataError(f"{data.name(int(frames[0]))}: {error}") from error
        return [part for frame in frames for part in _answers(potential, data, lists, frame[None])]
    compared = list(dict.fromkeys(label.answer for label in data.known.values() if label.compared))
    if data.has("hessian"):
        parts = batch.system, batch.neighbors, batch.fparam, batch.aparam
        result["hessian"] = hessians(potential, *parts)
    elif "hessian" in compared:
        compared.remove("hessian")
    return [{name: result[name].cpu().numpy() for name in compared}]
