"""Time of an MD step on a GPU, list rebuilds included: NVT or NPT of a repeated periodic box.

    python benchmarks/cuda_md.py --model model.dp [--structure frame.extxyz | --system deepmd_folder]
                                 [--atoms 192 12288 98304 1572864] [--ensemble nvt npt] [--thermostat langevin]
                                 [--skin 1.0] [--molecules 1024] [--matmul tf32] [--json FILE]

Steps of 0.5 fs at 300 K, float32 with float64 positions. NPT changes only the volume, at the pressure that the model
has in the box, so that both ensembles have as many neighbours. A first run prepares lists and graphs; then the wall
time of steps is measured, with queueing and flags. There are only a few steps, because not every model stays stable.
`gpu_us` is the GPU's time of a step, also divided into the potential, the lists and the rest, by the names of kernels.
`repeats` counts repeated blocks. `compute_ms` is the time of `Potential.compute`; ASE's Atoms take most of it, on the
CPU.
The last line compares --molecules molecules (clusters of the 24 atoms of the structure that are closest to one of them,
whole molecules for water) in one batch, each with its own thermostat, with one system of as many atoms.
Without --structure and --system: an artificial box.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from ase import Atoms, units
from cuda_inference import MOLECULE, add_model, repeated, structure
from machine import machine

import mdops
from mdops import Potential
from mdops.md import BatchEngine, Engine, EnsembleSettings
from mdops.md.motion import set_velocities
from mdops.potential import Matmul

LIST_KERNELS = ("gpu_search", "gpu_cells", "RadixSort", "write_needed", "measure_rows")
MOTION_KERNELS = ("first_half", "second_half", "start_cells", "finish_systems", "end_few")


def molecules(unit: Atoms, count: int) -> list[Atoms]:
    """Clusters of 24 atoms from the structure, each with small displacements."""
    elements = unit.get_chemical_symbols()
    water = sorted(set(elements)) == ["H", "O"]
    centre = elements.index("O") if water else 0
    inner = unit.get_distances(centre, range(len(unit)), mic=True)
    if water:
        oxygens = [i for i in np.argsort(inner) if elements[i] == "O"][: MOLECULE // 3]
        hydrogens = np.array([i for i, element in enumerate(elements) if element == "H"])
        nearest = [hydrogens[np.argsort(unit.get_distances(o, hydrogens, mic=True))[:2]] for o in oxygens]
        chosen = [int(i) for o, pair in zip(oxygens, nearest, strict=True) for i in (o, *pair)]
    else:
        chosen = np.argsort(inner)[:MOLECULE].tolist()
    vectors = unit.get_distances(centre, chosen, mic=True, vector=True)
    random = np.random.default_rng(1)
    return [
        Atoms([elements[i] for i in chosen], vectors + random.normal(scale=0.01, size=vectors.shape))
        for _ in range(count)
    ]


def kernel_times(engine: Engine | BatchEngine, steps: int) -> dict[str, float]:
    """Microseconds of each kernel per step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        list(engine.run(steps))
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profile.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.device_time / steps
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def part_of(kernel: str) -> str:
    if any(part in kernel for part in LIST_KERNELS):
        return "lists"
    own = "mdops" in kernel and not any(part in kernel for part in MOTION_KERNELS)
    return "potential" if own else "rest"


