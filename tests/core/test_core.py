"""The C core (core.md) against DeePMD-kit's answers and `Potential.compute`, on every option that it covers."""

import ctypes
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from ase import Atoms
from children import in_threads, python
from core_library import (
    EXTEND,
    FILE,
    INVALID,
    NEIGHBORS,
    UNSUPPORTED,
    CoreError,
    List,
    Model,
    library,
    pointer,
)

import mdops
from mdops import cli
from mdops.core import compile_flags, get_include, link_flags
from mdops.core import library as core_path
from mdops.errors import InputError, ModelFileError, UnsupportedModelError
from mdops.io import read_model
from mdops.tables.spline import GRADING, choose_grid

ROOT = Path(__file__).parents[2]
REFERENCE, KINDS = ROOT / "tests/data/reference", ROOT / "tests/data/reference_kinds"
# Not covered, and why: as by the fused step of `Potential`.
REFUSED = {
    "activation_relu": "kinks",
    "activation_relu6": "kinks",
    "activation_custom_silu_0.7": "splines .* reach an error",
    "activation_silut": r"in float64 .* float32 alone can be had \(--core float32\)",
    "activation_silut_1.5": "splines .* reach an error",
    "atom_ener_shared": "atom_ener",
    "axis_all": "adds its input",
}
# More neighbours than places are refused, not dropped.
OVERFLOWING = ("overflow", "overflow_two_side")
CASES = sorted(path.name for path in REFERENCE.iterdir())
OF_SE_E2_R = ("base", "davg_zero", "float32", "options", "pairs", "virtual")
ANSWERS = ("energy", "forces", "virial", "atom_energy", "atom_virial")
FLOAT64, FLOAT32 = {"energy": 1e-7, "other": 1e-7}, {"energy": 5e-6, "other": 3e-5}


def written(folder: Path, to: Path, **options) -> Path:
    """A case's model as a file for the core."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = mdops.load(folder / "model.dp", dtype="float64", spline=False)
        potential.save(to, core=["float32", "float64"], **options)
    return to


def systems(folder: Path):
    """Every frame of a case, as keyword arguments of `Model.compute`, and DeePMD-kit's answers."""
    with np.load(folder / "systems.npz") as file:
        arrays = {key: file[key] for key in file.files}
    for name in dict.fromkeys(key.split("/")[0] for key in arrays):
        own = {key.split("/")[1]: v for key, v in arrays.items() if key.split("/")[0] == name}
        for k in range(len(own["positions"])):
            given = {"positions": own["positions"][k], "types": own["types"]}
            given |= {key: own[key][k] for key in ("cell", "fparam", "aparam") if key in own}
            yield given, {key: own[key][k] for key in ANSWERS if key in own}


def assert_near(result, answers, tolerance):
    for name, wanted in answers.items():
        got = np.asarray(result[name]).reshape(wanted.shape)
        size = np.abs(wanted).max()
        if name == "energy" and "atom_energy" in answers:  # which may cancel
            size = max(size, np.abs(answers["atom_energy"]).max())
        error = np.abs(got - wanted).max() / max(1e-30, size)
        limit = tolerance["energy" if "energy" in name else "other"]
        assert error < limit, f"{name} is off by {error:.1e}"


def ghosts(cell, positions, types, cutoff):
    """The periodic images within the cutoff of the cell's atoms as ghosts: (positions, types, owners)."""
    reach = np.ceil(cutoff * np.linalg.norm(np.linalg.inv(cell), axis=0)).astype(int) + 1
    steps = [np.arange(-n, n + 1) for n in reach]
    shifts = np.stack(np.meshgrid(*steps, indexing="ij"), -1).reshape(-1, 3)
    shifts = shifts[(shifts != 0).any(1)] @ cell
    images = (positions[None] + shifts[:, None]).reshape(-1, 3)
    owners = np.tile(np.arange(len(positions)), len(shifts))
    near = np.array([np.linalg.norm(positions - x, axis=1).min() < cutoff for x in images])
    return images[near], types[owners[near]], owners[near]


