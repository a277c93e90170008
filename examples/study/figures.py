"""A picture of the atoms, for the report."""

from pathlib import Path

from ase import Atoms
from matplotlib.image import imsave

from study.render import render


def structure_picture(atoms: Atoms, path: Path) -> None:
    """The atoms with their cell or bonds, on a transparent background."""
    imsave(path, render(atoms, scale=0.75 if atoms.pbc.any() else 0.5))
