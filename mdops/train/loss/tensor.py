"""The loss "tensor": squared errors of dipoles or polarizabilities, of systems and of atoms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from mdops.data.batch import Batch
from mdops.data.labels import Labels
from mdops.errors import ConfigError
from mdops.options import Options, key
from mdops.train.loss.base import Counts, Fraction, Loss, Result, difference, mean

_KEYS = {False: "pref", True: "pref_atomic"}  # of systems, of atoms


@dataclass(kw_only=True)
class TensorLossOptions(Options):
    KIND = "tensor"
    NEUTRAL: ClassVar[dict[str, Any]] = {"enable_atomic_weight": False}

    pref: float = key(doc="weight of the systems' tensors", low=0)
    pref_atomic: float = key(doc="weight of the atoms' tensors", low=0)


class TensorLoss(Loss):
    """p <dT^2> + p_atomic <dt^2>: with T of a system and t of an atom, means over labelled values and
    components; as in DeePMD-kit."""

    Options = TensorLossOptions

    def __init__(self, weights: Mapping[str, float], labels: Labels) -> None:
        """Takes the weight of each label."""
        self.labels, self.weights, self.prefactors = labels, weights, {}
        self.terms = [name for name, weight in weights.items() if weight]

    @classmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        if sorted(label.of_atom for label in labels.values()) != [False, True] or any(
            label.shape not in ((3,), (3, 3)) for label in labels.values()
        ):
            raise ConfigError(
                "loss.type: is 'tensor', a loss of dipoles and polarizabilities, and the model answers "
                f"{', '.join(labels)}"
            )
        if not options.pref and not options.pref_atomic:
            raise ConfigError("loss.pref: and pref_atomic are 0, so there is nothing to learn")
        weights = {name: getattr(options, _KEYS[label.of_atom]) for name, label in labels.items()}
        return cls(weights, labels)

    def keys(self, label: str) -> list[str]:
        return [f"loss.{_KEYS[self.labels[label].of_atom]}"]

    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        found = {
            name: mean(difference(name, result[name], batch).square(), name, counts) for name in self.terms
        }
        return [self.weights[name] * value for name, value in found.items() if value is not None]
