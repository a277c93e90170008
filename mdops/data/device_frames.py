"""The frames of a dataset on a GPU, where batches of them are put together without the host."""

from collections.abc import Iterator

import numpy as np
import torch

from mdops.data.batch import Batch
from mdops.data.dataset import Dataset
from mdops.data.labels import PARAMETERS, is_of_frame
from mdops.data.neighbor_lists import PairLists
from mdops.ops import NeighborList
from mdops.system import AtomsByType, System


def alike(data: Dataset) -> Iterator[np.ndarray]:
    """The frames of a dataset (indices) in groups of the same atoms in the same order, with the same labels."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for f in range(len(data)):
        labelled = bytes(bool(data.present[name][f]) for name in sorted(data.present))
        groups.setdefault((data.types[data.atoms(f)].tobytes(), labelled), []).append(f)
    for frames in groups.values():
        yield np.array(frames)


class DeviceFrames:
    """F frames of n atoms each, alike (`alike`), on a device.

    Attributes:
        frames: (F,) which of the dataset's they are, ascending. atoms: n.
        graph_room: of a frame's graph (`NeighborList`); None: whoever makes it has to ask. moved_room: the same, after
            its atoms moved by half of the lists' skin at most.
    """

    def __init__(self, data: Dataset, lists: PairLists, frames: np.ndarray, device: torch.device) -> None:
        self._known, self._silent, self._spin = data.known, data.silent, data.spin
        self._paired = data.paired
        self.frames, self.device, self.cutoff, self.ntypes = frames, device, lists.cutoff, data.ntypes
        first = data.atoms(int(frames[0]))
        self._types = torch.from_numpy(data.types[first])
        self.atoms = len(self._types)
        atoms = np.concatenate([np.arange(s.start, s.stop) for s in (data.atoms(int(f)) for f in frames)])
        near = lists.gather(frames)

        def rows(value: torch.Tensor) -> torch.Tensor:
            return value.unflatten(0, (len(frames), -1))

        self._most = int(rows(near.counts).sum((1, 2)).max())  # pairs of a frame
        own, start = rows(near.neighbors), torch.arange(len(frames), dtype=torch.int32) * len(self._types)
        self._arrays = {
            "positions": rows(torch.from_numpy(data.positions[atoms])),
            "cell": torch.from_numpy(data.cell[frames]),
            "pbc": torch.from_numpy(data.pbc[frames]),
            "neighbors": torch.where(own >= 0, own - start[:, None, None], -1),
            "images": rows(near.images),
            "counts": rows(near.counts),
        }
        names = [name for name, label in data.known.items() if not label.of_pairs]  # which no graph makes
        for name in (*names, *PARAMETERS):
            if data.has(name) and data.present[name][frames[0]]:
                whole = is_of_frame(name, data.known)
                value = torch.from_numpy(data.labels[name][frames if whole else atoms])
                self._arrays[name] = value if whole else rows(value)
        self._arrays = {name: value.to(device) for name, value in self._arrays.items()}
        self.graph_room: tuple[int, int, int] | None = None
        self.moved_room: tuple[int, int, int] | None = None
        self._fixed: dict[int, tuple[torch.Tensor, ...]] = {}

    def places(self, frames: np.ndarray) -> torch.Tensor | None:
        """(S,) int64, where these frames of the dataset stand here; None if one does not."""
        place = np.searchsorted(self.frames, frames).clip(max=len(self.frames) - 1)
        return torch.from_numpy(place) if bool((self.frames[place] == frames).all()) else None

    def batch(self, places: torch.Tensor, displacements: torch.Tensor | None = None) -> Batch:
        """The batch of the frames at these places, (S,) int64 on the device, `displaced` if displacements (N, 3) are
        given. Nothing waits for the host if `prepare` was called with S before."""
        count = len(places)
        types, system, start, sizes, labelled, *kinds = self.prepare(count)
        taken = {name: value.index_select(0, places) for name, value in self._arrays.items()}
        if count > 1:
            own = taken["neighbors"]
            taken["neighbors"] = torch.where(own >= 0, own + start[:, None, None], -1)
        of_atoms = [name for name, label in self._known.items() if label.of_atom]
        for name in ("positions", "neighbors", "images", "counts", *of_atoms, "aparam"):
            if name in taken:
                taken[name] = taken[name].flatten(0, 1)
        labels = {name: taken[name] for name in self._known if name in taken}
        room = self.graph_room if displacements is None else self.moved_room
        batch = Batch(
            System(
                taken["positions"],
                types,
                taken["cell"],
                taken["pbc"],
                system,
                AtomsByType(types, kinds),
                paired=self._paired,
                charge_spin=taken.get("charge_spin"),
                spins=labels.pop("spin", None),
            ),
            NeighborList(
                taken["neighbors"],
                taken["images"],
                taken["counts"],
                self.cutoff,
                count * self._most,
                None if room is None else (count * room[0], count * room[1], count * room[2]),
            ),
            sizes,
            labels,
            dict.fromkeys(labels, labelled),
            taken.get("fparam"),
            taken.get("aparam"),
            complete=True,
            known=self._known,
            silent=self._silent,
            spin=self._spin,
        )
        return batch if displacements is None else batch.displaced(displacements)

    def prepare(self, count: int) -> tuple[torch.Tensor, ...]:
        """What all batches of `count` frames share: types, systems, each frame's first atom and size, True for
        each frame, and the atoms of each type."""
        if count not in self._fixed:
            n, each = len(self._types), torch.arange(count, dtype=torch.int32)
            types = self._types.repeat(count)
            kinds = [torch.nonzero(types == k)[:, 0] for k in range(self.ntypes)]
            labelled = torch.ones(count, dtype=torch.bool)
            counted = torch.full((count,), n // (2 if self._paired else 1))
            fixed = (types, each.repeat_interleave(n), each * n, counted, labelled, *kinds)
            self._fixed[count] = tuple(t.to(self.device) for t in fixed)
        return self._fixed[count]
