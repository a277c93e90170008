"""Reports what is installed and whether it works, and for each problem what to do."""

import argparse
import dataclasses
import functools
import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

HELP = "find out what is wrong with the installation"
_PACKAGES = ("numpy", "ase", "h5py", "pyyaml", "safetensors", "rich")
# mdops is on no package index: it is installed from a clone.
_INSTALL = "in a clone of mdops: `make build`, or `pip install --no-build-isolation .` in another environment"
_REINSTALL = f"build mdops again, {_INSTALL}"


@dataclasses.dataclass
class Finding:
    """One line of the report.

    Attributes:
        name, value: what was checked, and the result.
        problem: what to do, if mdops does not work because of this.
        note: advice, if it works but could be better.
    """

    name: str
    value: str
    problem: str | None = None
    note: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    broken = 0
    for finding in _findings():
        mark = "problem" if finding.problem else "ok"
        print(f"{mark:<9}{finding.name:<18}{finding.value}")
        for advice in (finding.problem, finding.note):
            if advice:
                print(f"{'':<9}-> {advice}")
        broken += finding.problem is not None
    print("everything works" if not broken else f"{broken} problem{'s' * (broken > 1)} to fix")
    return 1 if broken else 0


def _findings() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable}) on {platform.platform()}")
    yield _package("mdops", f"install it, {_INSTALL}")
    yield from (_package(name, f"pip install {name}") for name in _PACKAGES)
    torch = _guarded("torch", _torch, "pip install 'torch>=2.11'")
    yield torch
    if torch.problem:
        return
    library = _guarded("library", _library, _REINSTALL)
    yield library
    if library.problem:
        return
    cuda = _guarded("cuda", _cuda, "reinstall PyTorch")
    yield cuda
    if cuda.note is None and not cuda.problem:
        yield from _gpus()
    isa = _guarded(
        "instruction set", _isa, "unset MDOPS_CPU_ISA, or set it to a level that this processor has"
    )
    yield isa
    yield _guarded("threads", _threads, "reinstall PyTorch")
    yield _guarded("rebuilt kernels", _rebuilt, "set MDOPS_CACHE to a folder of yours")
    yield _tools()
    if not isa.problem:
        yield _guarded("self test", _self_test, f"report this, and {_REINSTALL}")
        yield _guarded("evaluators", _evaluators, f"report this, and {_REINSTALL}")


def _guarded(name: str, look: Callable[[], Finding], advice: str) -> Finding:
    """The result of `look`; an exception is a problem, with `advice` on what to do."""
    try:
        return look()
    except Exception as error:
        return Finding(name, f"{type(error).__name__}: {' '.join(str(error).split())}", problem=advice)


def _package(name: str, advice: str) -> Finding:
    try:
        found = version(name)
        importlib.import_module({"pyyaml": "yaml"}.get(name, name))
    except PackageNotFoundError:
        return Finding(name, "not installed", problem=advice)
    except Exception as error:
        # An installed package may fail to load with any exception.
        return Finding(
            name,
            f"{found} does not load: {error}",
            problem=f"it is installed but broken; install it again: {advice}",
        )
    return Finding(name, found)


def _torch() -> Finding:
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    old = None if numbers >= (2, 11) else "mdops needs PyTorch 2.11 or later: pip install -U torch"
    return Finding("torch", str(torch.__version__), problem=old)


def _library() -> Finding:
    from mdops import _library

    _library.load()
    importlib.import_module("mdops.ops")  # raises an error if the library was built from other sources
    return Finding("library", str(_library.library_path("libmdops.so")))


def _isa() -> Finding:
    import torch

    level, forced = torch.ops.mdops.cpu_isa(), os.environ.get("MDOPS_CPU_ISA")
    note = f"forced by MDOPS_CPU_ISA={forced}; unset it to use the best one" if forced else None
    return Finding("instruction set", f"{level} ({platform.machine()})", note=note)


def _threads() -> Finding:
    import torch

    used, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    settings = ", ".join(f"{n}={os.environ[n]}" for n in ("OMP_NUM_THREADS",) if n in os.environ)
    note = f"more threads than the {cores} cores this process may use: set OMP_NUM_THREADS={cores}"
    value = f"{used} of {cores} cores" + (f" ({settings})" if settings else "")
    return Finding("threads", value, note=note if used > cores else None)


def _cuda() -> Finding:
    """Everything except single GPUs: PyTorch, the CUDA library, and the driver and its version."""
    import torch

    from mdops import _library

    problem = _library.cuda_problem()
    if problem is None:
        count = torch.cuda.device_count()
        return Finding("cuda", f"{count} GPU{'s' * (count > 1)}, PyTorch for CUDA {torch.version.cuda}")
    return Finding("cuda", "not used, the ops run on the CPU", note=problem)


def _gpus() -> Iterator[Finding]:
    import torch

    for index in range(torch.cuda.device_count()):
        yield _guarded(
            f"gpu {index}", functools.partial(_gpu, index), "look at `nvidia-smi`, and report this"
        )


def _gpu(index: int) -> Finding:
    """A description of the GPU, after a small op gave the same result on it as on the CPU."""
    import torch

    from mdops import _library
    from mdops.testing import op_samples

    properties = torch.cuda.get_device_properties(index)
    value = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    problem = _library.gpu_problem(index)
    if problem is not None:
        return Finding(f"gpu {index}", value, note=problem)
    answers = []
    for device in (f"cuda:{index}", "cpu"):
        sample = next(s for s in op_samples(device) if s.op == "displacements")
        answers.append(sample.function(*sample.args).cpu())
    torch.testing.assert_close(*answers)
    slow = torch.cuda.get_device_capability(index) == (9, 0) and not _library.has_hopper_kernels(index)
    note = "the CUDA library lacks its instructions: build it with MDOPS_CUDA_ARCHITECTURES=90a-real"
    said = f"{value}, an op gives the same result as on the CPU"
    return Finding(f"gpu {index}", said, note=note if slow else None)


def _rebuilt() -> Finding:
    """The cache of `mdops.jit`."""
    from mdops import jit

    found, place = jit.entries(), jit.cache_folder()
    size = sum(entry.size for entry in found) / 2**20
    value = f"{len(found)} in {place} ({size:.1f} MiB; `mdops build --list`)" if found else f"none in {place}"
    return Finding("rebuilt kernels", value, note="MDOPS_JIT=0 forbids more" if jit.is_forbidden() else None)


def _tools() -> Finding:
    """The compilers that could rebuild kernels; they are optional."""
    from mdops.jit import JitError, toolchain

    found = []
    for tool in (toolchain.host_compiler, toolchain.cuda_compiler, toolchain.ninja):
        try:
            found.append(tool().path)
        except JitError as error:
            found.append(str(error).partition(" on this machine")[0].replace("there is ", ""))
    return Finding("compilers", ", ".join(found))


def _evaluators() -> Finding:
    """The evaluators that are used here for a model that all of them support."""
    import torch

    from mdops.cli.sample_model import water_model

    potential = water_model(torch.float32)
    return Finding(
        "evaluators",
        f"of se_e2_a on the CPU: simulation by {potential.explain('simulate')}; training by "
        f"{potential.explain('train')} (`mdops info MODEL --device` for other models and devices)",
    )


def _self_test() -> Finding:
    from mdops.cli.self_test import self_test

    return Finding("self test", self_test())
