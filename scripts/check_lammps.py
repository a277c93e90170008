"""Checks what `pair_style mdops` promises for whole runs in the installed LAMMPS (lammps.md), on several processes:

- NVE of 1,000 steps (`--steps`), with atoms that cross domains: the drift of the energy, beside the
  engine's; the same trajectory on 1, 2 and 4 processes; and the last forces and virial beside Python's;
- NPT, against the engine's potential at the end;
- a run that continues from a restart file, against an uninterrupted one;
- runs of which one process is killed: all others must end, and a restart file must be complete.

MDOPS_LAMMPS=/path/to/lmp python scripts/check_lammps.py [--json FILE] [--kills 20]
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms, units

import mdops
from mdops.cli.sample_model import water_model
from mdops.jit.sample_box import sample_box
from mdops.lammps import environment, find_lammps
from mdops.md import Engine, EnsembleSettings

HEAD = """
units metal
atom_style atomic
{read}
pair_style mdops {model} precision float64 overflow extend
pair_coeff * * {elements}
neighbor 1.0 bin
neigh_modify every 1 delay 0 check yes
timestep 0.0005
compute v all pressure NULL virial
thermo_style custom step temp pe etotal vol c_v[*]
thermo_modify format float %20.15g
"""
COLUMNS = 11  # in a line of numbers
BAR_PER_EV = 1.6021765e6  # A^3, LAMMPS' value
LAST = "write_dump all custom {name} id x y z vx vy vz fx fy fz modify sort id format float %20.15g\n"


class Runs:
    """LAMMPS in a folder."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.lammps, self.folder, self.model = find_lammps(), folder, model
        self.elements = mdops.load(model).type_map
        beside = self.lammps.program.with_name("mpirun")
        self.mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        self.env = {**environment(), "OMP_NUM_THREADS": "1"}

    def write(self, atoms: Atoms) -> None:
        named = atoms.copy()
        named.wrap()
        named.write(self.folder / "data.lmp", format="lammps-data", specorder=self.elements, masses=True)

    def start(self, text: str, ranks: int, read: str = "read_data data.lmp") -> "subprocess.Popen[str]":
        (self.folder / "in.lmp").write_text(
            HEAD.format(read=read, model=self.model, elements=" ".join(self.elements)) + text
        )
        command = [str(self.lammps.program), "-in", "in.lmp", "-log", "none"]
        if ranks > 1:
            assert self.mpirun, "there is no mpirun"
            command = [self.mpirun, "-np", str(ranks), *command]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, text: str, ranks: int, read: str = "read_data data.lmp") -> np.ndarray:
        """The lines of numbers below the last heading: step, temperature, both energies, volume, and six virials."""
        process = self.start(text, ranks, read)
        out, err = process.communicate(timeout=3600)
        assert process.returncode == 0, out[-2000:] + err[-2000:]
        table = out.split("   Step ")[-1].split("Loop time")[0]
        lines = [line for line in table.splitlines()[1:] if re.match(r" *\d", line)]
        rows = [line.split() for line in lines]
        return np.array([[float(x) for x in row] for row in rows if len(row) == COLUMNS])

    def dumped(self, name: str) -> np.ndarray:
        lines = (self.folder / name).read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
        return np.array([[float(x) for x in line.split()] for line in lines])

    def processes(self) -> list[int]:
        """The processes of LAMMPS in the folder, without their launchers."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                here = os.readlink(place / "cwd") == str(self.folder)
                # PyPI's `lmp` is a script that starts the program of that name.
                if here and Path(os.readlink(place / "exe")).name.startswith("lmp"):
                    found.append(int(place.name))
            except OSError:  # it ended, or belongs to another user
                continue
        return found


def drift(times: np.ndarray, energies: np.ndarray, atoms: int) -> float:
    """Slope of a straight line through the energies, eV/atom/ps."""
    return float(np.polyfit(times, energies / atoms, 1)[0])


def nve(runs: Runs, atoms: Atoms, steps: int) -> dict[str, Any]:
    runs.write(atoms)
    found: dict[str, Any] = {"steps": steps, "atoms": len(atoms)}
    start = "velocity all create 600 7 loop all\nfix 1 all nve\nthermo 10\n"
    first_dump = LAST.format(name="first.txt").replace("fx fy fz ", "")
    ends = []
    for ranks in (1, 2, 4):
        rows = runs(f"{start}{first_dump}run {steps}\n" + LAST.format(name="end.txt"), ranks)
        found[f"drift, {ranks} ranks, eV/atom/ps"] = drift(0.0005 * rows[:, 0], rows[:, 3], len(atoms))
        found[f"largest change, {ranks} ranks, eV/atom"] = float(
            np.abs(rows[:, 3] - rows[0, 3]).max() / len(atoms)
        )
        ends.append(runs.dumped("end.txt"))
        found[f"forces and virial off, {ranks} ranks"] = off_python(runs, atoms, ends[-1], rows[-1])
    found["positions after 50 steps"] = same_trajectory(runs, f"{start}run 50\n")
    first = runs.dumped("first.txt")
    shift = ends[0][:, 1:4] - first[:, 1:4]
    found["atoms that moved over 1 A"] = int(
        (np.abs(shift - atoms.cell.lengths() * np.round(shift / atoms.cell.lengths())).max(1) > 1).sum()
    )
    found["drift, engine, eV/atom/ps"] = engine_drift(runs, atoms, first, steps)
    return found


def off_python(runs: Runs, atoms: Atoms, end: np.ndarray, row: np.ndarray) -> list[float]:
    """Differences of LAMMPS' last forces and virial from Python's, relative to the largest."""
    own = atoms.copy()
    own.positions = end[:, 1:4]
    wanted = mdops.load(runs.model, dtype="float64", overflow="extend").compute(own)
    virial = wanted["virial"][0].flatten()[[0, 4, 8, 1, 2, 5]]
    pairs = (end[:, 7:10], wanted["forces"]), (row[5:] * row[4] / BAR_PER_EV, virial)
    return [float(np.abs(got - right).max() / np.abs(right).max()) for got, right in pairs]


def engine_drift(runs: Runs, atoms: Atoms, first: np.ndarray, steps: int) -> float:
    """The engine's drift from the same positions and velocities."""
    own = atoms.copy()
    own.positions = first[:, 1:4]
    own.set_velocities(first[:, 4:7] / (1000 * units.fs))  # A/ps
    potential = mdops.load(runs.model, dtype="float64", overflow="extend")
    engine = Engine(own, potential, EnsembleSettings(ensemble="nve", timestep=0.5), skin=1.0)
    frames = [engine.frame(), *engine.run(steps, 10)]
    times, values = np.array([(frame.step, frame.energy + frame.kinetic) for frame in frames]).T
    return drift(0.0005 * times, values, len(atoms))


