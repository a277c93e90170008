"""DeePMD-kit's functions for models, for programs that were written for DeePMD-kit (docs/how-to/deepmd.md)."""

from mdops.deepmd.deep_pot import DeepPot
from mdops.deepmd.model_devi import ModelDeviation, calc_model_devi, model_deviation, write_model_devi

__all__ = ["DeepPot", "ModelDeviation", "calc_model_devi", "model_deviation", "write_model_devi"]
