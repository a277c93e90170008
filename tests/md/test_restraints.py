"""Restraints on groups of atoms: energies, forces and virials, and what becomes of a run."""

import dataclasses

import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.constraints import FixAtoms
from ase.io import read
from engine_cases import MODEL, PHYSICS, alloy, rounding, skewed

from mdops.cli import main
from mdops.errors import InputError
from mdops.md import BatchEngine, Distance, Engine, EnsembleSettings, Minimizer, Relaxation, Tether
from mdops.md.motion import set_velocities

NVE = PHYSICS["nve"]
FIRST, SECOND = [0, 4, 5], [17, 30]


def energy_of(restraints, atoms):
    """By hand, in NumPy, with ASE's nearest images."""
    total = 0.0
    for r in restraints:
        if isinstance(r, Tether):
            total += r.stiffness / 2 * ((atoms.positions[r.atoms] - r.places) ** 2).sum()
            continue
        centres = [
            np.average(atoms.positions[g], axis=0, weights=atoms.get_masses()[g]) for g in (r.first, r.second)
        ]
        pair = bulk("Cu") * (1, 1, 2)
        pair.set_cell(atoms.cell.array)
        pair.pbc, pair.positions[:] = atoms.pbc, centres
        beyond = pair.get_distance(0, 1, mic=True) - r.length
        if (r.side == "above" and beyond < 0) or (r.side == "below" and beyond > 0):
            continue
        total += r.stiffness / 2 * beyond**2
    return total


def all_kinds(atoms):
    places = atoms.positions[[7, 9]] + [0.3, -0.2, 0.5]
    return [
        Tether([7, 9], 2.5, places),
        Tether([1], 1.0, atoms.positions[[1]] + 0.1),
        Distance(FIRST, SECOND, 3.0, 2.0),
        Distance([2], [3, 11], 2.0, 3.5, "above"),
        Distance([2], [12], 2.0, 9.0, "below"),
        Distance([13], [14], 2.0, 0.5, "below"),
    ]


@pytest.mark.parametrize("make", [alloy, skewed])
def test_forces_and_virial_are_the_gradients(models, device, make):
    """What a restraint adds, by differences of its energy by hand."""
    atoms, potential = make(NVE), models(device)
    atoms.rattle(0.1, seed=3)
    atoms.positions[FIRST] += [3.9, 0.2, 0.1]  # across the boundary
    restraints = all_kinds(atoms)
    plain = Engine(atoms, potential, NVE).frame()
    found = Engine(atoms, potential, NVE, restraints=restraints).frame()
    limit = rounding(device, 1e-9, 2e-3)
    assert found.energy - plain.energy == pytest.approx(energy_of(restraints, atoms), abs=limit)
    assert found.atom_energy.sum() == pytest.approx(found.energy, abs=limit)
    h = 1e-5
    forces = np.zeros_like(atoms.positions)
    for i in (*FIRST, *SECOND, 7, 9, 1, 2, 3, 11, 12, 13, 20):
        for a in range(3):
            ends = []
            for sign in (1, -1):
                moved = atoms.copy()
                moved.positions[i, a] += sign * h
                ends.append(energy_of(restraints, moved))
            forces[i, a] = (ends[1] - ends[0]) / (2 * h)
    np.testing.assert_allclose(found.forces - plain.forces, forces, atol=max(limit, 1e-8))
    distances = [r for r in restraints if isinstance(r, Distance)]
    virial = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            ends = []
            for sign in (1, -1):
                strain = np.eye(3)
                strain[a, b] += sign * h
                moved = atoms.copy()
                moved.set_cell(atoms.cell.array @ strain, scale_atoms=True)
                ends.append(energy_of(distances, moved))
            virial[a, b] = (ends[1] - ends[0]) / (2 * h)
    np.testing.assert_allclose(found.virial - plain.virial, virial, atol=max(limit, 1e-7))


@pytest.mark.parametrize("name", ["nve", "nose-hoover", "npt"])
def test_the_conserved_energy_is_conserved(models, name):
    physics = dataclasses.replace(PHYSICS[name], timestep=1)
    atoms = alloy(physics)
    kinds = [r for r in all_kinds(atoms) if name != "npt" or isinstance(r, Distance)]
    kinds = [dataclasses.replace(r, length=3.0) if isinstance(r, Distance) else r for r in kinds]
    engine = Engine(atoms, models("cpu"), physics, restraints=kinds)
    conserved = [engine.frame().conserved, *(f.conserved for f in engine.run(300, every=10))]
    energies = [engine.frame().energy]
    assert np.ptp(conserved) < 0.02
    assert abs(energies[0]) > 0
    assert engine.freedom == 3 * len(atoms) - (3 if name == "npt" else 0)


