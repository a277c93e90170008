"""Relax atoms and cell of a strained, rattled Cu3Al crystal.

python examples/relax.py
"""

import numpy as np
from alloy import MODEL, alloy
from ase.filters import FrechetCellFilter
from ase.optimize import LBFGS

from mdops.calculator import MDOps

atoms = alloy()
atoms.set_cell(
    atoms.cell.array @ np.array([[1.03, 0.02, 0], [0, 0.99, 0], [0, 0.01, 1.01]]), scale_atoms=True
)
atoms.rattle(0.05, seed=1)
atoms.calc = MDOps(MODEL, dtype="float64")
print(f"before: {atoms.get_potential_energy():.4f} eV, {atoms.get_volume() / len(atoms):.3f} A^3/atom")

converged = LBFGS(FrechetCellFilter(atoms), logfile=None).run(fmax=0.01, steps=200)

lengths, angles = atoms.cell.lengths(), atoms.cell.angles()
print(f"after:  {atoms.get_potential_energy():.4f} eV, {atoms.get_volume() / len(atoms):.3f} A^3/atom")
print(f"cell {lengths.round(3)} A, {angles.round(2)} degrees")
print(f"largest stress {np.abs(atoms.get_stress()).max():.1e} eV/A^3")
print("converged" if converged else "not converged")
