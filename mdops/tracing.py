"""Whether operations are done now, or recorded for later runs on other atoms."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

T = TypeVar("T")
_exports: ContextVar[bool] = ContextVar("exports", default=False)


@contextmanager
def set_while(variable: ContextVar[T], value: T) -> Iterator[None]:
    """While this lasts, a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def exporting() -> AbstractContextManager[None]:
    """While this lasts, a model is exported: what it does must not depend on the values of its inputs."""
    return set_while(_exports, True)


def is_exported() -> bool:
    """Whether a model is exported now: loops over runs of atoms must not be unrolled for the example's size."""
    return _exports.get()


def is_recorded(x: torch.Tensor) -> bool:
    """Whether operations on x are recorded, in a CUDA graph or for an exported model: then no value may be asked."""
    return _exports.get() or (x.is_cuda and torch.cuda.is_current_stream_capturing())
