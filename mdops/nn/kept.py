"""Results from a tensor of atoms' types, kept as long as the tensor: all steps of a simulation have the same one."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mdops.tracing import is_recorded

T = TypeVar("T")


class OfTensor(ABC, Generic[T]):
    """Caches the results of `find` for tensors."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    @abstractmethod
    def find(self, types: torch.Tensor) -> T:
        """The result, without the cache."""

    def __call__(self, types: torch.Tensor) -> T:
        if types.is_inference():  # it has no version, which shows changes
            return self.find(types)
        known = self._known.get(types)
        if known is None or known[0] != types._version:
            found = self.find(types)
            if is_recorded(types):
                return found  # it exists only after the recorded operations run
            self._known[types] = known = types._version, found
        return known[1]


class PresentTypes(OfTensor[tuple[int, ...] | None]):
    """The types of the atoms, rising; None while steps are recorded, in a CUDA graph or for an exported model: then
    types must not be read.

    Attributes:
        of_virtual: a type that is there, too, if atoms are virtual: absent neighbours have it if the first atom is.
    """

    def __init__(self, of_virtual: int = 0) -> None:
        super().__init__()
        self.of_virtual = of_virtual

    def __reduce__(self) -> tuple[type, tuple[int]]:
        """Copies compute them again."""
        return PresentTypes, (self.of_virtual,)

    def find(self, types: torch.Tensor) -> tuple[int, ...] | None:
        if is_recorded(types):
            return None
        return tuple(torch.unique(torch.where(types >= 0, types, self.of_virtual)).tolist()) or (0,)


class PerTypeLookup(OfTensor[torch.Tensor]):
    """Looks up a number of each type, (ntypes,), or a row, (ntypes, m), for the atoms of a system, with another number
    for virtual ones: (N,) or (N, m) for types (N,).

    Attributes:
        counts: whether any is not zero.
    """

    def __init__(self, of_types: torch.Tensor, of_virtual: int = 0) -> None:
        super().__init__()
        self._of_types, self._of_virtual = of_types, of_virtual
        self.counts = bool((of_types != 0).any())

    def find(self, types: torch.Tensor) -> torch.Tensor:
        real = (types >= 0).view(-1, *[1] * (self._of_types.dim() - 1))
        return torch.where(real, self._of_types[types.long().clamp(min=0)], self._of_virtual)
