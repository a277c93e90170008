"""Molecular dynamics runs with checkpoints: what `mdops md` does, from Python."""

from mdops.md.engine import BatchEngine, Engine, Minimizer
from mdops.md.engine.restraints import Distance, Tether
from mdops.md.guard import UnstableRunError
from mdops.md.options import Output, Physics, Relaxation
from mdops.md.run import Summary, run

__all__ = [
    "BatchEngine",
    "Distance",
    "Engine",
    "Minimizer",
    "Output",
    "Physics",
    "Relaxation",
    "Summary",
    "Tether",
    "UnstableRunError",
    "run",
]
