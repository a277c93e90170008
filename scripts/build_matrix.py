"""Compiles every combination of the build's flags and loads the results, so that the code of every flag is compiled.

    .venv/bin/python scripts/build_matrix.py [--out benchmarks/results/build_matrix.txt] [--jobs 2] [--only TEXT ...]

The libraries of the ops, with and without the profiler, with and without CUDA, run on every instruction set. The
kernels that mdops.jit rebuilds are compiled for every instruction set and precision, and those of other models than
se_e2_a for the best one; kernels for GPUs as PTX for every generation. Uses ccache if
installed. Exits with 1 if a combination fails.

A line of the table names its commit, with a + if there were changes since. The table is written after every
combination, so an interrupted run loses nothing. With --only, the combinations whose names contain one of the
texts are built, and their lines in the existing table are replaced: `--only "CUDA ON"`, then `--only "sm_90a tf32"`.
--missing builds those without a line.
"""

import argparse
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from matrix_table import Line, Table, shown

from mdops.files.atomic import replace_file
from mdops.jit import models, toolchain

ROOT = Path(__file__).resolve().parents[1]
OP = ROOT / "source/op"
LEVELS = ("v2", "v3", "v4")
GENERATIONS = ("80", "86", "89", "90", "90a", "100", "120")
PROFILER = {"off": (), "on": ("-DMDOPS_PROFILER",)}
SIZES = {"width": 100, "axis": 16, "neurons": [240, 240, 240], "residual": [0, 1, 1], "gated": False, "activation": 1,
         "threshold": 3.0, "matmul": "float32"}  # fmt: skip
OF_TYPES = {"extra": 0, "types": 2, "intervals": 72}  # not constants if types share places
OTHER_KINDS = ("plain", "mixed", "gated")
KINDS = {"se_e2_a": OF_TYPES, "plain": {**OF_TYPES, "axis": 0}, "mixed": {}, "gated": {"gated": True}}

RUN_OPS = """
import sys, torch
for library in sys.argv[1:]:
    torch.ops.load_library(library)
print(torch.ops.mdops.cpu_isa())
x = torch.rand(8, 3, dtype=torch.float64)
zeros = torch.zeros(8, dtype=torch.int32)
cell, pbc = 9 * torch.eye(3, dtype=torch.float64)[None], torch.ones(1, 3, dtype=torch.bool)
near, images, counts, needed = torch.ops.mdops.neighbor_matrix(x, cell, pbc, zeros, zeros, 4.0, 1, 16, False)
assert counts.sum() == 56
d = torch.ops.mdops.displacements(x, cell, zeros, near, images, torch.float32)
assert torch.isfinite(d).all()
"""
LOAD_TABLE = """
import sys
from pathlib import Path
from mdops.jit.stages import kernel_table
table = kernel_table(Path(sys.argv[1]))
assert bool(table.stages) == (sys.argv[2] == "on"), "the profiler"
print(table.family.decode())
"""


class FailedError(Exception):
    """A command failed; the message is its output."""


def run(*command: object, **env: str) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env={**os.environ, **env}
    )
    if done.returncode != 0:
        raise FailedError((done.stdout + done.stderr)[-4000:])
    return done.stdout


@dataclass
class Combination:
    """A line of the table: its name, and a function that does the work and returns the text."""

    name: str
    work: Callable[[Path], str]


def library(cuda: str, profiler: str) -> Combination:
    """Both libraries of the ops, built with CMake, loaded, and run on every instruction set."""

    def work(_: Path) -> str:
        folder = (
            ROOT / f"build/matrix-{cuda.lower()}-{profiler}"
        )  # kept: the next run builds only what has changed
        flags = " ".join(PROFILER[profiler])
        launcher = (
            [f"-DCMAKE_{x}_COMPILER_LAUNCHER=ccache" for x in ("CXX", "CUDA")]
            if shutil.which("ccache")
            else []
        )
        run(cmake(), "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *launcher,
            f"-DMDOPS_CUDA={cuda}", f"-DCMAKE_CXX_FLAGS={flags}", f"-DCMAKE_CUDA_FLAGS={flags}",
            MDOPS_CUDA_ARCHITECTURES="90a-real")  # fmt: skip
        run("ninja", "-C", folder, "-j1")
        made = [folder / name for name in ("libmdops.so", "libmdops_cuda.so") if (folder / name).exists()]
        if len(made) != (2 if cuda == "ON" else 1):
            raise FailedError(f"there are {made}")
        found = []
        for level in LEVELS if has_levels() else ("",):
            # PyTorch without CUDA has no libtorch_cuda.so: the linker's stub is used instead.
            found += run(
                sys.executable,
                "-c",
                RUN_OPS,
                *made,
                MDOPS_CPU_ISA=level,
                LD_LIBRARY_PATH=str(folder / "stub"),
            ).split()
        return f"{' and '.join(m.name for m in made)} loaded, ops ran with {' '.join(found)}"

    return Combination(f"libraries           CUDA {cuda:<4} profiler {profiler}", work)


