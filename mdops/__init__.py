"""Deep Potential molecular dynamics in PyTorch: ops, models and an ASE calculator."""

from importlib.metadata import version as _version

from mdops import _library

_library.load()

from mdops import ops  # noqa: E402  (the ops must be registered first)

__version__ = _version("mdops")
__all__ = ["__version__", "ops"]
