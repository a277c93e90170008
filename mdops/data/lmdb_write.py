"""Writes datasets in LMDB (mdops.data.lmdb_file)."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mdops.data.dataset import Dataset
from mdops.data.labels import PARAMETERS, is_of_frame
from mdops.data.lmdb_file import HEAD, packages
from mdops.files.named import naming

_WRITTEN = {
    "energy": "energies", "forces": "forces", "virial": "virials", "atom_energy": "atom_ener",
    **{name: name for name in PARAMETERS},
}  # fmt: skip


def write_lmdb(path: Path, data: Dataset) -> None:
    """Writes a dataset; the folder is there as a whole, or not at all. What is there is replaced.

    Raises:
        InputError: the packages that it needs are not installed.
        OSError: it cannot be written.
    """
    lmdb, msgpack = packages()
    size = sum(array.nbytes for array in (data.positions, data.types, data.cell, *data.labels.values()))
    beside = path.with_name(f".{path.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    head = {
        "nframes": len(data),
        "frame_idx_fmt": "012d",
        "type_map": list(data.type_map),
        "system_info": {"natoms": data.composition()[0].tolist()},
        "frame_nlocs": data.sizes().tolist(),
        "frame_system_ids": data.system.tolist(),
    }
    try:
        with naming(path, beside):
            # Numbers may be written on pages of their own, each with a half of it free.
            room = 2 * size + len(data) * (1 << 13) + (1 << 24)
            with lmdb.open(str(beside), map_size=room, sync=False) as file:
                with file.begin(write=True) as transaction:
                    for frame in range(len(data)):
                        transaction.put(f"{frame:012d}".encode(), msgpack.packb(_record(data, frame)))
                    transaction.put(HEAD, msgpack.packb(head))
                file.sync(True)
            (beside / "lock.mdb").unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
            beside.rename(path)
    except lmdb.Error as error:
        if shutil.disk_usage(path.parent).free < size:  # which LMDB calls an input/output error
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise OSError(f"{path}: {str(error).removeprefix(f'{beside}: ')}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _record(data: Dataset, frame: int) -> dict[str, Any]:
    atoms = data.atoms(frame)
    arrays = {"atom_types": data.types[atoms].astype(np.int64), "coords": data.positions[atoms]}
    if data.pbc[frame].all():
        arrays["cells"] = data.cell[frame]
    for name, array in data.labels.items():
        if data.present[name][frame]:
            own = array[frame] if is_of_frame(name, data.known) else array[atoms]
            if name in data.known and data.known[name].of_pairs:
                n = atoms.stop - atoms.start
                own = array[data.rows(name, np.array([frame]))].reshape(n, n, 3, 3).swapaxes(1, 2)
                own = own.reshape(3 * n, 3 * n)
            arrays[_WRITTEN.get(name, name)] = np.atleast_1d(own)
    return {name: _encoded(array) for name, array in arrays.items()}


def _encoded(array: np.ndarray) -> dict[str, Any]:
    return {
        "type": array.dtype.str,
        "shape": list(array.shape),
        "data": np.ascontiguousarray(array).tobytes(),
    }
