"""Blocks of `auto_prob` in data of LMDB: how often each frame is in an epoch."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdops.data.dataset import Dataset
from mdops.data.lmdb_file import is_lmdb, systems_of_lmdb
from mdops.errors import ConfigError

Blocks = list[tuple[np.ndarray, int]]


def lmdb_of(data: Dataset) -> Path | None:
    """The LMDB dataset that all frames are from, or None."""
    places = {Path(source) for source, _ in data.sources}
    return next(iter(places)) if len(places) == 1 and all(map(is_lmdb, places)) else None


def lmdb_blocks(data: Dataset, path: Path, style: str, blocks: Sequence[tuple[slice, float]]) -> Blocks:
    """The frames of each block of systems, and how many frames of it an epoch has, with copies.

    As in DeePMD-kit, systems are those that the dataset was made from. The block with the most frames for its weight
    has its frames once, and the others are so large that blocks are as their weights. No block has less than its
    frames, not even with the weight 0, and frames in no block are there once. A system in several blocks belongs to the
    last of them.

    Warns if the dataset does not tell its systems, of blocks without frames, whose weights do not count, and of systems
    in several blocks. Raises ConfigError if no block has frames.
    """
    ids = systems_of_lmdb(path)
    if ids is None:
        warnings.warn(
            f"auto_prob: blocks have no effect: {path} has no frame_system_ids, which tell the systems",
            stacklevel=2,
        )
        return []
    numbers = np.arange(len(data)) - np.array([first for _, first in data.sources])[data.source]
    system, count = ids[numbers], int(ids.max()) + 1
    frames = np.bincount(system, minlength=count)
    found = [(np.arange(count)[block], weight) for block, weight in blocks]
    for (block, weight), (own, _) in zip(blocks, found, strict=True):
        if not frames[own].sum():
            place = f"{block.start}:{block.stop}:{weight:g}"
            warnings.warn(
                f"auto_prob: {place} has no effect: it has no frames, and there are {count} systems",
                stacklevel=2,
            )
    found = [(own, weight) for own, weight in found if frames[own].sum()]
    total = sum(weight for _, weight in found)
    if not total:
        raise ConfigError(
            f"auto_prob: is {style!r}, and no block with a weight has frames of the {count} systems"
        )
    odds, owner, uses = np.zeros(count), np.full(count, -1), np.zeros(count, np.int64)
    for k, (own, weight) in enumerate(found):
        odds[own] = frames[own] / frames[own].sum() * (weight / total)
        owner[own] = k
        uses[own] += 1
    if several := int((uses > 1).sum()):
        warnings.warn(
            f"auto_prob: {several} of {count} systems are in several blocks, of which the last one counts",
            stacklevel=2,
        )
    sizes = [int(frames[own].sum()) for own, _ in found]
    shares = [sum(odds[own].tolist()) for own, _ in found]
    whole = math.ceil(
        max(size / share if share > 0 else 0.0 for size, share in zip(sizes, shares, strict=True))
    )
    wanted = [max(round(whole * share), size) for size, share in zip(sizes, shares, strict=True)]
    return [(np.flatnonzero(owner[system] == k), most) for k, most in enumerate(wanted)]
