"""How operations are recorded."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from mdops.tracing import capturing


class Cycle:
    def __init__(self, held):
        self.held, self.own = held, self


def test_no_garbage_is_collected_during_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: nullcontext())
    stream = SimpleNamespace(device="cpu")
    with capturing(None, pool=1, stream=stream):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="within"), capturing(None, stream=stream):
        raise ValueError("within")
    assert gc.isenabled()


@pytest.mark.gpu
def test_graphs_of_earlier_runs_are_not_freed_during_a_capture():
    """CUDA refuses that, and the capture would fail."""
    x = torch.ones(3, device="cuda")
    earlier, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with capturing(earlier):
        x * 2
    earlier.replay()
    torch.cuda.synchronize()
    Cycle(earlier)
    del earlier
    thresholds = gc.get_threshold()
    with capturing(graph):
        gc.set_threshold(1, 1, 1)
        several = [Cycle(k) for k in range(100)]
        y = 3 * x
    gc.set_threshold(*thresholds)
    graph.replay()
    assert len(several) == 100 and torch.equal(y.cpu(), torch.full((3,), 3.0))
