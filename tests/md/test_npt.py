"""The engine at constant pressure: what is conserved, what is sampled, and lists in a cell that changes."""

import dataclasses

import numpy as np
import pytest
from ase import units
from engine_cases import MODEL, PHYSICS, alloy, rounding, skewed

from mdops import load
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, EnsembleSettings, Output, UnstableRunError, run

SQUEEZED = EnsembleSettings("npt", 600, 2, pressure=60, pdamp=150)


def dense_model(device):
    """That takes any number of neighbours; float64 on the CPU."""
    return load(MODEL, device=device, dtype="float64" if device == "cpu" else "float32", overflow="extend")


def pressure(frame):
    """GPa."""
    return (2 * frame.kinetic + np.trace(frame.virial)) / (3 * abs(np.linalg.det(frame.cell))) / units.GPa


@pytest.mark.parametrize("name", ["npt", "flexible"])
def test_the_conserved_energy_follows_the_square_of_the_time_step(models, name):
    spread = []
    for timestep in (3.0, 1.5):
        physics = dataclasses.replace(PHYSICS[name], timestep=timestep)
        frames = list(Engine(skewed(physics), models("cpu"), physics).run(round(900 / timestep), every=1))
        spread.append(np.std([frame.conserved for frame in frames]))
        energies = np.array([frame.energy + frame.kinetic for frame in frames])
    assert spread[0] < 0.01 < 0.1 < np.ptp(energies)
    assert 2.8 < spread[0] / spread[1] < 5.5


@pytest.mark.parametrize("name", ["npt", "flexible"])
def test_the_mean_pressure_and_temperature_are_those_wanted(models, device, name):
    """Within four standard errors, by blocks of 30 frames."""
    physics = dataclasses.replace(PHYSICS[name], pressure=3)
    engine = Engine(alloy(physics, seed=3), models(device), physics)
    frames = list(engine.run(3200, every=8))[100:]
    found = np.array([pressure(frame) for frame in frames]).reshape(10, 30).mean(1)
    error = found.std(ddof=1) / np.sqrt(10)
    assert found.mean() == pytest.approx(3, abs=4 * error) and 4 * error < 0.1
    assert engine.mean_temperature == pytest.approx(300, rel=0.06)
    conserved = [frame.conserved for frame in frames]
    assert abs(np.mean(conserved[-50:]) - np.mean(conserved[:50])) < 0.02
    cells = np.array([frame.cell for frame in frames])
    skew = np.abs(
        cells / np.cbrt(np.linalg.det(cells))[:, None, None] - cells[0] / np.cbrt(np.linalg.det(cells[0]))
    )
    assert (skew.max() < 1e-12) == (name == "npt")


@pytest.mark.parametrize("skin", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("flexible", [False, True])
def test_no_pair_is_missing_while_the_cell_shrinks(skin, flexible):
    """Energies and forces are those that the model gives for a frame by itself."""
    physics, model = dataclasses.replace(SQUEEZED, flexible=flexible), dense_model("cpu")
    atoms = skewed(physics)
    engine = Engine(atoms, model, physics, skin=skin)
    frames = list(engine.run(120, every=8))
    assert np.linalg.det(frames[-1].cell) < 0.9 * atoms.get_volume()
    made = engine.builds - engine.repeats
    assert made == 120 if skin == 0 else 2 < made < 120
    for frame in frames:
        alone = model.compute(frame.atoms(atoms))
        assert frame.energy == pytest.approx(float(alone["energy"][0]), abs=1e-9)
        np.testing.assert_allclose(frame.forces, alone["forces"], atol=1e-9)
        np.testing.assert_allclose(frame.virial, alone["virial"][0], atol=1e-8)


def test_a_block_in_which_the_cell_strains_too_far_is_done_again(device):
    """Cold atoms under pressure hardly move but with the cell: its strain alone uses up the skin."""
    physics, ends = dataclasses.replace(SQUEEZED, temperature=1, pdamp=3000), []
    for skin in (0.0, 0.4):
        engine = Engine(alloy(physics), dense_model(device), physics, skin=skin)
        engine.inner = {**engine.inner, "stride": 50 if skin else 1}
        begun = engine.repeats
        ends += list(engine.run(100, every=100))
        assert not skin or engine.repeats > begun
    limit = rounding(device, 1e-9, 1e-3)
    np.testing.assert_allclose(ends[0].positions, ends[1].positions, atol=limit)
    np.testing.assert_allclose(ends[0].cell, ends[1].cell, atol=limit)


def test_each_system_has_its_own_barostat(models, device):
    """One begins too large, the other too small: both come to the pressure."""
    physics, structures = dataclasses.replace(PHYSICS["npt"], pressure=5), []
    for seed, edge in enumerate((0.97, 1.03)):
        atoms = alloy(physics, seed)
        atoms.set_cell(edge * atoms.cell.array, scale_atoms=True)
        structures.append(atoms)
    engine = BatchEngine(structures, models(device), physics)
    list(engine.run(800))
    found = np.array([[pressure(frame) for frame in frames] for frames in engine.run(2000, every=10)])
    np.testing.assert_allclose(found.mean(0), 5, atol=0.6)
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.5


def test_a_run_in_float32_is_that_of_float64_on_the_cpu(device):
    """A squeezed run on either device."""
    ends = []
    for options in ({"dtype": "float64"}, {"dtype": "float32", "device": device}):
        physics = dataclasses.replace(PHYSICS["flexible"], pressure=20)
        engine = Engine(skewed(physics), load(MODEL, **options), physics)
        ends += list(engine.run(50, every=50))
    np.testing.assert_allclose(ends[0].cell, ends[1].cell, atol=1e-5)
    np.testing.assert_allclose(ends[0].positions, ends[1].positions, atol=2e-4)
    assert ends[0].conserved == pytest.approx(ends[1].conserved, abs=1e-3)
    assert not np.array_equal(ends[0].positions, ends[1].positions)


def test_a_system_without_a_volume_is_named(models):
    open_one = alloy(PHYSICS["npt"])
    open_one.pbc = [True, True, False]
    with pytest.raises(InputError, match=r"system 1: npt needs a cell that is periodic in three directions"):
        BatchEngine([alloy(PHYSICS["npt"]), open_one], models("cpu"), PHYSICS["npt"])


def test_a_cell_that_collapses_stops_the_run(tmp_path, device):
    """A barostat far too light for the pressure."""
    physics = dataclasses.replace(SQUEEZED, temperature=1, pdamp=20)
    atoms = alloy(physics)
    atoms.calc = MDOps(dense_model(device))
    with pytest.raises(UnstableRunError, match=r"blew up at step \d+ "):
        run(atoms, physics, Output(100, tmp_path / "c"))
