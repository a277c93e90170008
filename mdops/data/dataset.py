"""The frames to train on, of any number and kind of atoms, in flat arrays."""

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mdops.data.ase_file import elements_of_file, file_names, read_file
from mdops.data.deepmd_system import elements_of_system, is_system, read_system
from mdops.data.frame_set import FrameSet, check, joined, runs
from mdops.data.labels import LABELS, PARAMETERS, Labels, is_of_frame, silent_types
from mdops.data.lmdb_file import elements_of_lmdb, is_lmdb, read_lmdb
from mdops.data.near_pairs import without_near_pairs
from mdops.data.storage import Storage
from mdops.data.units_check import pressure_warning, units_warning
from mdops.errors import DataError, InputError
from mdops.flags import require_numbers, require_whole
from mdops.models.spin import Spin
from mdops.system import checked_charge_spin, require_defaults

_CHUNK = 1024  # frames that are checked and copied at a time
_NAMED = 10  # systems in a warning


class NothingLeftOutError(DataError):
    """No system has so many frames that one would be left out."""


@dataclass
class Dataset:
    """F frames with N atoms in all; frame f has the atoms offsets[f] .. offsets[f + 1] - 1.

    Attributes:
        type_map: the element of each type.
        offsets: (F + 1,) int64.
        positions: (N, 3) float64, A. types: (N,) int32.
        cell: (F, 3, 3) float64, A. pbc: (F, 3) bool.
        labels: energy (F,), forces (N, 3), virial (F, 3, 3), atom_energy (N,), hessian (P, 3, 3) of the P
            pairs of atoms of all frames, or others of `known`, and fparam (F, p)
            and aparam (N, q), float64, eV and A; only those that some frame has, zero where a frame lacks them.
        present: for each of these (F,) bool, the frames that have it.
        system: (F,) the index in `systems`, the folders and files.
        source: (F,) index in `sources`, (source, a frame's number in the dataset less that in the source).
        known: what a label may be, and is: those of energies, or of a model's other outputs.
        silent: types whose atoms have no answers, and so no errors of labels of atoms.
        spin: how the spins of the frames made virtual atoms, which are among their atoms; None: there are none.
        charges: what files have of charges and multiplicities under other names, each with the first frame that has it.
    """

    type_map: list[str]
    offsets: np.ndarray
    positions: np.ndarray
    types: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    labels: dict[str, np.ndarray]
    present: dict[str, np.ndarray]
    system: np.ndarray
    systems: list[str]
    source: np.ndarray
    sources: list[tuple[str, int]]
    known: Labels = field(default_factory=lambda: LABELS)
    silent: tuple[int, ...] = ()
    spin: Spin | None = None
    charges: tuple[tuple[str, tuple[str, Any]], ...] = ()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def ntypes(self) -> int:
        return len(self.type_map)

    def require_charges(self, defaults: Sequence[Sequence[float] | None]) -> None:
        """Raises DataError where a file calls charges or multiplicities otherwise than charge_spin, and a model with
        these `defaults` would go by others."""
        for frame, given in self.charges:
            try:
                require_defaults([given], defaults)
            except InputError as error:
                raise DataError(f"{frame}: {error}") from None

    def atoms(self, frame: int) -> slice:
        """The atoms of a frame, in the arrays over N."""
        return slice(int(self.offsets[frame]), int(self.offsets[frame + 1]))

    def atoms_of(self, frames: np.ndarray) -> np.ndarray:
        """The atoms of these frames, in their order."""
        return _between(self.offsets, np.asarray(frames, dtype=np.int64))

    def sizes(self, frames: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(F,): the number of atoms of each of these frames, all by default."""
        return self.offsets[1:][frames] - self.offsets[:-1][frames]

    def counted(self, frames: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(F,): the number of atoms of each frame that energies are told by: virtual atoms of spins are none."""
        return self.sizes(frames) // (2 if self.paired else 1)

    def frames_of_systems(self) -> list[np.ndarray]:
        """The frames of each system, ascending."""
        counts = np.bincount(self.system, minlength=len(self.systems))
        return np.split(np.argsort(self.system, kind="stable"), np.cumsum(counts)[:-1])

    @property
    def paired(self) -> bool:
        """Whether a virtual atom follows each atom."""
        return self.spin is not None and self.spin.paired

    def answering(self, label: str, rows: np.ndarray) -> np.ndarray:
        """Those of these rows of the arrays over N that have an answer for a label of atoms."""
        silent = silent_types(label, self.silent, self.spin)
        of = self.types[rows]
        return rows[(of >= 0) & ~np.isin(of, silent)] if silent else rows

    def composition(self) -> np.ndarray:
        """(F, ntypes): the atoms of each type of each frame."""
        counts, owner = (
            np.zeros((len(self), self.ntypes), dtype=np.int64),
            np.repeat(range(len(self)), self.sizes()),
        )
        here = self.types >= 0
        np.add.at(counts, (owner[here], self.types[here]), 1)
        return counts

    def name(self, frame: int) -> str:
        """How messages call a frame: its file, and its number there."""
        source, shift = self.sources[self.source[frame]]
        return f"{source}, frame {frame - shift}"

    def rows(self, name: str, frames: np.ndarray) -> np.ndarray:
        """Where the numbers of these frames stand in the array of a label, or of a parameter."""
        frames = np.asarray(frames, dtype=np.int64)
        if name in self.known and self.known[name].of_pairs:
            return _between(np.concatenate([[0], np.cumsum(self.sizes() ** 2)]), frames)
        return frames if is_of_frame(name, self.known) else self.atoms_of(frames)

    def successive(self, frames: np.ndarray, atoms: int) -> Iterator[np.ndarray]:
        """The frames in their order, in parts of at most so many atoms; of one frame at least."""
        beyond = np.cumsum(self.sizes(frames))
        start = 0
        while start < len(frames):
            before = beyond[start - 1] if start else 0
            stop = max(int(np.searchsorted(beyond, before + atoms, side="right")), start + 1)
            yield frames[start:stop]
            start = stop

    def fill(self, label: str, frames: np.ndarray) -> None:
        """Gives a label of atoms, ones, to those of these frames, (F,) bool, that lack it."""
        present = self.present.setdefault(label, np.zeros(len(self), dtype=bool))
        values = self.labels.setdefault(label, np.zeros(len(self.types)))
        values[np.repeat(frames & ~present, self.sizes())] = 1.0
        present |= frames

    def has(self, label: str) -> bool:
        """Whether any frame has this label or parameter."""
        return label in self.labels


def _between(ends: np.ndarray, which: np.ndarray) -> np.ndarray:
    """ends[k] .. ends[k + 1] - 1 for each of these k, one after the other."""
    counts = ends[which + 1] - ends[which]
    return np.arange(counts.sum()) + np.repeat(ends[which] - np.cumsum(counts) + counts, counts)


def load_dataset(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    type_map: Sequence[str],
    *,
    names: Mapping[str, str] | None = None,
    storage: Storage | None = None,
    leave_out: int = 0,
    left_out: bool = False,
    min_pair_dist: float = 0.0,
    most_atoms: int | None = None,
    labelled: bool = True,
    known: Labels = LABELS,
    silent: Sequence[str] = (),
) -> Dataset:
    """Reads systems of DeePMD-kit and files that ASE reads into one dataset.

    >>> data = load_dataset(["water/data_0", "clusters.extxyz"], ["O", "H"])  # doctest: +SKIP

    Args:
        paths: each a system of DeePMD-kit (a folder with type.raw, or a dataset in LMDB), a folder with such systems
            in it at any depth, or a file.
        type_map: the model's elements. Types of a system without type_map.raw are indices in it.
        names: what files call the labels, see `mdops.data.ase_file.read_file`.
        storage: where the arrays go; in memory up to a share of it, mapped from temporary files beyond, unless
            told.
        leave_out: every so many-th frame of a system is left out; 0: none.
        left_out: read those, and no others.
        min_pair_dist: A; frames in which two atoms are nearer to each other are left out, with a warning that counts
            them. A system without other frames stays in `systems`.
        most_atoms: frames with more atoms are left out, with a warning that counts them, and systems without other
            frames are, too. Places without an atom (type -1) count as atoms. None: no limit.
        labelled: refuse frames without any label, of which nothing is to be learned.
        known: the labels to look for (`mdops.data.labels.labels_of`).
        silent: elements whose atoms have no answers: labels of atoms may leave them out.

    Warns where forces contradict the energies by about an order of magnitude or more.

    Raises:
        DataError: something is missing, damaged or makes no sense; the message names the file and the frame. Also if
            `min_pair_dist` or `most_atoms` leaves out all frames.
        InputError: `type_map` has an element twice, `names` is of a label that there is not, `min_pair_dist` is no
            distance, or `most_atoms` is no whole number.
    """
    _check_names(type_map, names or {}, known)
    require_numbers(min_pair_dist=min_pair_dist)
    if not 0 <= min_pair_dist < math.inf:
        raise InputError(f"min_pair_dist is {min_pair_dist}, expected 0 or more, A")
    blocks = whole = list(_blocks(_places(paths), list(type_map), names, labelled, known, silent))
    if leave_out:
        blocks = list(_divided(blocks, leave_out, left_out))
    if not blocks and left_out:
        raise NothingLeftOutError(
            f"{_listed(paths)}: no system has {leave_out} frames, so none is left out of the training"
        )
    if not blocks:
        raise DataError(f"there are no frames in {_listed(paths)}")
    if most_atoms is not None:
        require_whole(most_atoms=most_atoms)
        blocks = _without_large(blocks, most_atoms)
    systems = list(dict.fromkeys(block.system for block in blocks))
    checked = partial(check, ntypes=len(type_map), known=known, labelled=labelled)
    if min_pair_dist:
        blocks = without_near_pairs(blocks, min_pair_dist, checked)
    data = _empty(blocks, systems, list(type_map), storage or Storage(), known)
    first = 0
    for block in blocks:
        for start in range(0, block.frames, _CHUNK):
            part = block.part(start, min(start + _CHUNK, block.frames)).loaded()
            checked(part)
            _fill(data, part, first + start)
        first += block.frames
    # Few frames of a system tell nothing: energies may go with work by chance.
    shown, doubted = set(systems), set[tuple[object, str]]()
    for block in joined([block for block in whole if block.system in shown]):
        for doubt in (units_warning, pressure_warning):
            message = None if (doubt, block.system) in doubted else doubt(block)
            if message:
                doubted.add((doubt, block.system))
                warnings.warn(message, stacklevel=2)
    _check_parameters(data)
    for name in [name for name in data.labels if name in known and known[name].scales]:
        data.fill(name, np.ones(len(data), dtype=bool))
    for label, name in (names or {}).items():
        if not data.has("virial" if label == "stress" else label):
            raise DataError(f"{', '.join(data.systems)}: no frame has {name!r}, the name given for {label}")
    return data


def elements_of(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """A type map that these systems and files fit: their elements in the order of appearance. Systems without
    type_map.raw have types of no name, which are called by their numbers, with a warning.

    Raises:
        DataError: as `load_dataset`, and where only some systems have names of types.
    """
    found: dict[str, None] = {}
    for place in _places(paths):
        of = (
            elements_of_lmdb if is_lmdb(place) else elements_of_system if place.is_dir() else elements_of_file
        )
        found |= dict.fromkeys(of(place))
    numbers = [name for name in found if name.isdigit()]
    if numbers and len(numbers) < len(found):
        raise DataError(
            "some systems have no type_map.raw, and others do: write it for all, or give the elements in the order of "
            "the types (--elements, or model.type_map in an input)"
        )
    if not numbers:
        return list(found)
    types = [str(t) for t in range(1 + max(map(int, numbers)))]
    warnings.warn(
        f"the data have no type_map.raw, so the types are called {', '.join(types)}, which ASE and others do not know: "
        "write type_map.raw, or give the elements in the order of the types (--elements, or model.type_map in an "
        "input)",
        stacklevel=2,
    )
    return types


def _check_names(type_map: Sequence[str], names: Mapping[str, str], known: Labels) -> None:
    twice = [element for element in dict.fromkeys(type_map) if list(type_map).count(element) > 1]
    if twice:
        raise InputError(f"type_map has {twice[0]} more than once: {', '.join(type_map)}")
    unknown = [label for label in names if label not in file_names(known)]
    if unknown:
        raise InputError(
            f"names: there is no label {unknown[0]!r}; labels are {', '.join(file_names(known))}"
        )


def _listed(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str:
    return ", ".join(map(str, [paths] if isinstance(paths, str | os.PathLike) else paths))


def _places(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Systems and files, a folder that is not itself a system replaced by the systems below it."""
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not all(map(str, wanted or [""])):  # "" would be the working folder
        raise DataError("no systems are given")
    places = []
    for path in map(Path, wanted):
        if path.suffix in (".hdf5", ".h5") or (not path.exists() and ".hdf5#" in str(path)):
            raise DataError(
                f"{path}: systems in HDF5 are not read; write them as folders, with dpdata by to('deepmd/npy', FOLDER)"
            )
        if not path.exists():
            place = "" if path.is_absolute() else f" in {Path.cwd()}"
            if Path(str(path).rpartition("@")[0]).is_file():
                place += "; all frames of a file are data, and FILE@INDEX has no meaning here: write a file of those"
            raise DataError(f"{path}: there is no such file or folder{place}")
        if path.is_file() or is_system(path) or is_lmdb(path):
            places.append(path)
            continue
        below = sorted(found.parent for name in ("type.raw", "data.mdb") for found in path.rglob(name))
        if not below:
            raise DataError(
                f"{path}: no system of DeePMD-kit (a folder with type.raw, or an LMDB with data.mdb) is in this folder"
            )
        places += below
    return places


def _blocks(
    places: list[Path],
    type_map: list[str],
    names: Mapping[str, str] | None,
    labelled: bool,
    known: Labels,
    silent: Sequence[str],
) -> Iterator[FrameSet]:
    """Those of each place. A place that is given twice has two systems, which a training draws as two."""
    given = Counter[Path]()
    for place in places:
        found: Iterable[FrameSet]
        if is_lmdb(place):
            found = read_lmdb(place, type_map, known)
        elif place.is_dir():
            found = read_system(place, type_map, known, silent)
        else:
            found = runs(read_file(place, type_map, names, known, labelled=labelled))
        given[place] += 1
        for block in found:
            yield block if given[place] == 1 else replace(block, system=f"{block.system} ({given[place]})")


def _divided(blocks: list[FrameSet], every: int, left_out: bool) -> Iterator[FrameSet]:
    """The blocks without every so many-th frame of each system, or with these alone, as views."""
    seen: dict[str, int] = {}
    for block in blocks:
        before = seen.get(block.system, 0)
        seen[block.system] = before + block.frames
        ends = range(every - 1 - before % every, block.frames, every)
        starts = [0, *(k + 1 for k in ends)]
        runs = [(k, k + 1) for k in ends] if left_out else zip(starts, [*ends, block.frames], strict=True)
        for start, stop in runs:
            if stop > start:
                yield block.part(start, stop)


def _without_large(blocks: Sequence[FrameSet], most: int) -> list[FrameSet]:
    """The blocks of frames with so many places of atoms at most. Warns of the others."""
    kept = [block for block in blocks if block.types.shape[1] <= most]
    frames, left = (sum(block.frames for block in some) for some in (blocks, kept))
    large = dict.fromkeys(block.system for block in blocks if block.types.shape[1] > most)
    more = f" and {len(large) - _NAMED} others" if len(large) > _NAMED else ""
    some = ", ".join(list(large)[:_NAMED]) + more
    if not kept:
        raise DataError(f"no frame is left: all {frames} have more than {most} atoms: {some}")
    if large:
        warnings.warn(
            f"{frames - left} of {frames} frames are left out, because they have more than {most} atoms: {some}",
            stacklevel=3,
        )
    return kept


def _empty(
    blocks: list[FrameSet], systems: list[str], type_map: list[str], storage: Storage, known: Labels
) -> Dataset:
    """The dataset with its arrays in place and nothing in those of floats."""
    frames = sum(block.frames for block in blocks)
    sizes = np.concatenate([(block.types >= 0).sum(1) for block in blocks])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    atoms = int(offsets[-1])
    of = {name: atoms if label.of_atom else frames for name, label in known.items()}
    of |= {name: int((sizes**2).sum()) for name, label in known.items() if label.of_pairs}
    shapes = {
        name: (of[name], *(_width(blocks, name) if n < 0 else n for n in label.shape))
        for name, label in known.items()
    }
    for name, rows in zip(PARAMETERS, (frames, atoms, frames), strict=True):
        shapes[name] = (rows, _width(blocks, name))
    labelled = [name for name in (*known, *PARAMETERS) if any(name in block.labels for block in blocks)]
    places = {system: k for k, system in enumerate(systems)}
    sources: list[tuple[str, int]] = []
    source, first = np.zeros(frames, dtype=np.int64), 0
    for block in blocks:
        if not sources or sources[-1] != (block.source, first - block.first):
            sources.append((block.source, first - block.first))
        source[first : first + block.frames] = len(sources) - 1
        first += block.frames
    return Dataset(
        type_map,
        offsets,
        storage.array((atoms, 3), np.float64),
        storage.array((atoms,), np.int32),
        storage.array((frames, 3, 3), np.float64),
        np.concatenate([np.broadcast_to(block.pbc, (block.frames, 3)) for block in blocks]),
        {name: storage.array(shapes[name], np.float64) for name in labelled},
        {name: np.zeros(frames, dtype=bool) for name in labelled},
        np.concatenate([np.full(block.frames, places[block.system]) for block in blocks]),
        systems,
        source,
        sources,
        known,
        charges=_charges(blocks),
    )


def _charges(blocks: list[FrameSet]) -> tuple[tuple[str, tuple[str, Any]], ...]:
    """`Dataset.charges`."""
    found: dict[str, tuple[str, tuple[str, Any]]] = {}
    for block in blocks:
        for given in block.charges:
            found.setdefault(repr(given), (block.name(0), given))
    return tuple(found.values())


def _width(blocks: list[FrameSet], name: str) -> int:
    """How many values fparam, say, has, the same in every block that has it."""
    widths = {block.labels[name].shape[-1]: block.source for block in blocks if name in block.labels}
    if len(widths) > 1:
        (a, first), (b, second), *_ = widths.items()
        raise DataError(f"{name} has {a} values in {first} and {b} in {second}")
    return next(iter(widths), 0)


def _fill(data: Dataset, block: FrameSet, first: int) -> None:
    """Copies a block into the place of its frames; places without an atom (type -1) are left out."""
    frames = slice(first, first + block.frames)
    atoms = slice(int(data.offsets[first]), int(data.offsets[first + block.frames]))
    real = block.types >= 0
    data.positions[atoms] = block.positions[real]
    data.types[atoms] = block.types[real]
    data.cell[frames] = block.cell
    for name, array in block.labels.items():
        whole = is_of_frame(name, data.known)
        if name in data.known and data.known[name].of_pairs:
            both = (real[:, :, None] & real[:, None, :]).reshape(len(real), -1)
            data.labels[name][data.rows(name, np.arange(first, frames.stop))] = array[both]
        else:
            data.labels[name][frames if whole else atoms] = array if whole else array[real]
        data.present[name][frames] = True


def _check_parameters(data: Dataset) -> None:
    """A model takes parameters, or does not: frames that lack them cannot be mixed in. Charges and multiplicities are
    some that there are embeddings for."""
    for name in PARAMETERS:
        if data.has(name) and not data.present[name].all():
            lacking = int(np.argmin(data.present[name]))
            raise DataError(f"{data.name(lacking)}: has no {name}, and other frames have one")
    if data.has("charge_spin"):
        values, first = np.unique(data.labels["charge_spin"], axis=0, return_index=True)
        for value, frame in zip(values, first.tolist(), strict=True):
            try:
                checked_charge_spin(value, 1)
            except InputError as error:
                raise DataError(f"{data.name(frame)}: {error}") from None
