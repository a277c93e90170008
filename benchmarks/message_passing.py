"""Models that pass messages on a CPU: steps and training beside DeePMD-kit; for DPA-3 also ops beside their necessary
products.

    python benchmarks/message_passing.py --inputs examples/water [--model dpa3] [--atoms 192] [--clock process_time]
        [--deepmd PYTHON] [--training 192] [--memory 1536 [--at-once 384]] [--calls 12] [--json FILE]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository, whose input for the model gives the sizes.
`products` are only the products of an op, with torch.mm into preallocated outputs; `activation` is f of all its rows
with `layer_output`. The rest of an op is memory traffic and sums. All variants in turn; the smallest of many calls, for
steps the median. With `--clock process_time` and OMP_NUM_THREADS=1, it is the processor time of one thread, which
depends less on other programs. A training step is the average of ten; for DeePMD-kit it is from the difference of
processor time between trainings of one step and of eleven. `--memory` only measures how much a step with so many atoms
increases the process' memory, with the layers' edges and angles of all atoms, or of --at-once atoms at a time (for
dpa4, edges). `--calls` only prints the time of PyTorch's calls in a step, each the smallest in so many steps.
"""

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from beside_deepmd import DeePMDKit
from deepmd_examples import INPUTS, model_of
from machine import machine

from mdops import Potential
from mdops.jit.sample_box import sample_box
from mdops.models.dpa4.descriptor import DPA4
from mdops.models.graph import GraphDescriptor
from mdops.models.repflow import Edges
from mdops.ops import EdgeIndex
from mdops.ops.activation import kernel_code
from mdops.system import from_atoms
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer

OPS = torch.ops.mdops
_STEPS = 10  # number of training steps


def least(functions: dict[str, Callable[[], Any]], clock: str, calls: int) -> dict[str, float]:
    """Microseconds of a call of each."""
    now, found = getattr(time, clock), dict.fromkeys(functions, float("inf"))
    for turn in range(calls + 2):
        for name, function in functions.items():
            start = now()
            function()
            if turn > 1:
                found[name] = min(found[name], 1e6 * (now() - start))
    return found


def of_op(
    ends: tuple[EdgeIndex, EdgeIndex, torch.Tensor | None],
    widths: tuple[int, int, int],
    activation: str,
) -> dict[str, Callable[[], Any]]:
    """The passes of an op on such rows, and their lower bounds."""
    (first, second, groups), (inputs, sent, kept) = ends, widths
    rows, columns, code = first.nodes.shape[0], sent + kept, kernel_code(activation)
    firsts, seconds = (len(of.offsets) - 1 for of in (first, second))
    x, weight = torch.randn(rows, inputs), torch.randn(inputs, columns) / inputs**0.5
    p, q = torch.randn(firsts, columns), torch.randn(seconds, columns)
    given = x, weight, p, q, torch.rand(rows), torch.rand(kept)
    every = *given, first.nodes, first.offsets, *second, groups, *code
    grads = torch.randn(firsts, sent), torch.randn(rows, kept)
    z, by_x, none = torch.randn(rows, columns), torch.empty(rows, inputs), x.new_empty(rows, 0)

    def products(backward: bool) -> None:
        torch.mm(x, weight, out=z)
        if backward:
            torch.mm(z, weight.T, out=by_x)

    return {
        "products": lambda: products(False),
        "products backward": lambda: products(True),
        "activation": lambda: OPS.layer_output(z, none, *code),
        "forward": lambda: OPS.message(*every, "float32"),
        "backward": lambda: OPS.message_backward(*grads, *every, "float32", False),
        "backward by weights too": lambda: OPS.message_backward(*grads, *every, "float32", True),
        "second derivative": lambda: OPS.message_backward_backward(x, p, q, given[4], *grads, *every),
    }


