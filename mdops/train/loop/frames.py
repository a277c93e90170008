"""The frames of a training, and each process' share of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdops.data.batch import Batch, make_batch
from mdops.data.dataset import Dataset, load_dataset
from mdops.data.labels import LABELS, Labels
from mdops.data.neighbor_lists import PairLists
from mdops.data.sampler import most_atoms
from mdops.data.spins import with_spins
from mdops.models.spin import Spin
from mdops.train.config.sections import DataConfig
from mdops.train.loop.distributed import Processes
from mdops.train.loop.factories import make_sampler

_KEPT = 256 << 20  # bytes of one-frame batches to keep for the next epochs


@dataclass(frozen=True)
class Share:
    """A process' share of a batch.

    Attributes:
        frames: their indices.
        counts: the divisors of a `Loss`.
        is_counted: False if no frame was left for the process; then its batch has weight 0.
    """

    frames: np.ndarray
    counts: dict[str, float]
    is_counted: bool


class Frames:
    """Data with its lists and its sampler. Types are indices in `type_map`, which has all of `elements`."""

    def __init__(
        self,
        config: DataConfig,
        elements: list[str],
        type_map: list[str],
        cutoff: float,
        seed: int,
        known: Labels = LABELS,
        silent: Sequence[int] = (),
        spin: Spin | None = None,
        masks: bool = False,
    ) -> None:
        """`known`: the labels of the model; `silent`: its types without atomic results; `spin`: its magnetic
        moments; `masks`: whether aparam is a mask of the atoms."""
        data = load_dataset(
            config.systems,
            elements,
            names=config.names,
            leave_out=config.leave_out,
            left_out=getattr(config, "left_out", False),
            min_pair_dist=getattr(config, "min_pair_dist", 0.0),
            most_atoms=most_atoms(config.batch_size),
            known=known,
            silent=[type_map[t] for t in silent],
        )
        index = np.array([type_map.index(element) for element in elements], dtype=data.types.dtype)
        self.data: Dataset = replace(
            data, types=index[data.types], type_map=list(type_map), silent=tuple(silent)
        )
        if spin is not None:
            self.data = with_spins(self.data, spin)
        self.lists = PairLists(self.data, cutoff, masks=masks)
        self.sampler = make_sampler(config, self.data, seed)
        self._kept: dict[int, Batch] = {}
        self._room = _KEPT

    def share(self, step: int, processes: Processes) -> Share:
        """This process' share of the batch of a step."""
        frames = self.sampler(step)
        own, is_counted = processes.share(frames)
        return Share(own, processes.label_counts(self.data, frames, is_counted), is_counted)

    def batch(self, share: Share, device: torch.device) -> Batch:
        """The frames of a share on a device; do not change them: one-frame batches are reused."""
        frame = int(share.frames[0]) if len(share.frames) == 1 else -1
        if frame in self._kept:
            kept = self._kept[frame]
            return kept if device.type == "cpu" else kept.to(device)
        batch = make_batch(self.data, self.lists, share.frames)
        if frame >= 0 and self._room > 0:
            self._kept[frame] = batch
            self._room -= batch.neighbors.neighbors.nbytes + batch.neighbors.images.nbytes
        return batch.to(device)
