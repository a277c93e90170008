"""What the compiled libraries promise: they need no C++ symbol of PyTorch and none of Python, and every
instruction set computes the same."""

import os
import re
import shutil
import struct
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from children import python

import mdops
from mdops.errors import LibraryError
from mdops.ops._register import register_fake

ROOT = Path(__file__).parents[1]
# Those of PyTorch's ops; the C core needs nothing of PyTorch (tests/core).
LIBRARIES = sorted(
    lib
    for folder in mdops.__path__
    for lib in Path(folder, "lib").glob("libmdops*.so")
    if not lib.name.startswith("libmdops_core")
)
CUDA_LIBRARIES = [lib for lib in LIBRARIES if lib.name == "libmdops_cuda.so"]
LEVELS = ("v2", "v3", "v4")

# A nested name that begins with at::, c10:: or torch::, as GCC and Clang mangle it.
CXX_OF_TORCH = re.compile(r"N[VKrRO]*(2at|3c10|5torch)\d")
CPYTHON = re.compile(r"_?Py[A-Z_]")


def undefined(library: Path) -> list[str]:
    """Names of what the library needs from others."""
    lines = run("nm", "-D", "--undefined-only", library).stdout.splitlines()
    return [line.split()[-1].split("@")[0] for line in lines]


def forbidden(library: Path) -> list[str]:
    """Undefined symbols that tie a library to one version of PyTorch or of Python."""
    return [
        name
        for name in undefined(library)
        if (name.startswith("_Z") and CXX_OF_TORCH.search(name)) or CPYTHON.match(name)
    ]


def run(*command: object, check: bool = True, **options) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert not check or result.returncode == 0, result.stderr
    return result


def compile_object(folder: Path, source: str, *flags: str) -> Path:
    (folder / "made.cpp").write_text(source)
    made = folder / ("made.so" if "-shared" in flags else "made.o")
    run("g++", "-fPIC", "-O0", *flags, folder / "made.cpp", "-o", made)
    return made


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda lib: lib.name)
def test_symbols_are_of_the_stable_abi(library):
    assert any(name.startswith("aoti_torch_") for name in undefined(library)), "nm reads the library"
    assert forbidden(library) == []


def test_the_libraries_are_there():
    """The CUDA library where there is nvcc and it is asked for, as .ci/run does."""
    asked = os.environ.get("MDOPS_CUDA") == "ON" and shutil.which("nvcc")
    expected = {"libmdops.so"} | ({"libmdops_cuda.so"} if asked else set())
    assert expected <= {lib.name for lib in LIBRARIES}


@pytest.mark.skipif(not CUDA_LIBRARIES, reason="this mdops is built without CUDA")
def test_the_cuda_library_brings_its_runtime_and_needs_pytorchs_cuda():
    (library,) = CUDA_LIBRARIES
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library).stdout)
    assert "libtorch_cuda.so" in needed and "libtorch_cpu.so" in needed
    assert not [
        name
        for name in needed
        if re.match(r"lib(cuda|cudart|nv|c10|torch)", name)
        and name not in ("libtorch_cuda.so", "libtorch_cpu.so")
    ]
    assert not re.search(r"RPATH|RUNPATH", run("readelf", "-d", library).stdout)
    assert "aoti_torch_get_current_cuda_stream" in undefined(library)


@pytest.mark.parametrize(
    ("source", "symbol"),
    [
        ("namespace at { void f(); } void g() { at::f(); }", "_ZN2at1fEv"),
        (
            "namespace c10 { struct S { int f() const; }; } int g(c10::S& s) { return s.f(); }",
            "_ZNK3c101S1fEv",
        ),
        ("namespace torch { extern int x; } int g() { return torch::x; }", "_ZN5torch1xE"),
        (
            "namespace at { struct Tensor; } void f(const at::Tensor&); void g(at::Tensor& t) { f(t); }",
            "_Z1fRKN2at6TensorE",
        ),
        ('extern "C" int PyList_New(long); int g() { return PyList_New(1); }', "PyList_New"),
        ('extern "C" int _Py_Dealloc(long); int g() { return _Py_Dealloc(1); }', "_Py_Dealloc"),
    ],
)
def test_the_check_finds_a_forbidden_symbol(tmp_path, source, symbol):
    assert forbidden(compile_object(tmp_path, source, "-shared")) == [symbol]


def test_the_check_passes_other_symbols(tmp_path):
    source = """
    #include <stdexcept>
    namespace format { void torch5(); }
    extern "C" void aoti_torch_check(bool);
    void g() { format::torch5(); aoti_torch_check(true); throw std::runtime_error("x"); }
    """
    assert forbidden(compile_object(tmp_path, source, "-shared")) == []


def check_kernel_symbols(made: Path) -> subprocess.CompletedProcess[str]:
    here = str(Path(sys.executable).parent)
    cmake = shutil.which("cmake", path=os.pathsep.join([here, os.environ.get("PATH", "")]))
    script = ROOT / "source/check_kernel_symbols.cmake"
    return run(cmake, f"-DOBJECTS={made}", "-DNM=nm", "-P", script, check=False)


def test_kernels_share_no_weak_symbol(tmp_path):
    stray = "inline int stray(int x) { return x + 1; } namespace isa_v4 { int f(int x) { return stray(x); } }"
    result = check_kernel_symbols(compile_object(tmp_path, stray, "-c"))
    assert result.returncode != 0
    assert "symbols shared between instruction sets" in result.stderr
    assert "_Z5strayi" in result.stderr

    own = "namespace isa_v4 { inline int own(int x) { return x + 1; } int f(int x) { return own(x); } }"
    assert check_kernel_symbols(compile_object(tmp_path, own, "-c")).returncode == 0


