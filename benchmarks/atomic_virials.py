"""The cost of atomic virials: steps with and without them, in turn in one process.

python benchmarks/atomic_virials.py [MODEL ...] [--inputs examples/water] [--atoms 192 1536] [--device cpu]
    [--dtype float32] [--rounds 31] [--engine] [--check] [--out FILE]

A MODEL is a file, or with `--inputs`, the folder of DeePMD-kit's repository, one of its examples (dpa2, dpa3, dpa4)
in float32. Without one: the standard net for water. On a GPU, replays of CUDA graphs: if the model passes messages,
with room for a sixteenth more ghosts than there are, listed beforehand. The ratio is the median over rounds of the
ratios of consecutive measurements. --engine also times NVE steps with both, with their lists. --check gives
the differences of a graph's answers from those of a step that is no graph, in parts of the largest number.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from deepmd_examples import model_of
from machine import machine
from message_passing_gpu import engine_step, with_room

import mdops
from mdops.cli.sample_model import water_model
from mdops.evaluators.context import Answers
from mdops.jit.sample_box import sample_box
from mdops.models.force_moments import ghosts_of
from mdops.models.neighborhood import NeighborReport
from mdops.ops import NeighborList
from mdops.system import from_atoms
from mdops.tracing import capturing


def with_ghosts(pairs: NeighborList) -> tuple[NeighborList, int]:
    """The list with room for more ghosts than there are, as in the engine, and their number."""
    count = int(ghosts_of(pairs, paired=False)[1])
    ghosts, _ = ghosts_of(pairs, paired=False, room=count * 17 // 16 + 64)
    return pairs._replace(ghosts=ghosts), count


Run = Callable[[], tuple[Answers, NeighborReport]]


def captured(run: Run) -> Run:
    """`run` as a replay of a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, stream=stream):
        answers = run()

    def replay() -> tuple[Answers, NeighborReport]:
        graph.replay()
        return answers

    return replay


def seconds(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure(
    potential: mdops.Potential, atoms: int, rounds: int, *, engine: bool, check: bool
) -> dict[str, object]:
    box = sample_box(atoms, potential.type_map)
    system = from_atoms([box], potential.type_map, potential.device)
    system.find_atoms_by_type(len(potential.type_map))
    pairs, evaluator = potential.neighbor_list(system), potential.evaluator()
    on_gpu, more = potential.device.type == "cuda", {}
    roomy = with_room(potential, system, pairs) if on_gpu else pairs
    lists = {False: roomy, True: roomy}
    if potential.reach > 1:
        lists[True], more["ghosts"] = with_ghosts(roomy)
    runs: dict[bool, Run] = {
        asked: torch.no_grad()(partial(evaluator, system, own, check=False, atom_virial=asked))
        for asked, own in lists.items()
    }
    runs = {asked: captured(run) if on_gpu else run for asked, run in runs.items()}
    if check:
        with torch.no_grad():
            own, _ = evaluator(system, pairs, check=False, atom_virial=True)
        differ = {name: (value - own[name]).abs().max() for name, value in runs[True]()[0].items()}
        more["differences"] = {name: float(most / own[name].abs().max()) for name, most in differ.items()}
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds + 1):
        for asked, run in runs.items():
            times[asked].append(seconds(run, 20 if on_gpu else 1))
    plain, with_them = times[False][1:], times[True][1:]
    found = {
        "atoms": system.atoms,
        "us_per_atom": round(1e6 * statistics.median(plain) / system.atoms, 4),
        "with_virials": round(1e6 * statistics.median(with_them) / system.atoms, 4),
        "ratio": round(statistics.median(b / a for a, b in zip(plain, with_them, strict=True)), 3),
    }
    found |= more
    if engine:
        for asked, name in ((False, "engine_us_per_atom"), (True, "engine_with_virials")):
            ms = engine_step(potential, box, atom_virial=asked, steps=200)["engine_ms"]
            found[name] = round(1e3 * ms / system.atoms, 4)
    print(evaluator.name, found, flush=True)
    return {"evaluator": evaluator.name, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    options = {"device": args.device, "dtype": args.dtype}
    rows = []
    for name in args.models or ["water"]:
        if args.inputs:
            potential = model_of(name, args.inputs).to(args.device)
        elif args.models:
            potential = mdops.load(name, overflow="extend", **options)
        else:
            potential = water_model(getattr(torch, args.dtype)).to(args.device)
        asked = {"engine": args.engine, "check": args.check}
        rows += [{"model": name, **measure(potential, atoms, args.rounds, **asked)} for atoms in args.atoms]
    if args.out:
        result = {"machine": machine(args.device), "dtype": args.dtype, "steps": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
