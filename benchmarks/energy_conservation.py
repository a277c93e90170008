"""Constant-energy dynamics with a model: how far the total energy drifts.

    python benchmarks/energy_conservation.py MODEL STRUCTURE [--device cuda] [--picoseconds 20] [--timestep 0.5]
                                             [--equilibrate 0] [--seed 0] [--matmul tf32] [--overflow extend]
                                             [--json FILE]

STRUCTURE is any file that ASE reads, or the parent of a DeePMD-kit set folder (the first frame is used). The run starts
at 330 K, after --equilibrate picoseconds of a Nose-Hoover chain at that temperature. Without them, the fit leaves out
the first picosecond. Prints the drift (the slope of a straight line through the total energy,
eV/atom/ps), its standard error from tenths of the run, the fluctuation about the line, and the temperature.
"""

import argparse
import time
from pathlib import Path
from typing import get_args

import ase.io
import numpy as np
from ase import Atoms
from machine import machine, report

import mdops
from mdops.md import Engine, EnsembleSettings
from mdops.md.motion import set_velocities
from mdops.models.judge import Overflow
from mdops.potential import Matmul

TEMPERATURE = 330  # K
BLOCKS = 10


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


def drift(picoseconds: np.ndarray, energy: np.ndarray) -> tuple[float, float, float]:
    """Slope, its standard error (from the means of blocks, which are almost independent), and fluctuation."""
    slope, offset = np.polyfit(picoseconds, energy, 1)
    residual = energy - slope * picoseconds - offset
    times, means = (np.array([b.mean() for b in np.array_split(a, BLOCKS)]) for a in (picoseconds, residual))
    spread = np.sqrt(means @ means / (BLOCKS - 2) / np.square(times - times.mean()).sum())
    return float(slope), float(spread), float(residual.std())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("structure", type=Path)
    parser.add_argument("--picoseconds", type=float, default=20.0)
    parser.add_argument("--equilibrate", type=float, default=0.0, help="ps")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--seed", type=int, default=0, help="of the first velocities")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--matmul", choices=get_args(Matmul), default="float32")
    parser.add_argument(
        "--overflow", choices=get_args(Overflow), help="of atoms with more neighbours than `sel`"
    )
    parser.add_argument("--commit", help="of the measured source, where this is no checkout of it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    atoms = read(arguments.structure)
    given = {name: getattr(arguments, name) for name in ("dtype", "device", "matmul", "overflow")}
    model = mdops.load(arguments.model, **{name: value for name, value in given.items() if value})
    step = arguments.timestep
    physics = EnsembleSettings("nvt", TEMPERATURE, step)
    set_velocities(atoms, physics, np.random.default_rng(arguments.seed), anew=True)
    if arguments.equilibrate > 0:
        warm = Engine(atoms, model, physics)
        list(warm.run(round(1000 * arguments.equilibrate / step)))
        atoms = warm.frame().atoms(atoms)
    engine = Engine(atoms, model, EnsembleSettings("nve", TEMPERATURE, step))
    start = time.perf_counter()
    frames = engine.run(round(1000 * arguments.picoseconds / step), every=max(1, round(10 / step)))
    n = len(atoms)
    rows = [(1e-3 * step * f.step, (f.energy + f.kinetic) / n, engine.temperature(f.kinetic)) for f in frames]
    seconds = time.perf_counter() - start
    left_out = 0.0 if arguments.equilibrate > 0 else 1.0
    picoseconds, energy, temperature = np.array([row for row in rows if row[0] >= left_out]).T
    slope, error, fluctuation = drift(picoseconds, energy)
    result = {
        "machine": machine(arguments.device, arguments.commit),
        "atoms": n,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
        "matmul": arguments.matmul,
        "overflow": arguments.overflow,
        "picoseconds": arguments.picoseconds,
        "equilibration_ps": arguments.equilibrate,
        "timestep_fs": step,
        "drift_eV_per_atom_per_ps": slope,
        "drift_standard_error": error,
        "fluctuation_eV_per_atom": fluctuation,
        "temperature_K": float(temperature.mean()),
        "seconds": seconds,
    }
    report(result, arguments.json)


if __name__ == "__main__":
    main()
