"""Degrees of freedom, temperature, and the initial velocities of a run."""

import numpy as np
from ase import Atoms, units
from ase.md.velocitydistribution import Stationary, ZeroRotation

from mdops.errors import InputError
from mdops.md.options import EnsembleSettings


def degrees_of_freedom(atoms: Atoms, physics: EnsembleSettings) -> int:
    """How many momenta are free: Langevin's noise moves all, elsewhere the total momentum, and a cluster's
    angular momentum, stay zero."""
    if atoms.constraints:
        return int(atoms.get_number_of_degrees_of_freedom())
    n = len(atoms)
    if physics.ensemble == "nvt" and physics.thermostat == "langevin":
        return 3 * n
    conserved = 3
    if not atoms.pbc.any():
        conserved += {1: 0, 2: 2}.get(n, 3)
    return max(0, 3 * n - conserved)


def check_npt(atoms: Atoms, name: str = "") -> None:
    """Raises InputError for atoms whose cell has no volume that a pressure could act on."""
    if not atoms.pbc.all():
        raise InputError(
            f"{name}npt needs a cell that is periodic in three directions, and pbc is {atoms.pbc}"
        )


def check_masses(atoms: Atoms, name: str = "") -> None:
    """Raises InputError for masses by which nothing can move."""
    masses = atoms.get_masses()
    wrong = np.flatnonzero(~(np.isfinite(masses) & (masses > 0)))
    if len(wrong):
        atom = int(wrong[0])
        raise InputError(
            f"{name}atom {atom} ({atoms.symbols[atom]}) has a mass of {masses[atom]:g}, expected a finite one above "
            "0 amu"
        )


def check_momenta(atoms: Atoms, name: str = "") -> None:
    """Raises InputError for velocities that are not finite."""
    if not atoms.has("momenta"):
        return
    wrong = np.flatnonzero(~np.isfinite(atoms.get_momenta()).all(axis=1))
    if len(wrong):
        atom = int(wrong[0])
        raise InputError(
            f"{name}atom {atom} ({atoms.symbols[atom]}) has velocity {atoms.get_velocities()[atom].tolist()}, not "
            "finite: remove the velocities, or draw new ones"
        )


def kinetic_energy(atoms: Atoms) -> float:
    """eV."""
    p = atoms.arrays["momenta"]
    return 0.5 * float(np.einsum("ij,ij->i", p, p) @ (1 / atoms.get_masses()))


def temperature(atoms: Atoms, freedom: int) -> float:
    """K; 0 if nothing can move."""
    return 2 * kinetic_energy(atoms) / (freedom * units.kB) if freedom else 0.0


def set_velocities(atoms: Atoms, physics: EnsembleSettings, rng: np.random.Generator, *, anew: bool) -> None:
    """The structure's velocities, or (if there are none, or `anew`) Maxwell-Boltzmann ones scaled to the exact
    temperature; the centre of mass comes to rest, and so does a cluster's rotation. Velocities that are all
    zero, as in VASP's files of relaxed structures, count as none if there is a temperature.

    Raises InputError for masses that are not positive, velocities that are not finite, and where there are neither
    velocities nor a temperature."""
    check_masses(atoms)
    if not anew:
        check_momenta(atoms)
    at_rest = not atoms.has("momenta") or (physics.temperature is not None and not atoms.get_momenta().any())
    drawn = anew or at_rest
    if drawn:
        if physics.temperature is None:
            raise InputError("the structure has no velocities: give a temperature (--temperature, in K)")
        width = np.sqrt(atoms.get_masses() * units.kB * physics.temperature)
        atoms.set_momenta(width[:, None] * rng.standard_normal((len(atoms), 3)))
    if len(atoms) > 1 and not atoms.constraints:
        Stationary(atoms, preserve_temperature=False)
        if not atoms.pbc.any():
            with np.errstate(invalid="ignore", divide="ignore"):  # of linear molecules, about their axis
                ZeroRotation(atoms, preserve_temperature=False)
    now = temperature(atoms, degrees_of_freedom(atoms, physics))
    if drawn and now > 0:
        atoms.set_momenta(atoms.get_momenta() * np.sqrt((physics.temperature or 0.0) / now))
