"""How descriptors get their numbers where these are not to come from their own nets: evaluators say so."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

from mdops.tracing import set_while


class Way(NamedTuple):
    """What makes a descriptor's numbers.

    Attributes:
        make: of a neighbourhood, what the kind of descriptor asks for: `MomentDescriptor` its sums T.
        captures: whether that never waits for a GPU.
    """

    make: Callable[[Any], Any]
    captures: bool = False


_ways: ContextVar[Mapping[Any, Way]] = ContextVar("ways", default={})  # noqa: B039


def numbers_by(ways: Mapping[Any, Way]) -> AbstractContextManager[None]:
    """While this lasts, these descriptors get their numbers so, in whatever model they are."""
    return set_while(_ways, ways)


def way_of(descriptor: Any) -> Way | None:
    """What `numbers_by` says of a descriptor; None where its own nets run."""
    return _ways.get().get(descriptor)


class BySplines(ABC):
    """A descriptor in which splines of lengths may stand for radial nets, in simulations."""

    @property
    @abstractmethod
    def why_no_splines(self) -> str | None:
        """Why they cannot; None if they can."""


class EdgesBySplines(BySplines):
    """They are what edges have of their lengths and types (`mdops.tables.radial_tables`)."""


class SumsBySplines(BySplines):
    """They are summed with harmonics (`mdops.tables.harmonic_tables`)."""
