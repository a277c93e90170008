"""libmdops_cuda.so built from the sources in the package, for a wheel that has none on a machine with nvcc."""

from pathlib import Path
from typing import Any

import torch

from mdops.jit import builder, cache, toolchain
from mdops.jit.errors import JitError
from mdops.jit.models import GPU_FLAGS, architecture_of, gpu_flags
from mdops.jit.recipe import Recipe, source_folder, sources_digest

NAME = "mdops_cuda"
# As source/cuda.cmake and CMakeLists.txt have them.
_DEFINES = ("-DTORCH_TARGET_VERSION=0x020b000000000000", "-DTORCH_STABLE_ONLY", "-DUSE_CUDA")
_OF_THE_CPU = ("isa.cpp", "cpu.cpp")
# A pair at the cutoff is decided as on the CPU, which contracts nothing; a step has the same bits in one kernel as in
# two.
_EXACT = ("neighbor/cuda.cu", "dynamics/cuda.cu")
_STAND_IN = 'extern "C" void aoti_torch_get_current_cuda_stream() {}\n'


def cuda_sources(folder: Path) -> tuple[str, ...]:
    """Those of the library: every op's cuda.cu and gpu_loops.cu, and what both libraries share."""
    shared = [path for path in folder.glob("common/*.cpp") if path.name not in _OF_THE_CPU]
    own = [*folder.glob("*/cuda.cu"), *folder.glob("*/gpu_loops.cu")]
    return tuple(str(path.relative_to(folder)) for path in sorted([*own, *shared]))


def build_cuda_library(architectures: list[str] | None = None) -> cache.Entry:
    """The entry of the library, built if it has to be: some minutes.

    Args:
        architectures: as sm_90; by default those of the GPUs that are here.

    Raises:
        JitError: no nvcc, no GPU to build for, or the build fails.
    """
    return builder.entry_of(cuda_recipe(architectures or _here()))


def cuda_recipe(architectures: list[str]) -> Recipe:
    """How the library is built for the GPUs."""
    folder = source_folder()
    torch_folder = Path(torch.__file__).parent
    flags = [f for name in architectures for f in gpu_flags(name)]
    return Recipe(
        NAME,
        folder,
        cuda_sources(folder),
        toolchain.cuda_compiler(),
        (*GPU_FLAGS, *dict.fromkeys(flags)),
        "+".join(sorted(architectures)),
        {"torch": _series()},
        compile=(*_DEFINES, f"-isystem={torch_folder / 'include'}"),
        link=(f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-Xlinker=-z,defs,--as-needed"),
        flags_of=dict.fromkeys(_EXACT, ("--fmad=false",)),
        stand_in=("torch_cuda", _STAND_IN),
    )


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
            "about": {"torch": _series()},
        }
        found = cache.find_all(wanted)
        return max((entry.path for entry in found), key=lambda path: path.stat().st_mtime_ns, default=None)
    except JitError:
        return None


def _series() -> str:
    """The library calls the stable ABI alone, so any PyTorch of the same CUDA will do."""
    return f"CUDA {torch.version.cuda}"


def _here() -> list[str]:
    if not torch.cuda.is_available():
        raise JitError("there is no GPU to build for: name its architecture, as --arch sm_90")
    return sorted({architecture_of(torch.device("cuda", k)) for k in range(torch.cuda.device_count())})
