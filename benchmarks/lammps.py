"""A step of LAMMPS with `pair_style mdops` beside one of ASE with mdops' calculator or, on a GPU, of the engine, in
turn in one run, us/atom. With --gpus, LAMMPS with a process for each GPU beside one process on one GPU, and the
efficiency: of the same box, or with --weak of a box that grows with the number of GPUs. --check compares their forces.
With --times, also where the time of an evaluation goes, for models that LAMMPS evaluates through Python.

MDOPS_LAMMPS=/path/to/lmp python benchmarks/lammps.py --model MODEL --structure water.xyz --repeat 4 4 4 [--device cuda]
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms, units
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet
from machine import machine, parser_of

import mdops
from mdops.calculator import MDOps
from mdops.lammps import environment, find_program
from mdops.md import Engine, EnsembleSettings

SHARES: dict[str, dict[str, float]] = {}
TIMES: dict[str, list[dict[str, float]]] = {}
INPUT = """
{package}
units metal
atom_style atomic
read_data data.lmp
replicate ${{x}} ${{y}} ${{z}}
pair_style mdops model.safetensors device {device} precision {precision} overflow extend
pair_coeff * * {elements}
neighbor {skin} bin
neigh_modify every 1 delay 0 check yes
timestep 0.0005
velocity all create 300 1
fix 1 all nve
run 5
run {steps}
"""
FORCES = """
run 0
write_dump all custom forces.txt id fx fy fz modify sort id format float %.17g
"""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--structure", required=True)
    parser.add_argument("--repeat", type=int, nargs=3, default=(1, 1, 1))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--precision", default="float32", choices=("float32", "float64"))
    parser.add_argument(
        "--ranks", type=int, nargs="*", default=[], help="more numbers of processes on the GPU"
    )
    parser.add_argument("--gpus", type=int, nargs="*", default=[], help="numbers of GPUs: no engine then")
    parser.add_argument("--replicate", type=int, nargs=3, default=(1, 1, 1), help="by LAMMPS, with --gpus")
    parser.add_argument("--weak", action="store_true", help="the box times the number of GPUs")
    parser.add_argument(
        "--check", action="store_true", help="forces of all numbers of GPUs beside those of one"
    )
    parser.add_argument(
        "--omp", action="store_true", help="with LAMMPS' own styles in threads, too (suffix omp)"
    )
    parser.add_argument("--skin", type=float, default=2.0, help="A, of LAMMPS' lists, and of the engine's")
    parser.add_argument("--times", action="store_true", help="slows the run down a little")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.times:
        os.environ["MDOPS_PYTHON"] = str(Path(__file__).with_name("lammps_server_times.py"))
    atoms = ase.io.read(args.structure).repeat(args.repeat)
    torch.set_num_threads(args.cores)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        potential = mdops.load(args.model, dtype="float64", spline=False)
        potential.save(folder / "model.safetensors")
        ase.io.write(
            folder / "data.lmp", atoms, format="lammps-data", specorder=potential.type_map, masses=True
        )
        for name, package in (("in.lmp", ""), ("omp.lmp", "package omp 0\nsuffix omp")):
            text = INPUT.format(
                elements=" ".join(potential.type_map), steps=args.steps, device=args.device, skin=args.skin,
                precision=args.precision, package=package,
            )  # fmt: skip
            (folder / name).write_text(text)
        (folder / "forces.lmp").write_text((folder / "in.lmp").read_text().split("run 5")[0] + FORCES)
        ways = (
            on_gpu(args, folder, atoms)
            if args.device == "cuda"
            else {
                f"ASE, {args.cores} threads": lambda: with_ase(args, atoms),
                f"LAMMPS, 1 rank x {args.cores} threads": lambda: with_lammps(folder, 1, args.cores),
                f"LAMMPS, {args.cores} ranks x 1 thread": lambda: with_lammps(folder, args.cores, 1),
            }
        )
        count = len(atoms) * int(np.prod(args.replicate))
        differences = compare_forces(args, folder) if args.check else {}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, measure in ways.items():
                times[way].append(1e6 * measure() / args.steps / count)
    print(f"{count} atoms, {args.precision}, {args.steps} steps, median of {args.rounds} rounds")
    for way, difference in differences.items():
        print(f"{way:<32}forces differ by {difference:.1e} of the largest from those of one GPU")
    first = next(iter(times.values()))
    result = {
        "machine": machine(args.device),
        "atoms": count,
        "precision": args.precision,
        "skin": args.skin,
        "steps": args.steps,
        "weak": args.weak,
        "us_per_atom": {},
        "force_differences": differences,
    }
    for way, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, first, strict=True))
        gpus = re.search(r"(\d+) GPUs", way)
        share = f"   efficiency {1 / ratio / int(gpus[1]):.3f}" if gpus else ""
        print(f"{way:<32}{statistics.median(found):9.4f} us/atom {ratio:8.3f}{share}")
        result["us_per_atom"][way] = found
    result |= {"shares": SHARES} | ({"milliseconds": TIMES} if args.times else {})
    for name, shares in SHARES.items():
        print(f"{name}:", ", ".join(f"{part} {share:.0f}%" for part, share in shares.items()))
        for own in TIMES[name]:
            print("  an evaluation, ms:", ", ".join(f"{part} {value:.3f}" for part, value in own.items()))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


def on_gpu(args: argparse.Namespace, folder: Path, atoms: Atoms) -> dict[str, Callable[[], float]]:
    """The engine, and LAMMPS with one process and with the requested numbers."""
    if args.gpus:
        return {
            f"LAMMPS, {ranks} ranks on {gpus} GPUs": lambda ranks=ranks, gpus=gpus: with_gpus(
                args, folder, "in.lmp", ranks, gpus, boxes=gpus if args.weak else 1
            )
            for ranks, gpus in ranks_on_gpus(args)
        }
    ways = {"engine": with_engine(args, atoms)}
    for ranks in (1, *args.ranks):
        threads = max(1, args.cores // ranks)
        name = f"LAMMPS, {ranks} ranks x {threads} threads"
        ways[name] = lambda ranks=ranks, threads=threads: with_lammps(folder, ranks, threads)
        if args.omp:
            ways[f"{name}, omp"] = lambda ranks=ranks, threads=threads: with_lammps(
                folder, ranks, threads, "omp.lmp"
            )
    return ways


def ranks_on_gpus(args: argparse.Namespace) -> list[tuple[int, int]]:
    """Numbers of processes and GPUs; one process on one GPU is the first."""
    return list(
        dict.fromkeys([(1, 1), *((ranks, gpus) for gpus in args.gpus for ranks in (args.ranks or [gpus]))])
    )


def with_gpus(
    args: argparse.Namespace, folder: Path, script: str, ranks: int, gpus: int, boxes: int
) -> float:
    """A function for the time of each number of boxes side by side, s."""
    replicate = list(args.replicate)
    for factor in sorted(prime_factors(boxes), reverse=True):
        replicate[replicate.index(min(replicate))] *= factor
    threads = max(1, args.cores // ranks)
    return with_lammps(folder, ranks, threads, script, gpus=gpus, replicate=replicate) / boxes


def prime_factors(number: int) -> list[int]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *prime_factors(number // factor)]
    return []


def compare_forces(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The largest difference between forces and those of one process on one GPU, relative to the largest force."""
    found = {}
    box = None
    for ranks, gpus in ranks_on_gpus(args):
        with_gpus(args, folder, "forces.lmp", ranks, gpus, 1)
        forces = np.loadtxt(folder / "forces.txt", skiprows=9)[:, 1:]
        box = forces if box is None else box
        found[f"LAMMPS, {ranks} ranks on {gpus} GPUs"] = float(abs(forces - box).max() / abs(box).max())
    return found


