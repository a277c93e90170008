"""A first day with mdops, as in the tutorial: data of copper, training, test, relaxation of the cell, NPT.

    python benchmarks/first_day.py [--cores 2] [--times 1] [--json FILE]

Runs the commands of docs/tutorials/first-training.md, "The whole way", in an empty folder, and compares
with EMT: errors on test frames, the lattice constant, and the volume at 300 K. --times: the number of runs,
each from different random weights.
"""

import argparse
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT
from machine import machine, report

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "first-training.md"
HEADING = "## The whole sequence"
UNITS = {"energy": "meV/atom", "force component": "eV/A", "virial": "meV/atom"}


def chain() -> tuple[str, list[str]]:
    """The script that makes the data, and the commands."""
    page = PAGE.read_text()
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", page.split(HEADING)[1].split("\n## ")[0], re.DOTALL)
    return script, [line.split("  #")[0].strip() for line in commands.splitlines() if line.strip()]


def test_errors(output: str) -> dict[str, float]:
    """RMSEs of `mdops test`, by the name of the label, in the units of `UNITS`."""
    rows = re.findall(r"^  (energy|force component|virial) +\S+ +(\S+)", output, re.MULTILINE)
    return {name: float(rmse) for name, rmse in rows}


def lattice_constant_of_emt() -> float:
    """The lattice constant, A."""
    lengths = np.linspace(3.55, 3.63, 9)
    energies = []
    for length in lengths:
        atoms = bulk("Cu", cubic=True, a=length)
        atoms.calc = EMT()
        energies.append(atoms.get_potential_energy())
    return float(np.polynomial.Polynomial.fit(lengths, energies, 3).deriv().roots().real.min())


def lattice_constant(path: Path) -> float:
    """The lattice constant of a cubic crystal with four atoms per cell, A."""
    atoms = ase.io.read(path)
    return float((4 * atoms.get_volume() / len(atoms)) ** (1 / 3))


def processor_seconds() -> float:
    """Processor time of all commands so far; on a busy machine it is less than the wall time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def follow(cores: int) -> dict[str, Any]:
    """Runs the chain in an empty folder; returns the seconds of each command, and the results."""
    script, commands = chain()
    threads = {"OMP_NUM_THREADS": str(cores)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    seconds, found, before = {}, {}, processor_seconds()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "copper.py").write_text(script)
        for command in commands:
            start = time.perf_counter()
            done = subprocess.run(
                shlex.split(command), cwd=folder, env={**os.environ, "PATH": path, **threads},
                text=True, capture_output=True, check=False,
            )  # fmt: skip
            seconds[command] = time.perf_counter() - start
            print(f"$ {command}  ({seconds[command]:.1f} s)\n{done.stdout}", flush=True)
            if done.returncode:
                raise SystemExit(f"{command}: {done.stderr}")
            if command.startswith("mdops test"):
                found |= test_errors(done.stdout)
        emt = lattice_constant_of_emt()
        volumes = [atoms.get_volume() / len(atoms) for atoms in ase.io.read(folder / "npt.extxyz", "5:")]
        return {
            "seconds": seconds,
            "total_seconds": sum(seconds.values()),
            "processor_seconds": processor_seconds() - before,
            "errors": {f"{name}, {UNITS[name]}": value for name, value in found.items()},
            "lattice_constant": lattice_constant(folder / "relaxed.extxyz"),
            "lattice_constant_of_emt": emt,
            "npt_volume_per_atom": float(np.mean(volumes)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--times", type=int, default=1, help="trainings, each from other random weights")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs = [follow(arguments.cores) for _ in range(arguments.times)]
    answer = {
        "machine": machine("cpu"),
        "cores": arguments.cores,
        "load_average": os.getloadavg()[0],
        "median_seconds": statistics.median(run["total_seconds"] for run in runs),
        "runs": runs,
    }
    report(answer, arguments.json)


if __name__ == "__main__":
    main()
