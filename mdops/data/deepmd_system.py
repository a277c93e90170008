"""Reads a system folder of DeePMD-kit: set.*/*.npy, or *.raw text."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mdops.data.frame_set import FrameSet
from mdops.data.labels import LABELS, PARAMETERS, Labels, is_of_frame, silent_types, warn_of_moments
from mdops.data.npy_file import read_npy
from mdops.errors import DataError

_MIXED = "real_atom_types"  # the types of each frame


def is_system(folder: Path) -> bool:
    """Whether the folder is a system of DeePMD-kit."""
    return (folder / "type.raw").is_file()


def read_system(
    folder: Path, type_map: list[str], known: Labels = LABELS, silent: Sequence[str] = ()
) -> Iterator[FrameSet]:
    """The blocks of a system, one a set; arrays of large .npy files are read later. Labels of atoms such as
    atomic_dipole may be of the atoms alone that are of no `silent` element; of these they are zero then.

    Types are those of `type_map` (the system's own numbers where it has no type_map.raw). In the mixed
    format, real_atom_types.npy tells the types of every frame.

    Warns where a set lacks labels that the first one has, or has others: a file may have been forgotten.

    Raises:
        DataError: a file is missing, damaged, or of a length that does not fit the others.
    """
    own = _types(folder)
    elements = _elements(folder)
    periodic = not (folder / "nopbc").is_file()
    sets = sorted(path for path in folder.glob("set.*") if path.is_dir())
    if not sets and not (folder / "coord.raw").is_file():
        raise DataError(f"{folder}: has neither a set.* folder nor coord.raw")
    mixed = [place for place in sets if _file(place, _MIXED) is not None]
    if 0 < len(mixed) < len(sets):
        lacks = next(place for place in sets if place not in mixed)
        raise DataError(
            f"{lacks}: {_MIXED}.npy is missing, which {mixed[0].name} has: in the mixed format every set has its "
            "frames' types there, and type.raw holds placeholders"
        )
    first: FrameSet | None = None
    for place in sets or [folder]:
        block = _read_set(folder, place, own, elements, type_map, periodic, known, silent)
        first = first or block
        if set(block.labels) != set(first.labels):
            labels = [", ".join(sorted(b.labels)) or "nothing" for b in (block, first)]
            warnings.warn(
                f"{place} has {labels[0]}, and {first.source} has {labels[1]}: is a file missing? Frames without a "
                "label do not count in its part of the loss",
                stacklevel=2,
            )
        yield block


def elements_of_system(folder: Path) -> list[str]:
    """The system's own type map; without one, its types' numbers in order."""
    return _elements(folder) or [str(t) for t in range(int(_types(folder).max()) + 1)]


def _types(folder: Path) -> np.ndarray:
    path = folder / "type.raw"
    types = _read_text(path, np.int64).reshape(-1)
    if not len(types):
        raise DataError(f"{path}: is empty")
    return types


def _elements(folder: Path) -> list[str] | None:
    """The element of each of the system's own types, None where these are the model's."""
    path = folder / "type_map.raw"
    if not path.is_file():
        return None
    try:
        names = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from None
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not names or twice:
        raise DataError(f"{path}: {f'has {twice[0]} more than once' if twice else 'is empty'}")
    return names


def _read_set(
    folder: Path,
    place: Path,
    own: np.ndarray,
    elements: list[str] | None,
    type_map: list[str],
    periodic: bool,
    known: Labels,
    silent: Sequence[str],
) -> FrameSet:
    atoms = len(own)
    positions = _array(place, ("coord",))
    if positions is None:
        raise DataError(f"{place}: coord.npy is missing")
    if positions.size == 0:
        raise DataError(f"{place}: coord.npy is empty")
    frames = 1 if positions.ndim == 1 and atoms * 3 == positions.size else len(positions)

    def shaped(array: Any, name: str, shape: tuple[int, ...]) -> Any:
        values = int(np.prod(shape))
        if array.size != frames * values:
            raise DataError(
                f"{place}: {name} has shape {array.shape}, expected {frames} frames of {values} values"
            )
        return array.reshape(frames, *shape)

    positions = shaped(positions, "coord", (atoms, 3))
    labels = {}
    files = {label.name: label.files for label in known.values()} | {name: (name,) for name in PARAMETERS}
    for label, names in files.items():
        array = _array(place, names)
        if array is not None and label in known and known[label].of_pairs:
            found = known[label].arranged(np.asarray(array), frames, atoms)
            labels[label] = shaped(array, names[0], (3 * atoms, 3 * atoms)) if found is None else found
        elif array is not None:
            if silent_types(label, [0], None):
                array = _of_all_atoms(array, own, elements or type_map, silent, known[label].shape, frames)
            labels[label] = shaped(array, names[0], _label_shape(label, array.size // frames, atoms, known))
    if _array(place, ("force_mag",)) is not None:
        warn_of_moments(str(folder), known)
    box = _array(place, ("box",)) if periodic else np.zeros((frames, 9))
    if box is None:
        raise DataError(f"{place}: box.npy is missing (a system without a cell has a file named nopbc)")
    mixed = _array(place, (_MIXED,))
    if mixed is None:
        types = np.broadcast_to(own, (frames, atoms))
    else:
        types = np.asarray(shaped(mixed, _MIXED, (atoms,)))
        if (types != np.floor(types)).any():
            raise DataError(f"{place}: {_MIXED} holds numbers that are not whole")
    types = np.asarray(types, dtype=np.int64)
    _check_own(types, elements, place, lowest=0 if mixed is None else -1)
    return FrameSet(
        str(folder),
        str(place),
        0,
        positions,
        _mapped(types, elements, type_map, folder),
        shaped(box, "box", (3, 3)),
        np.full(3, periodic),
        labels,
    )


def _label_shape(label: str, values: int, atoms: int, known: Labels) -> tuple[int, ...]:
    """One frame's shape; the parameters' width is what the file has."""
    if label in known:
        return known[label].shape_of(values, atoms)
    return (values,) if is_of_frame(label, known) else (atoms, max(1, values // atoms))


def _of_all_atoms(
    array: np.ndarray,
    own: np.ndarray,
    elements: Sequence[str],
    silent: Sequence[str],
    shape: tuple[int, ...],
    frames: int,
) -> np.ndarray:
    """A label of atoms that has numbers of some elements alone with zeros for the atoms of the silent ones; any other
    as it is."""
    chosen = np.array([t >= len(elements) or elements[t] not in silent for t in own])
    if array.size == frames * len(own) * int(np.prod(shape)) or (
        array.size != frames * int(chosen.sum()) * int(np.prod(shape))
    ):
        return array
    found = np.zeros((frames, len(own), *shape))
    found[:, chosen] = np.asarray(array).reshape(frames, -1, *shape)
    return found


def _check_own(types: np.ndarray, elements: list[str] | None, place: Path, lowest: int) -> None:
    """Refuses types that the system's own type map has no element for. Without one, a FrameSet is checked by the
    model's."""
    wrong = types < lowest
    if elements is not None:
        wrong |= types >= len(elements)
    if wrong.any():
        frame, atom = np.argwhere(wrong)[0]
        known = "" if elements is None else f", and type_map.raw has {len(elements)} elements"
        raise DataError(f"{place}, frame {frame}: atom {atom} has type {types[frame, atom]}{known}")


def _mapped(types: np.ndarray, elements: list[str] | None, type_map: list[str], folder: Path) -> np.ndarray:
    """(F, n) int32: the model's types. Elements that the model lacks may stand in type_map.raw if no atom is one."""
    if elements is None:
        return types.astype(np.int32)
    strange = [name for k, name in enumerate(elements) if name not in type_map and bool((types == k).any())]
    if strange:
        raise DataError(
            f"{folder / 'type_map.raw'}: has {', '.join(strange)}, and the model's type_map is "
            f"{', '.join(type_map)}"
        )
    index = [type_map.index(name) if name in type_map else -1 for name in elements]
    return np.array([*index, -1], dtype=np.int32)[types]


def _array(place: Path, names: tuple[str, ...]) -> Any:
    """The first of these that is there, as .npy or .raw; None if none is."""
    path = next(filter(None, (_file(place, name) for name in names)), None)
    if path is None:
        return None
    return read_npy(path) if path.suffix == ".npy" else _read_text(path, np.float64, ndmin=2)


def _file(place: Path, name: str) -> Path | None:
    """Where an array of a set is; None if it is not there."""
    paths = (place / f"{name}.npy", place / f"{name}.raw")
    return next((path for path in paths if path.is_file()), None)


def _read_text(path: Path, dtype: type, ndmin: Literal[1, 2] = 1) -> np.ndarray:
    """The numbers in a text file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # of a file without numbers, which the caller refuses
            return np.loadtxt(path, dtype=dtype, ndmin=ndmin, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None
