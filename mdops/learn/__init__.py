"""Learns a fast potential from a teacher: `mdops learn` from Python (docs/explanation/learning.md)."""

from mdops.learn.config import Config, parse_config, read_config
from mdops.learn.run import Result, learn

__all__ = ["Config", "Result", "learn", "parse_config", "read_config"]
