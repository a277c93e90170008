"""From a teacher to a fast potential: what `mdops learn` does, from Python (docs/explanation/learning.md)."""

from mdops.learn.config import Config, parse_config, read_config
from mdops.learn.run import Result, learn

__all__ = ["Config", "Result", "learn", "parse_config", "read_config"]
