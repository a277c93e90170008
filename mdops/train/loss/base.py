"""The base of losses: means over labelled values, and the errors in reports."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch

from mdops.data.batch import Batch, labelled_rows, rows, scaled
from mdops.data.dataset import Dataset
from mdops.data.labels import Labels, silent_types
from mdops.models.contract import AtomicModel
from mdops.nn.sums import sum_systems
from mdops.options import Options
from mdops.train.loss.weights import Prefactor

# The factor of sums over frames: how many processes share the batch, or 0 if this process has no share.
SHARES = "(shares)"

Result = Mapping[str, torch.Tensor]
Fraction = float | torch.Tensor
Counts = Mapping[str, float]


class Loss(ABC):
    """The loss of a training.

    Attributes:
        Options: the class of the section `loss` of an input.
        labels: all that the model can be trained on.
        prefactors: of terms with the keys `start_pref_<term>` and `limit_pref_<term>`.
        terms: the labels in use.
        reach: how far steps of training move atoms, but for rare ones, A; 0: they move none.
    """

    Options: ClassVar[type[Options]]
    labels: Labels
    prefactors: Mapping[str, Prefactor]
    terms: list[str]
    reach: float = 0.0

    @classmethod  # noqa: B027
    def choose(cls, model: Any) -> None:
        """Sets options of the section `model` that depend on the loss. Raises ConfigError if it is not for that kind
        of model."""

    @classmethod
    @abstractmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        """That of a section `loss`. Raises ConfigError for unsupported labels, and options that do not fit each
        other."""

    @abstractmethod
    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        """The terms, weighted; arguments as of `__call__`."""

    @abstractmethod
    def keys(self, label: str) -> list[str]:
        """The keys of the section that enable a label."""

    def displacements(self, data: Dataset, frames: np.ndarray, seed: Sequence[int]) -> torch.Tensor | None:
        """(N, 3) float64, A: how a step of training moves the atoms of these frames, where zeros are no displacement;
        None: it moves none. `seed` is of the step."""
        return None

    def give_statistics(self, model: AtomicModel, data: Dataset, frames: np.ndarray) -> None:  # noqa: B027
        """Sets what the model to train needs of these frames of the data, and has not."""

    def take_statistics(self, model: AtomicModel) -> None:  # noqa: B027
        """Reads what it needs from the trained model."""

    def check(self, data: Dataset) -> None:  # noqa: B027
        """Raises ConfigError for data that its section does not fit."""

    def complete(self, data: Dataset) -> None:  # noqa: B027
        """Gives data the labels that its section implies, and takes those that it ignores."""

    def relative(self, error: torch.Tensor, name: str, batch: Batch) -> torch.Tensor:
        """Errors (S or N, components) of a label in the units of the section."""
        return error

    def only_of(self, data: Dataset) -> Self:
        """Without the terms of labels that no frame of the data has, if its section allows it."""
        return self

    def __call__(
        self,
        result: Mapping[str, torch.Tensor],
        batch: Batch,
        fraction: float | torch.Tensor = 1.0,
        counts: Mapping[str, float] | None = None,
    ) -> torch.Tensor:
        """The loss, a float64 scalar.

        Args:
            result: the predictions of `Potential`.
            batch: the inputs and their labels.
            fraction: the learning rate over that at the start.
            counts: divide the sums of errors by these instead of `label_counts(batch)`. With the mean of
                several processes' counts, the mean of their gradients is that of all batches as one.
        """
        result, counts = scaled(result, batch), label_counts(batch) if counts is None else counts
        parts = self.parts(result, batch, fraction, counts)
        # Answers without labels are part of the graph: without gradients, optimizers would leave out their weights.
        absent = [self.labels[name].answer for name in self.terms if not counts.get(name)]
        parts = [*parts, *(result[answer][:0].sum().double() for answer in absent)]
        return sum(parts[1:], parts[0]) if parts else torch.zeros((), dtype=torch.float64)


def difference(name: str, value: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(S or N, components): prediction - label, 0 without label; (0, 1) if the batch has none of them. For a label that
    weighs another one, that of the other; or its weighted sums."""
    if name not in batch.labels:
        return value[:0].reshape(0, 1)  # part of the graph: a batch without labels has gradients 0
    of = batch.known[name]
    error = (value.double() - batch.labels[of.answer]).reshape(len(value), -1)
    error = _projected(error, name, batch) if of.projects else error
    return error if _is_whole(name, batch) else torch.where(rows(name, batch)[:, None], error, 0.0)


