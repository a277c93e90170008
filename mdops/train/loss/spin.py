"""The loss "ener_spin": that of energies, with forces on spins."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mdops.data.labels import SPIN_LABELS, Labels
from mdops.options import Options, key
from mdops.train.loss.energy import EnergyLoss


@dataclass(kw_only=True)
class SpinLossOptions(Options):
    KIND = "ener_spin"
    NEUTRAL: ClassVar[dict[str, Any]] = {"enable_atom_ener_coeff": False}

    start_pref_e: float = key(0.02, "weight of energies at the start", unit="1/eV^2", low=0)
    limit_pref_e: float = key(
        1.0, "weight of energies at the end (in the limit of rate zero)", unit="1/eV^2", low=0
    )
    start_pref_fr: float = key(1000.0, "weight of forces at the start", unit="A^2/eV^2", low=0)
    limit_pref_fr: float = key(
        1.0, "weight of forces at the end (in the limit of rate zero)", unit="A^2/eV^2", low=0
    )
    start_pref_fm: float = key(10000.0, "weight of magnetic forces at the start", unit="1/eV^2", low=0)
    limit_pref_fm: float = key(
        10.0, "weight of magnetic forces at the end (in the limit of rate zero)", unit="1/eV^2", low=0
    )
    start_pref_v: float = key(0.0, "weight of virials at the start", unit="1/eV^2", low=0)
    limit_pref_v: float = key(
        0.0, "weight of virials at the end (in the limit of rate zero)", unit="1/eV^2", low=0
    )
    start_pref_ae: float = key(0.0, "weight of atomic energies at the start", unit="1/eV^2", low=0)
    limit_pref_ae: float = key(
        0.0, "weight of atomic energies at the end (in the limit of rate zero)", unit="1/eV^2", low=0
    )
    loss_func: str = key("mse", "use squares or absolute values of errors", choices=("mse", "mae"))
    intensive_ener_virial: bool = key(False, "divide squared errors of energies and virials by N^2, not by N")
    skip_absent: bool = key(
        False, "omit, without a warning, terms whose labels no frame has; only mdops has this key"
    )


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
    def _huber_options(options: Any) -> dict[str, Any]:
        return {}
