"""Builds libmdops_cuda.so from the sources in the package, for a wheel without it on a machine with nvcc."""

from pathlib import Path

import torch

from mdops.errors import JitError
from mdops.files import cache
from mdops.files.cuda_library import NAME, cuda_sources, torch_series
from mdops.files.package import source_folder
from mdops.jit import builder, toolchain
from mdops.jit.models import GPU_FLAGS, architecture_of, gpu_flags
from mdops.jit.recipe import Recipe

# The same as in source/cuda.cmake and CMakeLists.txt.
_DEFINES = ("-DTORCH_TARGET_VERSION=0x020b000000000000", "-DTORCH_STABLE_ONLY", "-DUSE_CUDA")
# Compiled without contraction, like the CPU's code: both then decide equally about a pair at the cutoff, and a step has
# the same bits in one kernel as in two.
_EXACT = ("neighbor/cuda.cu", "dynamics/cuda.cu", "graph/cuda.cu")
_STAND_IN = 'extern "C" void aoti_torch_get_current_cuda_stream() {}\n'


def build_cuda_library(architectures: list[str] | None = None) -> cache.Entry:
    """The entry of the library, which is built if necessary; this takes some minutes.

    Args:
        architectures: such as sm_90; by default those of this machine's GPUs.

    Raises:
        JitError: no nvcc, no GPU to build for, or the build fails.
    """
    return builder.entry_of(cuda_recipe(architectures or _here()))


def cuda_recipe(architectures: list[str]) -> Recipe:
    """The recipe of the library for these GPUs."""
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
        {"torch": torch_series()},
        compile=(*_DEFINES, f"-isystem={torch_folder / 'include'}"),
        link=(f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-Xlinker=-z,defs,--as-needed"),
        flags_of=dict.fromkeys(_EXACT, ("--fmad=false",)),
        stand_in=("torch_cuda", _STAND_IN),
    )


def _here() -> list[str]:
    if not torch.cuda.is_available():
        raise JitError("there is no GPU to build for: name its architecture, as --arch sm_90")
    return sorted({architecture_of(torch.device("cuda", k)) for k in range(torch.cuda.device_count())})
