"""Neighbour lists of a whole dataset, made once: frames do not move."""

from functools import partial

import numpy as np
import torch

from mdops.data.dataset import Dataset
from mdops.data.storage import Storage
from mdops.errors import DataError, InputError, NeighborOverflowError
from mdops.ops import NeighborList, neighbor_list
from mdops.system import System, hidden_atoms

_CHUNK_ATOMS = 16384  # one set of arrays holds the rows of about so many atoms


class PairLists:
    """The rows of `NeighborList` of every atom of a dataset, numbered within its frame, and `gather` to put them
    together. Of counts it has those of the types that occur.

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
        self._kinds = np.unique(data.types[data.types >= 0])  # a type map may have many more
        self._most: int | None = None  # neighbours of an atom in the last chunk
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
            found = self._found(system, types)
        except InputError as error:
            if stop - start == 1:
                raise DataError(f"{self._data.name(start)}: {error}") from None
            for frame in range(start, stop):
                self._search(frame, frame + 1)
            return
        frame_start = torch.from_numpy(self._data.offsets[frames] - self._data.offsets[start])
        own = found.neighbors - frame_start[system.batch.long()][:, None].int()
        own.masked_fill_(found.neighbors < 0, -1)
        self._most = most = int(found.counts.sum(1).max()) if len(found.counts) else 0
        stored = []
        for tensor in (own[:, :most], found.images[:, :most], found.counts[:, self._kinds]):
            array = self._storage.array(tuple(tensor.shape), np.int32)
            array[:] = tensor.numpy()
            stored.append(array)
        self._chunk[start:stop] = len(self._arrays)
        self._first.append(int(self._data.offsets[start]))
        self._arrays.append((stored[0], stored[1], stored[2]))

    def _found(self, system: System, types: torch.Tensor) -> NeighborList:
        """Rows a bit longer than in the chunk before; only if these are too short, neighbours are counted first."""
        atoms = system.positions, system.cell, system.pbc, types, self.cutoff
        search = partial(neighbor_list, *atoms, batch=system.batch, ntypes=self._data.ntypes)
        if self._most is not None:
            try:
                return search(capacity=self._most + self._most // 8 + 4)
            except NeighborOverflowError:
                pass
        return search()

    def with_skin(self, skin: float) -> "PairLists":
        """Those that reach farther, A, for atoms that will move."""
        return PairLists(self._data, self.cutoff + skin, masks=self._masks)

    @property
    def longest(self) -> int:
        """The most neighbours that an atom has."""
        return max(neighbors.shape[1] for neighbors, _, _ in self._arrays)

    def _rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """neighbors and images (n, K) and counts (n, kinds) of successive frames of one chunk, without copying."""
        chunk = self._chunk[start]
        pick = slice(*(int(self._data.offsets[f]) - self._first[chunk] for f in (start, stop)))
        neighbors, images, counts = self._arrays[chunk]
        return neighbors[pick], images[pick], counts[pick]

    def gather(self, frames: np.ndarray) -> NeighborList:
        """One list for a batch of these frames, in their order."""
        frames = np.asarray(frames, dtype=np.int64)
        breaks = (np.diff(frames) != 1) | (np.diff(self._chunk[frames]) != 0)
        runs = np.split(frames, np.flatnonzero(breaks) + 1) if len(frames) else []
        rows = [self._rows(int(run[0]), int(run[-1]) + 1) for run in runs]
        sizes = self._data.sizes(frames)
        counts = np.zeros((int(sizes.sum()), self._data.ntypes), np.int32)
        counts[:, self._kinds] = np.concatenate([counts[:0, self._kinds], *(own for _, _, own in rows)])
        capacity = max((int(own.sum(1).max(initial=0)) for _, _, own in rows), default=0)
        neighbors = np.full((len(counts), capacity), -1, np.int32)
        images = np.zeros_like(neighbors)
        first = 0
        for near, image, _ in rows:
            here, width = slice(first, first + len(near)), min(capacity, near.shape[1])
            neighbors[here, :width], images[here, :width] = near[:, :width], image[:, :width]
            first += len(near)
        starts = np.repeat((np.cumsum(sizes) - sizes).astype(np.int32), sizes)
        np.add(neighbors, starts[:, None], out=neighbors, where=neighbors >= 0)
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
    atoms, sizes = data.atoms_of(frames), data.sizes(frames)
    return System(
        torch.from_numpy(data.positions[atoms]),
        torch.from_numpy(data.types[atoms]),
        torch.from_numpy(data.cell[frames]),
        torch.from_numpy(data.pbc[frames]),
        torch.from_numpy(np.repeat(np.arange(len(frames), dtype=np.int32), sizes)),
        paired=data.paired,
    )