def ops(potential: Potential, atoms: int, clock: str) -> dict[str, dict[str, float]]:
    """Times of a layer's two ops, us per atom."""
    (descriptor,) = potential.model.descriptors
    o, activation = descriptor.options.repflow, descriptor.options.activation_function
    system = from_atoms([sample_box(atoms, ["O", "H"])], potential.type_map)
    near = potential.evaluator().neighborhood(system, potential.neighbor_list(system))
    edges: Edges = descriptor.graph(near.select(descriptor.spec.sel, mixed=True))
    angles = edges.inner.angles
    along = {
        "edges": ((edges.graph.of_center, edges.graph.of_neighbor, None), (o.e_dim, o.n_dim, o.e_dim)),
        "angles": (
            (angles.of_first, angles.of_second, edges.inner.of_center.offsets),
            (o.a_dim, o.e_dim, o.a_dim),
        ),
    }
    found = {}
    for name, (ends, widths) in along.items():
        times = least(of_op(ends, widths, activation), clock, 20)
        found[name] = {"rows": ends[0].nodes.shape[0] / atoms, **{k: v / atoms for k, v in times.items()}}
    return found


def steps(potential: Potential, atoms: int, clock: str, python: str | None, rounds: int) -> dict[str, float]:
    """Energies, forces and virial with a given list, us per atom. Each step follows a step of the same program, as in a
    simulation, because the other program replaces the caches' contents."""
    box = sample_box(atoms, ["O", "H"])
    system = from_atoms([box], potential.type_map)
    evaluator, given = potential.evaluator(), potential.neighbor_list(system)
    now = getattr(time, clock)
    times: dict[str, list[float]] = {}

    @torch.no_grad()
    def own() -> float:
        start = now()
        evaluator(system, given, check=False)
        return 1e3 * (now() - start)

    with tempfile.TemporaryDirectory() as folder:
        other = None if python is None else DeePMDKit(python, potential, [box], Path(folder), clock)
        if other is not None:
            other.wait()
            other.warm_up()
        own()
        for _ in range(rounds):
            times.setdefault("mdops", []).append([own() for _ in range(2)][-1])
            if other is not None:
                times.setdefault("deepmd", []).append([other.milliseconds("step") for _ in range(2)][-1])
        if other is not None:
            other.end()
    return {name: 1e3 * statistics.median(values) / atoms for name, values in times.items()}


def memory(potential: Potential, atoms: int, at_once: int | None) -> dict[str, float]:
    """kB and processor microseconds per atom of the first step."""
    first, systems = (
        potential.evaluator(),
        [from_atoms([sample_box(n, ["O", "H"])], potential.type_map) for n in (24, atoms)],
    )
    lists = [potential.neighbor_list(system) for system in systems]
    with (
        torch.no_grad(),
        mock.patch.multiple(
            GraphDescriptor,
            _fills_memory=lambda *_: at_once is not None,
            _atoms_at_once=lambda *_: at_once,
        ),
        mock.patch.object(DPA4, "_edges_at_once", lambda _, vectors, atoms: at_once or len(vectors)),
    ):
        first(systems[0], lists[0], check=False)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before, start = _resident("VmRSS"), time.process_time()
        first(systems[1], lists[1], check=False)
    now = time.process_time()
    return {"kB/atom": (_resident("VmHWM") - before) / atoms, "us/atom": 1e6 * (now - start) / atoms}


def calls(potential: Potential, atoms: int, rounds: int) -> dict[str, tuple[float, int]]:
    """The operations in a step: us per atom of all calls with one name, and their number."""
    system = from_atoms([sample_box(atoms, ["O", "H"])], potential.type_map)
    evaluator, given = potential.evaluator(), potential.neighbor_list(system)
    least_of: dict[tuple[str, int], float] = {}
    for turn in range(rounds + 3):
        with (
            torch.no_grad(),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found,
        ):
            evaluator(system, given, check=False)
        seen: Counter[str] = Counter()
        for event in sorted(found.events() or (), key=lambda e: e.time_range.start) if turn > 2 else ():
            key = event.name, seen[event.name]
            seen[event.name] += 1
            least_of[key] = min(least_of.get(key, float("inf")), event.self_cpu_time_total)
    times: Counter[str] = Counter()
    for (name, _), value in least_of.items():
        times[name] += value / atoms  # type: ignore[assignment]
    return {name: (value, sum(key[0] == name for key in least_of)) for name, value in times.most_common()}