def same_trajectory(runs: Runs, text: str) -> float:
    """The largest difference of positions, A, between 1, 2 and 4 processes after some steps."""
    ends = []
    for ranks in (1, 2, 4):
        runs(text + LAST.format(name="end.txt"), ranks)
        ends.append(runs.dumped("end.txt")[:, 1:4])
    return float(max(np.abs(ends[0] - other).max() for other in ends[1:]))


def npt(runs: Runs, atoms: Atoms) -> dict[str, Any]:
    runs.write(atoms)
    text = "velocity all create 300 7 loop all\nfix 1 all npt temp 300 300 0.05 iso 0 0 0.5\nthermo 20\nrun 400\n"
    rows = runs(text + LAST.format(name="end.txt"), 4)
    size = np.cbrt(rows[-1, 4] / atoms.get_volume())
    own, end = atoms.copy(), runs.dumped("end.txt")
    own.set_cell(atoms.cell.array * size)
    own.positions = end[:, 1:4]
    wanted = mdops.load(runs.model, dtype="float64", overflow="extend").compute(own)
    return {
        "steps": 400,
        "volume, start and end, A^3": [atoms.get_volume(), float(rows[-1, 4])],
        "energy off by, eV": abs(float(wanted["energy"][0]) - float(rows[-1, 2])),
        "forces off by, eV/A": float(np.abs(wanted["forces"] - end[:, 7:10]).max()),
    }


