"""The compilers and the ninja of this machine, and the processor for which they compile."""

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mdops.errors import JitError


@dataclass(frozen=True)
class Tool:
    """A program.

    Attributes:
        path: of the program.
        version: the text it prints; other versions build other kernels.
    """

    path: str
    version: str


def host_compiler() -> Tool:
    """The C++ compiler: $CXX, or g++, or c++. Raises JitError if no such program runs."""
    return _first(
        "a C++ compiler", [os.environ.get("CXX", ""), "g++", "c++"], "install g++, or set CXX to one"
    )


def cuda_compiler() -> Tool:
    """nvcc: $CUDACXX, or nvcc on PATH, or CUDA_HOME's. Raises JitError if no such program runs."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    names = [os.environ.get("CUDACXX", ""), "nvcc", f"{home}/bin/nvcc"]
    return _first("nvcc", names, "install CUDA's toolkit, or set CUDACXX to its nvcc")


def ninja() -> Tool:
    """ninja, on PATH or as a Python package. Raises JitError if no such program runs."""
    package = importlib.util.find_spec("ninja")
    folders = package.submodule_search_locations if package else None
    names = ["ninja", *(str(Path(f, "data/bin/ninja")) for f in folders or ())]
    return _first("ninja", names, "pip install ninja")


def _first(what: str, names: list[str], advice: str) -> Tool:
    for name in filter(None, names):
        path = shutil.which(name)
        version = None if path is None else _version(path, Path(path).stat().st_mtime_ns)
        if path is not None and version is not None:
            return Tool(path, version)
    raise JitError(f"there is no {what.removeprefix('a ')} on this machine: {advice}")


@functools.cache
def _version(path: str, changed: int) -> str | None:
    """The program's output for --version; None if it does not run. It is called again if `changed` differs."""
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return " ".join(told.stdout.split()) if told.returncode == 0 else None


@functools.cache
def processor() -> str:
    """A name for this processor's instruction sets: kernels for another one may not run here."""
    found = platform.machine()
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8", errors="replace").splitlines() if told.is_file() else []
    for key in ("vendor_id", "model name", "flags", "CPU part", "Features"):
        found += next((line for line in lines if line.startswith(key)), "")
    return f"{platform.machine()}-{hashlib.sha256(found.encode()).hexdigest()[:16]}"
