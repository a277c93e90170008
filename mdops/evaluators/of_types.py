"""What evaluators make of a model for the types that a system has."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
Types = tuple[int, ...] | None  # None: all of the model's

_MOST_SETS = 16
_MOST_NUMBERS = 2**28


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
        if types not in self._kept:
            self._kept[types] = self._make(types)
            while self._are_too_many():
                self._kept.popitem(last=False)
        self._kept.move_to_end(types)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._held[types] = self._kept.pop(types)
            return self._held[types]
        return self._kept[types]

    def _are_too_many(self) -> bool:
        if len(self._kept) == 1:
            return False
        return len(self._kept) > _MOST_SETS or sum(map(self._numbers, self._kept.values())) > _MOST_NUMBERS
