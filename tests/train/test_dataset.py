"""Training data is read as it is, whatever its form, and bad data is refused by file and frame."""

import warnings

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.calculators.emt import EMT
from small_systems import alloy, write_system

from mdops.errors import DataError, InputError
from mdops.ops import displacements, neighbor_list
from mdops.train import PairLists, Storage, load_dataset, make_batch

TYPES = ["Cu", "Al"]


def same(data, structures):
    """Whether a dataset holds the structures with all their labels."""
    assert len(data) == len(structures)
    for f, atoms in enumerate(structures):
        place = data.atoms(f)
        np.testing.assert_allclose(data.positions[place], atoms.positions, atol=1e-8)
        assert [TYPES[t] for t in data.types[place]] == atoms.get_chemical_symbols()
        np.testing.assert_allclose(data.cell[f], atoms.cell.array)
        np.testing.assert_array_equal(data.pbc[f], atoms.pbc)
        np.testing.assert_allclose(data.labels["energy"][f], atoms.get_potential_energy())
        np.testing.assert_allclose(data.labels["forces"][place], atoms.get_forces(), atol=1e-8)
        virial = -atoms.get_volume() * atoms.get_stress(voigt=False)
        np.testing.assert_allclose(data.labels["virial"][f], virial, atol=1e-7)


def test_system_is_read_with_types_mapped_by_element(system, structures):
    data = load_dataset(system, TYPES)
    same(data, structures)
    assert data.name(3) == f"{system}/set.001, frame 1"
    assert data.systems == [str(system)]


def test_a_system_that_is_named_twice_counts_as_two(system, structures, tmp_path):
    ase.io.write(tmp_path / "a.extxyz", structures[:1])
    data = load_dataset([system, tmp_path / "a.extxyz", system], TYPES)
    same(data, [*structures, structures[0], *structures])
    assert data.systems == [str(system), str(tmp_path / "a.extxyz"), f"{system} (2)"]
    counts = [int((data.system == k).sum()) for k in range(3)]
    assert counts == [len(structures), 1, len(structures)]


def test_extxyz_is_read_as_the_system_is(tmp_path, structures):
    ase.io.write(tmp_path / "frames.extxyz", structures)
    same(load_dataset(tmp_path / "frames.extxyz", TYPES), structures)


def test_labels_under_other_names(tmp_path):
    (atoms,) = alloy(1)
    atoms.info["REF_energy"], atoms.arrays["REF_forces"] = 7.5, np.ones((8, 3))
    atoms.info["virial"] = np.arange(9.0).reshape(3, 3)
    atoms.calc = None
    ase.io.write(tmp_path / "frames.extxyz", atoms)
    data = load_dataset(
        tmp_path / "frames.extxyz", TYPES, names={"energy": "REF_energy", "forces": "REF_forces"}
    )
    assert data.labels["energy"][0] == 7.5 and (data.labels["forces"] == 1).all()
    np.testing.assert_array_equal(data.labels["virial"][0], np.arange(9.0).reshape(3, 3))


def test_a_virial_that_contradicts_the_stress_is_used_with_a_warning(tmp_path, recwarn):
    frames = alloy(3)
    for sign, name in ((1, "right"), (-1, "wrong")):
        for atoms in frames:
            atoms.info["virial"] = -sign * atoms.get_volume() * atoms.get_stress(voigt=False)
        ase.io.write(tmp_path / f"{name}.extxyz", frames)
    load_dataset(tmp_path / "right.extxyz", TYPES)
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"frame 0: virial is not minus stress times the volume; virial is used"
    ):
        data = load_dataset(tmp_path / "wrong.extxyz", TYPES)
    np.testing.assert_allclose(data.labels["virial"], [atoms.info["virial"] for atoms in frames], atol=1e-5)


