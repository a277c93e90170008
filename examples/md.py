"""Molecular dynamics of Cu3Al with ASE's own tools: constant energy at 600 K.

python examples/md.py

The command `mdops md` does this with checkpoints, and `mdops.md.run` is its Python form.
"""

import numpy as np
from alloy import MODEL, alloy
from ase import units
from ase.md.verlet import VelocityVerlet

from mdops.calculator import MDOps

atoms = alloy(repeat=3)
atoms.calc = MDOps(MODEL)
speeds = np.sqrt(units.kB * 600 / atoms.get_masses())  # 600 K
atoms.set_velocities(speeds[:, None] * np.random.default_rng(0).standard_normal((len(atoms), 3)))

dynamics = VelocityVerlet(atoms, timestep=2 * units.fs)
first = atoms.get_total_energy()


def report() -> None:
    drift = (atoms.get_total_energy() - first) / len(atoms)
    time = dynamics.get_time() / (1000 * units.fs)
    print(f"{time:6.2f} ps  {atoms.get_temperature():7.1f} K  energy {1000 * drift:+.4f} meV/atom")


dynamics.attach(report, interval=25)
dynamics.run(100)
