"""Molecular dynamics that stays on the device: positions, lists and forces never wait for the host."""

from mdops.md.engine.engine import Engine
from mdops.md.engine.frame import Frame

__all__ = ["Engine", "Frame"]
