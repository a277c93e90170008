"""The loss "ener": errors of energies, forces, virials and atomic energies, weighted."""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from mdops.data.batch import Batch
from mdops.data.dataset import Dataset
from mdops.data.labels import LABELS, Labels
from mdops.errors import ConfigError
from mdops.options import Options, key
from mdops.train.loss.base import Counts, Fraction, Loss, Result, difference, mean
from mdops.train.loss.weights import Prefactor, Weight, weight_keys, weighted, weights_of

ENERGY = Weight(0.02, 1.0, "energies", "1/eV^2")
OF_ALL = {  # of losses of energies
    "v": Weight(0.0, 0.0, "virials", "1/eV^2"),
    "ae": Weight(0.0, 0.0, "atomic energies", "1/eV^2"),
}


@dataclass(kw_only=True)
class ErrorOptions(Options):
    """Options of losses of energies."""

    loss_func: str = key("mse", "use squares or absolute values of errors", choices=("mse", "mae"))
    intensive_ener_virial: bool = key(False, "divide squared errors of energies and virials by N^2, not by N")
    skip_absent: bool = key(
        False, "omit, without a warning, terms whose labels no frame has; only mdops has this key"
    )


@dataclass(kw_only=True)
@weighted(
    {
        "e": ENERGY,
        "f": Weight(1000.0, 1.0, "forces", "A^2/eV^2"),
        **OF_ALL,
        "pf": Weight(0.0, 0.0, "forces that are weighted by atom_pref,", "A^2/eV^2"),
        "gf": Weight(0.0, 0.0, "generalized forces, computed from forces with drdq,", "1/eV^2"),
        "h": Weight(0.0, 0.0, "Hessians", "A^4/eV^2"),
    }
)
class EnergyLossOptions(ErrorOptions):
    KIND = "ener"
    NAMES = ("ener", "ener_hess")

    use_default_pf: bool = key(False, "atoms of frames without atom_pref have the weight 1")
    enable_atom_ener_coeff: bool = key(
        False, "energies are sums of atomic energies times atom_ener_coeff, which is 1 in frames without it"
    )
    relative_f: float | None = key(
        None, "divide errors of an atom's force by the length of its label plus this", unit="eV/A", above=0
    )
    numb_generalized_coord: int = key(0, "number of generalized coordinates", low=0)
    use_huber: bool = key(False, "use Huber functions instead of squares")
    huber_delta: float | list[float] = key(
        0.01,
        "error at which Huber functions become linear; one value, or one each for energy, force and virial",
        unit="eV, A",
        above=0,
    )
    f_use_norm: bool = key(
        False, "use the lengths of the force error vectors; with squares, their mean length"
    )


