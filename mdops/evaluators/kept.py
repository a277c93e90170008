"""What evaluators make for the types of the systems that they meet, and keep from step to step."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from mdops.evaluators.context import EvaluationContext, Types
from mdops.system import System
from mdops.tables.grids import sums_of
from mdops.tables.spline_model import SplineModel

T = TypeVar("T")

_MOST_SETS = 16
_MOST_NUMBERS = 2**28
_MISSING: Any = object()


class OfTypes(Generic[T]):
    """What `make` gives for a set of types, made when that first comes. The latest are kept: so many sets, and so many
    numbers in all; and what CUDA graphs read, whose memory has to stay."""

    def __init__(self, make: Callable[[Types], T], numbers: Callable[[T], int] = lambda _: 0) -> None:
        """`numbers`: how many there are in what was made; none that would count unless given."""
        self._make, self._numbers = make, numbers
        self._kept: OrderedDict[Types, T] = OrderedDict()
        self._held: dict[Types, T] = {}

    def __call__(self, types: Types) -> T:
        if types in self._held:
            return self._held[types]
        found = self._kept.get(types, _MISSING)
        if found is _MISSING:
            found = self._make(types)
        try:
            self._kept.move_to_end(types)
        except KeyError:  # it is new, or another thread has dropped it by now
            self._kept[types] = found
            while self._are_too_many():
                self._kept.popitem(last=False)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._held[types] = found
            self._kept.pop(types, None)
        return found

    def _are_too_many(self) -> bool:
        if len(self._kept) == 1:
            return False
        return (
            len(self._kept) > _MOST_SETS or sum(map(self._numbers, list(self._kept.values()))) > _MOST_NUMBERS
        )


class OfSystems(Generic[T]):
    """What is made of a potential's spline model for the types of a system, when the first such comes."""

    def __init__(self, potential: EvaluationContext, make: Callable[[SplineModel], T]) -> None:
        self._present = potential.present if shares_places(potential) else None
        self._of = OfTypes(lambda types: make(SplineModel(potential, types, potential.grids_for(types))))
        if self._present is None:
            self._of(None)

    def __call__(self, system: System) -> T:
        return self._of(None if self._present is None else self._present(system))


def shares_places(potential: EvaluationContext) -> bool:
    """Whether in every descriptor of sums neighbours of all types share places, so that types which are not there do
    not matter."""
    return all(one.descriptor.mixed for one in sums_of(potential.model))
