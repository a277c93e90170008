"""Compiles the emulated kernels of scripts/gpu_emulator."""

import argparse
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EMULATOR = Path(__file__).resolve().parent


def cuda_headers(named: Path | None) -> Path:
    """The folder of cuda_fp16.h: the named one, or one beside nvcc."""
    nvcc = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve()
    usual = [nvcc.parent.parent / "include", *Path("/usr/local").glob("cuda*/include")]
    for place in [named] if named else usual:
        if (place / "cuda_fp16.h").is_file():
            return place
    raise SystemExit("no headers of CUDA: name their folder by --cuda")


def compiled(name: str, headers: Path, folder: Path, *flags: str) -> ctypes.CDLL:
    """The library of `name`.cpp, built in the folder."""
    library = folder / f"lib{name}.so"
    always = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-include", "cuda.h"]
    # A GPU refuses misaligned reads and writes; here, they end the process.
    always += ["-fsanitize=alignment", "-fno-sanitize-recover=alignment"]
    paths = [f"-I{EMULATOR}", f"-I{EMULATOR.parent.parent / 'source' / 'op'}", "-isystem", str(headers)]
    source = str(EMULATOR / f"{name}.cpp")
    subprocess.run(["g++", *always, *flags, *paths, source, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@contextmanager
def library_of(name: str, doc: str, *flags: str) -> Iterator[ctypes.CDLL]:
    """The library of `name`.cpp for a script with this docstring, whose command line may name the headers."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--cuda", type=Path, help="a folder with the headers of CUDA")
    headers = cuda_headers(parser.parse_args().cuda)
    with tempfile.TemporaryDirectory() as folder:
        yield compiled(name, headers, Path(folder), *flags)
