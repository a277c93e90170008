"""The lines of a run's log."""

from typing import Any

from ase import units

from mdops.md.integrators import conserved_energy
from mdops.md.motion import kinetic_energy


def columns(dynamics: Any, step: int, temperature: float) -> dict[str, str]:
    """Names with units, and values, of one line; which ones there are does not change in a run."""
    atoms = dynamics.atoms
    potential, kinetic = atoms.get_potential_energy(), kinetic_energy(atoms)
    conserved = conserved_energy(dynamics)
    line = {
        "step": f"{step}",
        "time/ps": f"{step * dynamics.dt / (1000 * units.fs):.4f}",
        "Epot/eV": f"{potential:.6f}",
        "Ekin/eV": f"{kinetic:.6f}",
        "Etot/eV": f"{potential + kinetic:.6f}",
        "conserved/eV": "-" if conserved is None else f"{conserved:.6f}",
        "T/K": f"{temperature:.2f}",
    }
    if atoms.pbc.all():
        stress = atoms.get_stress(include_ideal_gas=True)
        line["P/GPa"] = f"{-stress[:3].mean() / units.GPa:.4f}"
        line["V/A^3"] = f"{atoms.get_volume():.3f}"
    deviation = atoms.calc.results.get("forces_std")
    if deviation is not None:
        line["max_devi_f/(eV/A)"] = f"{deviation.max():.5f}"
    return line


def text(line: dict[str, str], *, heading: bool) -> str:
    """The line, below its heading if that is wanted."""
    widths = [max(len(name), 14) for name in line]
    rows = [list(line), list(line.values())] if heading else [list(line.values())]
    return "".join(
        "  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)) + "\n" for row in rows
    )
