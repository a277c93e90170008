"""Kernels do not know PyTorch: what does is a binding (docs/explanation/design.md)."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "source/op"
BINDINGS = ("cpu.cpp", "cuda.cu", "inputs.h", "matmul.h", "ops.h")  # of gemm
KERNELS = sorted(
    {
        *SOURCE.glob("*/cpu_[kl]*.cpp"),
        *SOURCE.glob("*/gpu_*.cu"),
        *(path for path in (SOURCE / "gemm").iterdir() if path.name not in BINDINGS),
    }
)


def included(path: Path, seen: dict[Path, Path]) -> dict[str, Path]:
    """What a file includes, through other files of the project, too: name -> by which of them."""
    names = {}
    for name in re.findall(r'#include [<"](.+?)[>"]', path.read_text()):
        names[name] = path
        own = SOURCE / name
        if own.exists() and own not in seen:
            seen[own] = path
            names |= included(own, seen)
    return names


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kernels_do_not_include_pytorch(path):
    for name, by in included(path, {}).items():
        assert not name.startswith(("torch/", "ATen/", "c10/")), f"{by.name} includes {name}"


def test_the_net_knows_no_descriptor():
    for path in sorted((SOURCE / "gemm").iterdir()):
        for name in included(path, {}):
            family = name.rpartition("/")[0]
            others = family not in ("", "common", "gemm", "linear") and (SOURCE / family).is_dir()
            assert not others, f"{path.name} includes {name}"
