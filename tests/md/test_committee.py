"""Several models in the engine: the answers are those of the ASE calculator with the same models."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase_reference import reference_integrator
from engine_cases import GRAPH_MODELS, MODEL, PHYSICS, alloy, set_sel

from mdops import load
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, UnstableRunError
from mdops.md.motion import set_velocities

REFERENCE = Path(__file__).parents[1] / "data" / "reference"


def reference_model(name, device="cpu", dtype="float64", **options):
    path = REFERENCE / name / "model.dp"
    return load(path, device=device, dtype=dtype, **{"overflow": "extend"} | options)


def structure(type_map, physics, seed=0, count=12):
    """A loose box of the models' elements."""
    rng = np.random.default_rng(seed)
    lattice = np.array([[i, j, k] for i in range(3) for j in range(2) for k in range(2)][:count]) * 2.3
    symbols = [type_map[k % len(type_map)] for k in range(count)]
    atoms = Atoms(symbols, lattice + rng.normal(scale=0.1, size=(count, 3)), cell=[7.2, 6.1, 6.3], pbc=True)
    set_velocities(atoms, physics, rng, anew=True)
    return atoms


@pytest.fixture(scope="module")
def committee():
    """Of other nets, another order of elements, another precision, and without splines."""
    models = [reference_model("base"), reference_model("widths"), reference_model("base", dtype="float32")]
    models.append(reference_model("activation_sigmoid", spline=False))
    models[1].model.type_map = models[1].type_map[::-1]
    return models


@pytest.mark.parametrize("name", ["nve", "nose-hoover", "npt"])
def test_frames_are_those_of_ase(committee, name):
    physics = dataclasses.replace(PHYSICS[name], timestep=0.5)
    atoms = structure(committee[0].type_map, physics)
    reference = atoms.copy()
    reference.calc = MDOps(committee)
    dynamics = reference_integrator(reference, physics)
    engine = Engine(atoms, committee, physics)
    frames = list(engine.run(60, every=20))
    assert engine.builds < 40
    for frame in frames:
        for _ in range(20):
            dynamics.step()
        results = reference.calc.results
        reference.get_stress()
        # One of them computes in float32, whose sums depend on the order of the atoms.
        np.testing.assert_allclose(frame.positions, reference.positions, atol=1e-6)
        np.testing.assert_allclose(frame.forces, results["forces"], atol=1e-5)
        np.testing.assert_allclose(frame.virial, results["virial"], atol=1e-4)
        np.testing.assert_allclose(frame.forces_std, results["forces_std"], atol=1e-5)
        assert frame.energy == pytest.approx(results["energy"], abs=1e-5)
        assert frame.energy_std == pytest.approx(results["energy_std"], abs=1e-5)
        again = frame.atoms(atoms)
        again.get_forces()
        assert again.calc.results["energy_std"] == frame.energy_std
        assert again.calc.results["forces_std"] is frame.forces_std
    assert frame.forces_std.min() > 1e-3 and frame.energy_std > 1e-3


def test_each_system_of_a_batch_has_its_own_deviation(committee):
    physics = dataclasses.replace(PHYSICS["nve"], timestep=0.5)
    structures = [structure(committee[0].type_map, physics, seed, 12 - seed) for seed in range(3)]
    (batch,) = BatchEngine(structures, committee[:2], physics).run(20, every=20)
    assert batch.forces_std.shape == (33,) and batch.energy_std.shape == (3,)
    for atoms, frame in zip(structures, batch, strict=True):
        alone = frame.atoms(atoms)
        alone.calc = MDOps(committee[:2])
        alone.get_forces()
        np.testing.assert_allclose(frame.forces_std, alone.calc.results["forces_std"], atol=1e-10)
        assert frame.energy_std == pytest.approx(alone.calc.results["energy_std"], abs=1e-10)


def test_one_model_has_no_deviation(committee):
    physics = PHYSICS["nve"]
    frame = Engine(structure(committee[0].type_map, physics), committee[:1], physics).frame()
    assert frame.forces_std is None and frame.energy_std is None
    assert "forces_std" not in frame.atoms(structure(committee[0].type_map, physics)).calc.results


