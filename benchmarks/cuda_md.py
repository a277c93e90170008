"""Time of an MD step on a GPU, list rebuilds included: NVT of a repeated periodic box.

    python benchmarks/cuda_md.py --model model.dp [--structure frame.extxyz | --system deepmd_folder]
                                 [--atoms 192 12288 98304 1572864] [--thermostat langevin]
                                 [--skin 1.0] [--json FILE]

Steps of 0.5 fs at 300 K, float32 with float64 positions. A first run settles lists and graphs; then the clock
on the wall runs over the steps, queueing and flags included. They are few, because not every model stays stable.
`list_share` is the part of the GPU's time that lists take, by kernels; `repeats` counts blocks that were done again.
Without --structure and --system: an artificial box.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from cuda_inference import repeated, structure
from machine import machine

import mdops
from mdops.md import Physics
from mdops.md.engine import Engine
from mdops.md.motion import set_velocities
from mdops.nn import Potential

LIST_KERNELS = ("gpu_search", "gpu_cells", "RadixSort", "write_needed")


def kernel_times(engine: Engine, steps: int) -> dict[str, float]:
    """Microseconds a step of each kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        list(engine.run(steps))
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profile.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.device_time / steps
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def measure(model: Potential, atoms: Atoms, physics: Physics, skin: float) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    set_velocities(atoms, physics, np.random.default_rng(0), anew=True)
    n = len(atoms)
    steps = max(100, min(600, 30_000_000 // n))
    engine = Engine(atoms, model, physics, skin=skin)
    list(engine.run(80))
    builds, begin = engine.builds, time.perf_counter()
    list(engine.run(steps))
    seconds = time.perf_counter() - begin
    made, memory = engine.builds - builds, torch.cuda.max_memory_allocated()
    kernels = kernel_times(engine, 50)
    total = sum(kernels.values())
    lists = sum(t for name, t in kernels.items() if any(part in name for part in LIST_KERNELS))
    return {
        "atoms": n,
        "thermostat": physics.thermostat,
        "skin": skin,
        "steps": steps,
        "ms": 1e3 * seconds / steps,
        "us_per_atom": 1e6 * seconds / steps / n,
        "steps_per_list": steps / made,
        "repeats": engine.repeats,
        "temperature": engine.mean_temperature,
        "peak_bytes_per_atom": memory / n,
        "gpu_us": total,
        "list_share": lists / total,
        "kernels_us": {name[:120]: t for name, t in list(kernels.items())[:25]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--structure", type=Path)
    parser.add_argument("--system", type=Path)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 12288, 98304, 1572864])
    parser.add_argument("--thermostat", choices=("nose-hoover", "langevin"), default="nose-hoover")
    parser.add_argument("--skin", type=float, default=1.0, help="A")
    parser.add_argument("--commit", help="of the measured source, where this is no checkout of it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    model = mdops.load(arguments.model, dtype=torch.float32, overflow="extend", device="cuda")
    unit = structure(arguments, model.type_map)
    physics = Physics("nvt", 300, 0.5, arguments.thermostat)
    results = []
    for count in arguments.atoms:
        row = measure(model, repeated(unit, count), physics, arguments.skin)
        results.append(row)
        print(
            f"{row['atoms']:>9} atoms: {row['ms']:9.4f} ms a step, {row['us_per_atom']:.5f} us/atom, GPU busy "
            f"{row['gpu_us'] / 10 / row['ms']:.0f}%, a list in {row['steps_per_list']:.1f} steps, "
            f"{100 * row['list_share']:.1f}% of the time, {row['peak_bytes_per_atom'] / 1024:.1f} KiB/atom, "
            f"{row['temperature']:.0f} K, {row['repeats']} repeats",
            flush=True,
        )
    if arguments.json:
        found = {"machine": machine("cuda", arguments.commit), "results": results}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
