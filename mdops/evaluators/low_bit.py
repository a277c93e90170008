"""se_e2_a with a fitting net of low-bit products: spline moments, then a net whose numbers are rounded and packed once."""

import copy
from typing import TYPE_CHECKING

import torch

from mdops.evaluators.splined import Splined, SplineModel
from mdops.models.ener import EnergyFitting
from mdops.nn.net import Net
from mdops.nn.quantized import LowBitLayer

if TYPE_CHECKING:
    from mdops.potential import Potential


class LowBit(Splined):
    name = "low-bit"
    summary = "spline moments, then products of low-bit numbers"
    cost = "the weights are rounded again in every step"
    packs_weights = True

    def __init__(self, potential: "Potential") -> None:
        super().__init__(potential)
        self.splines.fitting = frozen_fitting(self.splines.fitting)

    @classmethod
    def knows(cls, potential: "Potential") -> bool:
        return SplineModel.knows(potential) and why_not_exact(potential) is not None

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
        if why_not_exact(potential) is None:
            return "the fitting net's products are not of low-bit numbers"
        return SplineModel.why_not(potential)


def why_not_exact(potential: "Potential") -> str | None:
    """Why evaluators whose fitting nets multiply floating-point numbers cannot have this one; None if they can."""
    scheme = potential.scheme
    if scheme is None or scheme.inputs is None:
        return None
    return f"the fitting net's products are of low-bit numbers ({scheme.name})"


@torch.no_grad()
def frozen_fitting(fitting: EnergyFitting) -> EnergyFitting:
    """A copy that computes the same with the numbers of now, and has gradients by its input alone."""
    found = copy.deepcopy(fitting)
    for k, net in enumerate(found.nets.nets):
        found.nets[k] = Net(layer.frozen() if isinstance(layer, LowBitLayer) else layer for layer in net.layers)
    return found.requires_grad_(False)