def test_an_overflow_of_any_model_is_found():
    """Only the second has too few places, and only once the third shell vibrates into the cutoff."""
    physics = dataclasses.replace(PHYSICS["nve"], temperature=1500)
    tight, loose = (load(MODEL, dtype="float64", overflow=overflow) for overflow in ("error", "extend"))
    set_sel(tight, [16, 8])
    atoms = alloy(physics)
    atoms.set_cell(1.04 * atoms.cell.array, scale_atoms=True)
    with pytest.raises(
        UnstableRunError, match=r"blew up at step \d+ .*: atom \d+ has \d+ neighbours of type"
    ):
        list(Engine(atoms, [loose, tight], physics).run(100))
    list(Engine(atoms, [loose, loose], physics).run(100))


def test_parameters_go_to_those_that_take_them():
    physics = dataclasses.replace(PHYSICS["nve"], timestep=0.5)
    takers, others = reference_model("fparam_aparam"), reference_model("base")
    fparam = np.linspace(0.1, 0.4, takers.parameter_sizes["fparam"])
    aparam = np.full(takers.parameter_sizes["aparam"], 0.2)
    atoms = structure(takers.type_map, physics)
    frame = Engine(atoms, [others, takers], physics, fparam=fparam, aparam=aparam).frame()
    atoms.calc = MDOps([others, takers], fparam=fparam, aparam=np.tile(aparam, (len(atoms), 1)))
    assert frame.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-10)
    assert frame.energy_std == pytest.approx(atoms.calc.results["energy_std"], abs=1e-10)
    with pytest.raises(InputError, match="fparam is given, but the model takes none"):
        Engine(atoms, [others, others], physics, fparam=fparam)
    with pytest.raises(InputError, match="fparam is 'warm', expected numbers"):
        Engine(atoms, takers, physics, fparam="warm", aparam=aparam)


def test_what_is_no_committee(committee):
    physics = PHYSICS["nve"]
    atoms = structure(committee[0].type_map, physics)
    with pytest.raises(InputError, match="no model"):
        Engine(atoms, [], physics)
    with pytest.raises(InputError, match="must know the same elements"):
        Engine(atoms, [committee[0], load(REFERENCE.parent / "se_a_oneside" / "model.dp")], physics)


def test_a_list_with_ghosts_is_for_models_that_pass_messages():
    """Of three models of one cutoff the two that do share a list; as on a GPU, where it has room for so many ghosts."""
    physics, atoms = PHYSICS["nve"], alloy(PHYSICS["nve"])
    models = [load(MODEL, dtype="float64"), *(load(GRAPH_MODELS["dpa4"], dtype="float64") for _ in range(2))]
    for model in models:
        model.evaluator().captures = True
    engine = Engine(atoms, models, physics, atom_virial=True)
    local, first, second = engine._surface._surfaces
    for frame in engine.run(20, every=10):
        wanted = [model.compute(frame.atoms(atoms), atom_virial=True)["atom_virial"] for model in models]
        np.testing.assert_allclose(frame.atom_virial, np.mean(wanted, 0), rtol=0, atol=1e-10)
    assert local._list.ghosts is None and first._list is second._list and len(first._list.ghosts) > 20
    assert local.room == first.room == second.room == tuple(engine.inner["room"])


@pytest.mark.gpu
def test_a_committee_in_graphs_and_on_two_devices(replays):
    """Captured, not captured, and with one of the models on the CPU: the same trajectory and deviation."""
    physics, ends = PHYSICS["nose-hoover"], []
    for graphs, places in ((True, ("cuda", "cuda")), (False, ("cuda", "cuda")), (True, ("cuda", "cpu"))):
        models = [load(MODEL, device=places[0]), load(MODEL, device=places[1], r_min=0.4)]
        with torch.no_grad():
            models[1].model.fitting.net(0).layers[0].weight *= 1.3
        engine = Engine(alloy(physics), models, physics, graphs=graphs)
        ends += list(engine.run(60, every=60))
        assert bool(replays) == (graphs and places[1] == "cuda")
        replays.clear()
    assert np.array_equal(ends[0].positions, ends[1].positions)
    assert np.array_equal(ends[0].forces_std, ends[1].forces_std) and ends[0].forces_std.max() > 1e-3
    np.testing.assert_allclose(ends[2].positions, ends[0].positions, atol=1e-3)
    np.testing.assert_allclose(ends[2].forces_std, ends[0].forces_std, atol=1e-2)
