"""Selects the frames to label: those on which the students disagree, and of these the most different ones."""

from collections.abc import Sequence

import numpy as np
from ase import Atoms

from mdops.errors import UnsupportedModelError
from mdops.learn.trust import Trust
from mdops.potential import Potential
from mdops.system import atom_types, from_atoms

_POOL = 4  # candidates for diversity, as a multiple of the number selected
_BATCH_ATOMS = 1024


def fresh_frames(frames: Sequence[Atoms], number: int, random: np.random.Generator) -> list[int]:
    """Indices of `number` random frames, or of all if there are fewer."""
    return sorted(random.permutation(len(frames))[:number].tolist())


def chosen_frames(
    frames: Sequence[Atoms], known: Sequence[Atoms], number: int, trust: Trust, model: Potential
) -> list[int]:
    """Indices of frames to label.

    Candidates are the frames with deviations above `trust.low`; if these are few, the frames with the largest
    deviations, four times as many as are selected. Selected are, one after the other, the candidates farthest from
    known and selected frames, by the mean descriptors of each element."""
    deviation = np.array([frame.info["deviation"] for frame in frames])
    order = np.argsort(-deviation, kind="stable")
    above = int((deviation > trust.low).sum())
    pool = order[: max(above, _POOL * number)]
    if len(pool) <= number:
        return sorted(pool.tolist())
    try:
        rows = features([*known, *(frames[k] for k in pool)], model)
    except UnsupportedModelError:  # without a descriptor, only the deviation counts
        return sorted(pool[:number].tolist())
    taken = farthest(rows[len(known) :], rows[: len(known)], number)
    return sorted(pool[taken].tolist())


def features(frames: Sequence[Atoms], model: Potential) -> np.ndarray:
    """(F, ntypes * D): the mean descriptor of each element of a frame, in units of the spread over all frames; zeros
    for an element that the frame lacks."""
    ntypes, rows, start = len(model.type_map), [], 0
    while start < len(frames):
        stop, atoms = start + 1, len(frames[start])
        while stop < len(frames) and atoms + len(frames[stop]) <= _BATCH_ATOMS:
            atoms, stop = atoms + len(frames[stop]), stop + 1
        part = frames[start:stop]
        found = model.descriptors(from_atoms(part, model.type_map, model.device)).cpu().numpy()
        types = atom_types(part, model.type_map)
        groups = np.repeat(np.arange(len(part)), [len(a) for a in part]) * ntypes + types
        sums = np.zeros((len(part) * ntypes, found.shape[1]))
        np.add.at(sums, groups, found)
        counts = np.maximum(np.bincount(groups, minlength=len(sums)), 1)
        rows.append((sums / counts[:, None]).reshape(len(part), -1))
        start = stop
    table = np.concatenate(rows)
    spread = table.std(0)
    return np.asarray(table / np.where(spread > 1e-9 * max(spread.max(), 1e-30), spread, np.inf))


def farthest(rows: np.ndarray, known: np.ndarray, number: int) -> np.ndarray:
    """Indices of `number` rows, each the farthest from the rows selected before and from the known ones."""
    nearest = np.full(len(rows), np.inf)
    for row in known:
        np.minimum(nearest, np.square(rows - row).sum(1), out=nearest)
    taken: list[int] = []
    for _ in range(min(number, len(rows))):
        place = int(nearest.argmax())
        taken.append(place)
        np.minimum(nearest, np.square(rows - rows[place]).sum(1), out=nearest)
        nearest[place] = -1.0
    return np.array(taken, dtype=np.int64)