def test_each_structure_has_its_own(models, device):
    potential, structures = models(device), [alloy(NVE), skewed(NVE), alloy(NVE, seed=2)[:20]]
    own = [all_kinds(structures[0]), [], [Tether([3], 4.0)]]
    together = BatchEngine(structures, potential, NVE, restraints=own)
    (frames,) = together.run(40, every=40)
    for s, atoms in enumerate(structures):
        (alone,) = Engine(atoms, potential, NVE, restraints=own[s]).run(40, every=40)
        np.testing.assert_allclose(frames[s].positions, alone.positions, atol=rounding(device, 1e-9, 1e-2))


def test_a_tether_and_a_distance_hold(models):
    """With stiff springs at 300 K: |x - x0|^2 is 3 kT/k on average, and the distance stays by its length."""
    physics = EnsembleSettings("nvt", 300, 1, "langevin", friction=20)
    atoms = alloy(physics)
    now = atoms.get_distance(10, 21, mic=True)
    held = [Tether([0, 8], 50.0), Distance([10], [21], 200.0, now + 0.3)]
    engine = Engine(atoms, models("cpu"), physics, restraints=held)
    moved, lengths = [], []
    for frame in engine.run(1500, every=5):
        if frame.step > 300:
            moved.append(((frame.positions[[0, 8]] - atoms.positions[[0, 8]]) ** 2).sum(1).mean())
            lengths.append(frame.atoms(atoms).get_distance(10, 21, mic=True))
    assert 0.3 < np.mean(moved) / (3 * units.kB * 300 / 50) < 1.5  # the crystal holds them, too
    assert np.mean(lengths) == pytest.approx(now + 0.3, abs=0.05)


def test_a_relaxation_with_restraints(models):
    atoms = alloy(NVE)
    atoms.rattle(0.1, seed=4)
    goal = atoms.get_distance(3, 5, mic=True) + 0.4
    held = [[Distance([3], [5], 5.0, goal)]]
    minimizer = Minimizer([atoms], models("cpu"), Relaxation(fmax=0.01), restraints=held)
    list(minimizer.run(1000))
    assert minimizer.converged.all()
    (found,) = minimizer.structures()
    (free,) = relaxed_freely(atoms, models("cpu"))
    lengths = [a.get_distance(3, 5, mic=True) for a in (found, free)]
    assert abs(lengths[0] - goal) < abs(lengths[1] - goal) - 0.1
    fixed = atoms.copy()
    fixed.set_constraint(FixAtoms([3]))
    minimizer = Minimizer([fixed], models("cpu"), Relaxation(fmax=0.01), restraints=held)
    list(minimizer.run(1000))
    assert minimizer.converged.all() and np.array_equal(minimizer.frame().positions[3], atoms.positions[3])
    assert abs(minimizer.structures()[0].get_distance(3, 5, mic=True) - goal) < abs(lengths[1] - goal) - 0.1
    with pytest.raises(InputError, match="a relaxing cell would move"):
        Minimizer([atoms], models("cpu"), Relaxation(cell="all"), restraints=[[Tether([0], 1.0)]])


def relaxed_freely(atoms, potential):
    minimizer = Minimizer([atoms], potential, Relaxation(fmax=0.01))
    list(minimizer.run(1000))
    return minimizer.structures()


def test_a_new_order_of_the_atoms_changes_nothing(models):
    """`renew` sorts them anew, after they have moved."""
    physics = dataclasses.replace(NVE, temperature=1500)
    atoms = alloy(physics)
    set_velocities(atoms, physics, np.random.default_rng(1), anew=True)
    runs = []
    for renews in (False, True):
        engine = Engine(atoms, models("cpu"), physics, restraints=all_kinds(atoms))
        for _ in range(4):
            list(engine.run(20))
            if renews:
                engine.renew()
        runs.append(engine.frame())
    np.testing.assert_allclose(runs[0].positions, runs[1].positions, atol=1e-8)


