"""Attention on the CPU: sequences of many lengths against padded attention, and DPA-1 against its matrix products.

    python benchmarks/attention.py [--model water_dpa1/model.dp] [--atoms 192 1536] [--deepmd PYTHON] [--out FILE]

All numbers in a line are medians from one process, which takes the variants in turn. If other programs use the machine,
times of several threads are meaningless; `--threads 1 --cpu-time` gives the processor time of one thread.

`sequences`: lengths uniform in 16 to 200, forward, and forward with backward, ms. `padded` is
scaled_dot_product_attention of tensors padded beforehand. `bare` is only the products, with torch.mm, one sequence at a
time. `dpa1`: energy and forces of a box of atoms, us per atom, for the model as it is and with smooth attention. Its
`bare` products are those of the layers (to q, k and v, q.k, p v, back, and all gradients by inputs) for the actual
neighbours. `training` is a step with a loss on energy and forces. With --deepmd, a Python with DeePMD-kit evaluates the
same boxes in the same turns.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine, parser_of

import mdops
from mdops.evaluators import Autograd
from mdops.jit.sample_box import sample_box
from mdops.ops import ragged_attention, ragged_plan
from mdops.system import from_atoms

PEER = """
import sys, time, numpy as np
from deepmd.infer import DeepPot
model = DeepPot(sys.argv[1])
for line in sys.stdin:
    box = np.load(line.strip())
    start = getattr(time, sys.argv[2])()
    model.eval(box["positions"][None], box["cell"][None], box["types"])
    print(getattr(time, sys.argv[2])() - start, flush=True)
"""
CLOCK = "perf_counter"  # a function of the module time


def medians(runs: dict[str, Callable[[], float | None]], rounds: int) -> dict[str, float]:
    """Median time of each, s, after a round that is not counted. If a run returns a time, that is used."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn, (name, run) in itertools.product(range(rounds + 1), runs.items()):
        start = getattr(time, CLOCK)()
        own = run()
        if turn:
            found[name].append(getattr(time, CLOCK)() - start if own is None else own)
    return {name: statistics.median(times) for name, times in found.items()}


