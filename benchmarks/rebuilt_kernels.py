"""What rebuilding kernels for a model and a machine saves (docs/jit.md): steps of water's standard net by the prebuilt
and by the rebuilt kernels, in turns of one run."""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from machine import machine

from mdops.cli.sample_model import sample_box, sample_model, water_model
from mdops.jit import kernels
from mdops.system import from_atoms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536])
    parser.add_argument("--activations", nargs="+", default=["tanh"])
    parser.add_argument(
        "--small", action="store_true", help="also a small net: 8-16-32, axis 4, fitting 32-32"
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    dtype = getattr(torch, args.dtype)
    models = {name: (lambda: water_model(dtype)) for name in args.activations}
    if args.small:
        models["tanh, small"] = lambda: sample_model((30, 60), 5.0, (8, 16, 32), 4, (32, 32), dtype)
    rows = []
    for name, make in models.items():
        model = make().to(args.device)
        if model.grid is None:
            model.use_spline()
        set_activation(model, name.partition(",")[0])
        entry = kernels.entry_for(model)
        kernels.install(model, entry)
        for atoms in args.atoms:
            times = measure(model, entry.key, atoms, args.rounds)
            rows.append({"net": name, "atoms": atoms, **times})
            print(json.dumps(rows[-1]), flush=True)
    result = {
        "machine": machine(args.device), "device": args.device, "dtype": args.dtype, "rows": rows
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def set_activation(model: torch.nn.Module, name: str) -> None:
    """Of the fitting nets; what they answer does not matter here."""
    for kind in range(len(model.type_map)):
        for layer in model.model.fitting.net(kind).layers[:-1]:
            layer.activation_name = name


@torch.no_grad()
def measure(model, key: str, atoms: int, rounds: int) -> dict[str, float]:
    """Medians over rounds, us an atom, and the median ratio of neighbours in time."""
    system = from_atoms([sample_box(atoms, model.type_map)], model.type_map, model.device)
    near, evaluator = model.neighbor_list(system), model.evaluator()
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
            begin = time.perf_counter()
            for _ in range(4):
                run()
            synchronize(model)
            times[rebuilt].append((time.perf_counter() - begin) / 4)
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
