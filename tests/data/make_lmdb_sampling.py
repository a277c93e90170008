"""Prints how often DeePMD-kit's batches of LMDB datasets have the frames of each system and size, for
tests/train/test_lmdb_sampling.py.

DEEPMD_PYTHON tests/data/make_lmdb_sampling.py    (DeePMD-kit 3.2.0)
"""

import tempfile
from collections import Counter
from pathlib import Path

import lmdb
import msgpack
import numpy as np
from deepmd.pt.utils.lmdb_dataset import LmdbDataset

FRAMES = [
    (0, 4, 7),
    (1, 8, 3),
    (1, 4, 2),
    (2, 12, 5),
    (3, 2, 4),
    (4, 6, 9),
]  # system, atoms, number of frames
CASES = [
    (2, "prob_sys_size"),
    (2, "prob_uniform"),
    (2, "prob_sys_size;0:2:0.3;2:5:0.7"),
    ("auto:16", "prob_sys_size;0:2:3;2:5:1"),
    (3, "prob_sys_size;0:3:0.5;1:5:0.5"),
    (2, "prob_sys_size;0:1:0.25;3:4:0.75"),
    ("max:9", "prob_sys_size;0:2:0;2:5:1"),
    ("filter:8", "prob_sys_size;0:2:0.5;2:3:0.2;3:5:0.3"),
    ("mix:20", "prob_sys_size"),
    ("mix:5", "prob_sys_size"),
    ("mix:24", "prob_sys_size;0:1:0.5;1:5:0.5"),
]


def encoded(values):
    return {"type": values.dtype.str, "shape": list(values.shape), "data": values.tobytes()}


def write(path: str) -> None:
    frames = [(system, atoms) for system, atoms, number in FRAMES for _ in range(number)]
    head = {
        "nframes": len(frames),
        "frame_idx_fmt": "012d",
        "type_map": ["Cu"],
        "system_info": {"natoms": [4]},
        "frame_nlocs": [atoms for _, atoms in frames],
        "frame_system_ids": [system for system, _ in frames],
    }
    random = np.random.default_rng(0)
    with lmdb.open(path, map_size=1 << 24) as file, file.begin(write=True) as transaction:
        for k, (_, atoms) in enumerate(frames):
            arrays = {
                "atom_types": np.zeros(atoms, np.int64),
                "coords": random.uniform(0, 9, (atoms, 3)),
                "cells": 9 * np.eye(3),
                "energies": np.zeros(1),
            }
            record = {name: encoded(values) for name, values in arrays.items()}
            transaction.put(f"{k:012d}".encode(), msgpack.packb(record))
        transaction.put(b"__metadata__", msgpack.packb(head))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "data.lmdb")
        write(path)
        for rule, style in CASES:
            data = LmdbDataset(path, ["Cu"], rule, style)
            reader, batches = data._reader, data._batch_sampler._inner.batches()
            found = Counter(
                (int(reader.frame_system_ids[k]), int(reader.frame_nlocs[k]))
                for batch in batches
                for k in batch
            )
            print(f"    ({rule!r}, {style!r}, {len(batches)}, {dict(sorted(found.items()))}),")


if __name__ == "__main__":
    main()
