"""Models that a process of Python evaluates for the C core, against DeePMD-kit's answers and `Potential`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from core_library import EXTEND, FILE, INVALID, NEIGHBORS, CoreError, List, Model
from test_core import KINDS, assert_near, ghosts, refused, rows_of, systems

import mdops

ROUNDING = {"energy": 1e-10, "other": 1e-10}


def model(case, *args, **options):
    return Model(KINDS / case / "model.dp", *args, python=sys.executable, **options)


def children() -> list[int]:
    """Processes of Python that evaluate models for this one."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_text()
            parent = re.search(r"^PPid:\t(\d+)", (place / "status").read_text(), re.MULTILINE)
        except OSError:  # it has ended
            continue
        if "mdops.model_server" in words and parent and int(parent[1]) == os.getpid():
            found.append(int(place.name))
    return found


@pytest.fixture(scope="module")
def process():
    """Keeps the one process alive, which all models of these tests share."""
    kept = model("dpa3_base")
    assert len(children()) == 1
    return kept


# With messages along edges, angles and in frames; of one cutoff; with parameters; whose absent neighbours count.
@pytest.mark.parametrize(
    "case", ["dpa2_base", "dpa3_base", "dpa4_base", "dpa4c_base", "dpa4c_parameters", "dpa1_rough"]
)
def test_answers_of_deepmd_kit(process, case):
    found = model(case)
    info = found.info()
    assert info.in_python == 1 and info.gpu == -1 and info.ntypes == 2
    assert info.passes_messages == case.startswith(("dpa2", "dpa3", "dpa4_"))
    for given, answers in systems(KINDS / case):
        own = found.compute(**given)
        if info.passes_messages:  # DeePMD-kit's atomic virials of periodic systems are others
            answers = {name: value for name, value in answers.items() if name != "atom_virial"}
            own_sum = np.asarray(own["atom_virial"]).reshape(-1, 3, 3).sum(0)
            assert_near({"virial": own_sum}, {"virial": np.reshape(own["virial"], (3, 3)).T}, ROUNDING)
        assert_near(own, answers, {"energy": 1e-8, "other": 1e-8})
    assert len(children()) == 1


@pytest.mark.parametrize("case", ["dpa3_base", "dpa4c_base"])
def test_ghosts_are_images(process, case):
    """A list with ghosts answers as the cell that they are images of: forces of ghosts belong to their atoms."""
    found = model(case, overflow=EXTEND)
    given = max(
        (given for given, _ in systems(KINDS / case) if "cell" in given), key=lambda one: len(one["types"])
    )
    positions, types, cell = (np.asarray(given[name]) for name in ("positions", "types", "cell"))
    is_local = not found.info().passes_messages
    wanted = found.compute(**given)
    cutoff, atoms = found.info().cutoff, len(types)
    places, their_types, owners = ghosts(cell.reshape(3, 3), positions, types, cutoff)
    every, every_types = np.concatenate([positions, places]), np.concatenate([types, their_types])
    rows = rows_of(every, atoms, cutoff + 0.5)
    near = List(every_types, atoms, rows, 2, sources=owners)
    got = found.compute(every, near=near)
    of_ghosts = ("forces", "atom_virial")
    for name in of_ghosts:
        np.add.at(got[name], owners, got[name][atoms:])
        got[name] = got[name][:atoms]
    wanted = {name: np.asarray(wanted[name]) for name in ("energy", "virial", "atom_energy", *of_ghosts)}
    assert_near(got, wanted, ROUNDING)
    near = List(every_types, atoms, rows, 2)  # does not know of what the ghosts are images
    if not is_local:
        refused(INVALID, "mdops_neighbors.sources", found.compute, every, near=near, atom_virial=False)
    else:
        assert_near(found.compute(every, near=near), {"energy": wanted["energy"]}, ROUNDING)
    refused(INVALID, "a ghost is an image of atom", List, every_types, atoms, rows, 2, sources=owners + atoms)


def test_searched_lists_and_float32(process):
    found = model("dpa3_base", "float32", EXTEND)
    for given, _ in systems(KINDS / "dpa3_base"):
        places, types, cell = given["positions"], given["types"], given.get("cell")
        near = List.searched(found, places, types, len(types), 0.7, cell)
        got = found.compute(places, cell=cell, near=near, atom_virial=False)
        potential = mdops.load(KINDS / "dpa3_base/model.dp", overflow="extend")
        names = [potential.type_map[t] for t in types]
        at = None if cell is None else np.reshape(cell, (3, 3))
        wanted = potential.compute(Atoms(names, positions=places, cell=at, pbc=cell is not None))
        assert_near(got, {"forces": wanted["forces"]}, {"energy": 1e-5, "other": 1e-5})


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["dpa3_base", "dpa4c_base"])
def test_on_a_gpu(case):
    found = model(case, "float32", EXTEND, device="cuda")
    assert found.info().gpu == 0
    for given, _ in systems(KINDS / case):
        wanted = model(case, overflow=EXTEND).compute(**given, atom_virial=False)
        got = found.compute(**given, atom_virial=False)
        assert_near(got, {"forces": wanted["forces"]}, {"energy": 1e-5, "other": 3e-5})


