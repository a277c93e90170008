"""Large data cost memory, open files and searches by their size alone."""

import os
import resource
import warnings

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms

import mdops.data.dataset
import mdops.ops.neighbor
from mdops.data.neighbor_lists import frames_system
from mdops.errors import DataError
from mdops.ops import neighbor_list
from mdops.train import PairLists, Storage, load_dataset, make_batch

ATOMS = 8


def write(folder, frames, random, types=(0, 1) * 4):
    """A system of two elements."""
    place = folder / "set.000"
    place.mkdir(parents=True)
    (folder / "type.raw").write_text(" ".join(map(str, types)))
    (folder / "type_map.raw").write_text("Cu Al")
    arrays = {"box": np.tile(4.0 * np.eye(3).ravel(), (frames, 1)), "energy": random.normal(size=frames)}
    arrays |= {name: random.uniform(0, 4, (frames, 3 * ATOMS)) for name in ("coord", "force")}
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array)
    return arrays


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_more_systems_than_files_may_be_open(tmp_path):
    random = np.random.default_rng(1)
    arrays = [write(tmp_path / f"{k:02d}", 400, random) for k in range(40)]
    assert os.path.getsize(tmp_path / "00/set.000/coord.npy") > 1 << 16
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 60, before[1]))
    try:
        with warnings.catch_warnings(
            action="error"
        ):  # of units: parts of ten frames would give some by chance
            data = load_dataset(tmp_path, ["Cu", "Al"], leave_out=10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    kept = np.arange(400) % 10 != 9
    expected = np.concatenate([own["force"][kept].reshape(-1, 3) for own in arrays])
    np.testing.assert_array_equal(data.labels["forces"], expected)
    assert [len(own) for own in data.frames_of_systems()] == [360] * 40


def test_frames_of_a_file_are_checked_by_the_thousand(tmp_path, monkeypatch):
    random = np.random.default_rng(3)
    frames = [
        Atoms("CuAl" * 4, random.uniform(0, 4, (8, 3)), cell=3 * [4.0], pbc=True, info={"energy": 1.0 * k})
        for k in range(1500)
    ]
    frames[700] = frames[700][:6]
    frames[700].info["energy"] = 700.0
    frames[1400].info["energy"] = np.nan
    ase.io.write(tmp_path / "a.extxyz", frames[:1400])
    checked, check = [], mdops.data.dataset.check
    monkeypatch.setattr(
        "mdops.data.dataset.check", lambda part, **more: (checked.append(part.frames), check(part, **more))
    )
    data = load_dataset(tmp_path / "a.extxyz", ["Cu", "Al"])
    assert checked == [700, 1, 699]
    assert data.labels["energy"].tolist() == list(range(1400))
    assert data.name(900).endswith("a.extxyz, frame 900")
    ase.io.write(tmp_path / "b.extxyz", frames)
    with pytest.raises(DataError, match=r"b\.extxyz, frame 1400: energy is nan"):
        load_dataset(tmp_path / "b.extxyz", ["Cu", "Al"])


def test_many_mapped_arrays_are_in_few_files(tmp_path):
    before, storage = open_files(), Storage(limit=0, folder=tmp_path)
    arrays = [storage.array((k, 3), np.float64) for k in range(1, 300)]
    assert open_files() - before < 40
    for k, array in enumerate(arrays):
        array[:] = k
    assert all((array == k).all() for k, array in enumerate(arrays))


def test_lists_search_once_and_count_the_types_that_occur(tmp_path, monkeypatch):
    write(tmp_path / "a", 300, np.random.default_rng(2))
    elements = [f"X{k}" for k in range(50)] + ["Al", "Cu"]
    data = load_dataset(tmp_path, elements)
    searches, search = [], mdops.ops.neighbor.neighbor_matrix
    monkeypatch.setattr("mdops.data.neighbor_lists._CHUNK_ATOMS", 240)
    monkeypatch.setattr(
        "mdops.ops.neighbor.neighbor_matrix", lambda *a: (searches.append(len(a[0])), search(*a))[1]
    )
    storage = Storage()
    lists = PairLists(data, 3.0, storage)
    chunks = 10
    assert chunks <= len(searches) <= chunks + 2 + chunks // 2  # the first chunk is searched twice
    lists_of_all = sum(2 * a.shape[0] * a.shape[1] + 2 * a.shape[0] for a, _, _ in lists._arrays) * 4
    assert storage.used == lists_of_all
    frames = np.array([7, 299, 8, 9, 29, 30, 31, 7])  # successive ones, also in two chunks
    system = frames_system(data, frames)
    found = make_batch(data, lists, frames).neighbors
    fresh = neighbor_list(
        system.positions, system.cell, system.pbc, system.types, 3.0, batch=system.batch, ntypes=52
    )
    assert torch.equal(found.counts, fresh.counts) and found.counts[:, :50].sum() == 0
    assert found.neighbors.shape == fresh.neighbors.shape
    assert lists.longest == int(PairLists(data, 3.0).gather(np.arange(300)).counts.sum(1).max())
    order = [torch.argsort(x.neighbors.long() * 2**31 + x.images, dim=1) for x in (found, fresh)]
    for name in ("neighbors", "images"):
        a, b = (getattr(x, name).gather(1, o) for x, o in zip((found, fresh), order, strict=True))
        assert torch.equal(a, b)
