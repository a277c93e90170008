"""Datasets in LMDB, in DeePMD-kit's layout."""

import json
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from mdops.cli import main
from mdops.data.dataset import elements_of, load_dataset
from mdops.data.sampler import batch_sizes
from mdops.errors import DataError, InputError

lmdb = pytest.importorskip("lmdb")
msgpack = pytest.importorskip("msgpack")


@pytest.fixture
def frames(tmp_path, monkeypatch):
    """Crystals of two sizes and molecules, one after the other."""
    monkeypatch.chdir(tmp_path)
    made = []
    for k in range(7):
        atoms = molecule("H2O") if k == 5 else bulk("Cu", a=3.7, cubic=True) * (1 + k % 2, 1, 1)
        if k != 5 and k % 3 == 0:
            atoms.symbols[0] = "Al"
        atoms.rattle(0.05, seed=k)
        atoms.calc = EMT()
        atoms.get_potential_energy()
        atoms.get_forces()
        if atoms.pbc.all():
            atoms.get_stress()
        made.append(atoms)
    ase.io.write("frames.extxyz", made)
    return made


def same(a, b):
    assert a.type_map == b.type_map and set(a.labels) == set(b.labels)
    for name in ("offsets", "types", "pbc"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_allclose(a.positions, b.positions, atol=1e-8)
    cells = [np.where(data.pbc[:, :, None], data.cell, 0) for data in (a, b)]
    np.testing.assert_allclose(*cells, atol=1e-8)
    for name in a.labels:
        np.testing.assert_array_equal(a.present[name], b.present[name])
        np.testing.assert_allclose(a.labels[name], b.labels[name], atol=1e-7)


def test_written_and_read_it_is_the_same(frames, capsys):
    assert main(["convert-data", "frames.extxyz", "data.lmdb"]) == 0
    assert "7 frames" in capsys.readouterr().out
    types = elements_of("frames.extxyz")
    assert elements_of("data.lmdb") == types
    one, other = (load_dataset(path, types) for path in ("frames.extxyz", "data.lmdb"))
    same(one, other)
    assert other.name(3) == "data.lmdb, frame 3"
    turned = [*types[::-1], "Xe"]
    same(load_dataset("frames.extxyz", turned), load_dataset("data.lmdb", turned))
    assert main(["convert-data", "data.lmdb", "again.extxyz"]) == 0
    same(one, load_dataset("again.extxyz", types))
    before = Path("data.lmdb/data.mdb").read_bytes()
    assert main(["convert-data", "frames.extxyz", "data.lmdb"]) == 2
    assert "--overwrite" in capsys.readouterr().err and Path("data.lmdb/data.mdb").read_bytes() == before
    assert not list(Path().glob(".*"))


def test_frames_of_one_size_make_the_batches(frames):
    main(["convert-data", "frames.extxyz", "data.lmdb"])
    data = load_dataset("data.lmdb", elements_of("data.lmdb"))
    sizes = dict(zip(data.systems, batch_sizes(data, "auto:17"), strict=True))
    assert {name.split("(")[1]: size for name, size in sizes.items()} == {
        "4 atoms)": 5,
        "8 atoms)": 3,
        "3 atoms)": 6,
    }


def write_records(path, records, head):
    with lmdb.open(path, map_size=1 << 24) as file, file.begin(write=True) as transaction:
        for k, record in enumerate(records):
            transaction.put(
                f"{k:06d}".encode(), record if isinstance(record, bytes) else msgpack.packb(record)
            )
        transaction.put(
            b"__metadata__", msgpack.packb({"nframes": len(records), "frame_idx_fmt": "06d", **head})
        )


def encoded(values, dtype="<f8"):
    array = np.asarray(values, dtype)
    return {"type": array.dtype.str, "shape": list(array.shape), "data": array.tobytes()}


def record(**changes):
    made = {
        "atype": encoded([0, 1], "<i4"),
        "coord": encoded(np.eye(3)[:2]),
        "box": encoded(np.eye(3).ravel() * 9),
    }
    made |= {"energy": -1.5, "force": encoded(np.ones((2, 3)), "<f4"), "atomic_energy": encoded([1.0, 2.0])}
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def test_other_names_of_deepmd_kit(tmp_path):
    """Those of its systems, numbers without an array, labels that are said to be absent, no type map."""
    records = [record(), record(find_force=0.0), record(box=None), record(box=encoded(np.zeros((3, 3))))]
    write_records(str(tmp_path / "a.lmdb"), records, {})
    data = load_dataset(tmp_path / "a.lmdb", ["H", "O"])
    assert data.types.tolist() == [0, 1] * 4 and data.labels["energy"].tolist() == [-1.5] * 4
    assert data.present["forces"].tolist() == [True, False, True, True]
    assert data.pbc.all(1).tolist() == [True, True, False, False]
    with pytest.warns(UserWarning, match="the types are called 0, 1"):
        assert elements_of(tmp_path / "a.lmdb") == ["0", "1"]


@pytest.mark.parametrize(
    ("records", "head", "says"),
    [
        ([record(), record(coord=None)], {}, r"a.lmdb, frame 1: coord is missing"),
        ([record(force=encoded(np.ones(5)))], {}, r"frame 0: force has shape \(5,\), expected 2 atoms"),
        ([record(coord={"type": "O", "data": b"12345678"})], {}, "coord is not an array"),
        ([record(coord={"type": "<f8", "data": b"123"})], {}, "coord is not an array"),
        ([record()], {"type_map": ["H"]}, "has an atom of type 1, and type_map has 1 elements"),
        ([record()], {"type_map": ["H", "Xe"]}, "has Xe, which the model's type_map lacks"),
        ([record()], {"type_map": 3}, "its type_map is 3"),
        ([record()], {"nframes": 2}, "has no frame 1"),
        ([record()], {"nframes": "two"}, "tells of 'two' frames"),
        ([b"\xc1\x00"], {}, "frame 0 is not a record of msgpack"),
        ([[1, 2]], {}, "frame 0 is list, expected names and values"),
        ([record(atype=encoded([0, 7], "<i4"))], {}, "type 7"),
        ([record(energy=float("nan"))], {}, "nan|not finite"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, records, head, says):
    write_records(str(tmp_path / "a.lmdb"), records, head)
    with pytest.raises(DataError, match=says):
        load_dataset(tmp_path / "a.lmdb", ["H", "O"])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_file_that_is_cut_short_is_refused(tmp_path, share):
    write_records(str(tmp_path / "a.lmdb"), [record()] * 100, {})
    path = tmp_path / "a.lmdb" / "data.mdb"
    with lmdb.open(str(path.parent), readonly=True, lock=False) as file:
        pages = (file.info()["last_pgno"] + 1) * file.stat()["psize"]
    path.write_bytes(path.read_bytes()[: int(share * pages)])
    with pytest.raises(DataError, match=r"a\.lmdb: is"):
        load_dataset(path.parent, ["H", "O"])


def test_without_the_packages_it_says_what_to_install(tmp_path, monkeypatch):
    write_records(str(tmp_path / "a.lmdb"), [record()], {})
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(InputError, match="pip install lmdb msgpack"):
        load_dataset(tmp_path / "a.lmdb", ["H", "O"])
    monkeypatch.undo()
    (tmp_path / "b.lmdb").mkdir()
    with pytest.raises(DataError, match=r"b.lmdb: is not an LMDB database: it has no data.mdb"):
        load_dataset(tmp_path / "b.lmdb", ["H", "O"])


def test_a_training_takes_it(frames, capsys):
    keep = [atoms for atoms in frames if "H" not in atoms.symbols]
    ase.io.write("metal.extxyz", keep)
    assert main(["convert-data", "metal.extxyz", "metal.lmdb"]) == 0
    training = {"numb_steps": 2, "training_data": {"systems": "metal.lmdb"}}
    given = {"model": {"type_map": ["Cu", "Al"]}, "training": training}
    Path("input.json").write_text(json.dumps(given))
    assert main(["train", "input.json", "-o", "out"]) == 0
    assert main(["test", "-m", "out/model.safetensors", "-d", "metal.lmdb", "--overflow", "extend"]) == 0
    assert "6 frames" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("free", "says"), [(0, "data.lmdb: No space left on device"), (1 << 40, "commit: Input/output error")]
)
def test_a_full_disk_is_named(frames, monkeypatch, capsys, free, says):
    """A limit of files' lengths stands for it, and the free space tells which it was."""
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        assert main(["convert-data", "frames.extxyz", "data.lmdb"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["frames.extxyz"]
