"""What is rebuilt for a model: the recipe of its kernels, by where it is and what it computes in."""

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

from mdops.jit import toolchain
from mdops.jit.errors import JitError
from mdops.jit.recipe import Recipe, source_folder, sources_digest

if TYPE_CHECKING:
    from mdops.potential import Potential

_CPU, _GPU = "spline_potential", "spline_potential_gpu"
_SOURCES = {_CPU: ("spline_potential/rebuilt.cpp",), _GPU: ("spline_potential/rebuilt.cu",)}
# As CMakeLists.txt has them for the prebuilt kernels.
CPU_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
             "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")  # fmt: skip
GPU_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-Xcompiler=-fPIC,-fvisibility=hidden", "-cudart=static")


def why_not(potential: "Potential") -> str | None:
    """Why there are no kernels to rebuild for a model; None if there are."""
    from mdops.evaluators.fused import Fused

    problem = Fused.why_not(potential)
    return None if problem is None else f"kernels are rebuilt for the evaluator `fused`: {problem}"


def family(potential: "Potential") -> str:
    return _CPU if potential.device.type == "cpu" else _GPU


def sizes(potential: "Potential") -> dict[str, Any]:
    """What tells this model's kernels from those for others."""
    from mdops.evaluators.fused import op_scalars
    from mdops.evaluators.splined import SplineModel

    scalars = op_scalars(SplineModel(potential), potential.matmul)
    width, axis, neurons, residual, activation, threshold, matmul = scalars[4:]
    fitting: Any = potential.model.fitting
    found: dict[str, Any] = {
        "dtype": str(potential.dtype).removeprefix("torch."),
        "width": width,
        "axis": axis,
        "neurons": neurons,
        "residual": [n > 0 and bool(adds) for n, adds in enumerate(residual)],
        "activation": activation,
        "threshold": threshold,
        "extra": fitting.extra_size,
    }
    return found if potential.device.type == "cpu" else {**found, "matmul": matmul}


def target(potential: "Potential") -> str:
    """What the kernels run on."""
    if potential.device.type == "cpu":
        forced = os.environ.get("MDOPS_CPU_ISA")
        return f"x86-64-{forced}" if forced else toolchain.processor()
    return architecture(potential.device)


def architecture(device: torch.device) -> str:
    """A GPU's, as sm_90."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def recipe(potential: "Potential", *, profiler: bool = False) -> Recipe:
    """How the model's kernels are built.

    Raises:
        JitError: there are none to rebuild, or no compiler.
    """
    problem = why_not(potential)
    if problem is not None:
        raise JitError(problem)
    about = sizes(potential)
    name, place = family(potential), target(potential)
    if name == _CPU:
        compiler = toolchain.host_compiler()
        flags = (*CPU_FLAGS, *_processor_flags(place))
    else:
        compiler = toolchain.cuda_compiler()
        flags = (*GPU_FLAGS, *gpu_flags(place))
    defines = (*model_defines(about), *(("-DMDOPS_PROFILER",) if profiler else ()))
    return Recipe(
        name,
        source_folder(),
        _SOURCES[name],
        compiler,
        (*flags, *defines),
        place,
        {**about, "profiler": profiler},
    )


@functools.cache
def digest(name: str) -> str:
    """Of a family's sources in the package."""
    return sources_digest(source_folder(), _SOURCES[name])


def model_defines(sizes: dict[str, Any]) -> tuple[str, ...]:
    """The sizes as the sources want them (source/op/gemm/net.h)."""
    values = {
        "FLOAT": {"float32": "float", "float64": "double"}[sizes["dtype"]],
        "WIDTH": sizes["width"],
        "AXIS": sizes["axis"],
        "EXTRA": sizes["extra"],
        "NEURONS": ",".join(map(str, sizes["neurons"])),
        "RESIDUAL": ",".join(str(int(adds)) for adds in sizes["residual"]),
        "ACTIVATION": sizes["activation"],
        "THRESHOLD": sizes["threshold"],
    }
    return tuple(f"-DMDOPS_MODEL_{name}={value}" for name, value in values.items())


def _processor_flags(place: str) -> tuple[str, ...]:
    level = torch.ops.mdops.cpu_isa()
    if level == "portable":
        return ("-march=native", "-DMDOPS_ISA=isa_portable")
    # GCC's tuning for a processor that it half knows is behind its tuning for any.
    machine = (f"-march={place}",) if place.startswith("x86-64-v") else ("-march=native", "-mtune=generic")
    wide = ("-mprefer-vector-width=512",) if level == "v4" else ()
    return (*machine, *wide, f"-DMDOPS_ISA=isa_{level}", f"-DMDOPS_ISA_LEVEL_{level}")


def gpu_flags(place: str) -> tuple[str, ...]:
    """nvcc's for one architecture, sm_90 say; Hopper's with the instructions that only it has."""
    number = place.removeprefix("sm_")
    if number == "90":
        return ("--generate-code=arch=compute_90a,code=[sm_90a]", "-DMDOPS_HOPPER")
    return (f"--generate-code=arch=compute_{number},code=[sm_{number}]",)
