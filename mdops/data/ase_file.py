"""Reads extxyz, and whatever else ASE reads."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io import iread
from ase.stress import voigt_6_to_full_3x3_stress

from mdops.data.frame_set import FrameSet
from mdops.data.labels import LABELS, PARAMETERS, Labels, is_of_frame, warn_of_moments
from mdops.errors import DataError, InputError
from mdops.system import element_types, other_charges


def file_names(known: Labels) -> dict[str, str]:
    """What the labels are called in a file, by default."""
    own = {label.name: label.ase for label in known.values()}
    stress = {"stress": "stress"} if "virial" in known else {}
    return own | stress | {name: name for name in PARAMETERS}


def read_file(
    path: Path,
    type_map: list[str],
    names: Mapping[str, str] | None = None,
    known: Labels = LABELS,
    *,
    labelled: bool = True,
) -> Iterator[FrameSet]:
    """A block for every frame of a file.

    Args:
        path: a file that ASE reads, such as extxyz.
        type_map: the model's elements.
        names: what labels are called in `atoms.info` or `atoms.arrays`, where not as in `file_names`
            ({"energy": "REF_energy"}).
        known: the labels to look for.
        labelled: refuse frames without any label.

    Raises:
        DataError: ASE cannot read the file, an element is not in the type map, a frame has no label, or one of
            another length.
    """
    frame, called, told = -1, {**file_names(known), **(names or {})}, False
    try:
        for frame, atoms in enumerate(iread(path, ":")):
            if "virial" in known and not told and _stress_contradicts(atoms, called):
                told = True
                warnings.warn(
                    f"{path}, frame {frame}: {called['virial']} is not minus {called['stress']} times the volume; "
                    f"{called['virial']} is used (in eV, positive under compression; rename it in the file if "
                    f"{called['stress']} is right)",
                    stacklevel=2,
                )
            yield _block(path, frame, atoms, type_map, called, known, labelled)
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:  # ASE's readers raise whatever comes up in them
        raise DataError(
            f"{path}, frame {frame + 1}: ASE cannot read it: {type(error).__name__}: {error}"
        ) from error
    if frame < 0:
        raise DataError(f"{path}: has no frames")


def elements_of_file(path: Path) -> list[str]:
    """The elements of all frames of a file, in the order of appearance. Raises DataError as `read_file`."""
    try:
        return list(
            dict.fromkeys(symbol for atoms in iread(path, ":") for symbol in atoms.get_chemical_symbols())
        )
    except Exception as error:
        raise DataError(f"{path}: ASE cannot read it: {type(error).__name__}: {error}") from error


def _block(
    path: Path,
    frame: int,
    atoms: Atoms,
    type_map: list[str],
    names: Mapping[str, str],
    known: Labels,
    labelled: bool,
) -> FrameSet:
    where = f"{path}, frame {frame}"
    try:
        types = element_types(atoms.get_chemical_symbols(), type_map, "the type map")
    except InputError as error:
        raise DataError(f"{where}: {error}") from None
    labels = {}
    for label in (*(name for name in known if name != "virial"), *PARAMETERS):
        value = _find(atoms, names[label])
        if value is not None:
            labels[label] = _shaped(label, value, len(atoms), where, known)
    if _find(atoms, "force_mag") is not None:
        warn_of_moments(str(path), known)
    virial = _virial(atoms, names, where) if "virial" in known else None
    if virial is not None:
        labels["virial"] = virial
    if labelled and not any(label in labels for label in known):
        raise DataError(
            f"{where}: has none of {', '.join(names[label] for label in known)}, so there is nothing to "
            f"learn from; it has {', '.join(_found(atoms)) or 'positions alone'} (give other names of "
            "labels with `names`, as in --names energy=REF_energy)"
        )
    return FrameSet(
        str(path),
        str(path),
        frame,
        atoms.positions[None],
        types[None].astype(np.int32),
        atoms.cell.array[None],
        np.asarray(atoms.pbc, dtype=bool),
        labels,
        () if "charge_spin" in labels else other_charges(atoms.info),
    )


def _found(atoms: Atoms) -> list[str]:
    """What a frame has beside its structure."""
    structure = ("numbers", "positions", "momenta", "masses", "tags", "initial_magmoms", "initial_charges")
    results = getattr(atoms.calc, "results", {})
    return [name for name in (*atoms.info, *atoms.arrays, *results) if name not in structure]


def _find(atoms: Atoms, name: str) -> Any:
    """A label from the stored results, the frame's or the atoms' values; None where it is absent."""
    results = getattr(atoms.calc, "results", {})
    for place in (atoms.arrays, atoms.info, results):
        if place.get(name) is not None:
            return place[name]
    return None


def _shaped(label: str, value: Any, atoms: int, where: str, known: Labels) -> np.ndarray:
    """(1, ...): one frame of the label, as a FrameSet has it."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{where}: {label} is not an array of numbers") from None
    if label in known and known[label].of_pairs:
        found = known[label].arranged(array, 1, atoms)
        if found is not None:
            return found
    if label in PARAMETERS:
        shape: tuple[int, ...] = (-1,) if is_of_frame(label, known) else (atoms, -1)
    else:
        shape = known[label].shape_of(array.size, atoms)
    try:
        return array.reshape(1, *shape)
    except ValueError:
        raise DataError(f"{where}: {label} has shape {array.shape}, and there are {atoms} atoms") from None


def _stress_contradicts(atoms: Atoms, names: Mapping[str, str]) -> bool:
    """Whether a frame has a virial and another stress."""
    virial, stress = _find(atoms, names["virial"]), _find(atoms, names["stress"])
    if (
        virial is None
        or stress is None
        or atoms.cell.rank < 3
        or not {np.size(virial), np.size(stress)} <= {6, 9}
    ):
        return False
    found = _symmetric(_matrix(virial)), -_symmetric(_matrix(stress)) * atoms.get_volume()
    rounding = 0.01 * max(1.0, *(float(np.abs(value).max()) for value in found))  # of what files have, eV
    return bool(np.abs(found[0] - found[1]).max() > rounding)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    """Its symmetric part. Virials beside magnetic moments are not symmetric, and ASE's stress has no other part."""
    return (matrix + matrix.T) / 2


def _matrix(value: Any) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    return voigt_6_to_full_3x3_stress(array.reshape(6)) if array.size == 6 else array.reshape(3, 3)


def _virial(atoms: Atoms, names: Mapping[str, str], where: str) -> np.ndarray | None:
    """(1, 3, 3) eV: the virial, or minus the stress times the volume."""
    virial, stress = _find(atoms, names["virial"]), _find(atoms, names["stress"])
    if virial is None and (stress is None or atoms.cell.rank < 3):
        return None
    value = np.asarray(stress if virial is None else virial, dtype=np.float64)
    if value.size not in (6, 9):
        name = names["stress" if virial is None else "virial"]
        raise DataError(f"{where}: {name} has {value.size} values, expected 6 or 9")
    full = _matrix(value)
    return (full if virial is not None else -full * atoms.get_volume())[None]
