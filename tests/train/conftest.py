"""Small systems of training data, and steps that are recorded."""

import dataclasses
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from small_systems import EMT, alloy, write_system
from torch.utils._python_dispatch import TorchDispatchMode

from mdops.evaluators import Autograd
from mdops.train import PairLists, load_dataset
from mdops.train.loop import cuda_graph


@pytest.fixture
def structures():
    return alloy(4)


@pytest.fixture
def system(tmp_path, structures):
    return write_system(tmp_path / "system", structures, sets=2)


@pytest.fixture(scope="module")
def data():
    """EMT; a module may have its own."""
    return load_dataset(EMT, ["Cu", "Al"])


@pytest.fixture(scope="module")
def lists(data):
    """With the cutoff of `small_config`."""
    return PairLists(data, 4.0)


class Reads(TorchDispatchMode):
    """Raises where a value of a tensor is read, or is Python's, which a CUDA graph cannot record."""

    READS = frozenset(
        {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal", "lift_fresh"}
    )

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        masks = name.startswith("index") and any(
            index is not None and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], list | tuple) else [])
        )
        assert not masks and name not in self.READS, f"{function} takes a value"
        return function(*args, **(kwargs or {}))


class Again:
    """For `Recorder`: instead of a CUDA graph, the work is done again, and its result is copied over the first."""

    devices = ("cpu",)

    def __init__(self, replays, device):
        self.replays = replays

    def differentiation(self, work):
        with Reads():
            found = work()

        def again():
            self.replays.append(work)
            for old, new in zip(tensors(found), tensors(work()), strict=True):
                if old is not new:
                    old.copy_(new)

        return again, found

    def update(self, work):
        return lambda: self.replays.append(work) or work()


def tensors(value):
    """All of a result, in its tuples, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def recorded(request, monkeypatch):
    """A device on which trainings record their steps, and the replays: on a CPU as if it was a GPU."""
    if request.param == "cuda":
        return request.param, request.getfixturevalue("replays")
    replays = []
    recorder = partial(Again, replays)
    recorder.devices = Again.devices
    monkeypatch.setattr(cuda_graph, "Recorder", recorder)
    monkeypatch.setattr(Autograd, "captures", property(lambda self: True, lambda self, value: None))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    return request.param, replays
