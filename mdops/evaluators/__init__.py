"""Fast ways to evaluate models, in the order in which they are tried; the last takes every model.

A potential asks each `why_not` and takes the first that has no reason (`Potential.evaluator`).
"""

from mdops.evaluators.autograd import AngleMoments, Autograd
from mdops.evaluators.base import Evaluator
from mdops.evaluators.blended import Blended, PairTableEvaluator, SplinedBlend
from mdops.evaluators.from_moments import LowBit, MomentSteps, MomentTraining
from mdops.evaluators.fused_attention import FusedAttention
from mdops.evaluators.harmonic_splines import HarmonicSplines
from mdops.evaluators.one_op import Fused, FusedParts, FusedTraining
from mdops.evaluators.splined import InnerSplines, Splined

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