def _resident(name: str) -> int:
    """Memory in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def training(file: Path, atoms: int, python: str | None) -> dict[str, float]:
    """Processor seconds of a training step with one frame, of all threads: the average of `_STEPS`."""
    tree = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        _write_system(Path(folder), atoms)
        tree["training"] = {
            "training_data": {"systems": [folder], "batch_size": 1},
            "numb_steps": 1000,
            "disp_freq": 1000,
            "save_freq": 1000,
            "gradient_max_norm": 5.0,
            "seed": 10,
        }
        own = json.loads(json.dumps(tree))
        own["training"]["precision"] = "float32"
        trainer = Trainer(parse_config(own), Path(folder) / "own", device="cpu")
        trainer._advance()
        found = {"mdops": _processor_time(lambda: [trainer._advance() for _ in range(_STEPS)]) / _STEPS}
        if python is not None:
            one, more = (_of_deepmd(python, tree, count) for count in (1, 1 + _STEPS))
            found["deepmd"] = (more - one) / _STEPS
    return found


def _write_system(folder: Path, atoms: int) -> None:
    """Two frames of a box of water with made-up labels."""
    box, random = sample_box(atoms, ["O", "H"]), np.random.default_rng(1)
    (folder / "set.000").mkdir()
    np.savetxt(folder / "type.raw", (box.numbers == 1).astype(int), fmt="%d")
    (folder / "type_map.raw").write_text("O\nH\n")
    arrays = {
        "coord": box.positions,
        "box": box.cell.array,
        "energy": np.full(1, -atoms),
        "force": random.normal(size=(atoms, 3)),
    }
    for name, value in arrays.items():
        np.save(folder / f"set.000/{name}.npy", np.tile(value.reshape(1, -1), (2, 1)))


def _processor_time(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _of_deepmd(python: str, tree: dict[str, Any], count: int) -> float:
    """Processor seconds of a whole training with DeePMD-kit, with so many steps."""
    own = tree | {"training": tree["training"] | {"numb_steps": count, "disp_freq": 1}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "input.json").write_text(json.dumps(own))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [
            str(Path(python).absolute().parent / "dp"),
            "--pt",
            "train",
            "--skip-neighbor-stat",
            "input.json",
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--model", choices=("dpa2", "dpa2_medium", "dpa3", "dpa4"), default="dpa3")
    parser.add_argument("--atoms", type=int, default=192)
    parser.add_argument("--clock", choices=["perf_counter", "process_time"], default="perf_counter")
    parser.add_argument("--deepmd", help="a Python that has DeePMD-kit")
    parser.add_argument("--training", type=int, help="atoms of a frame that a training step has")
    parser.add_argument(
        "--memory", type=int, help="atoms of a step whose memory is measured; nothing else is"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        help="atoms (of dpa4 edges) whose edges and angles are there at once; all by default",
    )
    parser.add_argument("--calls", type=int, help="how many steps to profile; nothing else is measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    potential = model_of(args.model, args.inputs)
    if args.memory:
        print(memory(potential, args.memory, args.at_once))
        return
    if args.calls:
        found = calls(potential, args.atoms, args.calls)
        print(f"{sum(value for value, _ in found.values()):7.2f} us/atom")
        for name, (value, count) in found.items():
            print(f"{value:7.2f} {count:4d}x {name}")
        return
    results: dict[str, Any] = {"machine": machine(), "model": args.model}
    results |= {"clock": args.clock, "atoms": args.atoms}
    if args.model == "dpa3":
        results["ops, us/atom"] = ops(potential, args.atoms, args.clock)
    print(json.dumps(results, indent=1), flush=True)
    results["step, us/atom"] = steps(potential, args.atoms, args.clock, args.deepmd, args.rounds)
    print(results["step, us/atom"], flush=True)
    if args.training:
        results["training step, processor s"] = training(
            args.inputs / INPUTS[args.model], args.training, args.deepmd
        )
        print(results["training step, processor s"], flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