def rebuilt(level: str, dtype: str, profiler: str, kind: str = "se_e2_a") -> Combination:
    """The CPU kernels for one model, compiled and loaded."""

    def work(folder: Path) -> str:
        machine = ("-march=native", "-mtune=generic") if level == "native" else (f"-march=x86-64-{level}",)
        isa = "v4" if level == "native" else level
        sizes = {**SIZES, **KINDS[kind], "dtype": dtype}
        sizes = {name: size for name, size in sizes.items() if name not in ("types", "intervals")}
        flags = (*models.CPU_FLAGS, *machine, f"-DMDOPS_ISA=isa_{isa}", f"-DMDOPS_ISA_LEVEL_{isa}")
        made = folder / "library.so"
        run(toolchain.host_compiler().path, *flags, *models.model_defines(sizes), *PROFILER[profiler], f"-I{OP}",
            "-Werror", "-Wall", "-Wextra", "-shared", OP / "spline_potential/rebuilt.cpp", "-o", made)  # fmt: skip
        return f"{run(sys.executable, '-c', LOAD_TABLE, made, profiler).strip()} loaded"

    return Combination(
        f"rebuilt, CPU        {level:<6} {dtype} profiler {profiler} {of(kind)}".rstrip(), work
    )


def of(kind: str) -> str:
    return "" if kind == "se_e2_a" else kind


def gpu(source: str, generation: str, matmul: str, profiler: str, kind: str = "se_e2_a") -> Combination:
    """A source of GPU kernels as PTX: one in source/, or all headers as the build includes them."""

    def work(folder: Path) -> str:
        path = ROOT / "source" / source
        if "rebuilt" not in source:
            path = folder / "all_headers.cu"
            names = sorted(str(header.relative_to(OP)) for header in OP.glob("*/gpu_*.h"))
            path.write_text("".join(f'#include "{name}"\n' for name in names))
        hopper = ("-DMDOPS_HOPPER",) if generation == "90a" else ()
        sizes = {**SIZES, **KINDS[kind], "dtype": "float32", "matmul": matmul}
        defines = models.model_defines(sizes, f"sm_{generation.rstrip('a')}") if "rebuilt" in source else ()
        made, nvcc = folder / "made.ptx", toolchain.cuda_compiler().path
        flags = (
            "-std=c++20",
            "-O3",
            f"-arch=compute_{generation}",
            "-ptx",
            *hopper,
            *defines,
            *PROFILER[profiler],
        )
        run(nvcc, *flags, f"-I{OP}", path, "-o", made)
        kernels = re.findall(r"^\.visible \.entry|^\.entry|^\.weak \.entry", made.read_text(), re.MULTILINE)
        if not (defines and hopper):
            return f"{len(kernels)} kernels"
        library = folder / "library.so"
        flags = (*models.GPU_FLAGS, *models.gpu_flags("sm_90"), *defines, *PROFILER[profiler])
        run(nvcc, *flags, f"-I{OP}", "-shared", path, "-o", library)
        told = run(sys.executable, "-c", LOAD_TABLE, library, profiler).strip()
        return f"{len(kernels)} kernels; as machine code, too: {told} loaded"

    what = "rebuilt, GPU" if "rebuilt" in source else "all headers, GPU"
    name = f"{what:<19} sm_{generation:<4} {matmul:<8} profiler {profiler} {of(kind)}"
    return Combination(name.rstrip(), work)


def cmake() -> str:
    """CMake of this environment, as in the build, or the system's."""
    package = importlib.util.find_spec("cmake")
    folders = package.submodule_search_locations if package else None
    names = [*(str(Path(folder, "data/bin/cmake")) for folder in folders or ()), "cmake"]
    return next(filter(None, map(shutil.which, names)), "cmake")