def test_raw_text_and_no_cell(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    for name, text in {
        "type.raw": "0\n1\n",
        "nopbc": "",
        "coord.raw": "0 0 0 0 0 2\n0 0 0 0 0 3\n",
        "energy.raw": "1.5\n2.5\n",
    }.items():
        (folder / name).write_text(text)
    data = load_dataset(folder, TYPES)
    assert data.labels["energy"].tolist() == [1.5, 2.5] and not data.pbc.any()
    assert data.types.tolist() == [0, 1, 0, 1] and not data.has("forces")


def test_mixed_format_drops_virtual_atoms(system):
    for place in sorted(system.glob("set.*")):
        np.save(place / "real_atom_types.npy", np.tile([0, 0, 1, 1, 1, 1, -1, -1], (2, 1)))
    data = load_dataset(system, TYPES)
    assert data.sizes().tolist() == [6] * 4
    assert data.composition().tolist() == [[4, 2]] * 4  # the system's 0 is Al, the model's 1
    first = np.load(system / "set.000" / "force.npy")[0].reshape(8, 3)[:6]
    np.testing.assert_array_equal(data.labels["forces"][data.atoms(0)], first)


def test_parameters_and_atomic_energies(system):
    rng = np.random.default_rng(1)
    for place in sorted(system.glob("set.*")):
        np.save(place / "fparam.npy", rng.random((2, 3)))
        np.save(place / "aparam.npy", rng.random((2, 16)))
        np.save(place / "atom_ener.npy", rng.random((2, 8)))
    data = load_dataset(system, TYPES)
    batch = make_batch(data, PairLists(data, 4.0), [2, 0])
    assert batch.fparam.shape == (2, 3) and batch.aparam.shape == (16, 2)
    np.testing.assert_array_equal(batch.fparam[1], np.load(system / "set.000" / "fparam.npy")[0])
    expected = np.load(system / "set.001" / "aparam.npy")[0].reshape(8, 2)
    np.testing.assert_array_equal(batch.aparam[:8], expected)
    assert batch.labels["atom_energy"].shape == (16,)


def test_folder_of_systems(tmp_path, structures):
    for name in "ab":
        write_system(tmp_path / "all" / name, structures)
    data = load_dataset(tmp_path / "all", TYPES)
    assert len(data) == 8 and len(data.systems) == 2 and data.system.tolist() == [0] * 4 + [1] * 4


def test_batch_of_mixed_sizes_has_the_neighbours_of_a_fresh_search(tmp_path):
    frames = [*alloy(2), *alloy(2, repeat=(1, 1, 1))]
    cluster = Atoms("CuAl", [[0, 0, 0], [0, 0, 2.0]], info={"energy": 1.0})
    ase.io.write(tmp_path / "frames.extxyz", [*frames, cluster])
    data = load_dataset(tmp_path / "frames.extxyz", TYPES)
    batch = make_batch(data, PairLists(data, 4.2), [4, 0, 3])
    s = batch.system
    fresh = neighbor_list(s.positions, s.cell, s.pbc, s.types, 4.2, batch=s.batch, ntypes=2)
    assert batch.sizes.tolist() == [2, 8, 4]
    assert torch.equal(batch.neighbors.counts, fresh.counts)
    d = [displacements(s.positions, s.cell, s.batch, n.neighbors, n.images) for n in (batch.neighbors, fresh)]
    a, b = (torch.sort(x.norm(dim=2), dim=1).values for x in d)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert batch.present["energy"].all() and batch.present["forces"].tolist() == [False, True, True]


def test_mapped_storage_gives_the_same(system):
    plain = load_dataset(system, TYPES)
    storage = Storage(limit=0)
    mapped = load_dataset(system, TYPES, storage=storage)
    assert isinstance(mapped.positions, np.memmap) and isinstance(mapped.labels["forces"], np.memmap)
    one = make_batch(plain, PairLists(plain, 4.0), [1, 3])
    two = make_batch(mapped, PairLists(mapped, 4.0, storage), [1, 3])
    assert torch.equal(one.neighbors.neighbors, two.neighbors.neighbors)
    assert torch.equal(one.labels["forces"], two.labels["forces"])


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    storage = Storage(limit=0, folder=tmp_path)
    with pytest.raises(DataError, match=r"no room for 0\.01 GiB .*No space left.*TMPDIR"):
        storage.array((1_000_000,), np.float64)
    assert not list(tmp_path.iterdir())


def test_memory_is_shared_among_processes_and_bounded_by_the_container(tmp_path, monkeypatch):
    container = tmp_path / "memory.max"
    monkeypatch.setattr("mdops.memory._CGROUP", container)
    whole = Storage().limit
    container.write_text("max\n")
    assert Storage().limit == whole > 0
    container.write_text(f"{whole}\n")
    assert Storage().limit == whole // 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert Storage().limit == whole // 8 // 2


def edit(path, change):
    array = np.load(path)
    np.save(path, change(array))


def with_value(frame, place, value):
    def change(array):
        array[frame, place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("coord", with_value(1, 7, np.nan), ["set.001, frame 1", "positions is nan at atom 2"]),
        ("force", with_value(0, 23, np.inf), ["set.001, frame 0", "forces is inf at atom 7"]),
        ("box", with_value(1, slice(0, 3), 0.0), ["set.001, frame 1", "no volume"]),
        ("box", with_value(1, 0, 1e200), ["set.001, frame 1", "larger than 1e+09 A"]),
        ("force", lambda a: a[:1], ["set.001", "force has shape (1, 24)", "2 frames of 24 values"]),
        ("energy", lambda a: a[:1], ["set.001", "energy has shape (1,)"]),
        ("coord", lambda a: a[:0], ["set.001", "coord.npy"]),
        ("coord", lambda a: a[:, :21], ["set.001", "coord has shape (2, 21)"]),
        ("energy", lambda a: a.astype(complex), ["set.001/energy.npy", "array of complex128"]),
        ("energy", lambda a: a.astype(str), ["set.001/energy.npy", "expected an array of real numbers"]),
        ("coord", lambda a: a > 0, ["set.001/coord.npy", "array of bool"]),
        ("coord", lambda a: a[0, 0], ["set.001/coord.npy", "expected an array of real numbers"]),
    ],
)
def test_bad_array_is_refused_by_file_and_frame(system, name, change, words):
    edit(system / "set.001" / f"{name}.npy", change)
    with pytest.raises(DataError) as error:
        load_dataset(system, TYPES)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", ["coord", "box"])
