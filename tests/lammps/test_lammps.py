"""`pair_style mdops` (lammps.md) against `Potential.compute`, on one process, two and four. The tests that run
LAMMPS need one: MDOPS_LAMMPS, or lmp on PATH."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from ase.data import atomic_masses, atomic_numbers
from lammps_runs import (
    BAR_PER_EV,
    NINE,
    ORTHOGONAL,
    RANKS,
    ROOT,
    SIX,
    TRICLINIC,
    assert_near,
    crystal,
    data,
    expected,
    script,
    thermo,
)

import mdops
from mdops import cli
from mdops.errors import JitError
from mdops.lammps import find_lammps, find_program, plugin, recipe_for


@pytest.mark.parametrize("ranks", (*RANKS, 4))
@pytest.mark.parametrize(
    ("cell", "boundary", "pbc", "precision"),
    [
        (TRICLINIC, "p p p", True, "float64"),
        (TRICLINIC, "p p p", True, "float32"),
        (ORTHOGONAL, "p p f", [True, True, False], "float64"),
        (ORTHOGONAL, "f s f", False, "float64"),
    ],
    ids=["triclinic", "single", "slab", "cluster"],
)
def test_answers(run, models, cell, boundary, pbc, precision, ranks):
    atoms = crystal(cell, pbc)
    if not np.all(pbc):
        atoms.positions[:, ~atoms.pbc] += 0.4  # inside of the box
        atoms.positions[:, ~atoms.pbc] *= 0.95
    (run.folder / "data.lmp").write_text(data(atoms))
    path = models / "a.safetensors"
    done = run(script(f"mdops {path} precision {precision} overflow extend", boundary), ranks)
    wanted, rows = expected(path, atoms, precision), run.dumped()
    energy, other = {"float64": (1e-11, 1e-9), "float32": (1e-6, 3e-5)}[precision]
    line = thermo(done)
    assert_near(line[1], wanted["energy"][0], energy, "energy")
    virial = wanted["virial"][0].ravel()[list(SIX)] * BAR_PER_EV
    assert_near(line[2:8] * line[8], virial, other, "virial")
    assert_near(rows[:, 4:7], wanted["forces"], other, "forces")
    assert_near(rows[:, 7], wanted["atom_energy"], energy, "atom energies")
    of_atoms = -BAR_PER_EV * wanted["atom_virial"].transpose(0, 2, 1)  # distance by force
    symmetric = 0.5 * (of_atoms + of_atoms.transpose(0, 2, 1))
    assert_near(rows[:, 8:14], symmetric.reshape(-1, 9)[:, list(SIX)], other, "virials of atoms")
    assert_near(rows[:, 14:], of_atoms.reshape(-1, 9)[:, list(NINE)], other, "centroid virials")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "case", ["hybrid", "hybrid_r_t", "se_atten_v2_davg_zero", "se_e3_options", "se_e3_tebd_base"]
)
def test_other_kinds(run, tmp_path, case, device):
    single = device == "cuda" and "atten" in case  # float64 is not there
    precision = "float32" if single else "float64"
    potential = mdops.load(
        ROOT / f"tests/data/reference_kinds/{case}/model.dp", dtype="float64", overflow="extend"
    )
    path = tmp_path / "model.safetensors"
    potential.save(path, core=[precision])
    atoms = crystal(TRICLINIC)
    (run.folder / "data.lmp").write_text(data(atoms, kinds=len(potential.type_map)))
    style = f"mdops {path} precision {precision} overflow extend device {device}"
    done = run(script(style, case=case), 2)
    line, rows, wanted = thermo(done), run.dumped(), expected(path, atoms)
    energy, other = (1e-5, 1e-4) if single else (1e-10, 1e-8)
    assert_near(line[1], wanted["energy"][0], energy, "energy")
    virial = wanted["virial"][0].ravel()[list(SIX)] * BAR_PER_EV
    assert_near(line[2:8] * line[8], virial, other, "virial")
    assert_near(rows[:, 4:7], wanted["forces"], other, "forces")
    assert_near(rows[:, 7], wanted["atom_energy"], 10 * energy, "atom energies")


@pytest.mark.parametrize("ranks", RANKS)
def test_dynamics(run, models, ranks):
    """Atoms that cross the domains' borders, with new lists: the energy stays."""
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    more = "velocity all create 1500 7\n fix 1 all nve\n timestep 0.0005\n thermo 200\n run 200"
    done = run(
        script(f"mdops {models / 'a.safetensors'} precision float64 overflow extend", more=more), ranks
    )
    first, last = thermo(done, 0), thermo(done, 1)
    assert last[0] == 200 and abs(last[1] - first[1]) > 0.5, "it moves"
    assert abs(last[-1] - first[-1]) < 1e-5 * len(atoms)
    end = run.dumped()
    atoms.positions = end[:, 1:4]
    assert np.abs(end[:, 1:4] - crystal(ORTHOGONAL).positions).max() > 1.0
    assert_near(end[:, 4:7], expected(models / "a.safetensors", atoms)["forces"], 1e-9, "forces")


