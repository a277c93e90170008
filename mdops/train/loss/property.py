"""The loss "property": errors of a property, in units of its deviation in the data."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from mdops.data.batch import Batch, answering
from mdops.data.labels import Labels
from mdops.errors import ConfigError, DataError
from mdops.models.contract import AtomicModel
from mdops.nn.sums import sum_systems
from mdops.options import Options, key
from mdops.train.loss.base import Counts, Fraction, Loss, Result, difference, mean, total
from mdops.train.loss.functions import PRINTED, measure

_SMALL = 1e-3  # DeePMD-kit's, beside the label in the denominator


@dataclass(kw_only=True)
class PropertyLossOptions(Options):
    KIND = "property"
    IGNORED: ClassVar[tuple[str, ...]] = PRINTED

    loss_func: str = key(
        "smooth_mae", "the function that is minimised", choices=("smooth_mae", "mae", "mse", "rmse", "mape")
    )
    beta: float = key(1.0, "error below which smooth_mae is quadratic", above=0)


class PropertyLoss(Loss):
    """DeePMD-kit's loss of properties. With u = dP / deviation, with dP / N for an extensive property:
    the sum over frames and components of |u| ("mae"), u^2 ("mse") or "smooth_mae", u^2 / (2 beta) up to beta and
    |u| - beta/2 beyond; the root of the mean of u^2 ("rmse", of each process' own frames); or the mean of
    |dP / (P + 0.001)| ("mape"). The deviation is the model's for its first type.
    """

    Options = PropertyLossOptions

    def __init__(self, options: Any, labels: Labels) -> None:
        self.labels, self.prefactors, self._options = labels, {}, options
        (self._label,) = (label for label in labels.values() if not label.of_atom)
        self.terms = [self._label.name]
        self._deviation = torch.ones(1, dtype=torch.float64)

    @classmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        if [len(label.shape) for label in labels.values() if not label.of_atom] != [1]:
            raise ConfigError(
                f"loss.type: is 'property', a loss of properties of systems, and the model answers {', '.join(labels)}"
            )
        return cls(options, labels)

    def keys(self, label: str) -> list[str]:
        return ["loss.type"]

    def take_statistics(self, model: AtomicModel) -> None:
        """Raises DataError if all frames of the statistics have the same property."""
        self._deviation = model.out_std[0].detach().reshape(1, -1)
        if not bool((self._deviation > 0).all()):
            raise DataError(
                f"{self._label.name} is the same in all frames of the statistics, so there is nothing to "
                "learn"
            )

    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        name, function = self._label.name, self._options.loss_func
        if not counts.get(name):
            return []
        error = difference(name, result[name], batch)
        if not len(error):
            return [error.sum()]
        label, scale = batch.labels[name].reshape(error.shape), self._deviation.to(error.device)
        if self._label.extensive:
            atoms = sum_systems(
                answering(batch, batch.silent).double(), batch.system.batch, batch.system.count
            )[:, None]
            error, label = error / atoms, label / atoms
        if function == "mape":
            found = mean((error / (label + _SMALL)).abs(), name, counts)
            return [] if found is None else [found]
        error = error / scale
        if function == "rmse":
            found = mean(error.square(), name, counts)
            return [] if found is None else [found.sqrt()]
        return [total(measure(error, function, self._options.beta), counts)]