@pytest.mark.parametrize(
    ("restraints", "says"),
    [
        ([Tether([40], 1.0)], "atoms 40 to 40, and there are 32"),
        ([Tether([-1], 1.0)], "atoms -1 to -1"),
        ([Tether([], 1.0)], "expected numbers of atoms"),
        ([Tether([1, 1], 1.0)], "an atom twice"),
        ([Tether([1], 1.0), Tether([1, 2], 1.0)], "in two tethers"),
        ([Tether([1], 0.0)], "the stiffness of a restraint is 0"),
        ([Tether([1], 1.0, np.zeros((2, 3)))], "places of a tether"),
        ([Distance([1], [1, 2], 1.0, 2.0)], "the same atom"),
        ([Distance([1], [2], 1.0, -2.0)], "the length of a distance is -2"),
        ([Distance([1], [2], 1.0, 2.0, "left")], "side is 'left'"),
        (["freeze"], "is neither a Tether nor a Distance"),
    ],
)
def test_restraints_that_cannot_be_are_refused(models, restraints, says):
    with pytest.raises(InputError, match=says):
        Engine(alloy(NVE), models("cpu"), NVE, restraints=restraints)


def test_tethers_and_npt_exclude_each_other(models):
    physics = PHYSICS["npt"]
    with pytest.raises(InputError, match="npt scales all positions"):
        Engine(alloy(physics), models("cpu"), physics, restraints=[Tether([0], 1.0)])
    with pytest.raises(InputError, match="restraints of 1 structures, and there are 2"):
        BatchEngine([alloy(NVE)] * 2, models("cpu"), NVE, restraints=[[]])


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A structure in a folder of its own, and its name there."""
    monkeypatch.chdir(tmp_path)
    atoms = alloy(NVE)
    atoms.rattle(0.05, seed=1)
    atoms.write("start.extxyz")
    return atoms


def test_of_mdops_relax(started):
    words = ["--tether", "3,8-9", "500", "--distance", "1", "Al", "1", "0.5", "below"]
    command = ["relax", "start.extxyz", "-m", str(MODEL), "--fmax", "0.05", *words]
    assert main(command) == 0
    end = read("relaxed.extxyz")
    moved = np.linalg.norm(end.positions - started.positions, axis=1)
    held = [3, 8, 9]
    assert moved[held].max() < 0.01 < np.delete(moved, held).max()


def test_of_mdops_md_with_a_restart(started, capsys):
    """Tethers hold atoms where the whole run began, not where it goes on."""
    run = [
        "md",
        "start.extxyz",
        "-m",
        str(MODEL),
        "-T",
        "300",
        "--checkpoint-every",
        "20",
        "--interval",
        "10",
    ]
    words = ["--tether", "0-3", "2.5", "--distance", "4,5", "20", "3", "4.0"]
    assert main([*run, *words, "--steps", "60", "-o", "whole.traj", "--log", "whole.log"]) == 0
    assert main([*run, *words, "--steps", "40"]) == 0
    assert main([*run, "--tether", "0-3", "9", "--steps", "60", "--restart"]) == 2
    assert "restraints" in capsys.readouterr().err
    assert main([*run, *words, "--steps", "60", "--restart"]) == 0
    whole, parts = read("whole.traj@:"), read("md.traj@:")
    assert [len(whole)] == [len(parts)]
    assert np.array_equal(whole[-1].positions, parts[-1].positions)
    assert main([*run, "--steps", "60", "-o", "free.traj", "--log", "free.log"]) == 0
    free = read("free.traj")
    away = [np.linalg.norm((atoms.positions - started.positions)[:4]) for atoms in (whole[-1], free)]
    assert away[0] < 0.8 * away[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tether", "Xx", "1"], "no atoms of Xx"),
        (["--tether", "1..3", "1"], "1..3 is not a group of atoms"),
        (["--tether", "1", "much"], "much is not a number"),
        (["--distance", "0", "1", "3"], "expected ATOMS ATOMS K LENGTH"),
        (["--tether", "9999", "1"], "9999 is not a range of the structure's atoms"),
        (["--tether", "0,3-1", "1"], "3-1 is not a range of the structure's atoms"),
        (["--distance", "0", "1", "3", "4", "beside"], "side is 'beside'"),
    ],
)
def test_commands_say_what_is_wrong(started, words, message, capsys):
    assert main(["md", "start.extxyz", "-m", str(MODEL), "-T", "300", "--steps", "1", *words]) == 2
    assert message in capsys.readouterr().err
