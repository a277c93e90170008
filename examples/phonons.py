"""Phonon frequencies of Cu3Al by finite displacements.

python examples/phonons.py
"""

import tempfile

import numpy as np
from alloy import MODEL, alloy
from ase import units
from ase.filters import FrechetCellFilter
from ase.optimize import LBFGS
from ase.phonons import Phonons

from mdops.calculator import MDOps

calculator = MDOps(MODEL, dtype="float64")
atoms = alloy(repeat=1)
atoms.calc = calculator
LBFGS(FrechetCellFilter(atoms), logfile=None).run(fmax=1e-4, steps=200)

with tempfile.TemporaryDirectory() as folder:
    phonons = Phonons(atoms, calculator, supercell=(3, 3, 3), delta=0.02, name=f"{folder}/phonon")
    phonons.run()
    phonons.read(acoustic=True)

terahertz = units._e / units._hplanck * 1e-12  # of one eV
path = atoms.cell.bandpath("GXMGR", npoints=9)
frequencies = phonons.band_structure(path.kpts) * terahertz
for point, row in zip(path.kpts, frequencies, strict=True):
    print(f"{np.array2string(point, precision=3):24}", *(f"{f:7.3f}" for f in row))
print(f"highest frequency {frequencies.max():.3f} THz, lowest {frequencies.min():.3f} THz")
