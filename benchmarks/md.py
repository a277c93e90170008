"""Time of a step of `mdops md`, for this checkout or for several in turn.

    python benchmarks/md.py --model model.dp [--structure frame.extxyz | --system deepmd_folder] [--atoms 192]
                            [--python before=PATH --python now=PATH] [--rounds 7] [--steps 300] [--threads 2]
                            [--clock cpu] [--json FILE]

Each round runs the command with every interpreter in turn (of a virtual environment with its own mdops), for NVE,
NVT with a Nose-Hoover chain, and Langevin dynamics: 0.5 fs, 300 K, a frame and a log line every 100 steps. A row
has the medians, and the median of the rounds' ratios to the first interpreter, which depend less on a changing load.
On a busy machine, --clock cpu --threads 1 measures processor time instead of wall time.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ase.io
from cuda_inference import add_model, repeated, structure
from machine import machine

import mdops

ENSEMBLES = {
    "nve": ["--ensemble", "nve"],
    "nvt": ["--ensemble", "nvt"],
    "langevin": ["--ensemble", "nvt", "--thermostat", "langevin"],
}
# Prints the summary of a run with another clock.
COMMAND = "import sys, time; time.perf_counter = time.{}; from mdops.cli import main; sys.exit(main())"
CLOCKS = {"wall": "perf_counter", "cpu": "process_time"}


def milliseconds(python: str, ensemble: str, arguments: argparse.Namespace, folder: Path) -> float:
    """Time of a step as the command prints it (without its start)."""
    start = COMMAND.format(CLOCKS[arguments.clock])
    command = [python, "-c", start, "md", "start.extxyz", "--model", str(arguments.model.resolve())]
    command += [*ENSEMBLES[ensemble], "--temperature", "300", "--timestep", "0.5", "--overwrite"]
    command += ["--steps", str(arguments.steps), "--overflow", "extend"]
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"(\d+) steps in .* ([\d.e+]+) ns/day", done.stdout)
    assert found is not None, done.stdout
    return 86400e3 * 0.5e-6 / float(found[2])


def measure(ensemble: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    times: dict[str, list[float]] = {label: [] for label, _ in arguments.python}
    for _ in range(arguments.rounds):
        for label, python in arguments.python:
            times[label].append(milliseconds(python, ensemble, arguments, folder))
    first = times[arguments.python[0][0]]
    ratios = {
        label: statistics.median(b / a for a, b in zip(first, own, strict=True))
        for label, own in times.items()
    }
    medians = {label: statistics.median(own) for label, own in times.items()}
    return {"ensemble": ensemble, "ms": medians, "ratio": ratios, "all_ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model(parser)
    parser.add_argument("--atoms", type=int, default=192)
    parser.add_argument(
        "--python", action="append", type=lambda text: text.split("=", 1), metavar="LABEL=PATH"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pythons = arguments.python or [["now", sys.executable]]
    arguments.python = [(label, os.path.abspath(path)) for label, path in pythons]
    elements = mdops.load(arguments.model).type_map
    atoms = repeated(structure(elements, arguments.structure, arguments.system), arguments.atoms)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        ase.io.write(Path(folder) / "start.extxyz", atoms)
        for ensemble in ENSEMBLES:
            row = measure(ensemble, arguments, Path(folder))
            results.append({"atoms": len(atoms)} | row)
            shown = ", ".join(f"{k} {row['ms'][k]:.3f} ms (ratio {row['ratio'][k]:.3f})" for k in row["ms"])
            print(f"{ensemble:9} {len(atoms)} atoms: {shown}", flush=True)
    if arguments.json:
        about = machine() | {"threads": arguments.threads, "clock": arguments.clock}
        arguments.json.write_text(json.dumps({"machine": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
