"""Descriptors of a dataset's atoms."""

import numpy as np

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.data.neighbor_lists import PairLists
from mdops.data.spins import with_spins
from mdops.errors import DataError, InputError
from mdops.potential import Potential

_BATCH_ATOMS = 1024


def descriptors(model: Potential, data: Dataset, frames: np.ndarray) -> np.ndarray:
    """The descriptors of these frames of `load_for` data, (n, atoms, D), in the model's dtype.

    Raises:
        DataError: frames have different numbers of atoms, or the model cannot evaluate one, or a frame lacks
            the magnetic moments that it takes.
        UnsupportedModelError: the model has no descriptor, or is made of several models.
    """
    sizes = data.sizes(frames)
    if (sizes != sizes[0]).any():
        odd = int(frames[np.argmax(sizes != sizes[0])])
        raise DataError(f"{data.name(odd)}: has another number of atoms than the first frame of its system")
    if model.model.spin is not None:
        data = with_spins(data, model.model.spin)
    lists = PairLists(data, model.cutoff, masks=model.model.masks)
    found = []
    for part in data.successive(frames, _BATCH_ATOMS):
        batch = make_batch(data, lists, part).to(model.device)
        try:
            rows = model.descriptors(batch.system, batch.neighbors)[:: 2 if data.paired else 1]
            found.append(rows.cpu().numpy())
        except InputError as error:
            where = f"{data.name(int(part[0]))}{' and following' if len(part) > 1 else ''}"
            raise DataError(f"{where}: {error}") from error
    return np.concatenate(found).reshape(len(frames), int(sizes[0]), -1)
