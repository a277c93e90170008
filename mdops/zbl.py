"""The universal potential of Ziegler, Biersack and Littmark for the nuclei of two atoms, and tables of it.

u(r) = k Z1 Z2 / r phi(r/a),  a = 0.8854 a0 / (Z1^0.23 + Z2^0.23),  phi(x) = sum_i c_i exp(-d_i x), with Coulomb's
constant k and Bohr's radius a0. Source: J. F. Ziegler, J. P. Biersack, U. Littmark, The Stopping and Range of Ions in
Solids (Pergamon, 1985).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdops.errors import InputError
from mdops.files.atomic import replace_file

COULOMB = 14.3996454  # eV A
BOHR = 0.52917721  # A
_C = np.array([0.18175, 0.50986, 0.28022, 0.02817])
_D = np.array([3.19980, 0.94229, 0.40290, 0.20162])

_MOST_ROWS = 1_000_000


def energy(a: str, b: str, r: np.ndarray) -> np.ndarray:
    """u (n,), eV, of a pair of elements at the distances r (n,), A. Raises InputError if one is not an element."""
    za, zb = _number(a), _number(b)
    x = r * (za**0.23 + zb**0.23) / (0.8854 * BOHR)
    screening = (_C * np.exp(-np.multiply.outer(x, _D))).sum(-1)
    found: np.ndarray = COULOMB * za * zb / r * screening
    return found


def table(
    elements: Sequence[str], step: float = 0.01, cutoff: float = 6.0, smooth_from: float | None = None
) -> np.ndarray:
    """(n, 1 + pairs): distances from one step to the cutoff, A, and the energies of the pairs 0-0, 0-1, ..., 1-1, ...

    Args:
        elements: in the order of the model's types.
        smooth_from: the distance (A) where the energies begin to fall to zero at the cutoff, with a quintic; by default
            0.8 of the cutoff.

    Raises:
        InputError: no elements, an unknown element, or one given twice; or the distances are not increasing.
    """
    smooth = 0.8 * cutoff if smooth_from is None else smooth_from
    if not elements or len(set(elements)) < len(elements):
        raise InputError(
            f"the elements are {', '.join(elements) or 'none'}, expected each element of the model once"
        )
    if not 0 < step < smooth < cutoff < np.inf:
        raise InputError(
            f"the step is {step:g} A, the smoothing begins at {smooth:g} A and the cutoff is {cutoff:g} A, expected "
            "them to rise"
        )
    if cutoff > _MOST_ROWS * step:
        raise InputError(
            f"a step of {step:g} A up to {cutoff:g} A makes a table of more than {_MOST_ROWS:,} distances"
        )
    rows = int(np.ceil(cutoff / step - 1e-9))
    r = step * np.arange(1, rows + 1)
    u = np.clip((r - smooth) / (cutoff - smooth), 0, 1)
    switch = 1 - u**3 * (10 - 15 * u + 6 * u**2)
    switch[-1] = 0.0  # rounding may place the last row just before the cutoff
    pairs = [(a, b) for i, a in enumerate(elements) for b in elements[i:]]
    return np.stack([r, *(switch * energy(a, b, r) for a, b in pairs)], axis=1)


def write_table(path: str | Path, elements: Sequence[str], rows: np.ndarray) -> None:
    """Writes a table of these elements as a text file, which models with `use_srtab` and `pairtab` read."""
    names = [f"{a}-{b}" for i, a in enumerate(elements) for b in elements[i:]]
    lines = [f"# ZBL, eV; r/A {' '.join(names)}", *(" ".join(f"{x:.12g}" for x in row) for row in rows)]
    replace_file(Path(path), ("\n".join(lines) + "\n").encode())


def _number(element: str) -> int:
    from ase.data import atomic_numbers

    number = atomic_numbers.get(element, 0)
    if not number:
        raise InputError(f"{element!r} is not an element")
    return int(number)