def test_missing_array_is_named(system, name):
    (system / "set.000" / f"{name}.npy").unlink()
    with pytest.raises(DataError, match=rf"set\.000: {name}\.npy is missing"):
        load_dataset(system, TYPES)


def test_damaged_array_is_named(system):
    path = system / "set.000" / "force.npy"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"set\.000/force\.npy"):
        load_dataset(system, TYPES)


def test_what_is_no_array_is_refused_without_advice_to_run_it(system):
    (system / "set.000" / "force.npy").write_bytes(b"\x80\x04N.")
    with pytest.raises(DataError, match=r"set\.000/force\.npy: it is no \.npy file") as error:
        load_dataset(system, TYPES)
    assert "unsafe" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("type.raw", b"", "is empty"),
        ("type.raw", b"Al\nCu\n", "could not convert string 'Al'"),
        ("type_map.raw", b"", "is empty"),
        ("type_map.raw", b"\xff\xfe", "cannot be read as text"),
        ("type_map.raw", b"Cu Cu", "has Cu more than once"),
    ],
)
def test_bad_types_are_refused_by_their_file(system, recwarn, name, content, words):
    (system / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: {words}"):
        load_dataset(system, TYPES)
    assert not recwarn.list


def test_types_that_are_not_whole_are_refused(system):
    for place in sorted(system.glob("set.*")):
        np.save(place / "real_atom_types.npy", np.full((2, 8), 0.7))
    with pytest.raises(DataError, match=r"set\.000: real_atom_types holds numbers that are not whole"):
        load_dataset(system, TYPES)


@pytest.mark.parametrize("lacks", ["set.000", "set.001"])
def test_a_mixed_system_of_which_a_set_lacks_its_types_is_refused(system, lacks):
    """type.raw has placeholders there."""
    for place in sorted(system.glob("set.*")):
        np.save(place / "real_atom_types.npy", np.tile([0, 0, 1, 1, 1, 1, -1, -1], (2, 1)))
    (system / lacks / "real_atom_types.npy").unlink()
    with pytest.raises(DataError, match=rf"{lacks}: real_atom_types\.npy is missing, which set\.00. has"):
        load_dataset(system, TYPES)


def test_a_label_that_only_some_sets_have_gives_a_warning(system):
    (system / "set.001" / "force.npy").unlink()
    with pytest.warns(
        UserWarning, match=r"set\.001 has energy, virial, and .*set\.000 has energy, forces, virial"
    ):
        data = load_dataset(system, TYPES)
    assert data.present["forces"].tolist() == [True, True, False, False]


def test_wrong_names_of_labels_and_types_are_refused(tmp_path, system):
    (atoms,) = alloy(1)
    atoms.calc, atoms.info["REF_energy"] = None, 1.0
    place = tmp_path / "frames.extxyz"
    ase.io.write(place, atoms)
    with pytest.raises(DataError, match=r"frame 0: has none of energy, .* it has REF_energy"):
        load_dataset(place, TYPES)
    with pytest.raises(InputError, match="there is no label 'Energy'; labels are energy, forces"):
        load_dataset(place, TYPES, names={"Energy": "REF_energy"})
    with pytest.raises(
        DataError, match=r"frames\.extxyz: no frame has 'REF_force', the name given for forces"
    ):
        load_dataset(place, TYPES, names={"energy": "REF_energy", "forces": "REF_force"})
    with pytest.raises(InputError, match="type_map has Cu more than once"):
        load_dataset(system, ["Cu", "Al", "Cu"])
    for none in ([], "", [""]):
        with pytest.raises(DataError, match="no systems are given"):
            load_dataset(none, TYPES)


def test_types_out_of_range_are_refused(system):
    (system / "type_map.raw").unlink()
    (system / "type.raw").write_text("\n".join("01010102"))
    with pytest.raises(DataError, match=r"set\.000, frame 0: atom 7 has type 2, expected 0 \.\. 1"):
        load_dataset(system, TYPES)


def test_types_without_atoms_may_be_unknown_and_virtual_atoms_are_for_the_mixed_format(system, structures):
    (system / "type_map.raw").write_text("Al\nCu\nXe\n")
    same(load_dataset(system, TYPES), structures)
    (system / "type_map.raw").unlink()
    (system / "type.raw").write_text("\n".join(["0", "1", "-1", "1", "0", "1", "0", "1"]))
    with pytest.raises(DataError, match=r"set\.000, frame 0: atom 2 has type -1"):
        load_dataset(system, TYPES)


def test_unknown_element_and_no_labels_and_no_place(system, tmp_path):
    with pytest.raises(DataError, match=r"type_map\.raw: has Al"):
        load_dataset(system, ["Cu", "Au"])
    with pytest.raises(DataError, match="no such file"):
        load_dataset(tmp_path / "nowhere", TYPES)
    for name in ("data.hdf5", "data.hdf5#/water"):
        with pytest.raises(DataError, match="systems in HDF5 are not read; write them as folders"):
            load_dataset(tmp_path / name, TYPES)
    ase.io.write(tmp_path / "bare.xyz", Atoms("Cu"))
    with pytest.raises(DataError, match=r"bare\.xyz@0: .*FILE@INDEX has no meaning here"):
        load_dataset(tmp_path / "bare.xyz@0", TYPES)
    with pytest.raises(DataError, match=r"bare\.xyz, frame 0: has none of energy"):
        load_dataset(tmp_path / "bare.xyz", TYPES)
    (tmp_path / "text.extxyz").write_text("two\nlines\n")
    with pytest.raises(DataError, match=r"text\.extxyz, frame 0: ASE cannot read it: \w+Error: "):
        load_dataset(tmp_path / "text.extxyz", TYPES)


def test_set_without_files_is_refused(system):
    (system / "set.002").mkdir()
    with pytest.raises(DataError, match=r"set\.002: coord\.npy is missing"):
        load_dataset(system, TYPES)


def drifting(frames):
    """A crystal that goes far, slowly: only frames next to each other are alike."""
    rng = np.random.default_rng(2)
    atoms, structures = alloy(1)[0], []
    way = rng.normal(0, 1, atoms.positions.shape)
    for k in range(frames):
        moved = atoms.copy()
        moved.positions += 0.5 * np.sin(0.4 * k) * way + 0.3 * np.cos(0.17 * k) * way[::-1]
        moved.calc = EMT()
        moved.get_forces(), moved.get_stress()
        structures.append(moved)
    return structures


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(
    ("factor", "warned"), [(1.0, False), (27.2 / 0.529, True), (1 / 27.2, True), (-1.0, True)]
)
def test_forces_in_other_units_give_a_warning(tmp_path, factor, warned, shuffled):
    frames = drifting(120) if shuffled else alloy(12)
    if shuffled:
        np.random.default_rng(1).shuffle(frames)
    system = write_system(tmp_path / "system", frames)
    edit(system / "set.000" / "energy.npy", lambda energy: energy / factor)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_dataset(system, TYPES)
    assert any("units may be mixed" in str(w.message) for w in caught) == warned


@pytest.mark.parametrize("unit", [units.GPa, 0.1 * units.GPa], ids=["GPa", "kbar"])
def test_stresses_in_other_units_give_a_warning(tmp_path, unit):
    frames = alloy(6)
    for atoms in frames:
        atoms.set_cell(0.95 * atoms.cell, scale_atoms=True)
        atoms.get_forces(), atoms.get_stress()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ase.io.write(tmp_path / "right.extxyz", frames)
        load_dataset(tmp_path / "right.extxyz", TYPES)
    for atoms in frames:
        atoms.calc.results["stress"] /= unit
    ase.io.write(tmp_path / "frames.extxyz", frames)
    told = r"frames\.extxyz: pressures are [\d,]+ GPa .* stresses in eV/A\^3"
    with pytest.warns(UserWarning, match=told):
        load_dataset(tmp_path / "frames.extxyz", TYPES)


def test_units_are_looked_at_in_files_that_ase_reads_too(tmp_path):
    frames = [*alloy(6), *alloy(6, repeat=(1, 1, 1))]
    for atoms in frames:
        atoms.calc.results["energy"] /= 27.2
    ase.io.write(tmp_path / "frames.extxyz", frames)
    with pytest.warns(UserWarning, match=r"frames\.extxyz: energies change 0\.03") as caught:
        load_dataset(tmp_path / "frames.extxyz", TYPES)
    assert len(caught) == 1  # and not one of each composition