def rows_of(positions, atoms, reach, seed=0):
    """Neighbours of the first atoms, in any order, some beyond the cutoff."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(atoms):
        r = np.linalg.norm(positions - positions[i], axis=1)
        row = np.flatnonzero(r < reach)
        rows.append(random.permutation(row[row != i]))
    return rows


# -- Answers


@pytest.mark.parametrize(
    "folder",
    [
        *(REFERENCE / case for case in CASES if case not in (*REFUSED, *OVERFLOWING)),
        *(KINDS / f"se_e2_r_{case}" for case in OF_SE_E2_R),
    ],
    ids=lambda folder: folder.name,
)
def test_every_option(folder, tmp_path):
    path = written(folder, tmp_path / "model.safetensors")
    rounded = "float32" in folder.name
    for precision in ("float64", "float32"):
        model = Model(path, precision)
        for given, answers in systems(folder):
            tolerance = FLOAT32 if rounded or precision == "float32" else FLOAT64
            assert_near(model.compute(**given), answers, tolerance)


def without_mean(case):
    """A model of DPA-1 without attention, whose absent neighbours add nothing."""
    potential = mdops.load(KINDS / case / "model.dp", dtype="float64", overflow="extend")
    with torch.no_grad():
        potential.model.descriptor.mean.zero_()
    potential.use_spline()
    return potential


@pytest.mark.parametrize(
    "case", ["dpa1_concat_attn0", "dpa1_attn0_strip", "dpa1_residual_types_twice", "se_atten_v2"]
)
def test_dpa1_without_attention(case, tmp_path):
    potential = without_mean(case)
    potential.save(tmp_path / "model.safetensors", core=["float64"])
    given, _ = next(systems(KINDS / case))
    names = [potential.type_map[t] for t in given["types"]]
    atoms = Atoms(names, given["positions"], cell=given.get("cell"), pbc="cell" in given)
    wanted = potential.compute(atoms, atom_virial=True)
    got = Model(tmp_path / "model.safetensors", overflow=EXTEND).compute(**given)
    assert_near(got, {name: wanted[name] for name in ANSWERS}, {"energy": 1e-11, "other": 1e-10})


@pytest.mark.parametrize("case", ["dpa1_concat_attn0", "dpa1_attn2", "hybrid"])
def test_graded_knots(case, tmp_path, monkeypatch):
    """A core from before them refuses their version."""
    monkeypatch.setattr("mdops.tables.grids.choose_grid", functools.partial(choose_grid, grading=GRADING))
    potential = mdops.load(KINDS / case / "model.dp", dtype="float64", overflow="extend")
    with torch.no_grad():
        for descriptor in potential.model.descriptors:
            descriptor.mean.zero_()
    potential.use_spline()
    potential.save(tmp_path / "model.safetensors", core=["float64"])
    with safetensors.safe_open(tmp_path / "model.safetensors", "numpy") as file:
        about = json.loads(file.get_tensor("core.description").tobytes())
    assert about["version"] == 5 and '"grading": 1e-06' in json.dumps(about)
    given, _ = next(systems(KINDS / case))
    got = Model(tmp_path / "model.safetensors", overflow=EXTEND).compute(**given)
    names = [potential.type_map[t] for t in given["types"]]
    atoms = Atoms(names, given["positions"], cell=given.get("cell"), pbc="cell" in given)
    wanted = potential.compute(atoms, atom_virial=True)
    assert all(grid.grading for grid in (*potential.grids, *potential.attention_grids))
    assert_near(got, {name: wanted[name] for name in ANSWERS}, {"energy": 1e-11, "other": 1e-10})


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_same_as_compute(base, system, precision):
    """To rounding: the same kernels with the same tables."""
    potential = mdops.load(base, dtype=precision)
    names = [potential.type_map[t] for t in system["types"]]
    atoms = Atoms(names, system["positions"], cell=system["cell"], pbc=[True, False, True])
    wanted = potential.compute(atoms, atom_virial=True)
    got = Model(base, precision).compute(**system, periodic=[1, 0, 1])
    tolerance = {"float32": 3e-6, "float64": 1e-13}[precision]
    assert_near(got, {name: wanted[name] for name in ANSWERS}, {"energy": tolerance, "other": 10 * tolerance})


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_ghosts_and_a_given_list(base, system, precision):
    model = Model(base, precision)
    cutoff = model.info().cutoff
    positions, types, owners = ghosts(system["cell"], system["positions"], system["types"], cutoff)
    atoms, wanted = len(system["positions"]), model.compute(**system)
    everything = np.concatenate([system["positions"], positions])
    kinds = np.concatenate([system["types"], types])
    near = List(kinds, atoms, rows_of(everything, atoms, 1.2 * cutoff), 2)
    got = model.compute(everything, near=near)
    assert len(positions) > atoms
    for name in ("forces", "atom_virial"):
        folded = got[name][:atoms].copy()
        np.add.at(folded, owners, got[name][atoms:])
        got[name] = folded
    tolerance = {"float32": 2e-6, "float64": 1e-12}[precision]
    limits = {"energy": tolerance, "other": 10 * tolerance}
    assert_near(got, {name: np.asarray(wanted[name]) for name in ANSWERS}, limits)
    # The list serves until it changes; filled anew, with marks in the upper bits, it is another.
    moved = everything + 0.01
    assert_near(model.compute(moved, near=near), {"energy": np.asarray(wanted["energy"])}, limits)
    rows = [row | (1 << 30) for row in rows_of(everything, atoms, cutoff)]
    near.fill(kinds, atoms, rows, 2, mask=0x1FFFFFFF)
    assert_near(model.compute(everything, near=near), {"energy": np.asarray(wanted["energy"])}, limits)


def test_virtual_atoms_of_a_list(base, system):
    """Type -1: as if they were not there."""
    positions, types = system["positions"], system["types"].copy()
    rows = rows_of(positions, len(positions), 6.0)
    types[3] = -1
    model = Model(base)
    got = model.compute(positions, near=List(types, len(types), rows, 2))
    wanted = model.compute(positions, types)
    assert_near(got, {name: np.asarray(wanted[name]) for name in ANSWERS}, FLOAT64)
    assert got["atom_energy"][3] == 0 and not got["forces"][3].any()


def test_threads_and_precision_are_told(base, system):
    model = Model(base, "float32", threads=3)
    info = model.info()
    assert (info.precision, info.threads, info.ntypes) == (0, 3, 2)
    assert [info.names[t].decode() for t in range(2)] == mdops.load(base).type_map
    big = {"positions": np.concatenate([system["positions"] + [0, 0, 40.0 * k] for k in range(8)])}
    big |= {"types": np.tile(system["types"], 8)}
    several = model.compute(**big)
    again = model.compute(**big)
    model.set_threads(1)
    assert model.info().threads == 1
    single = model.compute(**big)
    assert all(np.array_equal(several[name], again[name]) for name in ANSWERS), "the same bits in every run"
    assert_near(several, {name: np.asarray(single[name]) for name in ANSWERS}, FLOAT32)


def test_threads_with_models_of_their_own(base, system):
    wanted = Model(base).compute(**system)
    failures = []

    def work(_):
        model = Model(base, threads=2)
        for _ in range(20):
            got = model.compute(**system)
            if got["energy"] != wanted["energy"] or not np.array_equal(
                got["atom_energy"], wanted["atom_energy"]
            ):
                failures.append(got)

    in_threads(work, 4)
    assert not failures


FORKED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from core_library import Model
model = Model(sys.argv[2], threads=2)
positions = np.random.default_rng(0).uniform(0, 12, (64, 3))
types = np.arange(64) % 2
wanted = model.compute(positions, types)["energy"]
child = os.fork()
if child == 0:
    near = abs(model.compute(positions, types)["energy"] - wanted) < 1e-9 * abs(wanted)
    del model
    os._exit(0 if near else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_process_computes(base):
    python("-c", FORKED, Path(__file__).parent, base, check=True)


def test_deviation(base):
    random = np.random.default_rng(1)
    values = [random.normal(size=(5, 3)) for _ in range(4)]
    result = np.zeros(5)
    places = (ctypes.c_void_p * 4)(*[pointer(v) for v in values])
    assert library().mdops_deviation(places, 4, ctypes.c_int64(5), 3, ctypes.c_void_p(pointer(result))) == 0
    mean = np.mean(values, 0)
    wanted = np.sqrt(np.mean([((v - mean) ** 2).sum(1) for v in values], 0))
    assert np.allclose(result, wanted, rtol=1e-14)


# -- Refusals


def refused(status, match, call, *args, **options):
    with pytest.raises(CoreError, match=match) as caught:
        call(*args, **options)
    assert caught.value.status == status


@pytest.mark.parametrize("case", ["activation_relu", "activation_silut", "atom_ener_shared", "axis_all"])
def test_what_the_fused_step_does_not_cover_is_refused_with_the_reason(case, tmp_path):
    with pytest.raises(UnsupportedModelError, match=REFUSED[case]):
        written(REFERENCE / case, tmp_path / "model.safetensors")


@pytest.mark.parametrize("case", ["dpa1_attn2", "dpa1_concat_attn0"])
def test_other_kinds_are_refused_by_name(case, tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"the C core does not support this model: .*mdops md"):
        written(KINDS / case, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_too_many_neighbours(tmp_path):
    path = written(REFERENCE / "overflow", tmp_path / "model.safetensors")
    given, _ = next(systems(REFERENCE / "overflow"))
    refused(NEIGHBORS, r"atom \d+ has \d+ neighbours of type \w+ .* sel is \d+", Model(path).compute, **given)
    potential = mdops.load(path, dtype="float64", overflow="extend")
    names = [potential.type_map[t] for t in given["types"]]
    atoms = Atoms(names, given["positions"], cell=given.get("cell"), pbc="cell" in given)
    wanted = potential.compute(atoms)
    got = Model(path, overflow=EXTEND).compute(**given)
    assert_near(got, {name: wanted[name] for name in ("energy", "forces", "virial")}, FLOAT64)


def test_atoms_at_one_place(base, system):
    positions = system["positions"].copy()
    positions[5] = positions[2]
    refused(
        NEIGHBORS, "same place as atom [25]$", Model(base).compute, positions, system["types"], system["cell"]
    )


def test_wrong_input(base, system, tmp_path):
    model, positions, types = Model(base), system["positions"], system["types"]
    refused(INVALID, "types", model.compute, positions, types + 2, system["cell"])
    refused(INVALID, "positions.*finite", model.compute, positions * np.nan, types, system["cell"])
    refused(INVALID, "singular", model.compute, positions, types, np.ones((3, 3)))
    refused(INVALID, "types is null", model.compute, positions)
    refused(INVALID, "fparam is given", model.compute, positions, types, fparam=[1.0])
    refused(INVALID, "atom 0 is of type 2", List, types + 2, 4, [[]] * 4, 2)
    refused(INVALID, "names atom 999", List, types, 4, [[999]] * 4, 2)
    refused(INVALID, "names atom 0", List, types, 4, [[0]] * 4, 2)
    near = List(types, len(types), [[1]] + [[0]] * (len(types) - 1), 2)
    near.shape = len(types) - 1, 0
    refused(INVALID, "list was filled for", model.compute, positions, near=near)
    refused(
        INVALID, "model has 2", model.compute, positions, near=List(types, len(types), [[]] * len(types), 3)
    )
    refused(FILE, "cannot be opened", Model, tmp_path / "absent.safetensors")
    assert library().mdops_compute(None, None, None) == INVALID
    assert library().mdops_load(None, None, None) == INVALID
    library().mdops_free(None)
    library().mdops_list_free(None)
    assert np.isfinite(model.compute(positions, types)["energy"]), "and it goes on"


def test_parameters_are_asked_for(tmp_path):
    path = written(REFERENCE / "fparam_aparam", tmp_path / "model.safetensors")
    given, _ = next(systems(REFERENCE / "fparam_aparam"))
    refused(INVALID, "fparam is null", Model(path).compute, **{**given, "fparam": None})
    refused(INVALID, "aparam is null", Model(path).compute, **{**given, "aparam": None})
    assert Model(path).info().needs_fparam == 1
    path = written(REFERENCE / "default_fparam", tmp_path / "default.safetensors")
    assert Model(path).info().needs_fparam == 0


def test_nan_in_a_list_gives_nan(base, system):
    positions = system["positions"].copy()
    near = List(system["types"], len(positions), rows_of(positions, len(positions), 6.0), 2)
    positions[1, 0] = np.nan
    result = Model(base).compute(positions, near=near)
    assert np.isnan(result["energy"]) and np.isnan(result["nearest"])


def test_files_without_what_is_asked_for(base, tmp_path):
    potential = mdops.load(base, dtype="float64")
    potential.save(tmp_path / "plain.safetensors", core=())
    refused(FILE, r"mdops convert IN OUT\.safetensors --core", Model, tmp_path / "plain.safetensors")
    potential.save(tmp_path / "single.safetensors", core=["float32"])
    refused(UNSUPPORTED, "--core float64", Model, tmp_path / "single.safetensors", "float64")
    Model(tmp_path / "single.safetensors", "float32")
    refused(FILE, "no .safetensors file", Model, REFERENCE / "base/model.dp")
    with pytest.raises(ModelFileError, match=r"only \.safetensors files"):
        potential.save(tmp_path / "model.dp", core=["float32"])
    with pytest.raises(InputError, match="float16"):
        potential.save(tmp_path / "model.safetensors", core=["float16"])
    with pytest.raises(InputError, match="Zz"):
        potential.save(tmp_path / "model.safetensors", core=["float32"], elements=["Zz"])


@pytest.mark.parametrize(
    ("case", "precisions"),
    [("base", ["float32", "float64"]), ("activation_silut", ["float32"]), ("activation_relu", [])],
)
def test_what_is_saved_is_for_the_core_if_it_can_be(case, precisions, tmp_path, capsys):
    """And loads as before where it cannot."""
    source, path = REFERENCE / case / "model.dp", tmp_path / "model.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = mdops.load(source, dtype="float64")
        potential.save(path)
        given, _ = next(systems(REFERENCE / case))
        for precision in precisions:
            assert np.isfinite(Model(path, precision).compute(**given)["energy"])
        for precision in {"float32", "float64"} - set(precisions):
            refused(UNSUPPORTED if precisions else FILE, "--core", Model, path, precision)
        assert (tmp_path / "model.safetensors").stat().st_size < 1e6
        assert read_model(path).model["type_map"] == potential.type_map
        if len(precisions) == 1:  # it takes seconds to find that float64 cannot be
            return
        assert cli.main(["convert", str(source), str(path), "--overwrite"]) == 0
    told = capsys.readouterr().out
    assert ("it has no part for the C core (C programs need it, LAMMPS is faster with it)" in told) == (
        not precisions
    )
    for precision in precisions:
        Model(path, precision)
    assert cli.main(["convert", str(source), str(path), "--overwrite", "--core", "none"]) == 0
    refused(FILE, "--core", Model, path)


def test_many_types_get_no_tables_unasked(tmp_path, monkeypatch):
    """They would be large."""
    monkeypatch.setattr("mdops.core.export._MOST_TYPES", 1)
    potential = mdops.load(REFERENCE / "base/model.dp", dtype="float64")
    potential.save(tmp_path / "model.safetensors")
    refused(FILE, "--core", Model, tmp_path / "model.safetensors")
    potential.save(tmp_path / "model.safetensors", core=["float32"])
    Model(tmp_path / "model.safetensors", "float32")


def test_elements_are_chosen_of_mixed_types(base, tmp_path):
    potential = without_mean("dpa1_concat_attn0")
    names = potential.type_map
    potential.save(tmp_path / "all.safetensors", core=["float64"])
    potential.save(tmp_path / "one.safetensors", core=["float64"], elements=names[1:])
    one = Model(tmp_path / "one.safetensors", overflow=EXTEND)
    info = one.info()
    assert [info.names[t].decode() for t in range(info.ntypes)] == names[1:]
    positions = np.random.default_rng(0).uniform(0, 9, (20, 3))
    wanted = Model(tmp_path / "all.safetensors", overflow=EXTEND).compute(positions, [1] * 20)
    got = one.compute(positions, [0] * 20)
    assert_near(got, {name: np.asarray(wanted[name]) for name in ANSWERS}, FLOAT64)
    with pytest.raises(UnsupportedModelError, match="all of its elements"):
        written(REFERENCE / "base", tmp_path / "base.safetensors", elements=[mdops.load(base).type_map[0]])


def test_the_file_is_the_model_for_mdops_too(base):
    before, after = read_model(REFERENCE / "base/model.dp").model, read_model(base).model
    for part, key in (("descriptor", "davg"), ("fitting", "bias_atom_e")):
        assert np.array_equal(before[part]["@variables"][key], after[part]["@variables"][key])


# -- The library, and programs that link it


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=200, **options)


def test_the_library_knows_neither_pytorch_nor_python():
    told = run("ldd", core_path()).stdout
    names = set(re.findall(r"^\s*(\S+?)\.so", told, re.MULTILINE))
    assert {Path(name).name for name in names} <= {
        "linux-vdso", "libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64",
        "libasan", "libubsan",
    }  # fmt: skip
    exported = run("nm", "-D", "--defined-only", core_path()).stdout.split("\n")
    functions = {line.split()[-1] for line in exported if line}
    header = Path(get_include(), "mdops.h").read_text()
    assert functions == set(re.findall(r"^MDOPS_API .*?(mdops_\w+)\(", header, re.MULTILINE))
    assert library().mdops_api_version() == int(re.search(r"MDOPS_API_VERSION (\d+)", header)[1])


def write_system(path, system):
    lines = [str(len(system["types"])), *(" ".join(map(repr, row)) for row in system["cell"].tolist())]
    for kind, x in zip(system["types"].tolist(), system["positions"].tolist(), strict=True):
        lines.append(" ".join([str(kind), *map(repr, x)]))
    path.write_text("\n".join(lines) + "\n")


def built(language: str, folder: Path) -> Path:
    """The language's example, or for C++ a program of the header alone."""
    examples, program = ROOT / "examples/core", folder / "energy"
    if language == "fortran":
        if shutil.which("gfortran") is None:
            pytest.skip("there is no gfortran")
        sources = [Path(get_include(), "mdops.f90"), examples / "energy.f90"]
        build = ["gfortran", "-Wall", "-J", folder, *sources, *link_flags()]
    elif language == "c":
        strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
        build = ["gcc", *strict, examples / "energy.c", *compile_flags(), *link_flags()]
    else:
        source = folder / "header.cpp"
        source.write_text(
            "#include <mdops.h>\nint main() { return mdops_api_version() != MDOPS_API_VERSION; }\n"
        )
        build = ["g++", "-Wall", "-Wextra", "-Werror", "-pedantic", source, *compile_flags(), *link_flags()]
    made = run(*build, "-o", program)
    assert made.returncode == 0, made.stderr
    return program


