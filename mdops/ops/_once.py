"""Functions with their first derivatives written out, each as one node of autograd: for simulations on a CPU, where
weights are constants. For a few hundred atoms recording an operation often takes as long as running it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from mdops.errors import DerivativeError
from mdops.ops._register import formula_of

OPS = torch.ops.mdops
_Results = tuple[torch.Tensor | None, ...]  # None for constants


class Once(Protocol):
    """A function and its derivatives. In both methods nothing is recorded."""

    def forward(self, *given: torch.Tensor) -> tuple[Any, Sequence[torch.Tensor | None]]:
        """The results, a tensor or a tuple of new ones and None, and what `backward` needs besides `given`."""

    def backward(
        self, given: Sequence[torch.Tensor], kept: Sequence[Any], *grads: Any
    ) -> Sequence[torch.Tensor | None]:
        """The gradients by `given`, from those by the results."""


def once(function: Once, *given: torch.Tensor) -> Any:
    """The function's results, differentiable once."""
    return _Node.apply(function, *given)


def added(old: torch.Tensor | None, new: torch.Tensor | None) -> Any:
    """Their sum, in place in the first, or the one that is not None."""
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


class Trace:
    """A record of operations in order, for the backward pass through them. Weights are constants: gradients are by the
    tensors that it begins with."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        self._given = given  # held, like all results, so that no other tensor gets their ids
        self._known = set(map(id, given))
        self._steps: list[tuple[_Results, tuple[torch.Tensor, ...], Callable[..., Any]]] = []

    def step(
        self, found: torch.Tensor, sources: tuple[torch.Tensor, ...], back: Callable[[torch.Tensor], Any]
    ) -> torch.Tensor:
        """Records a result of the sources; `back` gives the gradients by these from that by the result."""
        self._steps.append(((found,), sources, back))
        self._known.add(id(found))
        return found

    def op(self, name: str, *args: Any) -> Any:
        """`torch.ops.mdops.<name>`, with its registered gradients."""
        formula, found = formula_of(name), getattr(OPS, name)(*args)
        results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        sources = tuple([args[k] for k in formula.differentiable])
        needs = tuple([id(source) in self._known for source in sources])
        if not any(needs):
            return found
        given = [*args, *(results[k] for k in formula.saved)]

        def back(*grads: torch.Tensor | None) -> Any:
            return formula.backward(needs, grads, given)

        changing = tuple(None if k in formula.constant else one for k, one in enumerate(results))
        self._steps.append((changing, sources, back))
        self._known.update(id(one) for one in changing if one is not None)
        return found

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x W for rows (..., I)."""
        return self.step(x @ weight, (x,), lambda grad: (grad @ weight.mT,))

    def product_of_each(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x W for rows (N, D, I) with a weight for each of the D, (D, I, O)."""
        return self.step(_of_each(x, weight), (x,), lambda grad: (_of_each(grad, weight.mT),))

    def sum(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.step(x + y, (x, y), lambda grad: (grad, grad))

    def scaled(self, x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """x times constants of its shape, or of a smaller one for broadcasting."""
        return self.step(x * factors, (x,), lambda grad: (grad * factors,))

    def shaped(self, x: torch.Tensor, *shape: int) -> torch.Tensor:
        return self.step(x.view(shape), (x,), lambda grad: (grad.reshape(x.shape),))

    def first(self, x: torch.Tensor) -> torch.Tensor:
        """The first row (N, C) of (N, D, C)."""

        def back(grad: torch.Tensor) -> Any:
            found = torch.zeros_like(x)
            found[:, 0] = grad
            return (found,)

        return self.step(x[:, 0], (x,), back)

    def beside(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The columns of both."""
        sizes = [x.shape[1], y.shape[1]]
        return self.step(torch.cat([x, y], 1), (x, y), lambda grad: grad.split(sizes, 1))

    def gradients(self, found: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradients by the given tensors, from that by a result. The steps are then dropped.

        Raises:
            DerivativeError: the steps were dropped.
        """
        if not self._steps:
            raise DerivativeError("derivatives of a step of a simulation were asked for twice")
        grads: dict[int, torch.Tensor] = {id(found): grad}
        while self._steps:
            results, sources, back = self._steps.pop()
            given = [grads.pop(id(result), None) for result in results]
            if all(one is None for one in given):
                continue
            by_sources = back(
                *(
                    torch.zeros_like(of) if one is None and of is not None else one
                    for of, one in zip(results, given, strict=True)
                )
            )
            for source, one in zip(sources, by_sources, strict=True):
                if one is not None and id(source) in self._known:
                    old = grads.get(id(source))
                    grads[id(source)] = one if old is None else old + one
        return [grads.get(id(one)) for one in self._given]


def traced(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> Any:
    """function(trace, *given), one tensor, with the derivatives of the trace: differentiable once."""
    return _Traced.apply(function, *given)


def _of_each(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(*x.shape[:2], weight.shape[2])
    torch.bmm(x.transpose(0, 1), weight, out=y.transpose(0, 1))
    return y


class _Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        trace = Trace(given)
        with torch._C._AutoDispatchBelowAutograd():
            found = function(trace, *given)
            ctx.way = trace, found
            return found.detach()  # not the same tensor: it would hold itself

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        trace, found = ctx.way
        with torch._C._AutoDispatchBelowAutograd():
            return None, *trace.gradients(found, grad.contiguous())
