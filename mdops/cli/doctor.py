"""Says what is installed and whether it works, and for each problem what to do."""

import argparse
import dataclasses
import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

HELP = "find out what is wrong with the installation"
_PACKAGES = ("numpy", "ase", "h5py", "pyyaml", "safetensors", "rich")
_REINSTALL = "install mdops again: pip install --force-reinstall --no-deps mdops"


@dataclasses.dataclass
class Finding:
    """One line of the report.

    Attributes:
        name, value: what was looked at, and what was found.
        problem: what to do, if this keeps mdops from working.
        note: what to know, if it only could be better.
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
    print("everything works" if not broken else f"{broken} problem{'s' * (broken > 1)} to mend")
    return 1 if broken else 0


def _findings() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable}) on {platform.platform()}")
    yield _package("mdops", "pip install mdops")
    yield from (_package(name, f"pip install {name}") for name in _PACKAGES)
    torch = _guarded("torch", _torch, "pip install 'torch>=2.11'")
    yield torch
    if torch.problem:
        return
    library = _guarded("library", _library, _REINSTALL)
    yield library
    yield _guarded("cuda", _cuda, "reinstall PyTorch")
    if library.problem:
        return
    isa = _guarded(
        "instruction set", _isa, "unset MDOPS_CPU_ISA, or set it to a level that this processor has"
    )
    yield isa
    yield _guarded("threads", _threads, "reinstall PyTorch")
    if not isa.problem:
        yield _guarded("self test", _self_test, f"report this, and {_REINSTALL}")


def _guarded(name: str, look: Callable[[], Finding], advice: str) -> Finding:
    """What `look` finds; any exception is a problem, and `advice` what to do."""
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
        # A package that is there may fail to load in any way.
        return Finding(name, f"{found} does not load: {error}", problem=f"install it again: {advice}")
    return Finding(name, found)


def _torch() -> Finding:
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    old = None if numbers >= (2, 11) else "mdops needs PyTorch 2.11 or later: pip install -U torch"
    return Finding("torch", str(torch.__version__), problem=old)


def _library() -> Finding:
    from mdops import _library

    _library.load()
    return Finding("library", str(_library.library_path("libmdops.so")))


def _isa() -> Finding:
    import torch

    level, forced = torch.ops.mdops.cpu_isa(), os.environ.get("MDOPS_CPU_ISA")
    note = f"forced by MDOPS_CPU_ISA={forced}; unset it for the best there is" if forced else None
    return Finding("instruction set", f"{level} ({platform.machine()})", note=note)


def _threads() -> Finding:
    import torch

    used, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    told = ", ".join(f"{n}={os.environ[n]}" for n in ("OMP_NUM_THREADS",) if n in os.environ)
    note = f"more threads than the {cores} cores this process may use: set OMP_NUM_THREADS={cores}"
    value = f"{used} of {cores} cores" + (f" ({told})" if told else "")
    return Finding("threads", value, note=note if used > cores else None)


def _cuda() -> Finding:
    import torch

    from mdops import _library

    if _library.library_path("libmdops_cuda.so") is None:
        return Finding("cuda", "not used: this mdops was built without CUDA")
    if torch.version.cuda is None:
        return Finding("cuda", "not used: this PyTorch is built without CUDA")
    if not torch.cuda.is_available():
        return Finding("cuda", f"not used: PyTorch (CUDA {torch.version.cuda}) finds no GPU it can use")
    return Finding("cuda", f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")


def _self_test() -> Finding:
    from mdops.cli.self_test import self_test

    return Finding("self test", self_test())
