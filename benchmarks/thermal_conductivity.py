"""The thermal conductivity of a Lennard-Jones fluid from atomic virials, beside the literature's.

python benchmarks/thermal_conductivity.py [--picoseconds 100] [--device cuda] [--out FILE]

T* = 1.35, rho* = 0.6, cutoff at 2.5 sigma, as a table of pairs for argon: D. J. Evans, Phys. Rev. A 34, 1449 (1986) has
kappa* = 3.4. Four runs of 256 atoms; half an hour on a CPU.
"""

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from ase import units
from ase.build import bulk
from machine import machine

from mdops import Potential
from mdops.md import BatchEngine, EnsembleSettings
from mdops.md.heat import green_kubo, heat_current
from mdops.md.motion import set_velocities
from mdops.models.pairtab import PairTable, PairTableOptions

DEPTH, SIZE, MASS = 119.8 * units.kB, 3.405, 39.948  # eV, A, amu
CUTOFF = 2.5 * SIZE
RUNS, EVERY = 4, 5


def potential() -> Potential:
    r = np.arange(2.0, CUTOFF + 0.05, 0.01)
    u, at_cutoff = (4 * DEPTH * ((SIZE / x) ** 12 - (SIZE / x) ** 6) for x in (r, CUTOFF))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        np.savetxt(file, np.stack([r, np.where(r < CUTOFF, u - at_cutoff, 0.0)], 1))
        file.flush()
        options = PairTableOptions(tab_file=file.name, rcut=CUTOFF, sel=200, type_map=["Ar"])
        return Potential(PairTable.random(options, 0, torch.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picoseconds", type=float, default=100.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model = potential().to(args.device)
    nvt = EnsembleSettings("nvt", temperature=1.35 * DEPTH / units.kB, timestep=4)
    nve = dataclasses.replace(nvt, ensemble="nve")
    fluid = [bulk("Ar", "fcc", a=(4 / 0.6) ** (1 / 3) * SIZE, cubic=True) * (4, 4, 4) for _ in range(RUNS)]
    for seed, atoms in enumerate(fluid):
        set_velocities(atoms, nvt, np.random.default_rng(seed), anew=True)
    warm = BatchEngine(fluid, model, nvt)
    list(warm.run(5000))
    fluid = [frame.atoms(atoms) for atoms, frame in zip(fluid, warm.frame(), strict=True)]
    engine = BatchEngine(fluid, model, nve, atom_virial=True)
    masses, usual = fluid[0].get_masses(), engine.frame().atom_energy.mean()
    frames = engine.run(round(1000 * args.picoseconds / nve.timestep), EVERY)
    currents = np.array([[heat_current(frame, masses, usual) for frame in batch] for batch in frames])
    kelvin, volume = engine.mean_temperature.mean(), fluid[0].get_volume()
    unit = units.kB / SIZE**2 * np.sqrt(DEPTH / MASS) * units.fs * 1e25 / units.J  # of kappa*, W/(m K)

    def conductivity(parts: np.ndarray) -> dict[str, list[float]]:
        found = [
            green_kubo(run, EVERY * nve.timestep, volume, kelvin, 4000.0).conductivity.mean(1) / unit
            for run in parts.swapaxes(0, 1)
        ]
        mean, error = np.mean(found, 0), np.std(found, 0, ddof=1) / np.sqrt(RUNS)
        return {
            f"{20 * k} fs": [round(float(mean[k]), 3), round(float(error[k]), 3)] for k in (25, 50, 100, 200)
        }

    result = {
        "kelvin": round(float(kelvin), 2),
        "integral up to: kappa*, its error": conductivity(currents.sum(2)),
        "of the virials alone": conductivity(currents[:, :, 1]),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        head = {"machine": machine(args.device), "picoseconds": args.picoseconds}
        args.out.write_text(json.dumps({**head, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
