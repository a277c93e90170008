"""Whether operations are executed now, or recorded: for later runs with other atoms, or for derivatives."""

import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_exports: ContextVar[bool] = ContextVar("exports", default=False)


@contextmanager
def set_while(variable: ContextVar[T], value: T) -> Iterator[None]:
    """In this context, a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def exporting() -> AbstractContextManager[None]:
    """In this context, a model is exported: its operations must not depend on the values of its inputs."""
    return set_while(_exports, True)


def is_exported() -> bool:
    """Whether a model is exported now: loops over runs of atoms must then not be unrolled for the example's size."""
    return _exports.get()


def is_recorded(x: torch.Tensor) -> bool:
    """Whether operations on x are recorded, in a CUDA graph or for an exported model: then no value may be read."""
    return _exports.get() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph` without garbage collection: the garbage could contain a graph of an earlier run, and CUDA does
    not allow freeing a graph while another is captured."""
    # Nor does it allow the first product of a thread, which opens cuBLAS. Backward passes have a thread of their own.
    stream = options.get("stream") or torch.cuda.current_stream()
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(1, 1, device=stream.device, requires_grad=True)
        torch.autograd.grad((x @ x).sum(), x)
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        if collects:
            gc.enable()


def outside_inference_mode(function: Callable[..., T]) -> Callable[..., T]:
    """The function, run outside of `torch.inference_mode`, because that mode keeps nothing for derivatives. Tensors of
    that mode are copied."""

    @wraps(function)
    def outside(*args: Any, **kwargs: Any) -> T:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(
                *map(_ordinary, args), **{name: _ordinary(value) for name, value in kwargs.items()}
            )

    return outside


def _ordinary(value: Any) -> Any:
    """A tensor, or a record of tensors, that can be kept for derivatives."""
    if isinstance(value, torch.Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_ordinary, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **{name: _ordinary(one) for name, one in fields.items()})
    return value
