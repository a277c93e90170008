"""Frames in which two atoms are too near to each other to learn from."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from mdops.data.frame_set import FrameSet
from mdops.errors import DataError, InputError
from mdops.ops import neighbor_list

_CHUNK_ATOMS = 16384  # that are searched at a time
_NAMED = 10  # systems in a warning


def without_near_pairs(
    blocks: Sequence[FrameSet], distance: float, check: Callable[[FrameSet], None]
) -> list[FrameSet]:
    """The blocks without the frames of `near_pairs`, as views. Warns of these frames, with their number in each system.

    `check` is called with all frames, some at a time, before their search.

    Raises DataError if no frame remains, or if the search refuses one; the message names it."""
    kept, frames, lost = list[FrameSet](), 0, dict[str, list[int]]()
    for block in blocks:
        found = []
        for part in _parts(block):
            check(part)
            found.append(near_pairs(part, distance))
        near = np.concatenate(found)
        counts = lost.setdefault(block.system, [0, 0])
        counts[0], counts[1] = counts[0] + int(near.sum()), counts[1] + block.frames
        frames += block.frames
        ends = np.flatnonzero(np.diff(np.concatenate([[True], near, [True]])))
        kept += [block.part(int(start), int(stop)) for start, stop in ends.reshape(-1, 2)]
    what = f"two atoms are nearer to each other than min_pair_dist = {distance:g} A"
    if not kept:
        raise DataError(f"{', '.join(lost)}: no frame is left: in each of the {frames} frames {what}")
    some = [f"{system}: {near} of {of}" for system, (near, of) in lost.items() if near]
    if some:
        more = f"; {len(some) - _NAMED} other systems" if len(some) > _NAMED else ""
        number = sum(near for near, _ in lost.values())
        warnings.warn(
            f"{number} of {frames} frames are left out, because {what}: {'; '.join(some[:_NAMED])}{more}",
            stacklevel=3,
        )
    return kept


def near_pairs(block: FrameSet, distance: float) -> np.ndarray:
    """(F,) bool: the frames in which two atoms, or an atom and a periodic image, are nearer than `distance`, A."""
    frames, atoms = block.types.shape
    try:
        found = neighbor_list(
            torch.from_numpy(np.array(block.positions, dtype=np.float64).reshape(-1, 3)),
            torch.from_numpy(np.array(block.cell, dtype=np.float64)),
            torch.tensor(block.pbc).expand(frames, 3),
            torch.from_numpy(np.array(block.types, dtype=np.int32).reshape(-1)),
            math.nextafter(distance, 0.0),  # lists have the pairs at their cutoff, too
            batch=torch.arange(frames, dtype=torch.int32).repeat_interleave(atoms),
        )
    except InputError as error:
        if frames == 1:
            raise DataError(f"{block.name(0)}: {error}") from None
        return np.concatenate([near_pairs(block.part(k, k + 1), distance) for k in range(frames)])
    return found.counts.any(1).reshape(frames, atoms).any(1).numpy()


def _parts(block: FrameSet) -> Iterator[FrameSet]:
    """The frames of a block in memory, so many at a time that the arrays of a search stay small."""
    step = max(1, _CHUNK_ATOMS // max(1, block.types.shape[1]))
    for start in range(0, block.frames, step):
        yield block.part(start, start + step).loaded()
