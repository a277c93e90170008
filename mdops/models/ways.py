"""How descriptors compute their features in place of their own nets: evaluators choose it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

from mdops.tracing import set_while


class Way(NamedTuple):
    """A way to compute a descriptor's features.

    Attributes:
        make: from a neighbourhood, the kind's intermediate: of `MomentDescriptor` its sums T.
        captures: whether it never waits for a GPU.
    """

    make: Callable[[Any], Any]
    captures: bool = False


_ways: ContextVar[Mapping[Any, Way]] = ContextVar("ways", default={})  # noqa: B039


def numbers_by(ways: Mapping[Any, Way]) -> AbstractContextManager[None]:
    """In this context, these descriptors compute their features so, in any model."""
    return set_while(_ways, ways)


def way_of(descriptor: Any) -> Way | None:
    """The choice of `numbers_by` for a descriptor; None if its nets run."""
    return _ways.get().get(descriptor)


class BySplines(ABC):
    """A descriptor whose radial nets simulations may replace by splines of lengths."""

    @property
    @abstractmethod
    def why_no_splines(self) -> str | None:
        """Why splines cannot; None if they can."""


class EdgesBySplines(BySplines):
    """The splines give edge features by length and type (`mdops.tables.radial_tables`)."""


class SumsBySplines(BySplines):
    """Splines summed with harmonics (`mdops.tables.harmonic_tables`)."""
