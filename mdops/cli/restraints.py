"""--tether and --distance: restraints of `mdops md` and `mdops relax`."""

import argparse
import re
from typing import TYPE_CHECKING

from mdops.errors import InputError

if TYPE_CHECKING:
    from ase import Atoms

    from mdops.md import Distance, Tether

_GROUP = "ATOMS are numbers from 0 and ranges, such as 0,4,10-15, or an element's symbol, or all"


def add_restraints(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tether", nargs=2, action="append", default=[], metavar=("ATOMS", "K"),
        help=f"hold atoms near where they start, each with K, eV/A^2; {_GROUP}; may be repeated")  # fmt: skip
    add("--distance", nargs="+", action="append", default=[], metavar="ATOMS",
        help="ATOMS ATOMS K LENGTH [above|below]: hold the centres of mass of two groups at LENGTH, A, with K, eV/A^2; "
        "above or below: only while they are farther or nearer; may be repeated")  # fmt: skip


def restraints_of(args: argparse.Namespace, atoms: "Atoms") -> "list[Tether | Distance]":
    """The restraints from the options of `add_restraints`, for this structure. Raises InputError."""
    from mdops.md import Distance, Tether

    found: list[Tether | Distance] = []
    for group, stiffness in args.tether:
        found.append(Tether(_group(group, atoms, "--tether"), _number(stiffness, "--tether")))
    for words in args.distance:
        if len(words) not in (4, 5):
            raise InputError(
                f"--distance {' '.join(words)}: expected ATOMS ATOMS K LENGTH, and above or below if it is a wall"
            )
        first, second = (_group(word, atoms, "--distance") for word in words[:2])
        stiffness, length = (_number(word, "--distance") for word in words[2:4])
        found.append(Distance(first, second, stiffness, length, *words[4:]))
    return found


def _number(word: str, option: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InputError(f"{option}: {word} is not a number") from None


def _group(text: str, atoms: "Atoms", option: str) -> list[int]:
    if text == "all":
        return list(range(len(atoms)))
    if text.isalpha():
        found = [k for k, symbol in enumerate(atoms.get_chemical_symbols()) if symbol == text]
        if not found:
            raise InputError(f"{option}: the structure has no atoms of {text}")
        return found
    group: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise InputError(f"{option}: {text} is not a group of atoms: {_GROUP}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < len(atoms):
            raise InputError(f"{option}: {part} is not a range of the structure's atoms 0-{len(atoms) - 1}")
        group += range(first, last + 1)
    return group