def _projected(error: torch.Tensor, name: str, batch: Batch) -> torch.Tensor:
    """(S, G): errors of atoms (N, 3), summed up by a label (N, 3, G)."""
    of_atoms = torch.einsum("nd,ndg->ng", error, batch.labels[name])
    return sum_systems(of_atoms, batch.system.batch, batch.system.count)


def _is_whole(name: str, batch: Batch) -> bool:
    """Whether surely every frame, or atom, has the label."""
    return (
        batch.complete
        and batch.system.noise is None
        and not (batch.known[name].of_atom and silent_types(name, batch.silent, batch.spin))
    )


def mean(errors: torch.Tensor, name: str, counts: Mapping[str, float]) -> torch.Tensor | None:
    """Over the components of labelled values; None without any."""
    return errors.sum() / (errors.shape[1] * counts[name]) if counts.get(name) else None


def total(errors: torch.Tensor, counts: Mapping[str, float]) -> torch.Tensor:
    """The sum over the frames of all processes, as a mean of theirs."""
    return errors.sum() * counts.get(SHARES, 1.0)


def label_counts(batch: Batch) -> dict[str, float]:
    """How many frames (energy, virial) or atoms (forces, atom_energy) of a batch have each label."""
    return {name: float(labelled_rows(name, batch).sum()) for name in batch.labels}


def label_number(data: Dataset, name: str, frames: np.ndarray) -> int:
    """How many frames, or atoms, of these frames of a dataset have a label that all of the frames have."""
    if data.known[name].projects:
        return len(frames)
    if not data.known[name].of_atom:
        return len(data.rows(name, frames))
    if silent_types(name, data.silent, data.spin):
        rows = [np.arange(data.offsets[f], data.offsets[f + 1]) for f in frames]
        return sum(len(data.answering(name, own)) for own in rows)
    return int(data.sizes(frames).sum())


@torch.no_grad()
def label_errors(
    result: Mapping[str, torch.Tensor], batch: Batch, loss: Loss | None = None
) -> dict[str, torch.Tensor]:
    """For each label of the batch, prediction - label, float64, of the frames or atoms that have it.

    Energies (n, 1), virials (n, 9) and other extensive labels are per atom; forces are (n, 3), atomic
    energies (n,). Weighted ones are multiplied with the root of their weight. With a `loss` they are `relative`.
    """
    errors, result = {}, scaled(result, batch)
    for name in batch.labels:
        of = batch.known[name]
        if of.answer not in result:  # Hessians, if not in the loss
            continue
        labelled = rows(name, batch)
        error = result[of.answer].double() - batch.labels[of.answer]
        error = error if loss is None else loss.relative(error, name, batch)
        error = (_projected(error, name, batch) if of.projects else error)[labelled]
        if of.weighs and not of.projects:
            error = error * batch.labels[name][labelled, None].sqrt()
        if of.per_atom:
            error = error.reshape(len(error), -1) / batch.sizes[labelled, None]
        errors[name] = error
    return errors


def squared_errors(
    result: Mapping[str, torch.Tensor], batch: Batch, loss: Loss | None = None
) -> dict[str, tuple[float, int]]:
    """For each label of the batch, the sum of squared `label_errors` and over how many values it goes.

    sqrt(sum / count) is the RMSE, over several batches too.
    """
    errors = label_errors(result, batch, loss)
    return {name: (float(error.square().sum()), error.numel()) for name, error in errors.items()}
