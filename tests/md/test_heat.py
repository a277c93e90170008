"""Atomic virials in the engines' frames, heat currents, and the conductivity that follows from them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import units
from ase.build import bulk
from engine_cases import MODEL, PHYSICS, alloy, rounding, skewed

from mdops import load
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, EnsembleSettings
from mdops.md.heat import green_kubo, heat_current
from mdops.md.motion import set_velocities

NVE = PHYSICS["nve"]


@pytest.mark.parametrize("name", ["nve", "flexible"])
def test_frames_have_the_virials_of_their_positions(models, device, name):
    physics, potential = PHYSICS[name], models(device)
    structures = [alloy(physics), skewed(physics), alloy(physics, seed=3)[:16]]
    engine = BatchEngine(structures, potential, physics, atom_virial=True)
    frames = [engine.frame(), *engine.run(40, every=20)]
    assert [batch.step for batch in frames] == [0, 20, 40]
    for batch in frames:
        assert batch.atom_virial.shape == (80, 3, 3)
        for atoms, frame in zip(structures, batch, strict=True):
            moved = frame.atoms(atoms)
            wanted = potential.compute(moved, atom_virial=True)["atom_virial"]
            limit = rounding(device, 1e-9, 1e-3)
            np.testing.assert_allclose(frame.atom_virial, wanted, atol=limit)
            np.testing.assert_allclose(frame.atom_virial.sum(0), frame.virial.T, atol=limit)
            np.testing.assert_allclose(moved.get_stresses().sum(0), moved.get_stress(), atol=limit / 100)


def test_asking_for_them_changes_no_bit_of_the_run(models, device):
    potential = models(device)
    with_them, without = (
        list(Engine(alloy(NVE), potential, NVE, atom_virial=asked).run(60, every=30))
        for asked in (True, False)
    )
    for a, b in zip(with_them, without, strict=True):
        assert a.atom_virial is not None and b.atom_virial is None
        assert np.array_equal(a.positions, b.positions) and np.array_equal(a.virial, b.virial)
        assert "stresses" not in b.atoms(alloy(NVE)).calc.results


def test_several_models_have_their_mean(models):
    one, other = models("cpu"), load_again()
    frames = [Engine(alloy(NVE), m, NVE, atom_virial=True).frame() for m in (one, other, [one, other])]
    assert frames[2].forces_std is not None
    mean = (frames[0].atom_virial + frames[1].atom_virial) / 2
    np.testing.assert_allclose(frames[2].atom_virial, mean, atol=1e-11)


def load_again():
    other = load(MODEL, dtype="float64")
    with torch.no_grad():
        for p in other.model.fitting.parameters():
            p *= 1.01
    return other


def cluster(physics, seed=0):
    """Of 30 atoms, nothing around it, with two kinds of atoms."""
    atoms = bulk("Cu", a=4.0, cubic=True) * (3, 3, 3)
    atoms.symbols[::4] = "Al"
    atoms = atoms[np.argsort(np.linalg.norm(atoms.positions - 6.0, axis=1))[:30]]
    atoms.pbc = False
    set_velocities(atoms, physics, np.random.default_rng(seed), anew=True)
    return atoms


@pytest.mark.parametrize("case", ["", "dpa2_base", "dpa3_base", "dpa4_base"])
def test_the_current_is_the_change_of_the_moment_of_energy(models, case):
    """J = d/dt sum_i r_i (e_i + k_i), of a cluster that moves by its forces: no pair formula comes into this."""
    physics = dataclasses.replace(NVE, temperature=900, timestep=0.002 if case else 0.02)
    atoms, potential = cluster(physics), models("cpu")
    atoms.rattle(0.15, seed=3)
    if case:  # with messages
        path = Path(__file__).parents[1] / "data/reference_kinds" / case / "model.dp"
        potential = load(path, dtype="float64", overflow="extend")
        atoms.symbols[:] = np.where(atoms.symbols == "Al", *potential.type_map[:2])
        set_velocities(atoms, physics, np.random.default_rng(0), anew=True)
    engine = Engine(atoms, potential, physics, atom_virial=True)
    masses = atoms.get_masses()

    def moment(frame):
        kinetic = (frame.momenta**2).sum(1) / (2 * masses)
        return (frame.atom_energy + kinetic) @ frame.positions

    before, now, after = [engine.frame(), *engine.run(2, every=1)]
    wanted = (moment(after) - moment(before)) / (2 * physics.timestep)
    carried, given = heat_current(now, masses)
    assert np.abs(given).max() > (1e-4 if case else 0.02) * np.abs(carried).max()
    np.testing.assert_allclose(carried + given, wanted, atol=(1e-3 if case else 1e-4) * np.abs(given).max())
    # Energies that are taken off take off what their atoms carry.
    shifted = heat_current(now, masses, now.atom_energy)
    kinetic = (now.momenta**2).sum(1) / (2 * masses)
    velocities = now.momenta / masses[:, None] * units.fs
    np.testing.assert_allclose(shifted[0], kinetic @ velocities, atol=1e-12)
    np.testing.assert_array_equal(shifted[1], given)


def test_a_moving_body_carries_its_enthalpy(models):
    """All atoms at one velocity v: J = (E + K) v + W^T v, with the virial W of all."""
    physics = EnsembleSettings("nve", timestep=1)
    atoms = alloy(NVE)
    atoms.set_velocities(np.tile([0.01, -0.02, 0.03], (len(atoms), 1)))
    frame = Engine(atoms, models("cpu"), physics, atom_virial=True).frame()
    velocity = atoms.get_velocities()[0] * units.fs
    carried, given = heat_current(frame, atoms.get_masses())
    np.testing.assert_allclose(carried, (frame.energy + frame.kinetic) * velocity, rtol=1e-10)
    np.testing.assert_allclose(given, frame.virial.T @ velocity, atol=1e-12)


def test_without_virials_there_is_no_current(models):
    frame = Engine(alloy(NVE), models("cpu"), NVE).frame()
    with pytest.raises(InputError, match="atom_virial=True"):
        heat_current(frame, alloy(NVE).get_masses())


def test_green_kubo_sums_products():
    runs = np.random.default_rng(0).normal(size=(2, 50, 3))
    found = green_kubo(runs, interval=4.0, volume=1000.0, temperature=300.0, longest=40.0)
    assert found.times.tolist() == [4.0 * k for k in range(11)]
    for lag in range(11):
        pairs = runs[:, : 50 - lag] * runs[:, lag:]
        np.testing.assert_allclose(found.correlation[lag], pairs.mean((0, 1)), atol=1e-12)
    # In SI units, by hand: e = 1.602176634e-19 C, kB = 1.380649e-23 J/K.
    e, kB, A, fs = 1.602176634e-19, 1.380649e-23, 1e-10, 1e-15
    squares = found.correlation * (e * A / fs) ** 2
    integral = (squares[1:] + squares[:-1]).sum(0) / 2 * 4 * fs
    wanted = integral / (1000 * A**3 * kB * 300.0**2)
    np.testing.assert_allclose(found.conductivity[-1], wanted, rtol=1e-6)
    assert not found.conductivity[0].any()
    one = green_kubo(runs[0], 4.0, 1000.0, 300.0, 40.0)
    two = green_kubo(runs[1], 4.0, 1000.0, 300.0, 40.0)
    np.testing.assert_allclose((one.conductivity + two.conductivity) / 2, found.conductivity, rtol=1e-9)


def test_a_decay_that_is_known():
    """With a correlation of r^k by construction, the conductivity is dt (1/(1 - r) - 1/2) / (V kB T^2)."""
    r, frames = 0.9, 400_000
    random = np.random.default_rng(1).normal(size=(frames, 3)) * np.sqrt(1 - r**2)
    currents = np.empty_like(random)
    currents[0] = random[0]
    for k in range(1, frames):
        currents[k] = r * currents[k - 1] + random[k]
    found = green_kubo(currents, 2.0, 500.0, 200.0, 160.0)
    wanted = 2.0 * (1 / (1 - r) - 0.5) / (500.0 * units.kB * 200.0**2) * 1.602176634e6
    assert found.conductivity[-1].mean() == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("longest", [0.0, 400.0])
def test_times_that_a_run_has_not_are_refused(longest):
    with pytest.raises(InputError, match="no correlation up to"):
        green_kubo(np.zeros((100, 3)), 4.0, 1000.0, 300.0, longest)
