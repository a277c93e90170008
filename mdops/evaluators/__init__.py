"""Fast ways to evaluate models, in the order in which they are tried; the last takes every model.

A potential asks each `why_not` and takes the first that has no reason (`Potential.evaluator`).
"""

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Evaluator
from mdops.evaluators.blended import Blended, PairTableEvaluator
from mdops.evaluators.from_moments import LowBit, MomentSteps, MomentTraining
from mdops.evaluators.one_op import Fused, FusedParts, FusedTraining
from mdops.evaluators.splines import FusedSums, RadialSplineSteps, Splines

SIMULATE: list[type[Evaluator]] = [
    Fused,
    FusedParts,
    FusedSums,
    Blended,
    PairTableEvaluator,
    LowBit,
    MomentSteps,
    Splines,
    RadialSplineSteps,
    Autograd,
]  # energies, forces and virials of one moment
DIFFERENTIATE: list[type[Autograd]] = [Splines, Autograd]  # differentiable in everything, to second order
TRAIN: list[type[Evaluator]] = [
    FusedTraining,
    MomentTraining,
    Splines,
    Autograd,
]  # differentiable in the weights

__all__ = ["DIFFERENTIATE", "SIMULATE", "TRAIN", "Autograd", "Evaluator"]
