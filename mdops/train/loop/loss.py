"""What training minimises: errors of energies, forces, virials and atomic energies, weighted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from mdops.data.batch import Batch
from mdops.data.labels import LABELS
from mdops.errors import ConfigError


class Prefactor(NamedTuple):
    """The weight of a term: limit + (start - limit) * rate / (rate at the start)."""

    start: float
    limit: float

    def at(self, fraction: Any) -> Any:
        """The weight where the learning rate is this fraction (a number or a tensor) of that at the start."""
        return self.limit + (self.start - self.limit) * fraction


@dataclass(frozen=True)
class EnergyLoss:
    """DeePMD-kit's loss of energy models.

    With N the atoms of a frame, p the prefactors, < > the mean over what the batch has labels of:
    p_e <dE^2 / N^x> + p_f <dF^2> + p_v <dW^2 / N^x> + p_ae <de^2>, over components of forces and virials,
    x = 2 if `intensive`, else 1. A term counts where both of its prefactors are not zero.

    Attributes:
        prefactors: of each of `LABELS`; terms that are not there do not count.
        function: "mse" as above, or "mae": p_e <|dE| / N> + p_f <|dF|> + p_v <|dW|> / N + p_ae <|de|>.
        huber: replaces the square of dE/N, dF, dW/N and de by a Huber function: u^2/2 up to its delta, and
            delta (|u| - delta/2) beyond.
        huber_delta: of energies, forces and virials, eV, eV/A and eV.
        force_norm: take the length of the error of an atom's force as one error, not its three components:
            <|dF|>, or the Huber function of the length.
        intensive: see above.
    """

    prefactors: Mapping[str, Prefactor] = field(
        default_factory=lambda: {"energy": Prefactor(0.02, 1.0), "forces": Prefactor(1000.0, 1.0)}
    )
    function: str = "mse"
    huber: bool = False
    huber_delta: tuple[float, float, float] = (0.01, 0.01, 0.01)
    force_norm: bool = False
    intensive: bool = False

    def __post_init__(self) -> None:
        if self.function not in ("mse", "mae"):
            raise ConfigError(f"loss_func is {self.function!r}, expected mse or mae")
        unknown = set(self.prefactors) - set(LABELS)
        if unknown:
            raise ConfigError(
                f"the loss has no term {', '.join(sorted(unknown))}; it has {', '.join(LABELS)}"
            )

    @property
    def terms(self) -> list[str]:
        """Those that count."""
        return [name for name, p in self.prefactors.items() if p.start != 0 and p.limit != 0]

    def __call__(
        self,
        result: Mapping[str, torch.Tensor],
        batch: Batch,
        fraction: float | torch.Tensor = 1.0,
        counts: Mapping[str, float] | None = None,
    ) -> torch.Tensor:
        """The loss, a float64 scalar.

        Args:
            result: energy, forces, virial and atom_energy as `Potential` gives them.
            batch: what was asked, and its labels.
            fraction: the learning rate over that at the start.
            counts: divide the sums of errors by these instead of `label_counts(batch)`. With the mean of
                several processes' counts, the mean of their gradients is that of all batches as one.
        """
        counts = label_counts(batch) if counts is None else counts
        parts = []
        for name in self.terms:
            if counts.get(name):
                errors = self._errors(name, result[name].double(), batch)
                mean = errors.sum() / (errors.shape[1] * counts[name])
                parts.append(self.prefactors[name].at(fraction) * mean)
        if not parts:
            return torch.zeros((), dtype=torch.float64, device=batch.sizes.device)
        return sum(parts[1:], parts[0])

    def _errors(self, name: str, value: torch.Tensor, batch: Batch) -> torch.Tensor:
        """For each frame or atom and component its part of the loss; 0 without label."""
        if name not in batch.labels:
            return value[:0].reshape(0, 1)  # part of the graph: a batch without labels has gradients 0
        error = (value - batch.labels[name]).reshape(len(value), -1)
        if not batch.complete:
            error = torch.where(_rows(name, batch)[:, None], error, 0.0)
        atoms = batch.sizes[:, None].double() if LABELS[name].per_atom else 1.0
        if name == "forces" and self.force_norm:
            error = torch.linalg.vector_norm(error, dim=1, keepdim=True)
            error = self._huber(error, 1) if self.huber else error
        elif self.function == "mae":
            error = _over(error.abs(), atoms)
        elif self.huber:
            error = self._huber(_over(error, atoms), {"forces": 1, "virial": 2}.get(name, 0))
        else:
            error = _over(error.square(), atoms**2 if self.intensive else atoms)
        return error

    def _huber(self, error: torch.Tensor, which: int) -> torch.Tensor:
        delta, size = self.huber_delta[which], error.abs()
        return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def _over(error: torch.Tensor, atoms: torch.Tensor | float) -> torch.Tensor:
    """Errors over the numbers of atoms of their frames, or as they are."""
    return error / atoms if isinstance(atoms, torch.Tensor) else error


def label_counts(batch: Batch) -> dict[str, float]:
    """How many frames (energy, virial) or atoms (forces, atom_energy) of a batch have each label."""
    return {name: float(_rows(name, batch).sum()) for name in batch.labels}


def _rows(name: str, batch: Batch) -> torch.Tensor:
    """(S,) or (N,) bool: the frames, or atoms, that have the label."""
    labelled = batch.present[name]
    return labelled if LABELS[name].per_atom else labelled[batch.system.batch.long()]


@torch.no_grad()
def label_errors(result: Mapping[str, torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
    """For each label of the batch, prediction - label, float64, of the frames or atoms that have it.

    Energies (n, 1) and virials (n, 9) are per atom; forces are (n, 3), atomic energies (n,).
    """
    errors = {}
    for name, label in batch.labels.items():
        labelled = _rows(name, batch)
        error = (result[name].double() - label)[labelled]
        if LABELS[name].per_atom:
            error = error.reshape(len(error), -1) / batch.sizes[labelled, None]
        errors[name] = error
    return errors


def squared_errors(result: Mapping[str, torch.Tensor], batch: Batch) -> dict[str, tuple[float, int]]:
    """For each label of the batch, the sum of squared `label_errors` and over how many values it goes.

    sqrt(sum / count) is the RMSE, over several batches too.
    """
    errors = label_errors(result, batch)
    return {name: (float(error.square().sum()), error.numel()) for name, error in errors.items()}
