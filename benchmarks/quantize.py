"""The cost of low-bit schemes and less accurate products for a trained model: errors on test frames,
the drift of the energy, and the time of a step.

    python benchmarks/quantize.py MODEL --data SYSTEM... --test SYSTEM... [--schemes w8a8 ...] [--trained NAME=FILE ...]
                                  [--matmul bf16x3 ...] [--picoseconds 10] [--atoms 192 1536] [--device cpu]
                                  [--json FILE]

Each scheme is fitted to --data without training; --trained adds models that `mdops quantize --steps` wrote. Times are
ratios to the full model's, medians of five in turn, for the test's first frame repeated to each of --atoms.
"""

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from machine import machine

import mdops
from mdops import Potential
from mdops.nn.quantized import SCHEMES
from mdops.potential import Matmul
from mdops.quantization import compare, energy_drift, first_frame, quantize, step_times, table
from mdops.train import load_dataset


def repeats(atoms: int, frame: int) -> tuple[int, int, int]:
    """How many times a frame is repeated in each direction."""
    times = [1, 1, 1]
    while int(np.prod(times)) * frame < atoms:
        times[int(np.argmin(times))] *= 2
    return times[0], times[1], times[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("model", type=Path)
    add("--data", nargs="+", required=True)
    add("--test", nargs="+", required=True)
    add("--schemes", nargs="*", default=list(SCHEMES), choices=list(SCHEMES))
    add("--trained", nargs="*", default=[], metavar="NAME=FILE")
    add("--matmul", nargs="*", default=[], choices=get_args(Matmul))
    add("--picoseconds", type=float, default=10.0, help="of constant-energy dynamics, each")
    add("--warm-up", type=float, default=0.25, help="of that, at constant temperature before")
    add("--seeds", type=int, default=1, help="of velocities: the drift is the mean of so many runs")
    add("--temperature", type=float, default=300.0, help="of it, K")
    add("--atoms", type=int, nargs="+", default=[192, 1536])
    add("--device", default="cpu")
    add("--commit", help="of the measured source, where this is no checkout of it")
    add("--json", type=Path)
    arguments = parser.parse_args()

    full = mdops.load(arguments.model, device=arguments.device)
    tested = load_dataset(arguments.test, full.type_map)
    models: dict[str, Potential] = {}
    fitted = load_dataset(arguments.data, full.type_map) if arguments.schemes else None
    for name in arguments.schemes:
        models[name] = quantize(full, name, fitted)
    for name, _, path in (text.partition("=") for text in arguments.trained):
        models[name] = mdops.load(path, device=arguments.device)
    for name in arguments.matmul:
        models[name] = copy.deepcopy(full)
        models[name].use_matmul(name)
    rows = compare(full, models, tested)
    found: list[dict[str, Any]] = []
    for row, model in zip(rows, [full, *models.values()], strict=True):
        model = copy.deepcopy(model)
        model.allow_low_bit = True
        begin = time.perf_counter()
        drifts = [one_drift(model, tested, arguments, seed) for seed in range(arguments.seeds)]
        if drifts:
            row.drift, row.drift_error = drifts[0]
        if len(drifts) > 1:
            slopes = np.array([found for found, _ in drifts if found == found])  # without dynamics that broke
            row.drift = float(slopes.mean()) if len(slopes) else float("nan")
            row.drift_error = (
                float(slopes.std(ddof=1) / len(slopes) ** 0.5) if len(slopes) > 1 else float("nan")
            )
        seconds = time.perf_counter() - begin
        runs = [float(found) for found, _ in drifts if found == found]
        found.append(
            {**row.as_dict(), "drifts": runs, "dynamics_seconds": seconds, "a_step_is": model.explain()}
        )
        print(f"{row.name}: {seconds:.0f} s", flush=True)
        save(arguments, tested, found, [])
    times = []
    frame = first_frame(tested)
    for atoms in arguments.atoms:
        seconds = step_times([full, *models.values()], frame * repeats(atoms, len(frame)))
        times.append(
            {"atoms": atoms, **{row.name: s / seconds[0] for row, s in zip(rows, seconds, strict=True)}}
        )
        times[-1]["full_ms"] = 1e3 * seconds[0]
    print(table(rows))
    print(times)
    save(arguments, tested, found, times)


def one_drift(model: Potential, tested: Any, arguments: Any, seed: int) -> tuple[float, float]:
    """The drift from the first test frame, with velocities from that seed."""
    return energy_drift(
        model,
        first_frame(tested),
        arguments.picoseconds,
        temperature=arguments.temperature,
        warm_up=arguments.warm_up,
        seed=seed,
    )


def save(arguments: Any, tested: Any, rows: list[dict[str, Any]], times: list[dict[str, Any]]) -> None:
    result = {
        "machine": machine(arguments.device, arguments.commit),
        "bf16_units": torch.ops.mdops.cpu_bf16(),
        "model": str(arguments.model),
        "fitted_to": arguments.data,
        "test": arguments.test,
        "test_frames": len(tested),
        "picoseconds": arguments.picoseconds,
        "temperature_K": arguments.temperature,
        "seeds": arguments.seeds,
        "units": "eV, A, ps; energies per atom",
        "rows": rows,
        "step_over_full": times,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
