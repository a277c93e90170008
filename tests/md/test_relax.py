"""`mdops relax`: files, restarts, and what stops it."""

import itertools
import multiprocessing
import os
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.constraints import FixAtoms
from engine_cases import MODEL, PHYSICS, alloy, skewed

from mdops.cli import main
from mdops.errors import InputError
from mdops.md import Minimizer, Output, Relaxation, outputs
from mdops.md.relax import relax


def rattled(seed, make=alloy):
    atoms = make(PHYSICS["nve"], seed)
    atoms.rattle(0.15, seed=seed)
    return atoms


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ase.io.write("start.extxyz", [rattled(1), rattled(2, skewed), rattled(3)[:17]])
    return tmp_path


def command(*more):
    return ["relax", "start.extxyz@:", "-m", str(MODEL), "--fmax", "0.02", *more]


def contents(folder, *names):
    return [(folder / name).read_bytes() for name in names]


FILES = ("relaxed.extxyz", "way.traj", "relaxed.log")


def test_files(folder, capsys, models):
    assert main(command("--cell", "all", "--pressure", "1", "--trajectory", "way.traj")) == 0
    out = capsys.readouterr().out
    assert "3 of 3 structures converged after" in out and "relaxed.extxyz" in out
    given, found = ase.io.read("start.extxyz", ":"), ase.io.read("relaxed.extxyz", ":")
    minimizer = Minimizer(given, models("cpu"), Relaxation(0.02, "all", 1.0))
    list(minimizer.run(1000))
    for atoms, wanted in zip(found, minimizer.structures(), strict=True):
        np.testing.assert_allclose(atoms.positions, wanted.positions, atol=1e-6)
        np.testing.assert_allclose(atoms.get_forces(), wanted.get_forces(), atol=1e-5)
        np.testing.assert_allclose(atoms.get_velocities(), wanted.get_velocities(), atol=1e-7)
    heading, *lines = Path("relaxed.log").read_text().splitlines()
    assert heading.split() == ["#", "step", "converged", "E/eV", "fmax/(eV/A)"]
    steps = [int(line.split()[0]) for line in lines]
    assert steps[:3] == [0, 10, 20] and steps[-1] == minimizer.step
    assert lines[-1].split()[1] == "3/3" and float(lines[-1].split()[3]) < 0.02
    frames = ase.io.read("way.traj", ":")
    assert [(f.info["step"], f.info["system"]) for f in frames[:4]] == [(0, 0), (0, 1), (0, 2), (10, 0)]
    assert len(frames) == 3 * len(lines)
    np.testing.assert_array_equal(frames[0].positions, given[0].positions)
    # Everything is there: nothing is written over without being told, and a restart changes nothing.
    before = contents(folder, *FILES)
    options = ("--cell", "all", "--pressure", "1", "--trajectory", "way.traj")
    assert main(command(*options)) == 2
    assert "relaxed.extxyz: exists already" in capsys.readouterr().err
    assert main(command(*options, "--restart")) == 0
    assert contents(folder, *FILES)[1:] == before[1:]


def test_one_structure_and_its_pressure(folder, capsys):
    assert main(["relax", "start.extxyz@0", "-m", str(MODEL), "--cell", "volume", "-o", "one.cif"]) == 0
    heading, *_, last = Path("one.log").read_text().splitlines()
    assert heading.split() == ["#", "step", "E/eV", "fmax/(eV/A)", "P/GPa", "V/A^3"]
    assert abs(float(last.split()[3])) < 0.2
    assert ase.io.read("one.cif").get_volume() == pytest.approx(float(last.split()[4]), abs=0.01)
    assert "converged after" in capsys.readouterr().out


def stopped(frames, arguments):
    """A command that ends in the middle of a write of so many frames."""
    write, count = outputs.AseTrajectory.write_frame, itertools.count(1)

    def stopping(self, atoms):
        if next(count) == frames:
            os._exit(9)
        write(self, atoms)

    outputs.AseTrajectory.write_frame = stopping
    main(arguments)