def compute_milliseconds(model: Potential, frames: list[Atoms]) -> float:
    """The time of `Potential.compute`, from ASE's Atoms to NumPy arrays: the best of three."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model.compute(frames)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def volume(engine: Engine | BatchEngine) -> float:
    """The volume of all cells, A^3; 0 without cells."""
    return float(np.abs(np.linalg.det(engine.frame().cell)).sum())


def pressure(model: Potential, atoms: Atoms, temperature: float) -> float:
    """The pressure at the current positions, GPa."""
    thermal = len(atoms) * temperature * units.kB
    return float(thermal + np.trace(model.compute(atoms)["virial"][0]) / 3) / atoms.get_volume() / units.GPa


def measure(model: Potential, frames: list[Atoms], physics: EnsembleSettings, skin: float) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    random = np.random.default_rng(0)
    for atoms in frames:
        set_velocities(atoms, physics, random, anew=True)
    n = sum(map(len, frames))
    steps = max(100, min(600, 30_000_000 // n))
    engine: Engine | BatchEngine
    if len(frames) == 1:
        engine = Engine(frames[0], model, physics, skin=skin)
    else:
        engine = BatchEngine(frames, model, physics, skin=skin)
    first = volume(engine)
    list(engine.run(80))
    builds, start = engine.builds, time.perf_counter()
    list(engine.run(steps))
    seconds = time.perf_counter() - start
    made, memory = engine.builds - builds, torch.cuda.max_memory_allocated()
    kernels = kernel_times(engine, 50)
    total = sum(kernels.values())
    parts = {"potential": 0.0, "lists": 0.0, "rest": 0.0}
    for name, time_of_it in kernels.items():
        parts[part_of(name)] += time_of_it
    return {
        "atoms": n,
        "systems": len(frames),
        "ensemble": physics.ensemble,
        "thermostat": physics.thermostat,
        "skin": skin,
        "steps": steps,
        "ms": 1e3 * seconds / steps,
        "us_per_atom": 1e6 * seconds / steps / n,
        "steps_per_list": steps / made,
        "repeats": engine.repeats,
        "temperature": float(np.mean(engine.mean_temperature)),
        "pressure": physics.pressure,
        "volumes": [first, volume(engine)],
        "peak_bytes_per_atom": memory / n,
        "gpu_us": total,
        **{f"{part}_us": time_of_it for part, time_of_it in parts.items()},
        "kernels_us": {name[:120]: t for name, t in list(kernels.items())[:25]},
    }


def shown(row: dict[str, Any]) -> str:
    step = f"{row['ms']:8.4f} ms a step, {row['us_per_atom']:.5f} us/atom"
    parts = ", ".join(f"{part} {row[f'{part}_us']:.1f}" for part in ("potential", "lists", "rest"))
    return (
        f"{row['ensemble']} {row['atoms']:>9} atoms in {row['systems']:>4}: {step}, "
        f"GPU {row['gpu_us']:.1f} us: {parts}; "
        f"a list in {row['steps_per_list']:.1f} steps, {row['repeats']} repeats, {row['temperature']:.0f} K, "
        f"{row['peak_bytes_per_atom'] / 1024:.1f} KiB/atom"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model(parser)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 12288, 98304, 1572864])
    parser.add_argument("--ensemble", choices=("nvt", "npt"), nargs="+", default=["nvt"])
    parser.add_argument("--thermostat", choices=("nose-hoover", "langevin"), default="nose-hoover")
    parser.add_argument("--skin", type=float, default=1.0, help="A")
    parser.add_argument("--molecules", type=int, default=1024, help="0: none")
    parser.add_argument("--matmul", choices=get_args(Matmul), default="float32")
    parser.add_argument("--commit", help="of the measured source, where this is no checkout of it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    model = mdops.load(arguments.model, overflow="extend", device="cuda", matmul=arguments.matmul)
    unit = structure(model.type_map, arguments.structure, arguments.system)
    cases = [[repeated(unit, count)] for count in arguments.atoms]
    if arguments.molecules:
        cases += [molecules(unit, arguments.molecules), [repeated(unit, MOLECULE * arguments.molecules)]]
    results = []
    for frames in cases:
        for ensemble in arguments.ensemble:
            if ensemble == "npt" and not frames[0].pbc.all():
                continue
            now = pressure(model, frames[0], 300) if ensemble == "npt" else 0.0
            own = {"thermostat": arguments.thermostat} if ensemble == "nvt" else {}
            physics = EnsembleSettings(ensemble, 300, 0.5, pressure=now, **own)
            row = measure(model, frames, physics, arguments.skin)
            if row["atoms"] < 50_000:
                row["compute_ms"] = compute_milliseconds(model, frames)
            results.append(row)
            print(shown(row), flush=True)
    if arguments.json:
        about = {"machine": machine("cuda", arguments.commit), "matmul": model.matmul}
        found = {**about, "results": results}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
