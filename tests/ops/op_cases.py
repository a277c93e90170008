"""The samples of mdops.testing by device, as the tests of the ops find them."""

import functools

import pytest
import torch

from mdops.testing import Sample, has_kernel, op_samples


@functools.cache
def samples(device: str, dtype: torch.dtype = torch.float64) -> list[Sample]:
    return op_samples(device, dtype)


def find(device: str, k: int, dtype: torch.dtype | None = None) -> Sample:
    """The sample on a device that has the number k on the CPU; in float64 unless told, or in float32 where the op
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


def tensors(result):
    return result if isinstance(result, (tuple, list)) else (result,)