def sequences(heads: int, width: int, count: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(16, 201, (count,), generator=generator)
    offsets = F.pad(lengths.cumsum(0), (1, 0)).int()
    total, longest = int(offsets[-1]), int(lengths.max())
    q, k, v, grad = (torch.randn(total, heads, width, generator=generator).to(dtype) for _ in range(4))
    plan = ragged_plan(offsets, max_total=total, max_batch=count, max_length=longest)

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(x.split(lengths.tolist()), batch_first=True).transpose(1, 2)

    boxes = [padded(x) for x in (q, k, v, grad)]
    mask = (torch.arange(longest) < lengths[:, None])[:, None, None]

    def ours(backward: bool) -> None:
        leaves = [x.requires_grad_(backward) for x in (q, k, v)]
        out = ragged_attention(*leaves, offsets, plan=plan)
        if backward:
            torch.autograd.grad(out, leaves, grad)

    def theirs(backward: bool) -> None:
        leaves = [x.requires_grad_(backward) for x in boxes[:3]]
        out = F.scaled_dot_product_attention(*leaves, attn_mask=mask)
        if backward:
            torch.autograd.grad(out, leaves, boxes[3])

    parts = [
        [x[:, h].detach().contiguous() for x in t.split(lengths.tolist()) for h in range(heads)]
        for t in (q, k, v)
    ]
    scores = [x @ y.T for x, y in zip(*parts[:2], strict=True)]

    def bare(backward: bool) -> None:
        for x, y, z, s in zip(*parts, scores, strict=True):
            torch.mm(x, y.T), torch.mm(s, z)
            if backward:
                torch.mm(x, z.T), torch.mm(s, y), torch.mm(s.T, x), torch.mm(s.T, z)

    line: dict[str, Any] = {"heads": heads, "width": width, "sequences": count, "dtype": str(dtype)}
    for name, backward in (("forward", False), ("both", True)):
        runs = {"mdops": ours, "padded": theirs, "bare": bare}
        times = medians({key: lambda f=f, b=backward: f(b) for key, f in runs.items()}, rounds)  # type: ignore[misc]
        line[name] = {key: round(1e3 * t, 2) for key, t in times.items()}
        line[name] |= {f"to {key}": round(times["mdops"] / times[key], 2) for key in ("padded", "bare")}
    return line


def bare_layers(counts: torch.Tensor, features: int, width: int, layers: int) -> Callable[[], None]:
    """The products for energy and forces in the attention layers, in runs of atoms, as in hand-written code."""
    runs = [c.tolist() for c in counts.split(64)]
    most = max(sum(c) for c in runs)
    g, q, o = (torch.randn(most, n) for n in (features, 3 * width, width))
    project, out = torch.randn(features, 3 * width), torch.randn(width, features)
    longest = int(counts.max())
    x, scores = torch.randn(longest, width), torch.randn(longest, longest)

    def run() -> None:
        for _ in range(layers):
            for c in runs:
                e = sum(c)
                (
                    torch.mm(g[:e], project),
                    torch.mm(o[:e], out),
                    torch.mm(q[:e], project.T),
                    torch.mm(g[:e], out.T),
                )
                for n in c:
                    y, s = x[:n], scores[:n, :n]
                    (
                        torch.mm(y, y.T),
                        torch.mm(s, y),
                        torch.mm(y, y.T),
                        torch.mm(s, y),
                        torch.mm(s.T, y),
                        torch.mm(s.T, y),
                    )

    return run


class Peer:
    """DeePMD-kit in its own process, with the same number of threads; it evaluates on request."""

    def __init__(self, python: str, model: Path, folder: Path) -> None:
        script, frozen = folder / "peer.py", folder / f"{model.stem}.pth"
        script.write_text(PEER)
        subprocess.run([str(Path(python).parent / "dp"), "convert-backend", str(model), str(frozen)], check=True,
                       capture_output=True)  # fmt: skip
        threads = str(torch.get_num_threads())
        env = {
            "OMP_NUM_THREADS": threads,
            "DP_INTRA_OP_PARALLELISM_THREADS": threads,
            "PATH": "/usr/bin:/bin",
        }
        self.process = subprocess.Popen(
            [python, str(script), str(frozen), CLOCK],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
        )  # fmt: skip

    def __call__(self, box: Path) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{box}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def dpa1(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for smooth in (False, True):
            potential = mdops.load(arguments.model, dtype="float32", overflow="extend")
            potential.model.descriptor.options.smooth_type_embedding = smooth
            model = folder / ("smooth.dp" if smooth else "rough.dp")
            potential.save(model)
            peer = Peer(arguments.deepmd, model, folder) if arguments.deepmd else None
            for atoms in arguments.atoms:
                lines.append(one_box(potential, smooth, atoms, peer, folder, arguments.rounds))
                print(lines[-1], flush=True)
            if peer:
                peer.process.terminate()
    return lines


def one_box(
    potential: mdops.Potential, smooth: bool, atoms: int, peer: Peer | None, folder: Path, rounds: int
) -> dict[str, Any]:
    box = sample_box(atoms, potential.type_map)
    system = from_atoms([box], potential.type_map, "cpu")
    pairs = potential.neighbor_list(system)
    counts = pairs.counts.sum(1)
    descriptor = potential.model.descriptor
    options = descriptor.options
    file = folder / f"{atoms}.npz"
    np.savez(
        file, positions=box.positions.reshape(-1), cell=box.cell.array.reshape(-1), types=system.types.numpy()
    )

    def evaluate() -> None:
        potential.evaluate(system)

    runs: dict[str, Callable[[], float | None]] = {
        "mdops": evaluate,
        "bare": bare_layers(counts, descriptor.channels, options.attn, options.attn_layer),
    }
    autograd = Autograd(potential)

    def train() -> None:
        answers, _ = autograd(system, pairs, check=False, create_graph=True)
        (answers["forces"].square().sum() + answers["atom_energy"].sum()).backward()
        potential.zero_grad()

    if atoms < 1000:
        runs["training"] = train
    if peer:
        runs["deepmd"] = lambda: peer(file)
    times = medians(runs, rounds)
    line = {"smooth": smooth, "atoms": atoms, "neighbors": round(counts.float().mean().item(), 1)}
    line |= {f"{key}_us_per_atom": round(1e6 * t / atoms, 1) for key, t in times.items()}
    line["to bare"] = round(times["mdops"] / times["bare"], 2)
    if "training" in times:
        line["training to bare"] = round(times["training"] / times["bare"], 2)
    if peer:
        line["deepmd to mdops"] = round(times["deepmd"] / times["mdops"], 1)
    return line


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536])
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--deepmd", help="a Python that has DeePMD-kit with PyTorch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="PyTorch's own number unless given")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cpu-time", action="store_true", help="the processor's time, not the clock's")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        global CLOCK
        CLOCK = "process_time"
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {"machine": machine(), "command": " ".join(sys.argv[1:]), "sequences": []}
    for heads, width in ((4, 64), (1, 128)):
        for dtype in (torch.float32, torch.bfloat16):
            result["sequences"].append(sequences(heads, width, arguments.sequences, dtype, arguments.rounds))
            print(result["sequences"][-1], flush=True)
    if arguments.model:
        result["dpa1"] = dpa1(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
