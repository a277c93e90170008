"""What a GPU has, as kernels are told, without a GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_an_error_is_not_kept_and_launches_ask_for_nothing(tmp_path):
    program = tmp_path / "limits"
    folders = ["-I", str(HERE / "cuda_stub"), "-I", str(ROOT / "source/op")]
    source = HERE / "gpu_limits.cpp"
    subprocess.run(
        ["g++", "-std=c++20", "-DMDOPS_HOPPER", *folders, str(source), "-o", str(program)], check=True
    )
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert "CUDA does not run it on cuda:0: not ready" in said[0]
    assert said[1] == f"132 90 {227 << 10}"
    assert said[2] == "0", "launches look at the environment"