def has_levels() -> bool:
    return torch.ops.mdops.cpu_isa() in LEVELS


def combinations(cuda: bool) -> Iterator[Combination]:
    for profiler in PROFILER:
        yield library("OFF", profiler)
    levels = [level for level in LEVELS if level <= torch.ops.mdops.cpu_isa()] if has_levels() else []
    native = ["native"] if torch.ops.mdops.cpu_isa() == "v4" else []
    for parts in itertools.product([*levels, *native], ("float32", "float64"), PROFILER):
        yield rebuilt(*parts)
    best = [*levels, *native][-1:]
    for parts in itertools.product(best, ("float32", "float64"), PROFILER, OTHER_KINDS):
        yield rebuilt(*parts)
    if cuda:
        for generation, profiler in itertools.product(GENERATIONS, PROFILER):
            yield gpu("op/spline_potential/rebuilt.cu", generation, "float32", profiler)
            yield gpu("all headers", generation, "", profiler)
        for profiler in PROFILER:
            yield library("ON", profiler)
            yield gpu("op/spline_potential/rebuilt.cu", "90a", "tf32", profiler)
        for kind in OTHER_KINDS:
            yield gpu("op/spline_potential/rebuilt.cu", "80", "float32", "off", kind)
        yield gpu("op/spline_potential/rebuilt.cu", "90a", "float32", "on", "gated")


def sources(root: Path = ROOT) -> tuple[str, str]:
    """The current commit and the differences from it, except for results of measurements: as a short name, and
    in words."""
    git = ("git", "-C", root)
    try:
        commit = run(*git, "rev-parse", "HEAD").strip()
        changed = run(*git, "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results").splitlines()
    except (FailedError, FileNotFoundError):
        return "none", "of no commit: there is no git, or this is no checkout"
    if not changed:
        return commit[:7], f"of commit {commit}, without changes"
    return (
        f"{commit[:7]}+",
        f"of commit {commit} and changes since: {', '.join(line[3:] for line in changed)}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="of names, blanks as one; adds to OUT")
    parser.add_argument("--missing", action="store_true", help="only those without a line in OUT; adds to it")
    args = parser.parse_args()
    if args.missing and args.out is None:
        parser.error("--missing looks into OUT: give --out")

    chosen = list(combinations(shutil.which("nvcc") is not None))
    adds = args.only is not None or args.missing
    table = Table.read(args.out) if adds and args.out else Table()
    if args.only is not None:
        chosen = [c for c in chosen if any(text in " ".join(c.name.split()) for text in args.only)]
    if args.missing:
        chosen = [c for c in chosen if c.name not in table.lines]
    if not chosen:
        parser.error("there is nothing to build: no combination is meant")
    return 1 if build_all(chosen, table, args.out, args.jobs) else 0


def build_all(chosen: list[Combination], table: Table, out: Path | None, jobs: int) -> int:
    """Builds the combinations, and adds a line of each to the table and its file. Returns how many failed."""
    short, words = sources()  # at the start, because the work takes half an hour
    table.sources[short] = words
    names, compilers = [c.name for c in combinations(cuda=True)], compilers_here()
    lock, begin = threading.Lock(), time.perf_counter()

    def build(combination: Combination) -> bool:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = f"ok      {combination.work(Path(folder))}"
            except FailedError as error:
                told = f"FAILED\n{error}"
        line = Line(time.perf_counter() - begin, short, told)
        with lock:
            print(shown(combination.name, line), flush=True)
            table.lines[combination.name] = line
            if out is not None:
                replace_file(out, table.text(names, compilers).encode())
        return line.failed

    with ThreadPoolExecutor(jobs) as pool:
        failed = sum(pool.map(build, chosen))
    seconds = time.perf_counter() - begin
    print(f"{len(chosen)} combinations, {failed} failed, {seconds:.0f} s; {compilers}", words, sep="\n")
    return failed


def compilers_here() -> str:
    cuda = [toolchain.cuda_compiler().version] if shutil.which("nvcc") else []
    return "; ".join([toolchain.host_compiler().version.split(" Copyright")[0], *cuda])


if __name__ == "__main__":
    sys.exit(main())
