"""The library of the GPU's ops that `mdops build --cuda` put into the cache."""

from pathlib import Path
from typing import Any

import torch

from mdops.errors import JitError
from mdops.files import cache
from mdops.files.package import source_folder, sources_digest

NAME = "mdops_cuda"
_OF_THE_CPU = ("isa.cpp", "cpu.cpp")


def cuda_sources(folder: Path) -> tuple[str, ...]:
    """Those of the library: every op's cuda.cu and gpu_loops.cu, and what both libraries share."""
    shared = [path for path in folder.glob("common/*.cpp") if path.name not in _OF_THE_CPU]
    own = [*folder.glob("*/cuda.cu"), *folder.glob("*/gpu_loops.cu")]
    return tuple(str(path.relative_to(folder)) for path in sorted([*own, *shared]))


def torch_series() -> str:
    """The library calls the stable ABI alone, so any PyTorch of the same CUDA will do."""
    return f"CUDA {torch.version.cuda}"


def cached_cuda_library() -> Path | None:
    """The library of the cache that fits these sources, this PyTorch and the GPUs here; None if there is none, or the
    cache cannot be trusted."""
    if torch.version.cuda is None:
        return None
    try:
        folder = source_folder()
        wanted: dict[str, Any] = {
            "name": NAME,
            "sources": sources_digest(folder, cuda_sources(folder)),
            "about": {"torch": torch_series()},
        }
        found = cache.find_all(wanted)
        return max((entry.path for entry in found), key=lambda path: path.stat().st_mtime_ns, default=None)
    except JitError:
        return None
