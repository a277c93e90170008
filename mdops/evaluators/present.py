"""Which types there are among atoms."""

import weakref

import torch

from mdops.tracing import is_recorded


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
