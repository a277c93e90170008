"""Neighbour lists of a whole dataset, made once: frames do not move."""

import numpy as np
import torch

from mdops.data.dataset import Dataset
from mdops.data.storage import Storage
from mdops.errors import DataError, InputError
from mdops.ops import NeighborList, neighbor_list
from mdops.system import System, hidden_atoms

_CHUNK_ATOMS = 16384  # one set of arrays holds the rows of about so many atoms


class PairLists:
    """The rows of `NeighborList` of every atom of a dataset, numbered within its frame.

    Attributes:
        cutoff: A.
    """

    def __init__(
        self, data: Dataset, cutoff: float, storage: Storage | None = None, *, masks: bool = False
    ) -> None:
        """Searches all frames. With `masks` atoms of which aparam is 0 are left out of the rows, and have empty ones.

        Raises DataError, naming the frame, where that cannot be done, or aparam is no mask."""
        self.cutoff = cutoff
        self._data, self._storage, self._masks = data, storage or Storage(), masks
        self._hidden = _hidden(data) if masks and data.has("aparam") else None
        self._chunk = np.zeros(len(data), dtype=np.int64)  # of each frame
        self._first: list[int] = []  # atom of each chunk
        self._arrays: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        start = 0
        while start < len(data):
            beyond = np.searchsorted(data.offsets, data.offsets[start] + _CHUNK_ATOMS, side="right")
            stop = min(max(int(beyond) - 1, start + 1), len(data))
            self._search(start, stop)
            start = stop

    def _search(self, start: int, stop: int) -> None:
        """The lists of the frames start .. stop - 1, as one chunk."""
        frames = np.arange(start, stop)
        system = frames_system(self._data, frames)
        types = system.types
        if self._hidden is not None:
            atoms = slice(int(self._data.offsets[start]), int(self._data.offsets[stop]))
            types = types.masked_fill(torch.from_numpy(self._hidden[atoms]), -1)
        try:
            found = neighbor_list(
                system.positions,
                system.cell,
                system.pbc,
                types,
                self.cutoff,
                batch=system.batch,
                ntypes=self._data.ntypes,
            )
        except InputError as error:
            if stop - start == 1:
                raise DataError(f"{self._data.name(start)}: {error}") from None
            for frame in range(start, stop):
                self._search(frame, frame + 1)
            return
        frame_start = torch.from_numpy(self._data.offsets[frames] - self._data.offsets[start])
        own = found.neighbors - frame_start[system.batch.long()][:, None].int()
        own.masked_fill_(found.neighbors < 0, -1)
        stored = []
        for tensor in (own, found.images, found.counts):
            array = self._storage.array(tuple(tensor.shape), np.int32)
            array[:] = tensor.numpy()
            stored.append(array)
        self._chunk[start:stop] = len(self._arrays)
        self._first.append(int(self._data.offsets[start]))
        self._arrays.append((stored[0], stored[1], stored[2]))

    def with_skin(self, skin: float) -> "PairLists":
        """Those that reach farther, A, for atoms that will move."""
        return PairLists(self._data, self.cutoff + skin, masks=self._masks)

    def rows(self, frame: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """neighbors and images (n, K) and counts (n, ntypes) of a frame, without copying."""
        chunk = self._chunk[frame]
        atoms = self._data.atoms(frame)
        pick = slice(atoms.start - self._first[chunk], atoms.stop - self._first[chunk])
        neighbors, images, counts = self._arrays[chunk]
        return neighbors[pick], images[pick], counts[pick]

    def gather(self, frames: np.ndarray) -> NeighborList:
        """One list for a batch of these frames, in their order."""
        rows = [self.rows(int(frame)) for frame in frames]
        capacity = max(int(counts.sum(1).max(initial=0)) for _, _, counts in rows)
        atoms = sum(len(counts) for _, _, counts in rows)
        neighbors, images = np.full((atoms, capacity), -1, np.int32), np.zeros((atoms, capacity), np.int32)
        first = 0
        for near, image, counts in rows:
            here, width = slice(first, first + len(near)), min(capacity, near.shape[1])
            near = near[:, :width]
            neighbors[here, :width] = np.where(near >= 0, near + first, -1)
            images[here, :width] = image[:, :width]
            first += len(counts)
        counts = np.concatenate([counts for _, _, counts in rows])
        return NeighborList(
            torch.from_numpy(neighbors), torch.from_numpy(images), torch.from_numpy(counts), self.cutoff
        )


def _hidden(data: Dataset) -> np.ndarray:
    """(N,) bool: the atoms that a mask leaves out."""
    values = data.labels["aparam"]
    for frame in range(len(data)):
        try:
            hidden_atoms(torch.from_numpy(values[data.atoms(frame)]))
        except InputError as error:
            raise DataError(f"{data.name(frame)}: {error}") from None
    return values[:, 0] == 0


def frames_system(data: Dataset, frames: np.ndarray) -> System:
    """The atoms of these frames, one system each, in their order."""
    atoms = [data.atoms(int(frame)) for frame in frames]
    sizes = data.sizes()[frames]
    return System(
        torch.from_numpy(np.concatenate([data.positions[a] for a in atoms])),
        torch.from_numpy(np.concatenate([data.types[a] for a in atoms])),
        torch.from_numpy(data.cell[frames]),
        torch.from_numpy(data.pbc[frames]),
        torch.from_numpy(np.repeat(np.arange(len(frames), dtype=np.int32), sizes)),
        paired=data.paired,
    )