@pytest.mark.parametrize("ranks", RANKS)
def test_a_changing_box_and_a_minimisation(run, models, ranks):
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    more = """velocity all create 600 7
    timestep 0.0005
    fix 1 all npt temp 600 600 0.05 aniso 0 0 0.5
    run 60
    unfix 1
    undump d
    minimize 0 1e-3 10 20
    write_dump all custom end.txt id x y z fx fy fz modify sort id format float %20.15g"""
    run(script(f"mdops {models / 'a.safetensors'} precision float64 overflow extend", more=more), ranks)
    lines = (run.folder / "end.txt").read_text().split("BOX BOUNDS")[1].splitlines()[1:4]
    low, high = np.array([[float(x) for x in line.split()[:2]] for line in lines]).T
    assert np.abs(high - low - np.diag(ORTHOGONAL)).min() > 1e-3
    end = run.dumped("end.txt")
    atoms.set_cell(np.diag(high - low))
    atoms.positions = end[:, 1:4]
    assert_near(end[:, 4:7], expected(models / "a.safetensors", atoms)["forces"], 1e-8, "forces")


def test_a_restart(run, models):
    """The same trajectory as without one."""
    atoms = crystal(TRICLINIC)
    (run.folder / "data.lmp").write_text(data(atoms))
    style = f"mdops {models / 'a.safetensors'} precision float64 overflow extend"
    more = "velocity all create 600 7 loop all\n fix 1 all nve\n timestep 0.0005\n run 20\n"
    run(script(style, more=f"{more} write_restart half\n run 20"), 2)
    whole = run.dumped()
    text = script(style, more="fix 1 all nve\n run 20").replace("read_data data.lmp", "read_restart half")
    assert "read_restart" in text
    run(text, 2)
    assert np.allclose(run.dumped(), whole, rtol=1e-9, atol=1e-9)


def test_a_killed_process_ends_all(run, models):
    """None is left, and a restart file can be read (scripts/check_lammps.py does it twenty times)."""
    (run.folder / "data.lmp").write_text(data(crystal(TRICLINIC)))
    style = f"mdops {models / 'a.safetensors'} precision float64 overflow extend"
    process = run.start(script(style, more="fix 1 all nve\n undump d\n restart 2 one two\n run 1000000"), 2)
    until = time.monotonic() + 100
    while not (run.folder / "two").exists() and time.monotonic() < until:
        time.sleep(0.05)
    ranks = run.processes()
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    process.communicate(timeout=100)
    assert process.returncode != 0
    while run.processes() and time.monotonic() < until:
        time.sleep(0.05)
    assert not run.processes()
    texts = [script(style).replace("read_data data.lmp", f"read_restart {name}") for name in ("one", "two")]
    assert any(run(text, check=False).returncode == 0 for text in texts)


