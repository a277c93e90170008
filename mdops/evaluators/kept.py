"""Caches of what evaluators compute for the types of a system and keep from step to step."""

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
    """The results of `make` for sets of types, computed when a set first comes. It keeps the latest ones, up to a
    number of sets and of numbers in all; and those that CUDA graphs read, whose memory has to stay."""

    def __init__(self, make: Callable[[Types], T], numbers: Callable[[T], int] = lambda _: 0) -> None:
        """`numbers`: the size of a result; 0 by default."""
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
        except KeyError:  # it is new, or another thread has dropped it
            self._kept[types] = found
            while self._are_too_many():
                self._kept.popitem(last=False)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._held[types] = found
            self._kept.pop(types, None)
        return found

    def _are_too_many(self) -> bool:
        numbers = sum(map(self._numbers, list(self._kept.values())))
        return len(self._kept) > 1 and (len(self._kept) > _MOST_SETS or numbers > _MOST_NUMBERS)


class OfSystems(Generic[T]):
    """Results from a potential's spline model for the types of a system, computed when such a system first comes."""

    def __init__(self, potential: EvaluationContext, make: Callable[[SplineModel], T]) -> None:
        self._present = potential.present if shares_places(potential) else None
        self._of = OfTypes(lambda types: make(SplineModel(potential, types, potential.grids_for(types))))
        if self._present is None:
            self._of(None)

    def __call__(self, system: System) -> T:
        return self._of(None if self._present is None else self._present(system))


def shares_places(potential: EvaluationContext) -> bool:
    """Whether in every descriptor of sums neighbours of all types share slots, so that absent types do not
    matter."""
    return all(one.descriptor.mixed for one in sums_of(potential.model))