def with_engine(args: argparse.Namespace, atoms: Atoms) -> Callable[[], float]:
    """A function that runs some steps and returns their time, s."""
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(1))
    model = mdops.load(args.model, dtype=args.precision, device="cuda", overflow="extend")
    engine = Engine(atoms, model, EnsembleSettings(ensemble="nve", timestep=0.5), skin=args.skin)
    list(engine.run(100))

    def run() -> float:
        start = time.perf_counter()
        list(engine.run(args.steps))
        return time.perf_counter() - start

    return run


def with_ase(args: argparse.Namespace, atoms: Atoms) -> float:
    """Time, s."""
    steps = args.steps
    atoms.calc = atoms.calc or MDOps(args.model, dtype=args.precision, overflow="extend")
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(1))
    motion = VelocityVerlet(atoms, 0.5 * units.fs)
    motion.run(5)
    start = time.perf_counter()
    motion.run(steps)
    return time.perf_counter() - start


def with_lammps(
    folder: Path,
    ranks: int,
    threads: int,
    script: str = "in.lmp",
    gpus: int = 0,
    replicate: Sequence[int] = (1, 1, 1),
) -> float:
    """Time, s, as LAMMPS prints it; if requested, only on the first GPUs."""
    program = find_program()
    beside = program.with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    start = [mpirun, "-np", str(ranks)] if ranks > 1 and mpirun else []
    env = {**environment(), "OMP_NUM_THREADS": str(threads)}
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:gpus])
    box = [word for name, n in zip("xyz", replicate, strict=True) for word in ("-var", name, str(n))]
    command = [*start, str(program), "-in", script, "-log", "none", *box]
    with tempfile.TemporaryDirectory() as times:
        env["MDOPS_TIMES"] = times
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        evaluations = [json.loads(file.read_text()) for file in Path(times).iterdir()]
    if done.returncode:
        raise SystemExit(f"LAMMPS failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    # Where the time of the last run went, %.
    found = re.findall(r"^(\w+) +\|.*\| *(\S+)$", done.stdout.split("Loop time")[-1], re.MULTILINE)
    on = f" on {gpus} GPUs" if gpus else ""
    name = f"{ranks} ranks x {threads}{on}, {script}"
    SHARES[name] = {part: float(share) for part, share in found if share != "%total"}
    TIMES[name] = [
        dict(zip(own["parts"], (1e3 * np.median(own["rows"], 0)).tolist(), strict=True))
        for own in evaluations
    ]
    return float(re.findall(r"Loop time of (\S+)", done.stdout)[-1])


if __name__ == "__main__":
    main()
