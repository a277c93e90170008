"""Molecular dynamics that stays on the device: positions, lists and forces never wait for the host."""

from mdops.md.engine.engine import BatchEngine, Engine
from mdops.md.engine.frame import BatchFrame, Frame
from mdops.md.engine.minimizer import Minimizer

__all__ = ["BatchEngine", "BatchFrame", "Engine", "Frame", "Minimizer"]
