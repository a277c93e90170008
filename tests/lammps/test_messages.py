"""Models whose layers pass messages, in LAMMPS: through a process of Python beside each of LAMMPS'."""

import copy
import os
import signal
import time
from pathlib import Path

import lammps_runs
import numpy as np
import pytest
import torch
from lammps_runs import BAR_PER_EV, NINE, ORTHOGONAL, ROOT, TRICLINIC, assert_near, crystal, data, thermo

import mdops
from mdops.io import read_model

CELLS = {"orthogonal": np.multiply(ORTHOGONAL, 1.4), "triclinic": np.multiply(TRICLINIC, 1.4)}
STEPS = 40


def model_file(case):
    return ROOT / f"tests/data/reference_kinds/{case}/model.dp"


def box(kind="orthogonal"):
    cell = np.diag([24.0, 12.0, 11.0]) if kind == "long" else CELLS[kind]
    return crystal(cell, sizes=(7, 5, 5) if kind == "long" else (5, 5, 5))


def script(style, more="run 0", boundary="p p p"):
    return lammps_runs.script(style, boundary, more, case="dpa3_base")


def answers(atoms, case, dtype="float64", **asked):
    potential = mdops.load(model_file(case), dtype=dtype, overflow="extend")
    named = atoms.copy()
    named.set_chemical_symbols([potential.type_map[k - 1] for k in atoms.numbers])
    return potential.compute(named, **asked)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("case", "cell", "precision"),
    [
        *((case, "orthogonal", "float64") for case in ("dpa3_base", "dpa2_base", "dpa4_base")),
        ("dpa3_sequential", "triclinic", "float64"),
        ("dpa3_base", "long", "float32"),
    ],
)
def test_forces_and_virial_are_those_of_python(run, case, cell, precision, ranks):
    atoms = box(cell)
    (run.folder / "data.lmp").write_text(data(atoms))
    done = run(script(f"mdops {model_file(case)} precision {precision} overflow extend"), ranks)
    wanted = answers(atoms, case, precision, atom_virial=True)
    tolerance = 1e-11 if precision == "float64" else 3e-5
    frame, line = run.dumped(), thermo(done)
    assert_near(line[1], wanted["energy"][0], tolerance, "energy")
    assert_near(frame[:, 4:7], wanted["forces"], tolerance, "forces")
    assert_near(frame[:, 7], wanted["atom_energy"], tolerance, "energies of atoms")
    virial = line[2:8] * line[8] / BAR_PER_EV
    assert_near(virial, wanted["virial"][0].flatten()[[0, 4, 8, 1, 2, 5]], max(tolerance, 1e-7), "virial")
    of_atoms = -BAR_PER_EV * wanted["atom_virial"].transpose(0, 2, 1).reshape(-1, 9)[:, list(NINE)]
    assert_near(frame[:, 14:], of_atoms, max(tolerance, 1e-7), "virials of atoms")


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gpu_has_the_same_forces(run, ranks):
    atoms = box()
    (run.folder / "data.lmp").write_text(data(atoms))
    run(script(f"mdops {model_file('dpa3_base')} precision float64 overflow extend device cuda"), ranks)
    assert_near(run.dumped()[:, 4:7], answers(atoms, "dpa3_base")["forces"], 1e-10, "forces")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ["dpa3_charged", "dpa4_bridged"])
def test_charge_and_multiplicity_are_those_of_the_line(run, case, ranks):
    atoms = box()
    (run.folder / "data.lmp").write_text(data(atoms))
    style = f"mdops {model_file(case)} precision float64 overflow extend charge_spin"
    found = []
    for pair in ([-2, 3], [1, 2]):
        done = run(script(f"{style} {pair[0]} {pair[1]}"), ranks)
        atoms.info["charge_spin"] = pair
        wanted = answers(atoms, case)
        assert_near(thermo(done)[1], wanted["energy"][0], 1e-11, "energy")
        found.append(run.dumped()[:, 4:7])
        assert_near(found[-1], wanted["forces"], 1e-10, "forces")
    assert np.abs(found[0] - found[1]).max() > 1e-6 * np.abs(found[0]).max()


def test_charge_and_multiplicity_need_a_value(run, tmp_path):
    """Where the model has no default; and they must be what the model takes."""
    tree = copy.deepcopy(read_model(model_file("dpa3_charged")).model)
    tree["descriptor"]["default_chg_spin"] = None
    mdops.Potential(mdops.models.model_of_tree(tree)).save(tmp_path / "charged.dp")
    (run.folder / "data.lmp").write_text(data(box()))
    text = script("mdops charged.dp overflow extend")
    assert "`charge_spin 0 1` in LAMMPS' pair style" in run.fails(text, 2)
    for wrong, told in (
        ("100 1", "expected a charge, -100 to 99"),
        ("1", "expected a charge, -100 to 99"),
        ("0.5 1", "which are whole numbers"),
    ):
        assert told in run.fails(text.replace("charged.dp", f"charged.dp charge_spin {wrong}"))
    text = text.replace("charged.dp", f"{model_file('dpa3_base')} charge_spin 0 1")
    assert "has no embedding of charge and multiplicity" in run.fails(text)


