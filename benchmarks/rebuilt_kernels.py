"""The gain of rebuilding kernels for a model and a machine (jit.md): steps with the prebuilt and with the rebuilt
kernels, in turn in one run, for untrained models of water's standard size, by their names in descriptors.py; or for a
model file and a system of its data, which is repeated until it has the requested number of atoms."""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ase import Atoms
from cuda_inference import listed, repeated, structure
from descriptors import elements_of, model_of
from machine import machine

import mdops
from mdops import Potential
from mdops.cli.sample_model import sample_model
from mdops.jit import kernels
from mdops.jit.sample_box import sample_box


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536])
    parser.add_argument(
        "--models",
        nargs="+",
        default=["se_e2_a"],
        choices=("se_e2_a", "radial", "concat", "strip", "many"),
        help="radial: se_e2_r; concat, strip, many: DPA-1 without attention, many of them with 20 elements",
    )
    parser.add_argument("--file", type=Path, help="a model file, in the place of --models")
    parser.add_argument("--system", type=Path, help="of --file: a folder of DeePMD-kit's data, with its box")
    parser.add_argument("--skin", type=float, default=0.0, help="of the neighbour lists, A")
    parser.add_argument("--activations", nargs="+", default=["tanh"])
    parser.add_argument(
        "--matmul", choices=("float32", "tf32", "bf16x6", "bf16x3", "bf16"), default="float32"
    )
    parser.add_argument(
        "--small", action="store_true", help="also a small net: 8-16-32, axis 4, fitting 32-32"
    )
    parser.add_argument(
        "--processor",
        action="store_true",
        help="the time of the processors in place of the clock's, for busy machines; on one thread of a CPU",
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    rows = []
    clock = time.process_time if args.processor else time.perf_counter
    sizes = ["standard", *(["small"] if args.small else [])]
    cases = itertools.product(args.models, args.activations, sizes)
    if args.file:
        cases = itertools.product([args.file.parent.name], ["its own"], ["its own"])
    for name, activation, size in cases:
        if size == "small" and name != "se_e2_a":
            continue
        if args.file:
            model = mdops.load(args.file, dtype=args.dtype, device=args.device, overflow="extend")
            unit = structure(model.type_map, folder=args.system)
        else:
            model = made(name, activation, size, getattr(torch, args.dtype)).to(args.device)
        model.use_matmul(args.matmul)
        entry = kernels.entry_for(model)
        kernels.install(model, entry)
        for atoms in args.atoms:
            box = repeated(unit, atoms) if args.file else sample_box(atoms, elements_of(name)[1])
            times = measure(model, entry.key, box, args.rounds, clock, args.skin)
            rows.append({"model": name, "net": f"{activation}, {size}", "atoms": len(box), **times})
            print(json.dumps(rows[-1]), flush=True)
    result = {
        "machine": machine(args.device), "device": args.device, "dtype": args.dtype, "matmul": args.matmul,
        "time": "processor" if args.processor else "clock", "skin": args.skin, "rows": rows,
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def made(name: str, activation: str, size: str, dtype: torch.dtype) -> Potential:
    """A model with splines for its dtype."""
    small = (30, 60), 5.0, (8, 16, 32), 4, (32, 32)
    model = sample_model(*small) if size == "small" else model_of(name, elements_of(name)[0])
    model.to(dtype).use_spline()
    set_activation(model, activation)
    return model


def set_activation(model: torch.nn.Module, name: str) -> None:
    """Sets that of the fitting nets; the results do not matter here."""
    for net in model.model.fitting.nets.nets:
        for layer in net.layers[:-1]:
            layer.activation_name = name


@torch.no_grad()
def measure(
    model: Potential, key: str, box: Atoms, rounds: int, clock: Callable[[], float], skin: float
) -> dict[str, float]:
    """Medians over rounds, us per atom, and the median ratio of consecutive measurements."""
    system, near = listed(model, [box], skin)
    atoms, evaluator = len(box), model.evaluator()
    step = {}
    for rebuilt in (False, True):
        kernels.use(model, key, rebuilt)
        step[rebuilt] = captured(evaluator, system, near) if model.device.type == "cuda" else None
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for rebuilt in (turn % 2 == 0, turn % 2 == 1):
            kernels.use(model, key, rebuilt)
            run = step[rebuilt] or (lambda: evaluator(system, near, check=False))
            run()
            synchronize(model)
            begin = clock()
            for _ in range(4):
                run()
            synchronize(model)
            times[rebuilt].append((clock() - begin) / 4)
    kernels.use(model, key, False)
    ratio = statistics.median(new / old for old, new in zip(times[False], times[True], strict=True))
    return {
        "prebuilt": round(1e6 * statistics.median(times[False]) / atoms, 4),
        "rebuilt": round(1e6 * statistics.median(times[True]) / atoms, 4),
        "ratio": round(ratio, 4),
    }


def captured(evaluator, system, near):
    """A step as a CUDA graph."""
    for _ in range(2):
        evaluator(system, near, check=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        evaluator(system, near, check=False)
    return graph.replay


def synchronize(model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


if __name__ == "__main__":
    main()