ALL_OPS = """
import sys, torch, mdops
from mdops.testing import op_samples
results = {"isa": torch.ops.mdops.cpu_isa()}
for dtype in (torch.float32, torch.float64):
    for k, sample in enumerate(op_samples(dtype=dtype)):
        result = sample.function(*sample.args)
        result = result if isinstance(result, (list, tuple)) else (result,)
        clear = [r for n, r in enumerate(result) if n not in sample.opaque]
        results[f"{k}-{sample.op}-{dtype}"] = [
            t for r in clear for t in (r if isinstance(r, (list, tuple)) else [r])
        ]
torch.save(results, sys.argv[1])
"""


def all_ops(level: str | None, path: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run every op of the battery in a process that computes with one instruction set; None: the best."""
    env = {name: value for name, value in os.environ.items() if name != "MDOPS_CPU_ISA"}
    env |= {} if level is None else {"MDOPS_CPU_ISA": level}
    return python("-c", ALL_OPS, path, check=check, env=env)


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """Results with the best instruction set this processor has."""
    path = tmp_path_factory.mktemp("best") / "results.pt"
    all_ops(None, path)
    return torch.load(path)


def needs_x86(best):
    if best["isa"] not in LEVELS:
        pytest.skip("the processor is no x86-64: there are only the portable kernels")


@pytest.mark.parametrize("level", LEVELS)
def test_instruction_sets_agree(level, best, tmp_path):
    needs_x86(best)
    if level > best["isa"]:
        pytest.skip(f"the processor has x86-64-{best['isa']} at best, not x86-64-{level}")
    all_ops(level, tmp_path / "results.pt")
    forced = torch.load(tmp_path / "results.pt")
    assert forced.pop("isa") == level
    assert len(forced) > 20
    for name, tensors in forced.items():
        for got, want in zip(tensors, best[name], strict=True):
            if got.dtype.itemsize == 1 and got.is_floating_point():  # float8 is rounded in one way
                assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), name
            elif got.is_floating_point():
                scale = float(want.abs().max()) if want.numel() else 0.0
                tolerance = {
                    torch.float32: 5e-6,
                    torch.float64: 1e-13,
                    torch.bfloat16: 4e-3,
                    torch.float16: 5e-4,
                }
                coarse = torch.float32 if name.endswith("float32") else got.dtype
                torch.testing.assert_close(got, want, rtol=0, atol=scale * tolerance[coarse], msg=name)
            else:
                assert torch.equal(got, want), name


@pytest.mark.parametrize("level", ["v1", "avx2", "V3", "portable", "v4"])
def test_a_wrong_instruction_set_is_refused(level, best, tmp_path):
    needs_x86(best)
    if level == best["isa"]:
        pytest.skip(f"the processor has x86-64-{level}")
    result = all_ops(level, tmp_path / "results.pt", check=False)
    assert result.returncode == 1, "an exception, and no abort"
    assert (
        f"MDOPS_CPU_ISA={level} is not an instruction set of this processor, whose best is {best['isa']}"
        in result.stderr
    )


def test_one_wheel_for_every_python():
    wheel = distribution("mdops").read_text("WHEEL")
    (tag,) = re.findall(r"^Tag: (.*)$", wheel, re.MULTILINE)
    assert re.fullmatch(r"py3-none-(?!any)\w+", tag)
    assert "Root-Is-Purelib: false" in wheel


def test_importing_the_ops_imports_every_module_of_theirs():
    """A module that is not imported has registered no derivatives."""
    names = [f"mdops.ops.{path.stem}" for path in (ROOT / "mdops/ops").glob("[!_]*.py")]
    missing = f"import sys, mdops.ops; print([name for name in {names} if name not in sys.modules])"
    assert python("-c", missing, check=True).stdout.strip() == "[]"


def test_a_library_of_other_sources_is_told():
    with pytest.raises(LibraryError, match=r"libmdops\.so lacks the op no_such_op: .*Build it again"):
        register_fake("no_such_op")


@pytest.mark.skipif(not CUDA_LIBRARIES, reason="this mdops is built without CUDA")
def test_all_gpu_code_is_for_the_same_chips():
    """What is for another one a driver compiles when a process starts, which takes half a minute, and it may run it in
    the place of the same kernel of another source."""
    for library in CUDA_LIBRARIES:
        binaries = fat_binaries(library)
        assert binaries and len(set(binaries)) == 1, set(binaries)


def fat_binaries(library: Path) -> list[tuple[tuple[str, int], ...]]:
    """Of each source with GPU code what it has: PTX or machine code, and of which compute capability.

    nvcc writes a header of 16 bytes with a magic number, its own length and that of what follows, then pieces, each
    with its kind, lengths and, at byte 28, the capability.
    """
    line = next(x for x in run("readelf", "-SW", library).stdout.splitlines() if " .nv_fatbin " in x)
    offset, size = (int(x, 16) for x in line.split("PROGBITS")[1].split()[1:3])
    data = library.read_bytes()[offset : offset + size]
    at, found = 0, []
    while at + 16 <= len(data):
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != 0xBA55ED50:
            at += 8  # sections are aligned
            continue
        piece, end, pieces = at + header, at + header + length, []
        while piece < end:
            kind, _, header, length = struct.unpack_from("<HHIQ", data, piece)
            (capability,) = struct.unpack_from("<I", data, piece + 28)
            pieces.append(("PTX" if kind == 1 else "machine code", capability))
            piece += header + length
        found.append(tuple(sorted(pieces)))
        at = end
    return found
