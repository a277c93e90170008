"""The loss "dos": squared errors of densities of states, and of their running sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from mdops.data.batch import Batch
from mdops.data.labels import Labels
from mdops.errors import ConfigError
from mdops.options import Options
from mdops.train.loss.base import Counts, Fraction, Loss, Result, difference, mean
from mdops.train.loss.weights import Prefactor, Weight, weight_keys, weighted, weights_of

_TERMS = {
    "dos": ("dos", False),
    "cdf": ("dos", True),
    "ados": ("atom_dos", False),
    "acdf": ("atom_dos", True),
}


@dataclass(kw_only=True)
@weighted(
    {
        "dos": Weight(0.0, 0.0, "the systems' densities"),
        "cdf": Weight(0.0, 0.0, "their running sums"),
        "ados": Weight(1.0, 1.0, "the atoms' densities"),
        "acdf": Weight(0.0, 0.0, "their running sums"),
    }
)
class DosLossOptions(Options):
    KIND = "dos"


class DosLoss(Loss):
    """p_dos <dg^2> + p_cdf <dG^2> + p_ados <da^2> + p_acdf <dA^2>, with g of a system, a of an atom, and G, A their
    running sums over the points of the density; means over what has the label, and over points; as DeePMD-kit."""

    Options = DosLossOptions

    def __init__(self, prefactors: Mapping[str, Prefactor], labels: Labels) -> None:
        """Takes the prefactors of "dos", "cdf", "ados" and "acdf"."""
        self.labels, self.prefactors = labels, prefactors
        self._counted = {term: p for term, p in prefactors.items() if p.counts}
        self.terms = [name for name in labels if any(_TERMS[term][0] == name for term in self._counted)]

    @classmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        if "dos" not in labels:
            raise ConfigError(
                f"loss.type: is 'dos', a loss of densities of states, and the model answers {', '.join(labels)}"
            )
        found = cls(weights_of(options, _TERMS), labels)
        if not found.terms:
            raise ConfigError("loss: all of its prefactors are 0, so there is nothing to learn")
        return found

    def keys(self, label: str) -> list[str]:
        return weight_keys(*(term for term, (of, _) in _TERMS.items() if of == label))

    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        parts = []
        for term, prefactor in self._counted.items():
            name, sums = _TERMS[term]
            error = difference(name, result[name], batch)
            found = mean((error.cumsum(1) if sums else error).square(), name, counts)
            parts += [] if found is None else [prefactor.at(fraction) * found]
        return parts
