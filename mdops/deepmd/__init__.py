"""DeePMD-kit's functions for models, for programs that were written for DeePMD-kit (docs/how-to/deepmd.md)."""

from mdops.deepmd.calculator import DP
from mdops.deepmd.deep_eval import DeepEval
from mdops.deepmd.deep_outputs import (
    DeepDipole,
    DeepDOS,
    DeepGlobalPolar,
    DeepPolar,
    DeepPopulation,
    DeepProperty,
)
from mdops.deepmd.deep_pot import DeepPot
from mdops.deepmd.model_devi import ModelDeviation, calc_model_devi, model_deviation, write_model_devi

DeepPotential = DeepEval

__all__ = [
    "DP",
    "DeepDOS",
    "DeepDipole",
    "DeepEval",
    "DeepGlobalPolar",
    "DeepPolar",
    "DeepPopulation",
    "DeepPot",
    "DeepPotential",
    "DeepProperty",
    "ModelDeviation",
    "calc_model_devi",
    "model_deviation",
    "write_model_devi",
]
