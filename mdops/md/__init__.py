"""Molecular dynamics runs with checkpoints: what `mdops md` does, from Python."""

from mdops.md.engine import BatchEngine, Engine, Minimizer
from mdops.md.engine.restraints import Distance, Tether
from mdops.md.guard import UnstableRunError
from mdops.md.options import EnsembleSettings, Output, Relaxation
from mdops.md.run import Summary, run

__all__ = [
    "BatchEngine",
    "Distance",
    "Engine",
    "EnsembleSettings",
    "Minimizer",
    "Output",
    "Relaxation",
    "Summary",
    "Tether",
    "UnstableRunError",
    "run",
]
