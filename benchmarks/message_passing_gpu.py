"""Steps of models that pass messages on a GPU: energy, forces and virial of boxes of water, kernel by kernel.

    python benchmarks/message_passing_gpu.py --inputs examples/water --system deepmd_folder
        [--model dpa3] [--options '{"repflow": {"nlayers": 3}}' ...] [--matmul tf32] [--atoms 192 1536 12288 98304]
        [--no-kernels] [--engine] [--eager] [--check] [--training] [--json FILE] [--commit HASH]

`--inputs` is the folder `examples/water` of DeePMD-kit's repository. The sizes are those of its input for the model
(dpa2, dpa2_medium, dpa3, dpa4; dpa4_wide: dpa4 with four blocks of degree 3 and 64 channels; dpa4_groups: with two
groups of channels), with random weights. `--options` has options of the descriptor that replace those of the input;
each of these objects is measured separately. `--system` is a folder of its data, whose first frame is repeated. A step
has a given neighbour list with a skin of 1 A, and is the replay of a CUDA graph, the median of ten runs. --engine also
times an NVE step in the engine, which rebuilds its list. --eager uses `Potential.compute` instead of graphs, the second
of two calls, for boxes whose atoms are computed in parts. --check compares with float64, for the products of --matmul.
--training: a step on one frame of that system (docs/notes/message-passing-gpu.md).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from cuda_inference import SKIN, kernels, listed, milliseconds, repeated, structure
from deepmd_examples import INPUTS, SIZES, changed, model_of
from machine import machine

from mdops import Potential
from mdops.md import Engine, EnsembleSettings
from mdops.md.motion import set_velocities
from mdops.models.neighborhood import Neighborhood
from mdops.ops import NeighborList
from mdops.system import System
from mdops.tracing import capturing
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer


def with_room(potential: Potential, system: System, pairs: NeighborList) -> NeighborList:
    model = potential.model
    near = Neighborhood.of(system, pairs, model.cutoff, model.dtype)
    sizes = model.graph_sizes(near.report(model.neighbors).within)
    if sizes is None:  # the model passes no messages
        return pairs
    edges, angles, inner = sizes.sum(0).tolist()
    return pairs._replace(graph_room=(edges, angles, inner))


@torch.no_grad()
def step(potential: Potential, box: Atoms, *, profiled: bool) -> dict[str, Any]:
    evaluator = potential.evaluator()
    system, pairs = listed(potential, [box], SKIN)
    system.find_atoms_by_type(len(potential.type_map))
    pairs = with_room(potential, system, pairs)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.reset_peak_memory_stats()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        evaluator(system, pairs, check=False)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    once = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.empty_cache()
    with capturing(graph, stream=stream):
        evaluator(system, pairs, check=False)
    graph.replay()
    ms, spread = milliseconds(graph, max(1, min(20, 20_000 // len(box))))
    found = {
        "atoms": system.atoms,
        "edges, angles, edges of angles": pairs.graph_room,
        "ms": ms,
        "us_per_atom": 1e3 * ms / system.atoms,
        "spread": spread,
        "GiB": once,
    }
    return found | ({"kernels_us": kernels(graph)} if profiled else {})


def engine_step(
    potential: Potential, box: Atoms, *, atom_virial: bool = False, steps: int = 40
) -> dict[str, float]:
    """Milliseconds of an NVE step, with rebuilds of lists, in runs of so many steps, which capture graphs anew."""
    physics, box = EnsembleSettings("nve", 300, 0.5), box.copy()
    set_velocities(box, physics, np.random.default_rng(0), anew=True)
    engine = Engine(box, potential, physics, atom_virial=atom_virial)
    list(engine.run(40))
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        list(engine.run(steps))
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return {"engine_ms": statistics.median(times), "repeats": engine.repeats, "builds": engine.builds}


def eager_step(potential: Potential, box: Atoms) -> dict[str, float]:
    """Time of a call that makes its list, without CUDA graphs."""
    torch.cuda.reset_peak_memory_stats()
    potential.compute(box)
    start = time.perf_counter()
    potential.compute(box)
    ms = 1e3 * (time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return {"atoms": len(box), "ms": ms, "us_per_atom": 1e3 * ms / len(box), "GiB": memory}


def check(make: Callable[[], Potential], box: Atoms, matmul: str) -> dict[str, float]:
    """Differences of float32 from float64, relative to the largest force, and in eV per atom."""
    found = []
    for dtype in (torch.float32, torch.float64):
        potential = make().to("cuda").to(dtype)
        if dtype == torch.float32:
            potential.use_matmul(matmul)
        found.append(potential.compute(box))
    one, two = found
    most = np.abs(two["forces"]).max()
    return {
        "forces": float(np.abs(one["forces"] - two["forces"]).max() / most),
        "energy_eV_per_atom": float(np.abs(one["energy"] - two["energy"]).max() / len(box)),
        "virial": float(np.abs(one["virial"] - two["virial"]).max() / np.abs(two["virial"]).max()),
    }


def training_step(
    name: str, options: dict[str, Any], inputs: Path, system: Path, *, count: int = 60
) -> dict[str, Any]:
    """Milliseconds of a step on one frame, after steps that are not timed."""
    tree = json.loads((inputs / INPUTS[name]).read_text())
    tree["model"]["descriptor"] = changed(tree["model"]["descriptor"] | SIZES.get(name, {}), options)
    tree["training"] |= {"training_data": {"systems": [str(system)], "batch_size": 1}, "numb_steps": 10**6}
    for unused in ("validation_data", "stat_file"):
        tree["training"].pop(unused, None)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(parse_config(tree), folder, device="cuda")
        for _ in range(count // 2):
            trainer._advance()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count // 5):
                trainer.branches[""].step(trainer.frames.share(0, trainer.processes), 1e-9, 1.0)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start) / (count // 5))
        return {
            "ms": statistics.median(times),
            "GiB": torch.cuda.max_memory_allocated() / 2**30,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--system", type=Path, required=True)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536, 12288])
    parser.add_argument(
        "--model",
        choices=("dpa2", "dpa2_medium", "dpa3", "dpa4", "dpa4_wide", "dpa4_groups"),
        default="dpa3",
    )
    parser.add_argument("--options", nargs="+", default=["{}"], help="of the descriptor, as JSON")
    parser.add_argument("--no-kernels", dest="kernels", action="store_false", help="do not list kernels")
    parser.add_argument("--matmul", default="float32", help="the accuracy of products")
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--eager", action="store_true", help="outside of CUDA graphs")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--commit", help="of the measured source, recorded as it is")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    for given in args.options:
        results.append(measure(args, json.loads(given)))
        if args.json:
            found = results if len(results) > 1 else results[0]
            args.json.write_text(json.dumps(found, indent=1) + "\n")


def measure(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {
        "machine": machine("cuda", args.commit),
        "model": args.model,
        "matmul": args.matmul,
    }
    if options:
        results["options"] = options
        print(options)
    results["steps"] = []
    unit = structure(["O", "H"], folder=args.system)
    make = partial(model_of, args.model, args.inputs, **options)
    if args.check:
        results[f"{args.matmul} beside float64, {len(unit)} atoms"] = check(make, unit, args.matmul)
        print(results, flush=True)
    if args.training:
        given = args.model, options, args.inputs, args.system
        results["training step, one frame"] = training_step(*given)
        print(results, flush=True)
    potential = make().to("cuda")
    potential.use_matmul(args.matmul)
    for atoms in args.atoms:
        box = repeated(unit, atoms)
        try:
            row = eager_step(potential, box) if args.eager else step(potential, box, profiled=args.kernels)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(f"{atoms} atoms: {str(error)[:200]}")
            continue
        if args.engine and atoms < 20_000:
            row |= engine_step(potential, box)
        print({name: value for name, value in row.items() if name != "kernels_us"}, flush=True)
        for name, us in list(row.get("kernels_us", {}).items())[:30]:
            print(f"  {us:10.1f} us  {100 * us / sum(row['kernels_us'].values()):5.1f}%  {name[:100]}")
        results["steps"].append(row)
        torch.cuda.empty_cache()
    return results


if __name__ == "__main__":
    main()
