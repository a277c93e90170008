"""The recipe of a model's rebuilt kernels, which depends on its device and precision."""

import functools
import json
import os
from dataclasses import dataclass
from typing import Any

import torch

from mdops.errors import JitError
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.one_op import Fused, op_scalars
from mdops.files.package import source_folder, sources_digest
from mdops.jit import toolchain
from mdops.jit.recipe import Recipe
from mdops.tables.spline_model import SplineModel

_CPU, _GPU = "spline_potential", "spline_potential_gpu"
_SOURCES = {_CPU: ("spline_potential/rebuilt.cpp",), _GPU: ("spline_potential/rebuilt.cu",)}
# The number of float16 or bfloat16 parts in a product of the net; 0: float32's own product.
_GPU_PARTS = {"float32": 2, "tf32": 1}
_CPU_PARTS = {"float32": 0, "bf16": 1, "bf16x3": 2, "bf16x6": 3}
# The same as in CMakeLists.txt for the prebuilt kernels.
CPU_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
             "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fno-delete-null-pointer-checks",
             "-Wno-psabi")  # fmt: skip
GPU_FLAGS = (
    "-std=c++20",
    "-O3",
    "-DNDEBUG",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden",
    "-cudart=static",
)


def why_not(potential: EvaluationContext) -> str | None:
    """Why no kernels can be rebuilt for a model; None if they can."""
    if not Fused.knows(potential):
        return (
            "kernels are rebuilt for the evaluator `fused`, which has models of one descriptor of sums over "
            f"neighbours, and this is {potential.kind}"
        )
    problem = Fused.why_not(potential)
    return None if problem is None else f"kernels are rebuilt for the evaluator `fused`: {problem}"


@dataclass(frozen=True)
class Wanted:
    """Kernels for a model.

    Attributes:
        name: of the family.
        target: the processor, or a GPU's architecture.
        sizes: the numbers that distinguish them from those for other models.
    """

    name: str
    target: str
    sizes: dict[str, Any]

    @property
    def place(self) -> str:
        """Everything as text."""
        return json.dumps([self.name, self.target, self.sizes], sort_keys=True)

    def configuration(self, profiler: bool) -> dict[str, Any]:
        """The configuration that entries of these kernels have in the cache, for any compiler."""
        return {
            "name": self.name,
            "sources": _digest(self.name),
            "target": self.target,
            "about": {**self.sizes, "profiler": profiler},
        }


def wanted(potential: EvaluationContext, architecture: str | None = None) -> Wanted:
    """The kernels for a model on its device, or for a GPU of that architecture (sm_90).

    Raises:
        JitError: the model has no kernels to rebuild.
    """
    problem = why_not(potential)
    if problem is not None:
        raise JitError(problem)
    if architecture is None and potential.device.type == "cuda":
        architecture = architecture_of(potential.device)
    if architecture is not None:
        return Wanted(_GPU, architecture, _sizes(potential, gpu=True))
    forced = os.environ.get("MDOPS_CPU_ISA")
    return Wanted(_CPU, f"x86-64-{forced}" if forced else toolchain.processor(), _sizes(potential, gpu=False))


def architecture_of(device: torch.device) -> str:
    """A GPU's architecture, such as sm_90."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _sizes(potential: EvaluationContext, *, gpu: bool) -> dict[str, Any]:
    """The model's sizes. If neighbours of all types share places, the numbers of types, of knots and of further inputs
    of the net depend on the types in a system, so they are not constants and not here."""
    splines = SplineModel(potential)
    part = splines.sums[0]
    width, axis, neurons, residual, gated, activation, threshold, matmul = op_scalars(
        splines, potential.matmul
    )[5:]
    found: dict[str, Any] = {
        "dtype": str(potential.dtype).removeprefix("torch."),
        "width": width,
        "axis": axis,
        "neurons": neurons,
        "residual": [n > 0 and bool(adds) for n, adds in enumerate(residual)],
        "gated": bool(gated),
        "activation": activation,
        "threshold": threshold,
        "matmul": matmul,
    }
    if part.descriptor.mixed:
        return found
    found["extra"] = splines.extra_size
    return {**found, "types": part.ntypes, "intervals": part.grid.intervals} if gpu else found


def recipe(kernels: Wanted, *, profiler: bool = False) -> Recipe:
    """The recipe of the kernels. Raises JitError if there is no compiler."""
    if kernels.name == _CPU:
        compiler = toolchain.host_compiler()
        flags = (*CPU_FLAGS, *_processor_flags(kernels.target), *model_defines(kernels.sizes))
    else:
        compiler = toolchain.cuda_compiler()
        flags = (*GPU_FLAGS, *gpu_flags(kernels.target), *model_defines(kernels.sizes, kernels.target))
    flags = (*flags, *(("-DMDOPS_PROFILER",) if profiler else ()))
    about = {**kernels.sizes, "profiler": profiler}
    return Recipe(
        kernels.name, source_folder(), _SOURCES[kernels.name], compiler, flags, kernels.target, about
    )


@functools.cache
def _digest(name: str) -> str:
    """A digest of a family's sources in the package."""
    return sources_digest(source_folder(), _SOURCES[name])


def model_defines(sizes: dict[str, Any], place: str | None = None) -> tuple[str, ...]:
    """The sizes in the form of the sources (source/op/gemm/net.h, spline_potential/args.h and rebuilt.cu)."""
    parts = _GPU_PARTS if place is not None else _CPU_PARTS
    values = {
        "FLOAT": {"float32": "float", "float64": "double"}[sizes["dtype"]],
        "WIDTH": sizes["width"],
        "AXIS": sizes["axis"] or 1,
        "PLAIN": int(sizes["axis"] == 0),
        "GATED": int(sizes["gated"]),
        "NEURONS": ",".join(map(str, sizes["neurons"])),
        "RESIDUAL": ",".join(str(int(adds)) for adds in sizes["residual"]),
        "ACTIVATION": sizes["activation"],
        "THRESHOLD": sizes["threshold"],
        "PARTS": parts[sizes["matmul"]],
    }
    values |= {name.upper(): sizes[name] for name in ("extra", "types", "intervals") if name in sizes}
    if place is not None:
        values["CAPABILITY"] = place.removeprefix("sm_")
    comma = "," if place is None else "\\,"  # without the backslash it would end an option of nvcc
    return tuple(f"-DMDOPS_MODEL_{name}={str(value).replace(',', comma)}" for name, value in values.items())


def _processor_flags(place: str) -> tuple[str, ...]:
    level = torch.ops.mdops.cpu_isa()
    if level == "portable":
        return ("-march=native", "-DMDOPS_ISA=isa_portable")
    # For a processor that GCC knows only partly, its generic tuning is better.
    machine = (f"-march={place}",) if place.startswith("x86-64-v") else ("-march=native", "-mtune=generic")
    wide = ("-mprefer-vector-width=512",) if level == "v4" else ()
    return (*machine, *wide, f"-DMDOPS_ISA=isa_{level}", f"-DMDOPS_ISA_LEVEL_{level}")


def gpu_flags(place: str) -> tuple[str, ...]:
    """nvcc's flags for one architecture, such as sm_90; for Hopper, with the instructions of Hopper only."""
    number = place.removeprefix("sm_")
    if number == "90":
        return ("--generate-code=arch=compute_90a,code=[sm_90a]", "-DMDOPS_HOPPER")
    return (f"--generate-code=arch=compute_{number},code=[sm_{number}]",)
