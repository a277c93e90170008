"""Frames of atoms with magnetic moments as a model takes them (mdops/models/spin.py)."""

from dataclasses import replace

import numpy as np
import torch

from mdops.data.dataset import Dataset
from mdops.errors import DataError
from mdops.models.spin import Spin
from mdops.system import System

_SECOND = ("force_mag",)  # labels of virtual atoms


def with_spins(data: Dataset, spin: Spin) -> Dataset:
    """A dataset with its label `spin` (N, 3) as one of 2 N rows, without that label; as it is, where there are no
    virtual atoms.

    Raises DataError, naming the frame, where one has no spins."""
    if not data.has("spin") or not data.present["spin"].all():
        lacking = int(np.argmin(data.present["spin"])) if data.has("spin") else 0
        raise DataError(f"{data.name(lacking)}: has no spin (spin.npy), and the model has magnetic moments")
    if not spin.paired:
        return replace(data, spin=spin)
    owner = np.repeat(np.arange(len(data), dtype=np.int32), data.sizes())
    system = spin.system(
        System(
            torch.from_numpy(np.asarray(data.positions)),
            torch.from_numpy(np.asarray(data.types)),
            torch.from_numpy(np.asarray(data.cell)),
            torch.from_numpy(data.pbc),
            torch.from_numpy(owner),
        ),
        torch.from_numpy(np.asarray(data.labels["spin"])),
    )
    labels = {name: array for name, array in data.labels.items() if name != "spin"}
    for name in labels:
        if name == "aparam" or (name in data.known and data.known[name].of_atom):
            labels[name] = _rows(labels[name], first=name not in _SECOND)
    return replace(
        data,
        offsets=2 * data.offsets,
        positions=system.positions.numpy(),
        types=system.types.numpy(),
        labels=labels,
        present={name: data.present[name] for name in labels},
        spin=spin,
    )


def _rows(values: np.ndarray, *, first: bool) -> np.ndarray:
    """(2 N, ...): the values of atoms, or of their virtual atoms, and zero for the others."""
    pairs = np.zeros((len(values), 2, *values.shape[1:]))
    pairs[:, 0 if first else 1] = values
    return pairs.reshape(-1, *values.shape[1:])
