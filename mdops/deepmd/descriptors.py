"""Descriptors of a dataset's atoms."""

import numpy as np

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.data.neighbor_lists import PairLists
from mdops.errors import DataError, InputError
from mdops.potential import Potential

_BATCH_ATOMS = 1024


def descriptors(model: Potential, data: Dataset, frames: np.ndarray) -> np.ndarray:
    """The descriptors of these frames, (n, atoms, D), in the model's dtype.

    Raises:
        DataError: frames have different numbers of atoms, or the model cannot evaluate one.
        UnsupportedModelError: the model has no descriptor, or is made of several models.
    """
    sizes = data.sizes()[frames]
    if (sizes != sizes[0]).any():
        odd = int(frames[np.argmax(sizes != sizes[0])])
        raise DataError(f"{data.name(odd)}: has another number of atoms than the first frame of its system")
    lists = PairLists(data, model.cutoff, masks=model.model.masks)
    found = []
    for part in data.successive(frames, _BATCH_ATOMS):
        batch = make_batch(data, lists, part).to(model.device)
        try:
            found.append(model.descriptors(batch.system, batch.neighbors).cpu().numpy())
        except InputError as error:
            where = f"{data.name(int(part[0]))}{' and following' if len(part) > 1 else ''}"
            raise DataError(f"{where}: {error}") from error
    return np.concatenate(found).reshape(len(frames), int(sizes[0]), -1)