@pytest.mark.parametrize("kind", ["dpa4", "dpa4c"])
def test_magnetic_forces(process, kind):
    """DeePMD-kit's of a whole system; with ghosts, whose moments are those of their atoms."""
    folder = KINDS.parent / "reference_spin" / kind
    found = Model(folder / "model.dp", overflow=EXTEND, python=sys.executable)
    assert list(found.info().magnetic[:2]) == ([1, 1] if kind == "dpa4" else [1, 0])
    with np.load(folder / "systems.npz") as file:
        own = {key.split("/")[1]: file[key] for key in file.files if key.startswith("cell/")}
    types, spins, cell = own["types"], own["spins"], own["cell"].reshape(3, 3)
    whole = found.compute(own["positions"], types, cell, spins=spins, atom_virial=False)
    wanted = {"energy": own["energy"], "forces": own["forces"], "magnetic_forces": own["force_mag"]}
    assert_near(whole, wanted, ROUNDING)
    atoms, cutoff = len(types), found.info().cutoff
    places, their_types, owners = ghosts(cell, own["positions"], types, cutoff)
    every = np.concatenate([own["positions"], places])
    rows = rows_of(every, atoms, cutoff + 0.5)
    every_types = np.concatenate([types, their_types])
    near = List(every_types, atoms, rows, found.info().ntypes, sources=owners)
    got = found.compute(every, near=near, spins=spins[[*range(atoms), *owners]], atom_virial=False)
    for name in ("forces", "magnetic_forces"):
        np.add.at(got[name], owners, got[name][atoms:])
        got[name] = got[name][:atoms]
    assert_near(got, {name: np.asarray(whole[name]) for name in (*wanted, "virial")}, ROUNDING)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["dpa4", "dpa4c"])
def test_magnetic_forces_on_a_gpu(kind):
    folder = KINDS.parent / "reference_spin" / kind
    options = {"overflow": EXTEND, "python": sys.executable}
    found = Model(folder / "model.dp", "float32", device="cuda", **options)
    with np.load(folder / "systems.npz") as file:
        own = {key.split("/")[1]: file[key] for key in file.files if key.startswith("cell/")}
    given = {name: own[name] for name in ("positions", "types", "spins")} | {
        "cell": own["cell"].reshape(3, 3)
    }
    got = found.compute(**given, atom_virial=False)
    wanted = {"forces": own["forces"], "magnetic_forces": own["force_mag"]}
    assert_near(got, wanted, {"energy": 1e-5, "other": 3e-5})


def test_moments_are_given_to_models_that_take_them(process):
    folder = KINDS.parent / "reference_spin/dpa4c"
    found = Model(folder / "model.dp", overflow=EXTEND, python=sys.executable)
    two = {"positions": [[0, 0, 0], [2, 0, 0]], "types": [0, 1]}
    refused(INVALID, "spins is null, and the model has magnetic moments", found.compute, **two)
    refused(
        NEIGHBORS,
        r"spins\[0, 0\] is nan",
        found.compute,
        **two,
        spins=np.full((2, 3), np.nan),
        atom_virial=False,
    )
    assert process.info().magnetic is None or not process.info().magnetic
    refused(INVALID, "the model has no magnetic moments", process.compute, **two, spins=np.zeros((2, 3)))


def test_charge_and_multiplicity(process):
    given, _ = next(systems(KINDS / "dpa3_charged"))
    energies = [
        model("dpa3_charged", charge_spin=pair).compute(**given)["energy"] for pair in ([1, 2], [0, 1])
    ]
    potential = mdops.load(KINDS / "dpa3_charged/model.dp", dtype="float64")
    names = [potential.type_map[t] for t in given["types"]]
    cell = np.reshape(given["cell"], (3, 3)) if "cell" in given else None
    atoms = Atoms(names, positions=given["positions"], cell=cell, pbc=cell is not None)
    for pair, energy in zip(([1, 2], [0, 1]), energies, strict=True):
        atoms.info["charge_spin"] = pair
        assert energy == pytest.approx(float(potential.compute(atoms)["energy"][0]), rel=1e-12)
    refused(FILE, "expected a charge, -100 to 99", model, "dpa3_charged", charge_spin=[1000, 1])
    refused(FILE, "no embedding of charge", model, "dpa3_base", charge_spin=[0, 1])


def test_what_is_refused(process, monkeypatch, tmp_path):
    monkeypatch.delenv("MDOPS_PYTHON", raising=False)
    path = KINDS / "dpa3_base" / "model.dp"
    refused(FILE, "set MDOPS_PYTHON", Model, path)
    refused(INVALID, "does not start", Model, path, python="/no/such/python")
    (tmp_path / "broken.pt").write_bytes(b"nothing that is a model" * 100)
    refused(FILE, "broken.pt", Model, tmp_path / "broken.pt", python=sys.executable)
    crowded = model("dpa3_few_places")
    given, _ = next(systems(KINDS / "dpa3_few_places"))
    refused(NEIGHBORS, "the model's sel is", crowded.compute, **given, atom_virial=False)
    with pytest.raises(CoreError, match="atoms 1 and 2 are at the same place") as caught:
        crowded.compute([[20.0] * 3, [0.0] * 3, [0.0] * 3], [0, 0, 0], atom_virial=False)
    assert caught.value.status == NEIGHBORS and caught.value.atom == 1


def test_python_that_ends():
    """Models of a process that has ended fail, others begin anew, and none stays behind."""
    code = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
import test_core_python as here
from core_library import INTERNAL, CoreError
first = here.model("dpa3_base")
given, answers = next(here.systems(here.KINDS / "dpa3_base"))
os.kill(here.children()[0], signal.SIGKILL)
try:
    first.compute(**given, atom_virial=False)
except CoreError as error:
    assert error.status == INTERNAL and "Python" in str(error), error
second = here.model("dpa3_base")
here.assert_near(second.compute(**given, atom_virial=False), {{"energy": answers["energy"]}}, here.ROUNDING)
print(here.children()[-1])
del first, second
assert not here.children()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