def test_energy_is_conserved_across_domains(run):
    atoms = box()
    (run.folder / "data.lmp").write_text(data(atoms))
    more = f"velocity all create 300 1\nfix 1 all nve\ntimestep 0.0005\nthermo 1\nrun {STEPS}"
    style = f"mdops {model_file('dpa3_base')} precision float64 overflow extend"
    totals = []
    for ranks in (1, 2):
        done = run(script(style, more), ranks)
        totals.append(np.array([thermo(done, k)[[1, 9]] for k in range(STEPS + 1)]))
    assert np.ptp(totals[0][:, 1]) < 0.02 * np.ptp(totals[0][:, 0])
    assert_near(totals[1], totals[0], 1e-9, "energies of two processes")


def test_a_process_may_have_no_atoms(run):
    atoms = crystal(np.diag([9.0, 9.0, 9.0]), pbc=False, sizes=(3, 3, 3))
    atoms.cell = np.diag([60.0, 60.0, 60.0])
    atoms.positions += 10
    (run.folder / "data.lmp").write_text(data(atoms))
    text = script(f"mdops {model_file('dpa3_base')} precision float64 overflow extend", boundary="f f f")
    run(text.replace("boundary f f f", "boundary f f f\n    processors 4 1 1"), 4)
    assert_near(run.dumped()[:, 4:7], answers(atoms, "dpa3_base")["forces"], 1e-11, "forces")


def test_models_deviate(run, tmp_path):
    other = mdops.load(model_file("dpa3_base"), dtype="float64")
    with torch.no_grad():
        for weight in other.model.fitting.parameters():
            weight.mul_(1.05)
    other.save(tmp_path / "other.dp")
    atoms = box()
    (run.folder / "data.lmp").write_text(data(atoms))
    run(script(f"mdops {model_file('dpa3_base')} other.dp precision float64 overflow extend out_freq 1"), 2)
    named = atoms.copy()
    named.set_chemical_symbols([other.type_map[k - 1] for k in atoms.numbers])
    two = [answers(atoms, "dpa3_base")["forces"], mdops.load(tmp_path / "other.dp", dtype="float64",
           overflow="extend").compute(named)["forces"]]  # fmt: skip
    deviation = np.sqrt(np.mean([((one - np.mean(two, 0)) ** 2).sum(1) for one in two], 0))
    line = np.loadtxt(tmp_path / "model_devi.out")
    assert_near(line[4:], np.array([deviation.max(), deviation.min(), deviation.mean()]), 1e-5, "deviation")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("model.dp", "absent.dp", "cannot be opened"),
        ("precision float64", "fparam 1.0", "frame parameters"),
    ],
)
def test_errors_end_all_processes(run, old, new, told):
    (run.folder / "data.lmp").write_text(data(box()))
    text = script(f"mdops {model_file('dpa3_base')} precision float64 overflow extend")
    assert told in run.fails(text.replace(old, new), 2)


def test_too_many_neighbours_end_all_processes(run):
    (run.folder / "data.lmp").write_text(data(crystal(ORTHOGONAL, sizes=(5, 5, 6))))
    told = run.fails(script(f"mdops {model_file('dpa3_few_places')} precision float64"), 2)
    assert "overflow" in told and "its atom ID is " in told


def test_without_python_it_says_what_to_do(run):
    (run.folder / "data.lmp").write_text(data(box()))
    del run.env["MDOPS_PYTHON"]
    assert "set MDOPS_PYTHON (`mdops lammps` does)" in run.fails(script(f"mdops {model_file('dpa3_base')}"))
    run.env["MDOPS_PYTHON"] = "/no/such/python"
    assert "does not start" in run.fails(script(f"mdops {model_file('dpa3_base')}"))


def python_processes(run):
    """Those beside LAMMPS."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            here = os.readlink(f"/proc/{pid}/cwd") == str(run.folder.resolve())
            if here and "mdops.model_server" in words:
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("killed", ["Python", "LAMMPS"])
def test_nothing_stays_where_a_process_is_killed(run, killed):
    (run.folder / "data.lmp").write_text(data(box()))
    more = "velocity all create 300 1\nfix 1 all nve\ntimestep 0.0005\nrun 100000"
    process = run.start(script(f"mdops {model_file('dpa3_base')} overflow extend", more), 2)
    until = time.monotonic() + 100
    while not (run.folder / "dump.txt").exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert len(python_processes(run)) == 2
    os.kill((python_processes(run) if killed == "Python" else run.processes())[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    if killed == "Python":
        assert "Python" in out + err
    while (python_processes(run) or run.processes()) and time.monotonic() < until:
        time.sleep(0.2)
    assert not python_processes(run) and not run.processes()
