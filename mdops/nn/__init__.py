"""Models as PyTorch modules."""

from mdops.nn.load import load
from mdops.nn.potential import Potential

__all__ = ["Potential", "load"]