@pytest.mark.parametrize("ranks", RANKS)
def test_model_deviation(run, models, ranks):
    """The first model moves the atoms; the file has DeePMD-kit's columns."""
    atoms = crystal(TRICLINIC)
    (run.folder / "data.lmp").write_text(data(atoms))
    paths = [models / "a.safetensors", models / "b.safetensors"]
    style = f"mdops {paths[0]} {paths[1]} precision float64 overflow extend out_file devi.out out_freq 2"
    run(script(style, more="fix 1 all nve\n run 3"), ranks)
    head, *lines = (run.folder / "devi.out").read_text().splitlines()
    columns = [f"{kind}_devi_{of}" for of in "vf" for kind in ("max", "min", "avg")]
    assert head.split() == ["#", "step", *columns]
    rows = np.array([[float(x) for x in line.split()] for line in lines])
    assert rows[:, 0].tolist() == [0, 2]
    answers = [expected(path, atoms) for path in paths]
    forces = np.linalg.norm(np.std([a["forces"] for a in answers], 0), axis=1)
    virial = np.std([a["virial"][0] for a in answers], 0) / len(atoms)
    wanted = [
        virial.max(),
        virial.min(),
        np.sqrt((virial**2).mean()),
        forces.max(),
        forces.min(),
        forces.mean(),
    ]
    assert np.allclose(rows[0, 1:], wanted, rtol=2e-6, atol=1e-12)
    (run.folder / "first").write_text("")
    both = run.dumped()
    run(script(f"mdops {paths[0]} precision float64 overflow extend", more="fix 1 all nve\n run 3"), ranks)
    assert np.allclose(both, run.dumped(), rtol=1e-9, atol=1e-9)


def test_other_styles_beside_it(run, models):
    """hybrid/overlay, with atoms that the model knows nothing of."""
    atoms = crystal(TRICLINIC)
    types = atoms.numbers.copy()
    types[::7] = 3
    (run.folder / "data.lmp").write_text(data(atoms, types, kinds=3))
    names = " ".join(mdops.load(models / "a.safetensors").type_map)
    path = models / "a.safetensors"
    text = script(
        f"hybrid/overlay mdops {path} precision float64 overflow extend lj/cut 3.0",
        coeff=f"mdops {names} NULL",
    )
    text = text.replace(
        "compute v", "pair_coeff * 3 lj/cut 0.01 2.0\n pair_coeff 1*2 1*2 lj/cut 0.0 2.0\n compute v"
    )
    both = thermo(run(text))
    only = text.replace(f"mdops {path} precision float64 overflow extend ", "").replace(
        f"pair_coeff * * mdops {names} NULL", ""
    )
    rest = thermo(run(only))
    wanted = expected(path, atoms[types < 3])
    assert_near(both[1] - rest[1], wanted["energy"][0], 1e-10, "energy")
    virial = wanted["virial"][0].ravel()[list(SIX)] * BAR_PER_EV
    assert_near((both - rest)[2:8] * both[8], virial, 1e-8, "virial")


