"""The loss "population": errors of the electrons of atoms and of systems, of spin up and down."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from mdops.data.batch import Batch, rows
from mdops.data.labels import Labels
from mdops.errors import ConfigError
from mdops.nn.sums import sum_systems
from mdops.options import Options, key
from mdops.train.loss.base import Counts, Fraction, Loss, Result, difference, total
from mdops.train.loss.functions import PRINTED, measure
from mdops.train.loss.weights import Prefactor, Weight, weighted, weights_of

_NAME = "atom_population"
_TERMS = {
    "spin": Weight(1.0, 1.0, "atoms' spins"),
    "spin_total": Weight(1.0, 1.0, "systems' spins"),
    "pop": Weight(1.0, 1.0, "atoms' electrons"),
    "pop_alpha_total": Weight(1.0, 1.0, "systems' electrons of spin up"),
    "pop_beta_total": Weight(1.0, 1.0, "systems' electrons of spin down"),
}


@dataclass(kw_only=True)
@weighted(_TERMS)
class PopulationLossOptions(Options):
    KIND = "population"
    IGNORED: ClassVar[tuple[str, ...]] = PRINTED

    loss_func: str = key(
        "smooth_mae", "the function that is minimised", choices=("smooth_mae", "mae", "rmse")
    )
    beta: float = key(1.0, "error below which smooth_mae is quadratic", above=0)


class PopulationLoss(Loss):
    """DeePMD-kit's loss of populations. With a and b the electrons of an atom of spin up and down, spin = a - b, and
    A, B and spin_total the sums over the atoms of a system, it is the sum of

        p_spin f(d spin) / n + p_spin_total f(d spin_total) + p_pop f(d (a, b)) / n
        + p_pop_alpha_total f(dA) + p_pop_beta_total f(dB)

    where f is the sum of |u| ("mae") or of "smooth_mae" over all errors, or the root of the mean of u^2 times their
    number ("rmse", of each process' own frames), and n the mean number of atoms of a frame.
    """

    Options = PopulationLossOptions

    def __init__(self, options: Any, prefactors: Mapping[str, Prefactor], labels: Labels) -> None:
        self.labels, self.prefactors, self._weights, self._options = labels, {}, prefactors, options
        self.terms = [_NAME]

    @classmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        if list(labels) != [_NAME]:
            raise ConfigError(
                f"loss.type: is 'population', a loss of populations, and the model answers {', '.join(labels)}"
            )
        return cls(options, weights_of(options, _TERMS), labels)

    def keys(self, label: str) -> list[str]:
        return ["loss.type"]

    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        if not counts.get(_NAME):
            return []
        error = difference(_NAME, result[_NAME], batch)
        if not len(error):
            return [error.sum()]
        labelled = rows(_NAME, batch)
        atoms = labelled.sum() / batch.present[_NAME].sum().clamp(min=1)
        systems = sum_systems(error, batch.system.batch, batch.system.count)
        spin = torch.tensor([1.0, -1.0], dtype=error.dtype, device=error.device)
        of_atoms, of_systems = labelled.sum(), batch.present[_NAME].sum()
        found = {
            "spin": self._sum(error @ spin, of_atoms, counts) / atoms,
            "spin_total": self._sum(systems @ spin, of_systems, counts),
            "pop": self._sum(error, 2 * of_atoms, counts) / atoms,
            "pop_alpha_total": self._sum(systems[:, 0], of_systems, counts),
            "pop_beta_total": self._sum(systems[:, 1], of_systems, counts),
        }
        return [self._weights[term].at(fraction) * value for term, value in found.items()]

    def _sum(self, error: torch.Tensor, number: torch.Tensor, counts: Mapping[str, float]) -> torch.Tensor:
        """f of the class, over so many labelled errors; the others are 0."""
        if self._options.loss_func == "rmse":
            return total((error.square().sum() * number).sqrt(), counts)
        return total(measure(error, self._options.loss_func, self._options.beta), counts)
