"""The CUDA library that a wheel lacks: how it is built, and that it is found."""

import os
import re
from pathlib import Path

import pytest
import torch
from children import python
from recipes import tiny

from mdops.cli import main
from mdops.files import cuda_library as files
from mdops.files import package
from mdops.jit import JitError, builder, cuda_library, toolchain

ROOT = Path(__file__).parents[2]
WITHOUT = """
# The package's folders without its CUDA library, and a PyTorch that says it has CUDA.
import torch
torch.version.cuda = "13.0"
import pathlib
exists = pathlib.Path.exists
pathlib.Path.exists = lambda path: path.name != "libmdops_cuda.so" and exists(path)
import mdops.ops
from mdops import _library
print(_library._cuda_failure)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A compiler's answers, and an empty cache."""
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    nvcc = toolchain.Tool("nvcc", "an nvcc of the tests")
    monkeypatch.setattr(cuda_library.toolchain, "cuda_compiler", lambda: nvcc)


def test_the_recipe_is_that_of_the_build(stand_in):
    made = cuda_library.cuda_recipe(["sm_80", "sm_90"])
    op = ROOT / "source/op"
    sources = {str(p.relative_to(op)) for p in op.glob("*/*.cu") if p.name != "rebuilt.cu"}
    build = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "source/cuda.cmake").read_text()
    (of_the_cpu,) = re.findall(r'list\(FILTER COMMON_SOURCES EXCLUDE REGEX "/\(([^)]*)\)', build)
    common = {p.stem for p in (ROOT / "source/op/common").glob("*.cpp")} - set(of_the_cpu.split("|"))
    assert set(made.sources) == sources | {f"common/{name}.cpp" for name in common}
    for define in cuda_library._DEFINES:
        assert define.removeprefix("-D") in build
    told = re.findall(
        r"set_source_files_properties\((source/[^)]*) PROPERTIES COMPILE_OPTIONS (--\S+)\)", build
    )
    flags = {source: (flag,) for files, flag in told for source in files.split()}
    of_ops = {
        source.removeprefix("source/op/"): f for source, f in flags.items() if source.startswith("source/op/")
    }
    assert of_ops == made.flags_of
    assert made.target == "sm_80+sm_90" and "-DMDOPS_HOPPER" in made.flags
    assert f"of_source = {made.flags_of['neighbor/cuda.cu'][0]}" in builder.ninja_file(made)


def cached(folder, target, *, own=True):
    """An entry of the cache as of a CUDA library for these chips, of the package's sources or of others."""
    wanted = cuda_library.cuda_recipe(["sm_90"])
    made = tiny(folder / target, name="mdops_cuda", about=wanted.about, target=target)
    entry = builder.entry_of(made)
    if own:
        told = entry.path.with_name("entry.json")
        digest = package.sources_digest(package.source_folder(), wanted.sources)
        told.write_text(told.read_text().replace(entry.configuration["sources"], digest))
    return entry.path


def test_a_library_in_the_cache_is_found(stand_in, tmp_path):
    assert files.cached_cuda_library() is None
    cached(tmp_path, "sm_80", own=False)
    assert files.cached_cuda_library() is None, "it is of other sources"
    path = cached(tmp_path, "sm_90")
    assert files.cached_cuda_library() == path


def test_the_library_for_the_gpus_that_are_here_is_taken(stand_in, tmp_path, monkeypatch):
    made = {}
    for age, target in enumerate(["sm_80+sm_90", "sm_80", "sm_90"]):
        made[target] = cached(tmp_path, target)
        os.utime(made[target], (age, age))

    def taken(*gpus):
        monkeypatch.setattr(files, "_capabilities", lambda: list(gpus))
        return files.cached_cuda_library()

    assert taken((8, 0)) == taken((8, 6)) == made["sm_80"], "the newest is for another chip"
    assert taken((9, 0)) == made["sm_90"]
    assert taken((8, 0), (9, 0)) == made["sm_80+sm_90"]
    assert taken((12, 0)) is None, "none has code for it"
    assert taken() == made["sm_90"], "there is no GPU to choose by"


@pytest.mark.gpu
def test_the_gpus_are_those_that_cuda_has():
    asked = [torch.cuda.get_device_capability(k) for k in range(torch.cuda.device_count())]
    assert set(asked) <= set(files._capabilities())


def test_no_gpu_to_build_for_is_an_error(stand_in, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(JitError, match=r"no GPU to build for: name its architecture, as --arch sm_90"):
        cuda_library.build_cuda_library()


def test_the_command_leaves_a_package_with_cuda_alone(stand_in, monkeypatch, capsys):
    from mdops import _library

    monkeypatch.setattr(_library, "library_path", lambda name: Path("/there") / name)
    assert main(["build", "--cuda"]) == 0
    assert "this mdops already has a CUDA library: /there/libmdops_cuda.so" in capsys.readouterr().out


def test_a_package_without_its_cuda_library_imports():
    done = python("-c", WITHOUT, check=True)
    assert "this mdops was built without CUDA: `mdops build --cuda`" in done.stdout
