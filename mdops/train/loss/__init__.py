"""The losses of training, by the `type` of the section `loss`."""

from mdops.options import Options
from mdops.train.loss.base import Loss
from mdops.train.loss.dens import DenoisingLoss
from mdops.train.loss.dos import DosLoss
from mdops.train.loss.energy import EnergyLoss
from mdops.train.loss.population import PopulationLoss
from mdops.train.loss.property import PropertyLoss
from mdops.train.loss.spin import SpinLoss
from mdops.train.loss.tensor import TensorLoss

LOSSES: dict[str, type[Loss]] = {
    loss.Options.KIND: loss
    for loss in (EnergyLoss, SpinLoss, DenoisingLoss, TensorLoss, DosLoss, PropertyLoss, PopulationLoss)
}

_ABSENT = {"denoise": "trains descriptors on noisy structures"}


def options() -> dict[str, type[Options]]:
    """Options of each, by all names."""
    return {name: loss.Options for loss in LOSSES.values() for name in loss.Options.NAMES}


def absent(name: str) -> str:
    """The advice on an unsupported loss of DeePMD-kit."""
    return f" ({name} {_ABSENT[name]})" if name in _ABSENT else ""
