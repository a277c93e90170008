"""Functions with their first derivatives written out, each as one node of autograd: for simulations on a CPU, where
weights are constants. To record every operation takes as long there as many of them do for some hundred atoms."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

OPS = torch.ops.mdops


class Once(Protocol):
    """A function and its derivatives. In both methods nothing is recorded."""

    def forward(self, *given: torch.Tensor) -> tuple[Any, Sequence[torch.Tensor | None]]:
        """What it gives, a tensor or a tuple of new ones and of None, and what `backward` needs besides `given`."""

    def backward(
        self, given: Sequence[torch.Tensor], kept: Sequence[Any], *grads: Any
    ) -> Sequence[torch.Tensor | None]:
        """The gradients by `given`, of those by what it gave."""


def once(function: Once, *given: torch.Tensor) -> Any:
    """What the function gives, differentiable once."""
    return _Node.apply(function, *given)


def added(old: torch.Tensor | None, new: torch.Tensor | None) -> Any:
    """Their sum, where both are there, in the first."""
    if old is None or new is None:
        return new if old is None else old
    return old.add_(new)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Once, *given: torch.Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            found, kept = function.forward(*given)
        ctx.function, ctx.count = function, len(given)
        ctx.save_for_backward(*given, *kept)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        kept = ctx.saved_tensors
        with torch._C._AutoDispatchBelowAutograd():
            return None, *ctx.function.backward(kept[: ctx.count], kept[ctx.count :], *grads)