@pytest.mark.parametrize("kind", ["fixed", "all"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_kill_leaves_no_trace(folder, kind, monkeypatch):
    """Stopped in the middle of a write of the trajectory, and told to go on: the same bits as never stopped."""
    options = ("--cell", kind, "--trajectory", "way.traj", "--interval", "1", "--fmax", "0.01")
    whole, killed = folder / "whole", folder / "killed"
    for place in (whole, killed):
        place.mkdir()
        (place / "start.extxyz").write_bytes((folder / "start.extxyz").read_bytes())
    monkeypatch.chdir(whole)
    assert main(command(*options)) == 0
    # After 100 frames of three structures each there was one checkpoint, at step 50, or two.
    monkeypatch.chdir(killed)
    died = multiprocessing.get_context("fork").Process(target=stopped, args=(3 * 70 + 2, command(*options)))
    died.start()
    died.join(100)
    assert died.exitcode == 9
    assert not (killed / "relaxed.extxyz").exists()
    assert main(command(*options, "--restart")) == 0
    for name in ("relaxed.extxyz", "relaxed.log"):
        assert contents(whole, name) == contents(killed, name), name
    ways = [ase.io.read(place / "way.traj", ":") for place in (whole, killed)]
    assert len(ways[0]) == len(ways[1])
    for a, b in zip(*ways, strict=True):
        assert np.array_equal(a.positions, b.positions) and a.info == b.info


def test_what_does_not_converge_says_so(folder, capsys):
    assert main(command("--steps", "5")) == 1
    assert "not converged: 0 of 3 structures converged after 5 steps" in capsys.readouterr().out
    assert len(ase.io.read("relaxed.extxyz", ":")) == 3
    # More steps go on from there.
    assert main(command("--steps", "500", "--restart")) == 0


def test_fixed_atoms_stay_fixed(folder, capsys):
    slab = rattled(4)
    slab.pbc = [True, True, False]
    slab.set_constraint(FixAtoms([0, 1, 2]))
    ase.io.write("slab.traj", slab)
    assert main(["relax", "slab.traj", "-m", str(MODEL), "--fmax", "0.05", "-o", "out.traj"]) == 0
    found = ase.io.read("out.traj")
    assert np.array_equal(found.positions[:3], slab.positions[:3])
    assert np.abs(found.positions - slab.positions).max() > 0.01 and len(found.constraints) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["-o", "relaxed.nonsense"], "ASE has no format for it"),
        (["-o", "relaxed.cube"], "holds one structure, not 3"),
        (["-o", "relax.log"], "the name of the result, and of another file"),
        (["-o", "start.extxyz", "--overwrite"], "start.extxyz is the input of the run"),
        (["-o", "nowhere/relaxed.extxyz", "--checkpoint", "r"], "there is no folder"),
        (["--pressure", "1"], "a pressure acts on a cell that moves"),
    ],
)
def test_what_cannot_be_is_refused(folder, capsys, change, says):
    assert main(command(*change)) == 2
    assert says in capsys.readouterr().err


def test_a_result_that_its_format_cannot_hold_is_refused_before_the_first_step(folder, capsys):
    cluster = rattled(3)[:17]
    cluster.set_cell(None)
    cluster.pbc = False
    ase.io.write("cluster.extxyz", cluster)
    assert main(["relax", "cluster.extxyz", "-m", str(MODEL), "-o", "relaxed.vasp"]) == 2
    assert "cannot write these structures in its format vasp: Lattice vectors" in capsys.readouterr().err
    assert not Path("relaxed.restart").exists()


def test_a_longer_log_of_another_relaxation_is_neither_cut_nor_added_to(folder, capsys):
    assert main(command("--steps", "10", "--log", "log")) == 1
    assert main(command("--steps", "60", "--log", "log", "-o", "b.xyz", "--cell", "all", "--overwrite")) == 1
    before = Path("log").read_bytes()
    capsys.readouterr()
    assert main(command("--steps", "20", "--log", "log", "--restart")) == 2
    assert "log is not what this run wrote" in capsys.readouterr().err
    assert Path("log").read_bytes() == before


def test_two_in_one_folder_and_where_one_goes_on(folder, capsys):
    for name in ("a", "b"):
        assert main(command("--steps", "20", "-o", f"{name}.extxyz")) == 1
    assert Path("a.log").read_bytes() == Path("b.log").read_bytes()
    capsys.readouterr()
    assert main(command("--steps", "30", "-o", "b.extxyz", "--restart")) == 1
    assert "continuing from step 20 of 30" in capsys.readouterr().err


def test_a_restart_must_be_of_the_same(folder, models):
    given = ase.io.read("start.extxyz", ":")
    output = Output(steps=20, checkpoint=folder / "a.restart")
    relax(given, models("cpu"), Relaxation(0.02), output)
    again = Output(steps=40, checkpoint=folder / "a.restart", restart=True)
    with pytest.raises(InputError, match="other fmax"):
        relax(given, models("cpu"), Relaxation(0.03), again)
    for change in (
        lambda atoms: atoms.set_masses(2 * atoms.get_masses()),
        lambda atoms: atoms.set_constraint(FixAtoms([3])),
    ):
        others = [atoms.copy() for atoms in given]
        change(others[0])
        with pytest.raises(InputError, match="other structures"):
            relax(others, models("cpu"), Relaxation(0.02), again)
    given[1].rattle(0.01)
    with pytest.raises(InputError, match="other structures"):
        relax(given, models("cpu"), Relaxation(0.02), again)
