"""Where the ops run, and what is said where they do not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import bulk
from children import python

from mdops import _library
from mdops._library import check_device, cuda_problem, gpu_problem
from mdops.calculator import MDOps
from mdops.errors import InputError, LibraryError
from mdops.ops.linear import has_degree_kernel
from mdops.ops.so2_layer import has_fused_messages, has_tensor_cores

MODEL = Path(__file__).parent / "data" / "formats" / "model.dp"


@pytest.fixture
def well(monkeypatch):
    """A machine where everything is well: PyTorch with CUDA, one H100, a driver for this library's CUDA."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_library, "_cuda_failure", None)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "GPU of this test")
    monkeypatch.setattr(_library, "_cuda_versions", lambda: (13000, 13000))
    return monkeypatch


def test_all_well(well):
    assert cuda_problem() is None and gpu_problem(0) is None
    assert check_device("cuda") == torch.device("cuda")
    assert check_device("cuda:0") == torch.device("cuda", 0)
    well.setattr(_library, "_cuda_versions", lambda: (13000, 14010))
    assert cuda_problem() is None, "a newer driver"


def test_pytorch_without_cuda(well):
    well.setattr(torch.version, "cuda", None)
    with pytest.raises(LibraryError, match=r"device is cuda, but PyTorch .* is built without CUDA: install"):
        check_device("cuda")


def test_a_library_that_is_not_there(well):
    well.setattr(_library, "library_path", lambda name: None)
    refused = []
    well.setattr(_library, "_refuse_gpus", refused.append)
    _library._load_cuda()
    with pytest.raises(LibraryError, match=r"this mdops was built without CUDA: .*MDOPS_CUDA=ON"):
        check_device("cuda")
    assert refused == [_library._cuda_failure]


def test_a_library_that_does_not_load(well, tmp_path):
    broken = tmp_path / "libmdops_cuda.so"
    broken.write_bytes(b"no library")
    well.setattr(_library, "library_path", lambda name: broken)
    well.setattr(_library, "_refuse_gpus", lambda reason: None)
    _library._load_cuda()
    assert "libmdops_cuda.so does not load into PyTorch" in cuda_problem()


@pytest.mark.parametrize("said", ["Found no NVIDIA driver on your system.", "The NVIDIA driver is too old"])
def test_what_pytorch_says_of_the_driver(well, said):
    def init():
        raise RuntimeError(said)

    well.setattr(torch.cuda, "init", init)
    assert cuda_problem() == f"PyTorch (CUDA 13.0) cannot use a GPU: {said}"


def test_no_gpu(well):
    well.setattr(torch.cuda, "device_count", lambda: 0)
    assert "no GPU is visible" in cuda_problem()


def test_a_driver_too_old_for_the_library(well):
    well.setattr(_library, "_cuda_versions", lambda: (13000, 12080))
    assert "too old: it knows CUDA 12.8, and mdops is built with CUDA 13.0" in cuda_problem()


def test_a_gpu_that_is_too_old_or_absent(well):
    well.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    with pytest.raises(
        LibraryError, match=r"GPU of this test has compute capability 7\.5, and mdops needs 8\.0"
    ):
        check_device("cuda:0")
    with pytest.raises(LibraryError, match="there is no GPU 3: PyTorch sees 1"):
        check_device("cuda:3")


class Rows(list):
    """As many numbers, of a GPU, as far as the ways to treat them are chosen by them."""

    is_cuda, dtype, device = True, torch.float32, torch.device("cuda", 0)

    def numel(self):
        return len(self) * 9 * 64


def test_kernels_of_hopper_are_taken_where_they_were_built(well):
    """A library for sm_80 and sm_90, without the instructions of sm_90a, runs on a Hopper, too."""
    rows, weight = Rows(range(1000)), torch.zeros(3, 64, 64)

    def ways():
        return (
            has_degree_kernel(rows, weight),
            has_fused_messages(rows, 2, 32, 2, 1),
            has_tensor_cores(rows.device, 2, 64),
            has_tensor_cores(rows.device, 2, 32),
        )

    well.setattr(_library, "_is_for_hopper", True)
    assert ways() == (True, True, True, True)
    well.setattr(_library, "_is_for_hopper", False)
    assert ways() == (False, False, False, True)
    assert has_degree_kernel(Rows(range(100)), weight), "small products have a kernel on all GPUs"
    well.setattr(_library, "_is_for_hopper", True)
    well.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    assert ways() == (False, False, False, True)
    well.setattr(torch.cuda, "get_device_capability", lambda index: (8, 9))
    assert ways() == (False, False, False, False), "it has too little shared memory for degree 2"
    assert has_tensor_cores(rows.device, 1, 32) and not has_tensor_cores(rows.device, 3, 32)


@pytest.mark.parametrize("device", ["meta", "mps", "nowhere", "cuda:x", 3.5, None])
def test_other_devices_are_no_device(device):
    with pytest.raises(InputError, match="device is"):
        check_device(device)


def test_the_cpu_is_always_there():
    assert check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")


REFUSED = """
import torch
from mdops import _library, ops
_library._refuse_gpus("this is why")
positions = torch.zeros(1, 3, dtype=torch.float64)
try:
    torch.ops.mdops.displacements.default.redispatch(
        torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), positions, positions[None], positions[:, 0].int(),
        positions.int(), positions.int(), torch.float64)
except _library.LibraryError as error:
    assert str(error) == "this is why"
else:
    raise SystemExit("it ran")
"""


def test_gpu_tensors_are_told_why_the_library_does_not_take_them():
    if cuda_problem() is None:
        pytest.skip("the CUDA library takes them here")
    python("-c", REFUSED, check=True)


@pytest.mark.gpu
def test_a_calculator_on_another_gpu_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=0)
    answers = []
    for place in ("cuda:0", "cuda:1"):
        atoms.calc = MDOps(MODEL, device=place)
        answers.append((atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()))
        assert torch.cuda.current_device() == 0
    for on_cpu, on_gpu in zip(*answers, strict=True):
        np.testing.assert_array_equal(on_cpu, on_gpu)
