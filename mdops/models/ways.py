"""How descriptors get their numbers where these are not to come from their own nets: evaluators say so."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class Way(NamedTuple):
    """What makes a descriptor's numbers.

    Attributes:
        make: of a neighbourhood, what the kind of descriptor asks for: `MomentDescriptor` its sums T.
        captures: whether that never waits for a GPU.
    """

    make: Callable[[Any], Any]
    captures: bool = False


_ways: ContextVar[Mapping[Any, Way]] = ContextVar("ways", default={})  # noqa: B039


@contextmanager
def numbers_by(ways: Mapping[Any, Way]) -> Iterator[None]:
    """While this lasts, these descriptors get their numbers so, in whatever model they are."""
    token = _ways.set(ways)
    try:
        yield
    finally:
        _ways.reset(token)


def way_of(descriptor: Any) -> Way | None:
    """What `numbers_by` says of a descriptor; None where its own nets run."""
    return _ways.get().get(descriptor)
