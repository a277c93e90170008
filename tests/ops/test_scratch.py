"""Memory that ops use on the way is given back when they are done."""

import itertools
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from op_cases import samples

HERE, OP = Path(__file__).parent, Path(__file__).parents[2] / "source/op"


def resident() -> int:
    """Bytes of the process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_large_training_step_gives_its_memory_back():
    sample = next(s for s in samples("cpu") if s.op == "spline_training")
    atoms, neurons, layers = 16000, 240, 3
    args = list(sample.args)
    args[0] = torch.zeros(atoms, 3, dtype=torch.float64)
    args[2] = torch.zeros(atoms, dtype=torch.int32)
    args[3] = torch.arange(atoms, dtype=torch.int32) % 2
    args[4] = args[5] = torch.empty(atoms, 0, dtype=torch.int32)
    args[6] = torch.zeros(atoms, 2, dtype=torch.int32)
    args[15] = torch.rand(atoms, 1, dtype=torch.float64)
    sizes = [args[14][0].shape[0], *[neurons] * layers, 1]
    net = []
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        net += [
            torch.rand(inputs, outputs, dtype=torch.float64) / inputs,
            torch.zeros(outputs, dtype=torch.float64),
        ]
        net += [torch.ones(outputs, dtype=torch.float64)] if k < layers else []
    args[14], args[24], args[25] = [*net, *net], [neurons] * layers, [0] * layers
    before = resident()
    results = sample.function(*args)
    grads = [torch.ones_like(r) for r in results[:3]]
    backward = torch.ops.mdops.spline_training_backward(*grads, results[5], *args)
    during = resident()
    del results, grads, backward
    work = atoms * 2 * layers * neurons * 8  # bytes: tangents and adjoints of the layers alone
    assert during - before > work  # the step is as large as this test takes it to be
    assert resident() - before < work / 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_thread_keeps_little_whatever_it_does(tmp_path):
    """Four ops that take 24 MiB each leave what one of them took; what a thread works in stays."""
    program = tmp_path / "scratch"
    sources = [str(HERE / "scratch.cpp"), str(OP / "common/op.cpp")]
    subprocess.run(["g++", "-std=c++20", "-O1", "-I", str(OP), *sources, "-o", str(program)], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    kept, is_kept, last, at_end = map(int, said)
    assert kept < 40
    assert is_kept, "small scratch is allocated in every call"
    assert last == 7
    assert at_end < 40
