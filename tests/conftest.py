"""One thread for the tests and the processes that they start: their systems are tiny, and threads that share a busy
machine wait for each other.

What is promised of several threads sets their number itself. Tests marked `gpu` are skipped where there is none.
"""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when PyTorch is imported
# What PyTorch compiles here is tiny: without vector units it is as right, and their headers take the compiler seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")  # few sources are compiled
# Nothing is compiled twice: to keep what was takes a tenth of the time.
os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")
# What its traces do is seldom done twice: keys cost more than they save. Ops that are not PyTorch's have no part in it.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")

import pytest
import torch
from gpu_lock import gpu_lock

from mdops._library import cuda_problem


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Rebuilt kernels of the user's own cache have no part in the tests."""
    os.environ["MDOPS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def replays(monkeypatch):
    """The CUDA graphs that were replayed, one for each time."""
    found, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: found.append(graph) or replay(graph))
    return found


@pytest.hookimpl(optionalhook=True)  # there is no pytest-xdist in other environments than the developer's
def pytest_xdist_auto_num_workers():
    """`-n auto`: a worker for each processor that this process may use, eight at most; each imports PyTorch."""
    return min(len(os.sched_getaffinity(0)), 8)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Where there is no GPU, one case of each test that needs it says so; to make the others takes seconds."""
    yield
    if cuda_problem() is not None:
        all_need_it = metafunc.definition.get_closest_marker("gpu") is not None
        needs = [all_need_it or any(mark.name == "gpu" for mark in call.marks) for call in metafunc._calls]
        metafunc._calls = [c for k, c in enumerate(metafunc._calls) if not needs[k] or not any(needs[:k])]


def pytest_collection_modifyitems(items):
    """Long tests first: at the end all processes have something short to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish():
    """What is there before the first test stays: Python need not look for garbage in it again and again, and seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None:
        problem = cuda_problem()
        if problem is not None:
            pytest.skip(problem)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the timer of a test
def pytest_runtest_protocol(item):
    """Tests that fill a GPU's memory run alone, and none leaves memory behind that PyTorch keeps for later."""
    if item.get_closest_marker("gpu") is None or cuda_problem() is not None:
        return (yield)
    with gpu_lock(alone=item.get_closest_marker("fills_gpu") is not None):
        try:
            return (yield)
        finally:
            torch.cuda.empty_cache()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Runs a test on the CPU and on a GPU."""
    return request.param
