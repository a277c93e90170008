"""The lines of a run's log."""

from collections.abc import Iterable
from dataclasses import dataclass

from ase import Atoms, units

from mdops.md.motion import kinetic_energy

_GRAM_PER_CM3 = 1e-3 * units.kg / (1e-2 * units.m) ** 3


@dataclass(frozen=True)
class LogState:
    """A line's values besides the atoms': steps done, fs, K, and eV (None if nothing is conserved)."""

    step: int
    time: float
    temperature: float
    conserved: float | None


def columns(atoms: Atoms, state: LogState) -> dict[str, str]:
    """Names with units, and values, of one line; the names do not change in a run."""
    potential, kinetic = atoms.get_potential_energy(), kinetic_energy(atoms)
    line = {
        "step": f"{state.step}",
        "time/ps": f"{state.time / 1000:.4f}",
        "Epot/eV": f"{potential:.6f}",
        "Ekin/eV": f"{kinetic:.6f}",
        "Etot/eV": f"{potential + kinetic:.6f}",
        "conserved/eV": "nan" if state.conserved is None else f"{state.conserved:.6f}",
        "T/K": f"{state.temperature:.2f}",
    }
    if atoms.pbc.all():
        stress = atoms.get_stress(include_ideal_gas=True)
        line["P/GPa"] = f"{-stress[:3].mean() / units.GPa:.4f}"
        volume = atoms.get_volume()
        line["V/A^3"] = f"{volume:.3f}"
        line["density/(g/cm^3)"] = f"{atoms.get_masses().sum() / volume / _GRAM_PER_CM3:.5f}"
    deviation = atoms.calc.results.get("forces_std")
    if deviation is not None:
        line["max_devi_f/(eV/A)"] = f"{deviation.max():.5f}"
    return line


def text(line: dict[str, str], *, heading: bool) -> str:
    """The line, below its heading if asked: a comment for readers of tables."""
    widths = [max(len(name), 14) for name in line]

    def row(words: Iterable[str]) -> str:
        return "  ".join(word.rjust(width) for word, width in zip(words, widths, strict=True)) + "\n"

    return ("#" + row(line)[1:] if heading else "") + row(line.values())
