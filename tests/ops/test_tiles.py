"""AMX's products where there is no AMX: their tiles emulated, their packing, splitting and indices as they are."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import mdops.ops  # noqa: F401  which names the ops

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++20", "-O2", "-w", "-march=x86-64-v4", "-mavx512bf16", "-I", str(ROOT / "source/op")]
AMX = ["-DMDOPS_ISA=isa_amx", "-DMDOPS_AMX", "-DMDOPS_TILES_EMULATED"]


@pytest.mark.skipif(not torch.ops.mdops.cpu_bf16(), reason="splitting takes AVX512-BF16")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_products_of_tiles_are_as_accurate_as_their_parts(tmp_path):
    """Of one part each factor is off by 2^-8 of it at most, of two by 2^-17, and without the product of both low parts
    by 2^-16 more; of three nothing is left but the rounding of sums."""
    sources = [ROOT / "source/op/gemm/bf16_kernel.cpp", Path(__file__).with_name("bf16_products.cpp")]
    program = tmp_path / "products"
    subprocess.run(["g++", *FLAGS, *AMX, *map(str, sources), "-o", str(program)], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    one, two, three = map(float, said.split())
    assert 2**-10 < one < 2 * 2**-8 + 2**-16
    assert 2**-18 < two < 2 * 2**-17 + 2**-16 + 2**-20
    assert three < 4 * 2**-24
