"""The samples of mdops.testing by device, as the tests of the ops find them."""

import functools

import pytest
import torch

from mdops.testing import Sample, has_kernel, op_samples


@functools.cache
def samples(device: str, dtype: torch.dtype = torch.float64) -> list[Sample]:
    return op_samples(device, dtype)


def find(device: str, k: int, dtype: torch.dtype | None = None) -> Sample:
    """The sample on a device that has the number k on the CPU; in float64 by default, or in float32 where the op
    computes in that alone."""
    if device == "cpu":
        return samples(device, dtype or torch.float64)[k]
    op = samples("cpu")[k].op
    if not has_kernel(op, device):
        pytest.skip(f"{op} has no kernel for {device}")
    before = sum(s.op == op for s in samples("cpu")[:k])
    for choice in (torch.float64, torch.float32) if dtype is None else (dtype,):
        own = [s for s in samples(device, choice) if s.op == op]
        if own:
            return own[before]
    pytest.skip(f"{op} does not compute in {dtype} on {device}")


def is_list_of_tensors(value) -> bool:
    return isinstance(value, (tuple, list)) and len(value) > 0 and isinstance(value[0], torch.Tensor)


def tensors(result) -> list[torch.Tensor]:
    """All tensors of a result, of lists in it too."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in tensors(part)]


def each_tensor(change, value):
    """An argument with `change` made to it, or to each tensor of a list of them; others as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [change(item) for item in value] if is_list_of_tensors(value) else value


def with_one_changed(args, change):
    """For every tensor among the arguments, those in lists too: the arguments with change(tensor) in its place."""
    for k, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            yield [*args[:k], change(value), *args[k + 1 :]]
        elif is_list_of_tensors(value):
            for j, item in enumerate(value):
                yield [*args[:k], [*value[:j], change(item), *value[j + 1 :]], *args[k + 1 :]]
