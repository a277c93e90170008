"""Constant-energy dynamics with a model: how far the total energy drifts.

    python benchmarks/energy_conservation.py MODEL STRUCTURE [--picoseconds 20] [--timestep 0.5] [--json FILE]

STRUCTURE is any file that ASE reads, or a DeePMD-kit set folder's parent (the first frame is taken). The run starts at
330 K; the first picosecond is left out of the fit. Prints the drift (the slope of a straight line through the total
energy, eV/atom/ps), the fluctuation about the line and the mean temperature.
"""

import argparse
import json
import time
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution, Stationary
from ase.md.verlet import VelocityVerlet

from mdops.calculator import MDOps


def read(path: Path) -> Atoms:
    if not path.is_dir():
        atoms = ase.io.read(path)
        assert isinstance(atoms, Atoms)
        return atoms
    names = (path / "type_map.raw").read_text().split()
    symbols = [names[int(kind)] for kind in (path / "type.raw").read_text().split()]
    first = sorted(path.glob("set.*"))[0]
    positions = np.load(first / "coord.npy")[0].reshape(-1, 3)
    return Atoms(symbols, positions, cell=np.load(first / "box.npy")[0].reshape(3, 3), pbc=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("structure", type=Path)
    parser.add_argument("--picoseconds", type=float, default=20.0)
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    atoms = read(arguments.structure)
    atoms.calc = MDOps(arguments.model, dtype=arguments.dtype)
    MaxwellBoltzmannDistribution(atoms, temperature_K=330, rng=np.random.default_rng(0))
    Stationary(atoms)
    dynamics = VelocityVerlet(atoms, timestep=arguments.timestep * units.fs)
    rows: list[tuple[float, float, float]] = []
    every = max(1, round(10 / arguments.timestep))

    def record() -> None:
        picoseconds = dynamics.get_time() / (1000 * units.fs)
        rows.append((picoseconds, atoms.get_total_energy() / len(atoms), atoms.get_temperature()))

    dynamics.attach(record, interval=every)
    begin = time.perf_counter()
    dynamics.run(round(1000 * arguments.picoseconds / arguments.timestep))
    seconds = time.perf_counter() - begin
    picoseconds, energy, temperature = np.array(rows)[[row[0] >= 1 for row in rows]].T
    slope, offset = np.polyfit(picoseconds, energy, 1)
    result = {
        "atoms": len(atoms),
        "dtype": arguments.dtype,
        "picoseconds": arguments.picoseconds,
        "timestep_fs": arguments.timestep,
        "drift_eV_per_atom_per_ps": slope,
        "fluctuation_eV_per_atom": float(np.std(energy - slope * picoseconds - offset)),
        "temperature_K": float(temperature.mean()),
        "seconds": seconds,
    }
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
