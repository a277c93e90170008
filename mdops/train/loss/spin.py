"""The loss "ener_spin": that of energies, with forces on spins."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mdops.data.labels import SPIN_LABELS, Labels
from mdops.train.loss.energy import ENERGY, OF_ALL, EnergyLoss, ErrorOptions
from mdops.train.loss.weights import Weight, weighted


@dataclass(kw_only=True)
@weighted(
    {
        "e": ENERGY,
        "fr": Weight(1000.0, 1.0, "forces", "A^2/eV^2"),
        "fm": Weight(10000.0, 10.0, "magnetic forces", "1/eV^2"),
        **OF_ALL,
    }
)
class SpinLossOptions(ErrorOptions):
    KIND = "ener_spin"
    NEUTRAL: ClassVar[dict[str, Any]] = {"enable_atom_ener_coeff": False}  # with it, DeePMD-kit stops


@dataclass(frozen=True)
class SpinLoss(EnergyLoss):
    """DeePMD-kit's loss of models with magnetic moments: that of energies, and the mean square (or absolute) error of
    the magnetic forces of atoms with a spin."""

    Options = SpinLossOptions
    labels = SPIN_LABELS
    subject = "energies of magnetic moments"

    @classmethod
    def _advice(cls, labels: Labels) -> str:
        return ". Give the model a section 'spin', or take 'ener'" if "energy" in labels else ""

    @staticmethod
    def _own(options: Any) -> dict[str, Any]:
        return {}
