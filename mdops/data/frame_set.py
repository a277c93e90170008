"""What every reader of training data gives: frames of one number of atoms; and the checks these pass."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mdops.data.labels import LABELS, Labels, is_of_frame
from mdops.errors import DataError

# A cell is taken as flat when its volume is below this fraction of the product of its edges: the neighbour
# search refuses such a cell too.
_FLAT = 1e-8
_LONGEST = 1e9  # A; that, too, it refuses
_RUN = 1024  # frames


@dataclass
class FrameSet:
    """F frames of n atoms each. The arrays are of any float precision, and may be read when they are used (`NpyArray`).

    Attributes:
        system: the system or file that the frames belong to.
        source: where they were read, with `first`, the number there of the first of them, for messages.
        positions: (F, n, 3), A.
        types: (F, n) in the model's type map; -1 where there is no atom.
        cell: (F, 3, 3), rows are lattice vectors, A.
        pbc: (3,) bool.
        labels: what is known of energy (F,), forces (F, n, 3), virial (F, 3, 3) and atom_energy (F, n), eV
            and A, or of other labels, and of the parameters fparam (F, p) and aparam (F, n, q).
        charges: what the file has of charges and multiplicities under other names (`mdops.system.other_charges`).
    """

    system: str
    source: str
    first: int
    positions: np.ndarray
    types: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    charges: tuple[tuple[str, Any], ...] = ()

    @property
    def frames(self) -> int:
        return self.positions.shape[0]

    def name(self, frame: int) -> str:
        """How messages call a frame of this block."""
        return f"{self.source}, frame {self.first + frame}"

    def part(self, start: int, stop: int) -> "FrameSet":
        """The frames start .. stop - 1, as views."""
        pick = slice(start, stop)
        return replace(
            self,
            first=self.first + start,
            positions=self.positions[pick],
            types=self.types[pick],
            cell=self.cell[pick],
            labels={name: array[pick] for name, array in self.labels.items()},
        )

    def loaded(self) -> "FrameSet":
        """The same in memory, in float64."""
        return replace(
            self,
            positions=np.asarray(self.positions, dtype=np.float64),
            cell=np.asarray(self.cell, dtype=np.float64),
            labels={name: np.asarray(array, dtype=np.float64) for name, array in self.labels.items()},
        )


def runs(blocks: Iterable[FrameSet]) -> Iterator[FrameSet]:
    """Successive blocks of one source put together where they are alike, up to `_RUN` frames: with a block for each
    frame, the objects take more memory than the numbers."""
    group, frames = list[FrameSet](), 0
    for block in blocks:
        if group and (_kind(block) != _kind(group[0]) or frames + block.frames > _RUN):
            yield _one(group)
            group, frames = [], 0
        group.append(block)
        frames += block.frames
    if group:
        yield _one(group)


def joined(blocks: Iterable[FrameSet]) -> Iterator[FrameSet]:
    """Small blocks that are alike put together, also if others are between them; others as they are."""
    groups: dict[Any, list[FrameSet]] = {}
    for block in blocks:
        if block.frames >= _RUN:
            yield block
        else:
            groups.setdefault(_kind(block), []).append(block)
    yield from map(_one, groups.values())


def _kind(block: FrameSet) -> tuple[Any, ...]:
    """What frames of one block share."""
    shapes = [(name, block.labels[name].shape[1:]) for name in sorted(block.labels)]
    return block.system, block.source, block.types.shape[1], *block.pbc.tolist(), *shapes, repr(block.charges)


def _one(group: Sequence[FrameSet]) -> FrameSet:
    first = group[0]
    if len(group) == 1:
        return first
    return replace(
        first,
        positions=np.concatenate([block.positions for block in group]),
        types=np.concatenate([block.types for block in group]),
        cell=np.concatenate([block.cell for block in group]),
        labels={name: np.concatenate([block.labels[name] for block in group]) for name in first.labels},
    )


def check(block: FrameSet, ntypes: int, known: Labels = LABELS, *, labelled: bool = True) -> None:
    """Raises DataError, naming the file and the frame, for what is not finite, a type out of range, a cell
    without volume, or, if frames should be `labelled`, nothing to learn from."""
    _check_types(block, ntypes)
    for name, array in {"positions": block.positions, "cell": block.cell, **block.labels}.items():
        finite = np.isfinite(array).reshape(block.frames, -1)
        if not finite.all():
            frame, place = np.argwhere(~finite)[0]
            whole = name != "positions" and (name == "cell" or is_of_frame(name, known))
            atom = "" if whole else f" at atom {_atom(array, place)}"
            value = array.reshape(block.frames, -1)[frame, place]
            raise DataError(f"{block.name(frame)}: {name} is {value}{atom}")
    _check_cell(block)
    _check_weights(block, known)
    if labelled and not any(name in block.labels for name in known):
        raise DataError(f"{block.source}: has none of {', '.join(known)}: there is nothing to learn from")


def _check_weights(block: FrameSet, known: Labels) -> None:
    """What labels weigh is there, and no weight is negative."""
    for name, label in known.items():
        if not label.weighs or name not in block.labels:
            continue
        if label.weighs not in block.labels:
            raise DataError(f"{block.source}: has {name}, which weighs {label.weighs}, and lacks these")
        if not label.projects and (block.labels[name] < 0).any():
            frame, place = np.argwhere(block.labels[name].reshape(block.frames, -1) < 0)[0]
            weight = block.labels[name].reshape(block.frames, -1)[frame, place]
            raise DataError(f"{block.name(frame)}: {name} is {weight}, a weight, which has to be 0 or more")


def _atom(array: np.ndarray, place: int) -> int:
    """The atom that entry `place` of a frame of (F, n, ...) belongs to."""
    return int(place) // int(np.prod(array.shape[2:]))


def _check_types(block: FrameSet, ntypes: int) -> None:
    wrong = (block.types < -1) | (block.types >= ntypes)
    if wrong.any():
        frame, atom = np.argwhere(wrong)[0]
        kind = block.types[frame, atom]
        raise DataError(f"{block.name(frame)}: atom {atom} has type {kind}, expected 0 .. {ntypes - 1}")
    empty = ~(block.types >= 0).any(1)
    if empty.any():
        raise DataError(f"{block.name(int(np.argmax(empty)))}: has no atoms")


def _check_cell(block: FrameSet) -> None:
    """The lattice vectors of the periodic directions span a line, an area or a volume."""
    vectors = np.asarray(block.cell, dtype=np.float64)[:, block.pbc]
    if vectors.shape[1] == 0:
        return
    huge = np.abs(vectors).max((1, 2)) > _LONGEST
    if huge.any():
        raise DataError(f"{block.name(int(np.argmax(huge)))}: the cell is larger than {_LONGEST:g} A")
    edges = np.linalg.norm(vectors, axis=2)
    size = np.sqrt(np.clip(np.linalg.det(vectors @ vectors.transpose(0, 2, 1)), 0, None))
    flat = size <= _FLAT * edges.prod(1)
    if flat.any():
        frame = int(np.argmax(flat))
        raise DataError(
            f"{block.name(frame)}: the cell has no volume: {np.asarray(block.cell[frame]).tolist()} "
            "(without a cell, a system has an empty file named nopbc beside its type.raw, and extxyz has "
            'pbc="F F F")'
        )