def without_library_path():
    return {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}


def test_the_header_is_for_cpp_too(tmp_path):
    assert run(built("c++", tmp_path), env=without_library_path()).returncode == 0


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_programs(language, base, system, tmp_path):
    program, environment = built(language, tmp_path), without_library_path()
    write_system(tmp_path / "system.txt", system)
    with open(tmp_path / "system.txt") as stdin:
        done = run(program, base, "float64", stdin=stdin, env=environment)
    assert done.returncode == 0, done.stderr
    numbers = [line.split() for line in done.stdout.splitlines()]
    wanted = Model(base).compute(**system)
    assert float(numbers[0][1]) == pytest.approx(wanted["energy"], rel=1e-13)
    assert np.allclose(np.array(numbers[1][1:], float), wanted["virial"].ravel(), rtol=1e-12, atol=1e-13)
    assert np.allclose(
        [[float(x) for x in line[1:]] for line in numbers[2:]], wanted["forces"], rtol=1e-12, atol=1e-13
    )
    with open(tmp_path / "system.txt") as stdin:
        done = run(program, tmp_path / "absent", "float64", stdin=stdin, env=environment)
    assert done.returncode == 1 and "cannot be opened" in done.stderr


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind")
@pytest.mark.skipif(
    "libasan" in run("ldd", core_path()).stdout, reason="valgrind or AddressSanitizer, not both"
)
@pytest.mark.parametrize("language", ["c", "fortran"])
def test_programs_are_clean_under_valgrind(language, base, system, tmp_path):
    """Nothing is read or written outside of memory, read unwritten, or lost; also where a file is refused."""
    program, model = built(language, tmp_path), tmp_path / "cut.safetensors"
    write_system(tmp_path / "system.txt", system)
    model.write_bytes(Path(base).read_bytes()[:-1])
    # valgrind knows no AVX-512.
    level = {"MDOPS_CPU_ISA": "v3"} if platform.machine() == "x86_64" else {}
    checked = [
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--show-leak-kinds=definite,possible",
    ]
    runs = [(base, "float64", 0), (base, "float32", 0), (model, "float64", 1)]
    if language == "c":  # angles, and attention
        cases = ("hybrid_r_t", "se_atten_v2_davg_zero")
        files = [written(KINDS / case, tmp_path / f"{case}.safetensors") for case in cases]
        runs += [(path, "float32", 0) for path in files]
    for path, precision, status in runs:
        with open(tmp_path / "system.txt") as stdin:
            environment = without_library_path() | level | {"OMP_NUM_THREADS": "2"}
            done = run(*checked, program, path, precision, stdin=stdin, env=environment)
        assert done.returncode == status and "==" not in done.stderr, done.stderr


def test_convert(base, tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    model = str(REFERENCE / "base/model.dp")
    assert cli.main(["convert", model, str(out), "--core", "float32"]) == 0
    assert Model(out, "float32").info().ntypes == 2
    assert cli.main(["convert", model, str(out), "--overwrite", "--core"]) == 0
    assert Model(out, "float64").info().ntypes == 2
    assert cli.main(["convert", model, str(tmp_path / "out.dp"), "--core"]) == 2
    assert (
        cli.main(["convert", str(KINDS / "dpa1_attn2/model.dp"), str(tmp_path / "no.safetensors"), "--core"])
        == 2
    )
    assert "the C core does not support" in capsys.readouterr().err
    assert cli.main(["core"]) == 0
    assert "mdops.h" in capsys.readouterr().out
    assert cli.main(["core", "--include", "--cflags", "--libs"]) == 0
    told = capsys.readouterr().out.split()
    assert told == [get_include(), *compile_flags(), *link_flags()]
