"""Fast ways to evaluate models, in the order in which they are tried; the last takes every model.

A potential asks each `why_not` and takes the first that has no reason (`Potential.evaluator`).
"""

from mdops.evaluators.angles import AngleMoments
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Evaluator
from mdops.evaluators.blended import Blended, PairTableEvaluator, SplinedBlend
from mdops.evaluators.fused import Fused
from mdops.evaluators.fused_attention import FusedAttention
from mdops.evaluators.fused_parts import FusedParts
from mdops.evaluators.fused_training import FusedTraining
from mdops.evaluators.harmonic_splines import HarmonicSplines
from mdops.evaluators.inner_splines import InnerSplines
from mdops.evaluators.low_bit import LowBit
from mdops.evaluators.moment_steps import MomentSteps
from mdops.evaluators.moment_training import MomentTraining
from mdops.evaluators.splined import Splined

SIMULATE: list[type[Evaluator]] = [
    Fused,
    FusedParts,
    FusedAttention,
    Blended,
    PairTableEvaluator,
    LowBit,
    MomentSteps,
    SplinedBlend,
    Splined,
    InnerSplines,
    AngleMoments,
    HarmonicSplines,
    Autograd,
]  # energies, forces and virials of one moment
DIFFERENTIATE: list[type[Autograd]] = [
    SplinedBlend,
    Splined,
    InnerSplines,
    AngleMoments,
    Autograd,
]  # differentiable in everything, to second order
TRAIN: list[type[Evaluator]] = [
    FusedTraining,
    MomentTraining,
    SplinedBlend,
    Splined,
    AngleMoments,
    Autograd,
]  # differentiable in the weights

__all__ = ["DIFFERENTIATE", "SIMULATE", "TRAIN", "Autograd", "Evaluator"]
