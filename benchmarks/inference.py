"""Time of an MD step on the CPU, against its matrix products alone and, if installed, DeePMD-kit.

    python benchmarks/inference.py [--model model.dp] [--deepmd model.pth] [--atoms 192 1536 12288 98304]
                                   [--json FILE] [--plot FILE]

`step` is energy, forces and virial of a periodic box at 300 K and 0.5 fs, with rebuilds of the neighbour list (skin
1 A); positions follow thermal velocities. `gemm` is only the step's matrix products, with torch.mm into
preallocated outputs: moments with 77 spline functions, the fitting net forward and its transposes, in blocks of
512 atoms that stay in cache. Both are taken in turn, so that a busy machine slows them equally; compare the
ratio. `deepmd` is the same walk with DeePMD-kit's ASE calculator, in an environment with both programs: give it the
same model, frozen or compressed. Without --model: the standard net for water (25-50-100, axis 16, fitting 240-240-240,
6 A), untrained.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from machine import machine

import mdops
from mdops import Potential
from mdops.calculator import MDOps
from mdops.cli.sample_model import water_model
from mdops.jit.sample_box import sample_box

TIMESTEP, TEMPERATURE, SKIN = 0.5, 300.0, 1.0  # fs, K, A
BLOCK, BASIS = 512, 77
REBUILD = 20  # steps after which the walk turns round; a list lasts about as long


def stepper(atoms: Atoms) -> Callable[[], None]:
    """A function that moves the atoms along thermal velocities for one step and computes the forces."""
    speed = np.sqrt(units.kB * TEMPERATURE / atoms.get_masses())[:, None]
    move = speed * np.random.default_rng(0).standard_normal((len(atoms), 3)) * TIMESTEP * units.fs
    taken = 0

    def step() -> None:
        nonlocal taken
        atoms.positions += move if taken // REBUILD % 2 == 0 else -move
        taken += 1
        atoms.get_forces()

    return step


def gemms(model: Potential, atoms: int) -> Callable[[], None]:
    """The step's matrix products for `atoms` atoms, block by block."""
    d, hidden = model.model.descriptor, [layer.outputs for layer in model.model.fitting.net(0).layers[:-1]]
    n, dtype = min(BLOCK, atoms), model.dtype
    rows = len(model.type_map) * BASIS
    shapes = [(4 * n, rows, d.channels), (4 * n, d.channels, rows)]
    widths = [d.channels * d.axis_neuron, *hidden]
    for a, b in zip(widths, hidden, strict=False):
        shapes += [(n, a, b), (n, b, a)]
    products = [
        (torch.rand(m, k, dtype=dtype), torch.rand(k, c, dtype=dtype), torch.empty(m, c, dtype=dtype))
        for m, k, c in shapes
    ]

    def run() -> None:
        for _ in range(max(1, round(atoms / n))):
            for a, b, out in products:
                torch.mm(a, b, out=out)

    return run


def seconds_each(functions: dict[str, tuple[Callable[[], None], int]], repeat: int) -> dict[str, float]:
    """Median seconds per call of each; a given number of calls is timed together, in turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name, (function, calls) in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(model: Potential, count: int, deepmd: Path | None, repeat: int) -> dict[str, Any]:
    atoms = sample_box(count, model.type_map)
    calculator = atoms.calc = MDOps(model, skin=SKIN)
    calls = 2 * REBUILD if count < 20000 else REBUILD
    functions = {"step": (stepper(atoms), calls), "gemm": (gemms(model, count), max(calls // 4, 1))}
    if deepmd is not None and count < 20000:
        from deepmd.calculator import DP

        peer = sample_box(count, model.type_map)
        peer.calc = DP(str(deepmd))
        functions["deepmd"] = (stepper(peer), 2)
    for function, _ in functions.values():
        function()
        function()
    (lists,) = calculator.neighbor_lists
    before = lists.builds
    times = seconds_each(functions, repeat)
    result = {name: 1e6 * value / count for name, value in times.items()}
    if "deepmd" in result:
        result["deepmd/step"] = result["deepmd"] / result["step"]
    return {
        "atoms": count,
        **result,
        "step/gemm": result["step"] / result["gemm"],
        "ms": 1e3 * times["step"],
        "steps_per_list": repeat * calls / max(lists.builds - before, 1),
        "peak_GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def plot(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    atoms = [row["atoms"] for row in results]
    series = {
        "step": "mdops, whole step",
        "gemm": "its matrix products alone (torch.mm)",
        "deepmd": "DeePMD-kit",
    }
    for name, label in series.items():
        if any(name in row for row in results):
            axes.loglog(atoms, [row.get(name, np.nan) for row in results], "o-", label=label)
    axes.set(xlabel="atoms", ylabel="us / atom / step", title="Standard water net, float32, 2 cores")
    axes.set_ylim(bottom=5)
    axes.grid(which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--deepmd", type=Path)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536, 12288, 98304])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    model = water_model(torch.float32)
    if arguments.model is not None:
        model = mdops.load(arguments.model, dtype=torch.float32, overflow="extend")
    names = ["step", "gemm", "step/gemm", "ms", "steps_per_list", "peak_GiB", "deepmd", "deepmd/step"]
    print(machine())
    print(f"{'atoms':>8}" + "".join(f"{name:>16}" for name in names))
    results = []
    for count in arguments.atoms:
        row = measure(model, count, arguments.deepmd, arguments.repeat)
        results.append(row)
        print(f"{count:>8}" + "".join(f"{row.get(name, float('nan')):>16.3f}" for name in names), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