def restart(runs: Runs, atoms: Atoms) -> dict[str, Any]:
    runs.write(atoms)
    start = "velocity all create 300 7 loop all\nfix 1 all nve\nrun 100\nwrite_restart half.restart\n"
    runs(start, 4)
    runs("fix 1 all nve\nrun 100\n" + LAST.format(name="stopped.txt"), 4, "read_restart half.restart")
    runs(start + "run 100\n" + LAST.format(name="whole.txt"), 4)
    difference = np.abs(runs.dumped("stopped.txt") - runs.dumped("whole.txt"))
    return {"steps": 200, "positions off by, A": float(difference[:, 1:4].max())}


def kills(runs: Runs, atoms: Atoms, count: int) -> dict[str, Any]:
    """Runs on 2 processes, each killed at a different time."""
    runs.write(atoms)
    digest = runs.model.read_bytes()
    left, unreadable, longest = 0, 0, 0.0
    random = np.random.default_rng(0)
    for _ in range(count):
        for name in ("a.restart", "b.restart"):
            (runs.folder / name).unlink(missing_ok=True)
        process = runs.start(
            "velocity all create 300 7\nfix 1 all nve\nrestart 5 a.restart b.restart\nrun 1000000\n", 2
        )
        until = time.monotonic() + 300
        while time.monotonic() < until and not (runs.folder / "b.restart").exists():
            time.sleep(0.05)
        time.sleep(float(random.uniform(0, 1)))
        ranks = runs.processes()
        assert len(ranks) == 2, "both processes run"
        os.kill(ranks[int(random.integers(2))], signal.SIGKILL)
        begun = time.monotonic()
        process.communicate(timeout=120)
        assert process.returncode != 0
        while runs.processes() and time.monotonic() < begun + 30:
            time.sleep(0.05)
        longest = max(longest, time.monotonic() - begun)
        left += len(runs.processes())
        # One of the two may have been incomplete when the run was killed.
        whole = sum(readable(runs, name) for name in ("a.restart", "b.restart"))
        unreadable += whole == 0
    return {
        "runs": count,
        "processes left": left,
        "runs without a restart file that can be read": unreadable,
        "the model file is as it was": runs.model.read_bytes() == digest,
        "the others ended within, s": longest,
    }


def readable(runs: Runs, name: str) -> bool:
    process = runs.start("run 0\n", 1, f"read_restart {name}")
    process.communicate(timeout=120)
    return process.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where the answers go, beside those that are there")
    parser.add_argument(
        "--what", nargs="+", choices=("nve", "npt", "restart", "kill -9"), help="default: all"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000, help="of NVE")
    parser.add_argument("--model", help="by default one of random weights and the standard size")
    parser.add_argument("--structure", help="a periodic one in a box of right angles")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        potential = (
            mdops.load(args.model, dtype="float64", spline=False)
            if args.model
            else water_model(torch.float64, spline=False)
        )
        potential.save(folder / "model.safetensors")
        atoms = ase.io.read(args.structure) if args.structure else sample_box(192, ["O", "H"])
        runs = Runs(folder, folder / "model.safetensors")
        found: dict[str, Any] = {"lammps": runs.lammps.version}
        if args.json and args.json.exists():
            found = json.loads(args.json.read_text()) | found
        ways = {
            "nve": partial(nve, steps=args.steps),
            "npt": npt,
            "restart": restart,
            "kill -9": partial(kills, count=args.kills),
        }
        for what in args.what or ways:
            found[what] = ways[what](runs, atoms)
            print(what, json.dumps(found[what], indent=1), flush=True)
            if args.json:
                args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