@dataclass(frozen=True)
class EnergyLoss(Loss):
    """DeePMD-kit's loss of energy models.

    With N the atoms of a frame, p the prefactors, < > the mean over what the batch has labels of:
    p_e <dE^2 / N^x> + p_f <dF^2> + p_v <dW^2 / N^x> + p_ae <de^2> + p_h <dH^2> + p_pf <w dF^2>, over components of
    forces, virials and Hessians, x = 2 if `intensive`, else 1, w the weights of atoms (`atom_pref`), and
    + p_gf <(sum dr/dq dF)^2> over generalized coordinates q (`drdq`), the sum over atoms and components. A term counts
    if both of its prefactors are nonzero; that of Hessians if one is.

    Attributes:
        prefactors: of each of `LABELS`; absent terms do not count.
        function: "mse" as above, or "mae": p_e <|dE| / N> + p_f <|dF|> + p_v <|dW|> / N + p_ae <|de|> + p_pf <w |dF|>.
        huber: replaces the square of dE/N, dF, dW/N and de by a Huber function: u^2/2 up to its delta, and
            delta (|u| - delta/2) beyond.
        huber_delta: of energies, forces and virials, eV, eV/A and eV.
        force_norm: take the length of the error of an atom's force as one error, not its three components:
            <|dF|>, or the Huber function of the length.
        intensive: see above.
        skips_absent: see `only_of`.
        coordinates: the number of generalized ones.
        default_weights: w = 1 for forces of frames without `atom_pref`.
        coefficients: E = sum c e, with c of the data (`atom_ener_coeff`), 1 where it has none.
        relative_forces: dF is over |F| + this, eV/A, in the terms of forces and of weighted ones; None: it is not.
    """

    Options: ClassVar[type[Options]] = EnergyLossOptions
    labels = LABELS
    subject: ClassVar[str] = "energies"
    prefactors: Mapping[str, Prefactor] = field(
        default_factory=lambda: {"energy": Prefactor(0.02, 1.0), "forces": Prefactor(1000.0, 1.0)}
    )
    function: str = "mse"
    huber: bool = False
    huber_delta: tuple[float, float, float] = (0.01, 0.01, 0.01)
    force_norm: bool = False
    intensive: bool = False
    skips_absent: bool = False
    coordinates: int = 0
    default_weights: bool = False
    coefficients: bool = False
    relative_forces: float | None = None

    def __post_init__(self) -> None:
        if self.function not in ("mse", "mae"):
            raise ConfigError(f"loss_func is {self.function!r}, expected mse or mae")
        unknown = set(self.prefactors) - set(self.labels)
        if unknown:
            raise ConfigError(
                f"the loss has no term {', '.join(sorted(unknown))}; it has {', '.join(self.labels)}"
            )

    @classmethod
    def _advice(cls, labels: Labels) -> str:
        """The advice for a model with other labels."""
        return ". A model with magnetic moments takes 'ener_spin'" if "force_mag" in labels else ""

    @classmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        if labels is not cls.labels:
            raise ConfigError(
                f"loss.type: is {options.KIND!r}, a loss of {cls.subject}, and the model answers "
                f"{', '.join(name for name in labels if name != 'spin')}{cls._advice(labels)}"
            )
        shared = {
            "function": options.loss_func,
            "intensive": options.intensive_ener_virial,
            "skips_absent": options.skip_absent,
        }
        terms = {name: label.short for name, label in cls.labels.items()}
        weights = weights_of(options, (t for t in terms.values() if hasattr(options, f"start_pref_{t}")))
        prefactors = {name: weights[term] for name, term in terms.items() if term in weights}
        return cls(prefactors, **shared, **cls._own(options))

    @staticmethod
    def _own(options: Any) -> dict[str, Any]:
        """Of the keys that other losses of energies lack."""
        delta = options.huber_delta if isinstance(options.huber_delta, list) else [options.huber_delta] * 3
        if len(delta) != 3:
            raise ConfigError("loss.huber_delta: expected one number, or three for energy, force and virial")
        if options.use_huber and (options.start_pref_h or options.limit_pref_h):
            raise ConfigError("loss.use_huber: is not for Hessians (loss.start_pref_h), as in DeePMD-kit")
        for short, what in (("pf", "weighted"), ("gf", "generalized")):
            if options.use_huber and all(
                getattr(options, f"{end}_pref_{short}") for end in ("start", "limit")
            ):
                raise ConfigError(
                    f"loss.use_huber: is not for {what} forces (loss.start_pref_{short}), as in DeePMD-kit"
                )
        if options.use_huber and options.relative_f is not None:
            raise ConfigError("loss.use_huber: is not for relative_f, as in DeePMD-kit")
        return {
            "coordinates": options.numb_generalized_coord,
            "default_weights": options.use_default_pf,
            "coefficients": options.enable_atom_ener_coeff,
            "relative_forces": options.relative_f,
            "huber": options.use_huber,
            "huber_delta": (delta[0], delta[1], delta[2]),
            "force_norm": options.f_use_norm,
        }

    @property
    def terms(self) -> list[str]:  # type: ignore[override]
        """Terms that count."""
        return [name for name, p in self.prefactors.items() if p.counts or (name == "hessian" and any(p))]

    def keys(self, label: str) -> list[str]:
        return weight_keys(self.labels[label].short)

    def check(self, data: Dataset) -> None:
        for name in self.terms:
            found = data.labels[name].shape[-1] if self.labels[name].projects and data.has(name) else None
            if found is not None and found != self.coordinates:
                raise ConfigError(
                    f"loss.numb_generalized_coord: is {self.coordinates}, and {name} of the data has {found}"
                )

    def complete(self, data: Dataset) -> None:
        for name, label in self.labels.items():
            weighs = self.default_weights and label.weighs and not label.projects and name in self.terms
            if weighs and data.has(label.weighs):
                data.fill(name, data.present[label.weighs])
            if label.scales and data.has(name) and not self.coefficients:
                warnings.warn(
                    f"the data has {name}, which the training ignores without loss.enable_{name}",
                    stacklevel=2,
                )
                del data.labels[name], data.present[name]

    def relative(self, error: torch.Tensor, name: str, batch: Batch) -> torch.Tensor:
        label = self.labels[name]
        if self.relative_forces is None or label.answer != "forces" or label.projects:
            return error
        length = torch.linalg.vector_norm(batch.labels["forces"], dim=1, keepdim=True)
        return error / (length + self.relative_forces)

    def only_of(self, data: Dataset) -> Self:
        if not self.skips_absent:
            return self
        found = {name: p for name, p in self.prefactors.items() if data.has(name)}
        return dataclasses.replace(self, prefactors=found)

    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        parts = []
        for name in self.terms:
            if counts.get(name):
                found = mean(self._errors(name, result[self.labels[name].answer], batch), name, counts)
                parts.append(self.prefactors[name].at(fraction) * found)
        return parts

    def _errors(self, name: str, value: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The loss of each frame or atom and component; 0 without label."""
        error = difference(name, value, batch)
        if not len(error):
            return error
        if self.labels[name].projects:
            return error.square()  # also beside absolute errors, as in DeePMD-kit
        error = self.relative(error, name, batch)
        atoms = batch.sizes[:, None].double() if self.labels[name].per_atom else 1.0
        if name == "forces" and self.force_norm:
            error = torch.linalg.vector_norm(error, dim=1, keepdim=True)
            error = self._huber(error, 1) if self.huber else error
        elif self.function == "mae":
            error = _over(error.abs(), atoms)
        elif self.huber:
            error = self._huber(_over(error, atoms), {"forces": 1, "virial": 2}.get(name, 0))
        else:
            error = _over(error.square(), atoms**2 if self.intensive else atoms)
        return error * batch.labels[name][:, None] if self.labels[name].weighs else error

    def _huber(self, error: torch.Tensor, which: int) -> torch.Tensor:
        delta, size = self.huber_delta[which], error.abs()
        return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def _over(error: torch.Tensor, atoms: torch.Tensor | float) -> torch.Tensor:
    """Errors per atom of their frames, or unchanged."""
    return error / atoms if isinstance(atoms, torch.Tensor) else error
