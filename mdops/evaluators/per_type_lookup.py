"""What is constant of a type, for the atoms of a system."""

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mdops.tracing import is_recorded


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
