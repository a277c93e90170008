"""Low-rank adapters (LoRA): weights are kept, and matrices of low rank that are added to them are trained."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from mdops.models.keys import AdapterOptions

_DRAWN = 8  # a stream of random numbers: those of new adapters


class Adapters:
    """Of weights W (.., inputs, outputs): W = K + s (B A)^T with trained A (.., rank, inputs), which begins as normal
    numbers of variance 1 / rank, trained B (.., outputs, rank), which begins as zeros, and s = alpha / rank.

    The model has the weights W, which the optimizer does not know. So its passes, files and gradients are those of any
    model. A step gets the gradients of A and B from those of W, changes A and B, and sets W.

    Attributes:
        weights: W. kept: K, which never changes.
        first, second: A and B of each. scale: s.
    """

    def __init__(self, weights: Iterable[torch.nn.Parameter], options: AdapterOptions, seed: int) -> None:
        self.weights = list(weights)
        self.kept = [w.detach().clone() for w in self.weights]
        self.scale = (options.rank if options.alpha is None else options.alpha) / options.rank
        random = np.random.default_rng([seed, _DRAWN])
        self.first: list[torch.nn.Parameter] = []
        self.second: list[torch.nn.Parameter] = []
        for w in self.kept:
            *batch, inputs, outputs = w.shape
            drawn = random.normal(0, options.rank**-0.5, (*batch, options.rank, inputs))
            self.first.append(torch.nn.Parameter(torch.from_numpy(drawn).to(w)))
            self.second.append(torch.nn.Parameter(w.new_zeros(*batch, outputs, options.rank)))

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """All A and B."""
        return [*self.first, *self.second]

    def trained_of(self, weights: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Of a model with these weights: A and B in the place of W."""
        own = set(map(id, self.weights))
        return [*(p for p in weights if id(p) not in own), *self.trained]

    def weights_of(self, trained: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """The reverse."""
        own = set(map(id, self.trained))
        return [*(p for p in trained if id(p) not in own), *self.weights]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Sets the gradients of A and B from those of W."""
        for w, a, b in zip(self.weights, self.first, self.second, strict=True):
            a.grad = b.grad = None
            if w.grad is not None:
                a.grad = b.mT @ w.grad.mT * self.scale
                b.grad = w.grad.mT @ a.mT * self.scale

    @torch.no_grad()
    def set_weights(self) -> None:
        """Sets W from A and B."""
        for w, kept, a, b in zip(self.weights, self.kept, self.first, self.second, strict=True):
            w.copy_(torch.add(kept, a.mT @ b.mT, alpha=self.scale))

    def state(self) -> dict[str, Any]:
        """For `restore`; the weights W are in the model's."""
        return {"kept": self.kept, "first": _detached(self.first), "second": _detached(self.second)}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes K, A and B of a `state`, of this device or another."""
        for name, values in state.items():
            torch._foreach_copy_(getattr(self, name), values)


def _detached(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in tensors]
