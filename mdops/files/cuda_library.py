"""The library of the GPU's ops that `mdops build --cuda` put into the cache."""

import ctypes
import re
from pathlib import Path
from typing import Any

import torch

from mdops.errors import JitError
from mdops.files import cache
from mdops.files.package import source_folder, sources_digest

NAME = "mdops_cuda"
_OF_THE_CPU = ("isa.cpp", "cpu.cpp")


def cuda_sources(folder: Path) -> tuple[str, ...]:
    """The library's sources: every op's cuda*.cu and gpu_*.cu, and those that it shares with the CPU library."""
    shared = [path for path in folder.glob("common/*.cpp") if path.name not in _OF_THE_CPU]
    own = [*folder.glob("*/cuda*.cu"), *folder.glob("*/gpu_*.cu")]
    return tuple(str(path.relative_to(folder)) for path in sorted([*own, *shared]))


def torch_series() -> str:
    """The versions of PyTorch that the library runs with: all for one CUDA, as it only calls the stable ABI."""
    return f"CUDA {torch.version.cuda}"


def cached_cuda_library() -> Path | None:
    """The library in the cache for these sources and this PyTorch that runs on the most GPUs of this machine; of
    several, the newest. None if there is none, or the cache cannot be trusted."""
    if torch.version.cuda is None:
        return None
    gpus = _capabilities()
    try:
        folder = source_folder()
        wanted: dict[str, Any] = {
            "name": NAME,
            "sources": sources_digest(folder, cuda_sources(folder)),
            "about": {"torch": torch_series()},
        }
        found = [
            (_served(entry, gpus), entry.path.stat().st_mtime_ns, entry.path)
            for entry in cache.find_all(wanted)
        ]
        return max((one for one in found if one[0] or not gpus), default=(0, 0, None))[2]
    except JitError:
        return None


def _served(entry: cache.Entry, gpus: list[tuple[int, int]]) -> int:
    """How many of the GPUs (compute capabilities) the library runs on. Machine code for one GPU also runs on later GPUs
    of the same major version, except for sm_90, which is compiled as sm_90a."""
    built = [
        (divmod(int(number), 10), bool(only) or number == "90")
        for number, only in re.findall(r"sm_(\d+)([a-z]?)", entry.configuration["target"])
    ]
    return sum(
        any(b == gpu or (not only and b[0] == gpu[0] and b[1] < gpu[1]) for b, only in built) for gpu in gpus
    )


def _capabilities() -> list[tuple[int, int]]:
    """The compute capabilities of all GPUs of this machine, from the driver's management library: after a call of CUDA
    itself, forked child processes could not use CUDA. Empty without a driver."""
    try:
        driver = ctypes.CDLL("libnvidia-ml.so.1")
        if driver.nvmlInit_v2():
            return []
    except (OSError, AttributeError):
        return []
    count = ctypes.c_uint()
    if driver.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        count.value = 0
    found = [_capability(driver, index) for index in range(count.value)]
    driver.nvmlShutdown()
    return [capability for capability in found if capability is not None]


def _capability(driver: ctypes.CDLL, index: int) -> tuple[int, int] | None:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if driver.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return None
    if driver.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)):
        return None
    return major.value, minor.value
