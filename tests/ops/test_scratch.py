"""Memory that ops use on the way is given back when they are done."""

import itertools
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from children import python
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
    args[14], args[25], args[26] = [*net, *net], [neurons] * layers, [0] * layers
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


MANY_THREADS = """
import resource
import torch
from mdops.testing import op_samples

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

sample = next(s for s in op_samples("cpu", torch.float32) if s.op == "spline_potential")
sides = 60, 60, 56
atoms = 60 * 60 * 56
number = torch.randperm(atoms, generator=torch.manual_seed(0)) if {shuffled} else torch.arange(atoms)
grid = number.reshape(sides)
place = torch.stack(torch.meshgrid(*map(torch.arange, sides), indexing="ij"), -1).reshape(-1, 3)
near = torch.stack([grid.roll(step, axis).flatten() for axis in range(3) for step in (1, -1)], 1)
of_number = number.argsort()
args = list(sample.args)
args[0] = place[of_number].double()
args[1] = {cell} * torch.diag(torch.tensor(sides, dtype=torch.float64))[None]
args[2], args[3] = torch.zeros(atoms, dtype=torch.int32), place[of_number].sum(1).int() % 2
args[4], args[5] = near[of_number].int(), torch.zeros(atoms, 6, dtype=torch.int32)
args[6] = 6 * torch.nn.functional.one_hot(1 - args[3].long(), 2).int()
args[15] = torch.zeros(atoms, args[15].shape[1], dtype=torch.float32)
torch.set_num_threads({threads})
sample.function(*[a[:64] if torch.is_tensor(a) and len(a) == atoms else a for a in args[:4]],
                args[4][:64].clamp(max=63), *[a[:64] for a in args[5:7]], *args[7:15], args[15][:64], *args[16:])
before = peak()
results = sample.function(*args)
print(peak() - before - sum(r.numel() * r.element_size() for r in results), results[1].abs().sum().item())
"""


@pytest.mark.parametrize(
    ("threads", "shuffled", "cell"), [(1, True, 1), (16, False, 1), (16, True, 1), (16, True, 0)]
)
def test_a_step_on_many_threads_takes_little_more_memory(threads, shuffled, cell):
    """Forces and virials of all atoms once, and those of neighbours of other threads' atoms: not of all once a thread,
    which was 200 MB here, however the atoms are numbered."""
    text = MANY_THREADS
    for name, value in {"threads": threads, "shuffled": shuffled, "cell": cell}.items():
        text = text.replace(f"{{{name}}}", str(value))
    used, _ = python("-c", text, check=True).stdout.split()
    assert int(used) < 45e6
