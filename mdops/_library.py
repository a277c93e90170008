"""Loads the compiled ops, and finds out why they cannot run on a GPU."""

import os
import pathlib
from typing import Any, NoReturn

import torch

from mdops.errors import InputError, LibraryError
from mdops.files import package
from mdops.files.cuda_library import cached_cuda_library

OLDEST_GPU = (8, 0)  # compute capability: A100 and later
_cuda_failure: str | None = None  # why the CUDA library could not be loaded, after an attempt
_is_for_hopper = False  # whether the library has kernels with instructions of Hopper only


def library_path(name: str) -> pathlib.Path | None:
    """The library `name` in the installed package, or None."""
    return package.find("lib", name)


def cuda_library_path() -> pathlib.Path | None:
    """The library of the GPU's ops: the package's, or else the one that `mdops build --cuda` built."""
    return library_path("libmdops_cuda.so") or cached_cuda_library()


def load() -> None:
    """Registers the ops as `torch.ops.mdops.*`; does nothing the second time.

    If PyTorch is built with CUDA, the CUDA library is loaded, too; this needs no GPU. If it is missing or cannot be
    loaded, the ops run on the CPU only, and `cuda_problem` says why.

    Raises LibraryError if the CPU library is missing or cannot be loaded; the message says why.
    """
    path = library_path("libmdops.so")
    if path is None:
        raise LibraryError(
            "libmdops.so is not in the mdops package. Build it with `pip install --no-build-isolation .`"
        )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise LibraryError(f"{path} does not load into PyTorch {torch.__version__}: {error}") from error
    _use_one_thread_after_fork()
    if torch.version.cuda is not None:
        _load_cuda()


def _use_one_thread_after_fork() -> None:
    """Lets forked children compute with one thread. A fork does not copy OpenMP's threads, and a child that waits for
    them never ends. This applies to PyTorch's own operations, too."""
    global _watches_forks
    if not _watches_forks and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
        _watches_forks = True


_watches_forks = False


def _load_cuda() -> None:
    global _cuda_failure, _is_for_hopper
    if _cuda_failure is not None:
        return
    path = cuda_library_path()
    if path is None:
        _cuda_failure = (
            "this mdops was built without CUDA: `mdops build --cuda` builds its CUDA library where nvcc is on PATH "
            "(from a clone: `pip install --no-build-isolation -C cmake.define.MDOPS_CUDA=ON .`)"
        )
    else:
        try:
            torch.ops.load_library(path)
            _is_for_hopper = torch.ops.mdops.cuda_is_for_hopper()
            return
        except OSError as error:
            _cuda_failure = f"{path} does not load into PyTorch {torch.__version__}: {error}"
    _refuse_gpus(_cuda_failure)


def _refuse_gpus(reason: str) -> None:
    """Makes every op raise the reason for GPU tensors, instead of the dispatcher's message with a list of backends."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise LibraryError(reason)

    library = torch.library.Library("mdops", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("mdops::"):
            library.impl(name.removeprefix("mdops::"), refuse, "CUDA")
    _refusals.append(library)  # the registration lasts as long as this object


_refusals: list[torch.library.Library] = []


def cuda_problem() -> str | None:
    """The reason why the ops do not run on GPUs here, and what to do; None if they run."""
    if torch.version.cuda is None:
        return (
            f"PyTorch {torch.__version__} is built without CUDA: install one with it, see "
            "https://pytorch.org/get-started/locally"
        )
    if _cuda_failure is not None:
        return _cuda_failure
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:
        # PyTorch's message does not distinguish between no driver, a driver that is too old, and no GPU.
        return f"PyTorch (CUDA {torch.version.cuda}) cannot use a GPU: {' '.join(str(error).split())}"
    if count == 0:
        return "no GPU is visible: look at `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    built, driver = _cuda_versions()
    if driver // 1000 < built // 1000:
        return (
            f"the NVIDIA driver is too old: it knows CUDA {_version(driver)}, and mdops is built with CUDA "
            f"{_version(built)}: install a driver for CUDA {built // 1000}"
        )
    return None


def _cuda_versions() -> tuple[int, int]:
    """The CUDA versions of the library and of the driver, as 1000 major + 10 minor."""
    return torch.ops.mdops.cuda_versions()


def gpu_problem(index: int) -> str | None:
    """Why the ops do not run on GPU `index` of a machine that has no `cuda_problem`; None if they do."""
    if not 0 <= index < torch.cuda.device_count():
        return f"there is no GPU {index}: PyTorch sees {torch.cuda.device_count()}"
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST_GPU:
        return (
            f"{torch.cuda.get_device_name(index)} has compute capability {_dotted(capability)}, and mdops needs "
            f"{_dotted(OLDEST_GPU)} (A100) or later: use device='cpu'"
        )
    return None


def has_hopper_kernels(device: torch.device | int) -> bool:
    """Whether the GPU is a Hopper and the library was built with instructions of Hopper only (sm_90a)."""
    return _is_for_hopper and torch.cuda.get_device_capability(device) == (9, 0)


def check_device(device: torch.device | str) -> torch.device:
    """`device` as a torch.device on which the ops run.

    Raises:
        InputError: there is no such device, or mdops has no ops for devices of this kind.
        LibraryError: the device is a GPU that cannot be used here; the message says why and what to do.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device is {device!r}, expected 'cpu', 'cuda' or 'cuda:<index>'") from error
    if place.type == "cpu":
        return place
    if place.type != "cuda":
        raise InputError(f"device is {place}: mdops runs on the CPU and on NVIDIA GPUs ('cuda')")
    problem = cuda_problem()
    if problem is None:
        problem = gpu_problem(torch.cuda.current_device() if place.index is None else place.index)
    if problem is not None:
        raise LibraryError(f"device is {place}, but {problem}")
    return place


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
