"""What programs around DeePMD-kit ask of a model, as DeePMD-kit answers it (docs/deepmd.md)."""

from mdops.deepmd.deep_pot import DeepPot
from mdops.deepmd.model_devi import ModelDeviation, model_deviation, write_model_devi

__all__ = ["DeepPot", "ModelDeviation", "model_deviation", "write_model_devi"]
