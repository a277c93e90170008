"""Checks in every step whether a module's weights have changed since a result was computed from them.

PyTorch counts the changes of a tensor (`_version`), which is free to read. It does not count those through `p.data`,
an alias with its own counter. So watched parameters note that an alias was handed out, and then always count as
changed. PyTorch does not count the steps of fused optimizers either: a hook does that. Memory that NumPy or another
library writes to cannot be watched.
"""

import functools
import itertools
import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from mdops.tracing import is_exported, is_recorded

T = TypeVar("T")


class WatchedParameter(nn.Parameter):
    """A parameter that records the uses of its `data`.

    Attributes:
        replaced: how often it was set.
        has_alias: whether it was ever read: the reader may write there at any time.
    """

    replaced = 0
    has_alias = False

    @property
    def data(self) -> torch.Tensor:
        self.has_alias = True
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self.replaced += 1
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    # PyTorch copies and pickles parameters through `data`.
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, OrderedDict())


@functools.lru_cache(maxsize=1)
def _count_fused_steps() -> None:
    """Makes steps of optimizers with `fused=True`, whose kernels raise no `_version`, raise that of watched weights."""

    def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        fused = [group["params"] for group in optimizer.param_groups if group.get("fused")]
        watched = [p for weights in fused for p in weights if type(p) is WatchedParameter]
        if watched:
            torch.autograd.graph.increment_version(watched)

    register_optimizer_step_post_hook(count)


_generations = itertools.count()
_VERSION, _REPLACED, _HAS_ALIAS = map(operator.attrgetter, ("_version", "replaced", "has_alias"))


def _values(dicts: list[dict[str, Any]]) -> list[Any]:
    """The values of all dicts in order; a loop in Python would take a tenth of a small system's step."""
    return list(itertools.chain.from_iterable(map(dict.values, dicts)))


def _are_same(now: list[Any], before: list[Any]) -> bool:
    """Whether they are the same objects."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


class _Tensors:
    """The tensors in some dicts, which stay the same objects: walking over modules each time would cost more."""

    def __init__(self, dicts: list[dict[str, Any]]) -> None:
        self._dicts = dicts
        # Held, as a new object may get the id of a freed one.
        self.held: list[torch.Tensor] = []
        self._generation = -1

    def now(self) -> list[torch.Tensor]:
        return [value for value in _values(self._dicts) if value is not None]

    def state(self, now: list[torch.Tensor]) -> list[Hashable]:
        """A state that differs from earlier ones if tensors were replaced or changed."""
        if not _are_same(now, self.held):
            self.held, self._generation = now, next(_generations)
        return [self._generation, *map(_VERSION, now)]


class Watch:
    """Tells whether a module's parameters (`parameters`), buffers (`buffers`) or parts (`is_valid`) have changed."""

    def __init__(self, module: nn.Module) -> None:
        _count_fused_steps()
        self._has_new = False
        self._watched: list[torch.Tensor] | None = None
        self._children = [m._modules for m in module.modules()]
        self._then = _values(self._children), list(map(len, self._children))
        self._parameters = _Tensors([m._parameters for m in module.modules()])
        self._buffers = _Tensors([m._buffers for m in module.modules()])
        for parameter in module.parameters():
            if type(parameter) is nn.Parameter:
                parameter.__class__ = WatchedParameter

    @property
    def is_valid(self) -> bool:
        """False if modules or parameters were replaced: a new Watch is needed."""
        children, counts = self._then
        return (
            not self._has_new
            and _are_same(_values(self._children), children)
            and list(map(len, self._children)) == counts
        )

    def buffers(self) -> tuple[Hashable, ...]:
        """A state that differs from an earlier one if a buffer changed since."""
        return tuple(self._buffers.state(self._buffers.now()))

    def parameters(self) -> tuple[Hashable, ...]:
        """A state that differs from an earlier one if a parameter changed since, or may have."""
        now = self._parameters.now()
        state = self._parameters.state(now)
        if self._watched is not self._parameters.held:  # other tensors than before
            self._watched = self._parameters.held
            self._has_new |= any(type(value) is not WatchedParameter for value in now)
        if self._has_new or any(map(_HAS_ALIAS, now)):
            state.append(object())  # a fresh object is equal to nothing
        else:
            state += map(_REPLACED, now)
        return tuple(state)

    def state(self) -> tuple[Hashable, ...]:
        """The states of both."""
        return *self.buffers(), *self.parameters()


class OfWeights(Generic[T]):
    """A result from a module's parameters, computed again if they have changed, and in copies and pickles."""

    def __init__(self) -> None:
        self._kept: tuple[Watch, Any, T | None] | None = None
        self._pass: weakref.ref[torch.Tensor] | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return OfWeights, ()

    def __call__(self, module: nn.Module, make: Callable[[], T], of: torch.Tensor | None = None) -> T:
        """The result of `make` with the current weights; or that of the last call if it was for the same tensor `of`,
        which belongs to a pass over the module."""
        if of is not None:
            if self._kept is not None and self._pass is not None and self._pass() is of:
                assert self._kept[2] is not None
                return self._kept[2]
            self._pass = weakref.ref(of)
        if self._kept is None or not self._kept[0].is_valid:
            self._kept = Watch(module), None, None
        watch, before, found = self._kept
        now = watch.parameters()
        if found is None or now != before:
            found = make()
            self._kept = watch, now, found
        return found

    @property
    def last(self) -> T | None:
        """The last result, for whatever weights."""
        return None if self._kept is None else self._kept[2]


class NamedOfWeights(Generic[T]):
    """As `OfWeights` for several named results, each computed without a graph when it is first needed.

    Recorded operations use the result of an earlier step. It stays in memory even if weights change: a CUDA graph reads
    it.
    """

    def __init__(self, most: int | None = None) -> None:
        """`most`: the number of results to keep, if not all."""
        self._most, self._all = most, OfWeights[dict[Hashable, T]]()
        self._held: dict[int, T] = {}

    def __reduce__(self) -> tuple[type, tuple[int | None]]:
        return NamedOfWeights, (self._most,)

    def __call__(
        self,
        module: nn.Module,
        name: Hashable,
        make: Callable[[], T],
        at: torch.Tensor,
        of: torch.Tensor | None = None,
    ) -> T:
        """For a step with operations on the tensor `at`; `of` as `OfWeights` takes it."""
        recorded, last = is_recorded(at), self._all.last
        in_graph = recorded and not is_exported()  # an export does a step before it records one
        kept = last if recorded and last is not None else self._all(module, dict, of)
        if name not in kept:
            with torch.inference_mode(False), torch.no_grad():
                found = make()
            if in_graph:
                return found  # it exists only after the graph runs
            if len(kept) == self._most:
                kept.clear()
            kept[name] = found
        if in_graph:
            self._held[id(kept[name])] = kept[name]
        return kept[name]
