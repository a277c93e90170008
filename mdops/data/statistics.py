"""What a model takes from its data before training: neighbours, energies of the types, parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.data.neighbor_lists import PairLists
from mdops.errors import DataError
from mdops.models.contract import ENERGY, Output
from mdops.models.neighborhood import COINCIDENT, Neighborhood

_CHUNK_ATOMS = 4096


@dataclass(frozen=True)
class NeighborStatistics:
    """Over all atoms of a dataset, within one cutoff.

    Attributes:
        nearest: the smallest distance, A; the cutoff if no two atoms are closer.
        most: for each type, the most neighbours of it that an atom has; together: of all types.
        of_atoms: the most that an atom has without virtual atoms.
    """

    nearest: float
    most: list[int]
    together: int
    of_atoms: int


@dataclass(frozen=True)
class OutputStatistics:
    """Where the energies, or another output of a shape, lie.

    Attributes:
        bias: (ntypes, *shape), the energy of an atom of each type that fits the data best, eV.
        std: (ntypes, *shape), the deviation from it of the frames' energies, or of those of a type's atoms, eV.
    """

    bias: np.ndarray
    std: np.ndarray


def neighbor_statistics(data: Dataset, lists: PairLists, cutoff: float | None = None) -> NeighborStatistics:
    """The nearest pair and the most neighbours within a cutoff (A), that of the lists by default.

    Raises DataError, naming the frame, where two atoms are at the same place.
    """
    reach = lists.cutoff if cutoff is None else cutoff
    coincident = 0.0 if data.paired else COINCIDENT
    nearest, most, together, of_atoms = float(reach), np.zeros(data.ntypes, dtype=np.int64), 0, 0
    for frames in chunks(data, np.arange(len(data))):
        near = _neighborhood(data, lists, frames, reach)
        squared = near.squared.masked_fill(near.neighbors < 0, torch.inf)
        closest = squared.min().item() ** 0.5 if squared.numel() else torch.inf
        if closest <= coincident:
            atom = int(torch.nonzero(squared <= coincident**2)[0, 0])
            raise DataError(
                f"{data.name(int(frames[int(near.system.batch[atom])]))}: two atoms are at the same place"
            )
        nearest = min(nearest, closest)
        counts = near.counts if reach == lists.cutoff else near.count(near.types_in_cutoff)
        most = np.maximum(most, counts.numpy().max(0, initial=0))
        together = max(together, int(counts.sum(1).max()) if len(counts) else 0)
        if data.paired and len(counts):
            of_atoms = max(of_atoms, int(counts[::2, : data.ntypes // 2].sum(1).max()))
    return NeighborStatistics(nearest, most.tolist(), together, of_atoms if data.paired else together)


def spread_frames(data: Dataset, batches: int, batch_sizes: Sequence[int]) -> np.ndarray:
    """At most `batches` times `batch_sizes[system]` frames of every system, evenly spread over it."""
    chosen = []
    for frames, size in zip(data.frames_of_systems(), batch_sizes, strict=True):
        count = min(len(frames), batches * size)
        chosen.append(frames[np.linspace(0, len(frames) - 1, count).round().astype(np.int64)])
    return np.concatenate(chosen)


def output_statistics(
    data: Dataset,
    output: Output = ENERGY,
    *,
    frames: np.ndarray | None = None,
    preset: Sequence[float | None] = (),
    exclude_types: Sequence[int] = (),
    rcond: float | None = None,
) -> OutputStatistics:
    """The energy of each type by least squares from the frames' energies; its mean where atoms have energies. The same
    of another output; of one that is not `by_type`, the mean over the frames for all types (per atom, if it grows with
    the system).

    Of several solutions (frames of one composition) the one with the least norm is taken, as DeePMD-kit.

    Args:
        data: zeros are returned if it has neither energies nor atomic energies.
        output: which one.
        frames: the ones to look at, all by default.
        preset: for each type its energy, None where it is to be found.
        exclude_types: types whose atoms have no energy.
        rcond: of `numpy.linalg.lstsq`.
    """
    frames = np.arange(len(data)) if frames is None else frames
    width = int(np.prod(output.shape))
    bias, std = np.zeros((data.ntypes, width)), np.zeros((data.ntypes, width))
    known = np.array([value is not None for value in preset] or [False] * data.ntypes)
    bias[known] = np.array([value for value in preset if value is not None]).reshape(-1, 1)
    labelled = frames[data.present[output.name][frames]] if data.has(output.name) else frames[:0]
    if len(labelled):
        counts = data.composition()[labelled].astype(np.float64)
        counts[:, list(exclude_types)] = 0
        values = data.labels[output.name][labelled].reshape(-1, width)
        if not output.by_type:
            values = values / counts.sum(1, keepdims=True) if output.extensive else values
            bias[:], std[:] = values.mean(0), values.std(0)
        else:
            counts = counts / counts.sum(1, keepdims=True) if output.intensive else counts
            rest = values - counts[:, known] @ bias[known]
            free = np.where(known, 0, counts)
            bias[~known] = np.linalg.lstsq(free, rest, rcond=rcond)[0][~known]
            std[:] = np.std(rest - free @ np.where(known[:, None], 0, bias), axis=0)
    atoms = output.atom_name
    if data.has(atoms):
        with_atoms = np.zeros(len(data), dtype=bool)
        with_atoms[frames] = data.present[atoms][frames]
        of_frames = np.repeat(with_atoms, data.sizes())
        for kind in np.unique(data.types[of_frames]):
            values = data.labels[atoms][of_frames & (data.types == kind)].reshape(-1, width)
            bias[kind], std[kind] = values.mean(0), values.std(0)
    shape = (data.ntypes, *output.shape)
    return OutputStatistics(bias.reshape(shape), std.reshape(shape))


def parameter_statistics(
    data: Dataset, name: str, protection: float = 0.01
) -> tuple[np.ndarray, np.ndarray] | None:
    """Average and inverse deviation of fparam or aparam, each (p,); None if the data has none.

    No deviation is taken to be smaller than `protection`.
    """
    if not data.has(name):
        return None
    values = data.labels[name]
    return values.mean(0), 1 / np.maximum(values.std(0), protection)


def chunks(data: Dataset, frames: np.ndarray) -> Iterator[np.ndarray]:
    """The frames in parts of about so many atoms that arrays over neighbours stay small."""
    atoms = np.cumsum(data.sizes(frames))
    for part in np.split(frames, np.flatnonzero(np.diff(atoms // _CHUNK_ATOMS)) + 1):
        if len(part):
            yield part


def neighborhoods(
    data: Dataset, lists: PairLists, cutoff: float, frames: np.ndarray | None = None
) -> Iterator[Neighborhood]:
    """All pairs of these frames (all by default) within the cutoff (A), in float64, some frames at a time."""
    for part in chunks(data, np.arange(len(data)) if frames is None else frames):
        yield _neighborhood(data, lists, part, cutoff)


def _neighborhood(data: Dataset, lists: PairLists, frames: np.ndarray, cutoff: float) -> Neighborhood:
    """All pairs of these frames, in float64."""
    batch = make_batch(data, lists, frames)
    return Neighborhood.of(batch.system, batch.neighbors, cutoff, torch.float64)
