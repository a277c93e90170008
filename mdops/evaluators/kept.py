"""What evaluators keep from step to step: the types there are, what is made for them, and constants of a type."""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mdops.tracing import is_recorded

T = TypeVar("T")
Types = tuple[int, ...] | None  # None: all of the model's

_MOST_SETS = 16
_MOST_NUMBERS = 2**28


class PresentTypes:
    """Which types atoms have; remembered, as a device has to be asked."""

    _MOST = 64

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, tuple[int, ...]]] = {}

    def __call__(self, types: torch.Tensor) -> tuple[int, ...] | None:
        """Rising; None while steps are recorded, in a CUDA graph or for an exported model: then it must not be read."""
        version = 0 if types.is_inference() else types._version
        known = self._known.get(id(types))
        if known is not None and known[0]() is types and known[1] == version:
            return known[2]
        if is_recorded(types):
            return None
        found = tuple(t for t in torch.unique(types).tolist() if t >= 0) or (0,)
        if not types.is_inference():
            if len(self._known) >= self._MOST:
                self._known.clear()
            self._known[id(types)] = weakref.ref(types), version, found
        return found


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


class PerTypeLookup:
    """A number of each type, (ntypes,), or a row of numbers, (ntypes, m), for the atoms of a system, and another number
    for virtual ones. Kept as long as the tensor of their types, as all steps of a simulation have the same."""

    def __init__(self, of_types: torch.Tensor, of_virtual: int = 0) -> None:
        self._of_types, self._of_virtual = of_types, of_virtual
        self._known: Any = WeakIdKeyDictionary()
        self.counts = bool((of_types != 0).any())  # whether any is not zero

    def __call__(self, types: torch.Tensor) -> torch.Tensor:
        """(N,) or (N, m), of types (N,)."""
        if types.is_inference():  # it has no version, by which a change is seen
            return self.find(types)
        known = self._known.get(types)
        if known is None or known[0] != types._version:
            found = self.find(types)
            if is_recorded(types):
                return found  # not there before what is recorded runs
            self._known[types] = known = types._version, found
        return known[1]

    def find(self, types: torch.Tensor) -> torch.Tensor:
        """The same, not kept."""
        real = (types >= 0).view(-1, *[1] * (self._of_types.dim() - 1))
        return torch.where(real, self._of_types[types.long().clamp(min=0)], self._of_virtual)