ERRORS = {
    "an unknown element": (("COEFF", "Zz Zz"), r"the model has no element Zz: it has"),
    "too few elements": (("COEFF", "{0}"), "the element of each of the 2 atom types"),
    "no such file": (("{a}", "absent.safetensors"), "absent.safetensors: it cannot be opened"),
    "another precision": (("{a}", "{b} precision float32"), "--core float32"),
    "another word": (("overflow extend", "overflow much"), "overflow is much"),
    "other units": (("units metal", "units lj"), "which units lj do not have"),
    "newton off": (("units metal", "units metal\n newton off"), "needs newton pair on"),
    "too many neighbours": (("overflow extend", ""), "neighbours of type"),
    "another device": (("overflow extend", "device gpu"), "device is gpu, expected cpu, cuda or cuda:N"),
    "no such GPU": (("overflow extend", "device cuda:77"), "77|without CUDA"),
    "atoms at one place": (None, "another atom is at the same place"),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", ERRORS)
def test_errors_end_all_processes(run, models, case, ranks):
    change, message = ERRORS[case]
    atoms = crystal(ORTHOGONAL, sizes=(5, 6, 7)) if case == "too many neighbours" else crystal(ORTHOGONAL)
    if case == "atoms at one place":
        atoms.positions[-1] = atoms.positions[-2]
    (run.folder / "data.lmp").write_text(data(atoms))
    names = mdops.load(models / "a.safetensors").type_map
    text = script("mdops {a} overflow extend", coeff="COEFF")
    text = text.replace(*change) if change else text
    text = text.replace("COEFF", " ".join(names)).replace("{0}", names[0])
    text = text.replace("{a}", str(models / "a.safetensors")).replace("{b}", str(models / "b.safetensors"))
    done = run(text, ranks, check=False)
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0 and "ERROR" in told and re.search(message, told), told[-1500:]


@pytest.mark.parametrize("ranks", RANKS)
def test_elements_in_another_order_than_the_masses_are_warned_of(run, models, ranks):
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    names = list(mdops.load(models / "a.safetensors").type_map)
    masses = [f"mass {k} {atomic_masses[atomic_numbers[name]]}" for k, name in enumerate(names, 1)]
    for order, warnings in ((names, 0), (names[::-1], 1)):
        text = script(f"mdops {models / 'a.safetensors'} overflow extend", coeff=" ".join(order))
        text = text.replace("compute v", "\n".join([*masses, "compute v"]), 1)
        told = " ".join(run(text, ranks).stdout.split())
        assert told.count(f"type 1 is {order[0]}, and its mass of") == warnings, told[-1500:]


def test_the_command(run, models, tmp_path):
    atoms = crystal(ORTHOGONAL)
    (tmp_path / "data.lmp").write_text(data(atoms))
    (tmp_path / "in.lmp").write_text(
        script(f"mdops {models / 'a.safetensors'} precision float64 overflow extend")
    )
    mdops_lammps = [sys.executable, "-m", "mdops", "lammps"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run([*mdops_lammps, "-in", "in.lmp", "-log", "none"], **options)
    assert done.returncode == 0, done.stderr
    assert_near(thermo(done)[1], expected(models / "a.safetensors", atoms)["energy"][0], 1e-11, "energy")


# -- What is found, without LAMMPS


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program that says it is LAMMPS, with a header and MPI's."""
    for name in ("bin/lmp", "include/lammps/pair.h", "include/mpi.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    program = tmp_path / "bin/lmp"
    program.write_text(
        '#!/bin/sh\n[ "$1" = -h ] || { echo "$LAMMPS_PLUGIN_PATH $@"; exit 3; }\n'
        '[ -z "$PMI_RANK" ] && echo "Large-scale ... Massively Parallel Simulator - 1 Jan 2030 - Update 1"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("MDOPS_LAMMPS", str(program))
    for name in ("MDOPS_LAMMPS_INCLUDE", "MDOPS_MPI_INCLUDE", "MDOPS_LAMMPS_PLUGIN", "LAMMPS_PLUGIN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_lammps_is_found_with_its_headers(fake, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    lammps = find_lammps()
    assert lammps.version == "1 Jan 2030" and lammps.include == fake / "include/lammps"
    assert lammps.mpi == fake / "include" and find_program() == fake / "bin/lmp"
    recipe = recipe_for(lammps)
    (fake / "include/lammps/pair.h").write_text("changed")
    assert recipe_for(lammps).key != recipe.key


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("bin/lmp", "not a program"),
        ("include/lammps/pair.h", "MDOPS_LAMMPS_INCLUDE"),
        ("include/mpi.h", "MDOPS_MPI_INCLUDE"),
    ],
)
def test_what_is_not_there_is_told(fake, gone, message, monkeypatch):
    (fake / gone).unlink()
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if gone != "include/mpi.h" else str(fake))
    if gone == "include/mpi.h":
        (fake / "bin/lmp").write_text('#!/bin/sh\necho "Massively Parallel Simulator - 1 Jan 2030"\n')
    with pytest.raises(JitError, match=message):
        find_lammps()


def test_a_prebuilt_plugin_and_the_arguments(fake, monkeypatch, capsys):
    prebuilt = fake / "ownplugin.so"
    monkeypatch.setenv("MDOPS_LAMMPS_PLUGIN", str(prebuilt))
    with pytest.raises(JitError, match=r"ends in plugin\.so"):
        plugin()
    prebuilt.write_text("")
    assert cli.main(["lammps"]) == 0
    assert str(prebuilt) in capsys.readouterr().out
    monkeypatch.setenv("LAMMPS_PLUGIN_PATH", "/elsewhere")
    done = subprocess.run(
        [sys.executable, "-m", "mdops", "lammps", "-in", "in.lmp", "--help", "-var", "x", "1"],
        capture_output=True, text=True, timeout=100, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout.split() == [f"{fake}:/elsewhere", "-in", "in.lmp", "--help", "-var", "x", "1"]


def test_compiling_may_be_forbidden(fake, monkeypatch, capsys):
    monkeypatch.setenv("MDOPS_JIT", "0")
    assert cli.main(["lammps", "-in", "in.lmp"]) == 2
    assert "MDOPS_JIT=0 forbids compiling: lammps-" in capsys.readouterr().err
