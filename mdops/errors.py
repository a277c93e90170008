"""The exceptions that mdops raises for problems that users can fix."""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ConfigError",
    "DataError",
    "DerivativeError",
    "DivergedError",
    "DownloadError",
    "GraphOverflowError",
    "HeadError",
    "InputError",
    "JitError",
    "LibraryError",
    "MDOpsError",
    "ModelFileError",
    "NeighborOverflowError",
    "OutsideDomainError",
    "ParallelError",
    "UnsupportedModelError",
]


class MDOpsError(Exception):
    """Base of every exception of mdops."""


class ModelFileError(MDOpsError, ValueError):
    """A model file cannot be read: absent, cut short, corrupt, or of another kind."""


class HeadError(ModelFileError):
    """A model file holds several models (heads), and no head or an unknown one was requested. The message lists the
    heads, and `heads` has their names."""

    def __init__(self, message: str, heads: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.heads = list(heads)


class UnsupportedModelError(MDOpsError, ValueError):
    """A model file was read without errors, but the model has a part that mdops does not implement."""


class LibraryError(MDOpsError, ImportError):
    """The compiled ops cannot be loaded."""


class JitError(MDOpsError):
    """Kernels cannot be rebuilt, or a cache of them cannot be used; the message says why."""


class InputError(MDOpsError, ValueError):
    """An input does not fit the model, or is not a physical structure; the message says what is wrong and where. `atom`
    is the first atom with the problem, if it is known."""

    def __init__(self, message: str = "", atom: int | None = None) -> None:
        super().__init__(message)
        self.atom = atom


class DataError(InputError):
    """Training data cannot be used; the message names the file and the frame."""


class ConfigError(InputError):
    """A training input is wrong; the message names the key."""


class DerivativeError(MDOpsError, NotImplementedError):
    """A derivative was requested that an op does not have, such as the third; the message names the op."""


class DivergedError(MDOpsError, RuntimeError):
    """A training diverged: its loss or weights are not finite; the message names the last good checkpoint."""


class DownloadError(MDOpsError, RuntimeError):
    """A published model cannot be downloaded; the message says why, and how else to get the file."""


class OutsideDomainError(MDOpsError, RuntimeError):
    """A structure is outside of the domain in which the model was tested, and a guard was told to stop then."""


class ParallelError(MDOpsError, RuntimeError):
    """A process of a training in several processes cannot reach the others."""


class _CapacityError(MDOpsError, ValueError):
    """A list of fixed capacity is too small; `given` are the arguments of the class itself."""

    def __init__(self, found: str, needed: int, capacity: int, key: str, *given: Any):
        more = f"more than the capacity of {capacity}: pass {key}={needed} or more, or None to have it chosen"
        super().__init__(f"{found}, {more}")
        self.needed, self.capacity, self._given = needed, capacity, given

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), self._given


class NeighborOverflowError(_CapacityError):
    """An atom has more neighbours than a neighbour list of fixed capacity can hold."""

    def __init__(self, needed: int, capacity: int, atom: int):
        self.atom = atom
        found = f"atom {atom} has {needed} neighbours"
        super().__init__(found, needed, capacity, "capacity", needed, capacity, atom)


class GraphOverflowError(_CapacityError):
    """A graph has more edges or angles than its fixed capacity holds."""

    def __init__(self, what: str, needed: int, capacity: int):
        self.what = what
        found = f"the graph has {needed} {what}s"
        super().__init__(found, needed, capacity, f"{what}_capacity", what, needed, capacity)
