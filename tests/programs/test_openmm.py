"""The potential "mdops" in OpenMM-ML: numbers, dynamics, a part of a system, and saved systems."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import spin_models
from ase.build import bulk

import mdops
from mdops.errors import InputError, ModelFileError

openmm = pytest.importorskip("openmm", reason="OpenMM is not installed (pip install 'mdops[openmm]')")
pytest.importorskip("openmmml", reason="OpenMM-ML is not installed (pip install 'mdops[openmm]')")

from openmm import app, unit  # noqa: E402
from openmmml import MLPotential  # noqa: E402

from mdops.openmm import MDOpsPotentialFactory  # noqa: E402

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"
EV = 96.48533212331  # kJ/mol


@pytest.fixture(autouse=True)
def registered():
    """As the entry point does, where mdops was installed before it had one."""
    if "mdops" not in {entry.name for entry in entry_points(group="openmmml.potentials")}:
        MLPotential.registerImplFactory("mdops", MDOpsPotentialFactory())


def test_the_module_may_be_imported_first():
    """OpenMM-ML loads the entry point while it is imported itself."""
    code = "import mdops.openmm, openmmml; assert 'mdops' in openmmml.MLPotential._implFactories"
    registered = "mdops" in {entry.name for entry in entry_points(group="openmmml.potentials")}
    subprocess.run([sys.executable, "-c", code if registered else code.partition(";")[0]], check=True)


def crystal():
    atoms = bulk("Cu", a=4.0, cubic=True) * (3, 3, 3)
    atoms.symbols[::4] = "Al"
    atoms.rattle(0.05, seed=1)
    return atoms


def topology_of(atoms):
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for symbol in atoms.symbols:
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
    if atoms.pbc.all():
        topology.setPeriodicBoxVectors(atoms.cell.array * unit.angstrom)
    return topology


def context_of(system, atoms, step=1.0):
    integrator = openmm.VerletIntegrator(step * unit.femtosecond)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    if atoms.pbc.all():
        context.setPeriodicBoxVectors(*(atoms.cell.array * 0.1))
    context.setPositions(atoms.positions * 0.1)
    return context


def energy_and_forces(context):
    """eV, eV/A."""
    state = context.getState(getEnergy=True, getForces=True)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoules_per_mole)
    forces = state.getForces(asNumpy=True).value_in_unit(unit.kilojoules_per_mole / unit.nanometer)
    return energy / EV, forces / (10 * EV)


def test_the_entry_point_names_the_factory():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."openmmml.potentials"]\nmdops = "mdops.openmm:MDOpsPotentialFactory"' in text
    )


@pytest.mark.parametrize("pbc", [True, False])
def test_numbers_are_the_potentials(pbc):
    atoms = crystal()
    atoms.pbc = pbc
    system = MLPotential("mdops", model=str(MODEL), dtype="float64").createSystem(topology_of(atoms))
    assert system.usesPeriodicBoundaryConditions() == pbc
    energy, forces = energy_and_forces(context_of(system, atoms))
    wanted = mdops.load(MODEL, dtype="float64").compute(atoms)
    assert energy == pytest.approx(wanted["energy"][0], abs=1e-6)
    np.testing.assert_allclose(forces, wanted["forces"], atol=1e-6)


def test_a_sheared_box():
    atoms = crystal()
    cell = atoms.cell.array
    cell[1, 0], cell[2, 0], cell[2, 1] = 2.0, -1.5, 1.0  # as OpenMM's boxes have to be
    atoms.set_cell(cell, scale_atoms=True)
    potential = mdops.load(MODEL, dtype="float64")
    system = MLPotential("mdops", model=potential).createSystem(topology_of(atoms))
    energy, forces = energy_and_forces(context_of(system, atoms))
    wanted = potential.compute(atoms)
    assert energy == pytest.approx(wanted["energy"][0], abs=1e-6)
    np.testing.assert_allclose(forces, wanted["forces"], atol=1e-6)


def test_dynamics_conserve_energy_and_keep_the_list():
    atoms = crystal()
    system = MLPotential("mdops", model=str(MODEL), dtype="float64").createSystem(
        topology_of(atoms), removeCMMotion=False
    )
    context = context_of(system, atoms)
    context.setVelocitiesToTemperature(300, 1)
    totals = []
    for _ in range(20):
        context.getIntegrator().step(5)
        state = context.getState(getEnergy=True)
        total = state.getPotentialEnergy() + state.getKineticEnergy()
        totals.append(total.value_in_unit(unit.kilojoules_per_mole) / EV)
    assert np.ptp(totals) < 2e-4 * len(atoms)
    moved = context.getState(getPositions=True).getPositions(asNumpy=True).value_in_unit(unit.angstrom)
    assert np.abs(moved - atoms.positions).max() > 0.05


def test_a_part_of_a_system():
    """The model has eight atoms; the rest is OpenMM's own, here without any force."""
    atoms = crystal()
    atoms.pbc = False
    chosen = list(range(8, 16))
    mm = openmm.System()
    nothing = openmm.NonbondedForce()
    for mass in atoms.get_masses():
        mm.addParticle(mass)
        nothing.addParticle(0, 1, 0)
    mm.addForce(nothing)
    mixed = MLPotential("mdops", model=str(MODEL), dtype="float64").createMixedSystem(
        topology_of(atoms), mm, chosen
    )
    energy, forces = energy_and_forces(context_of(mixed, atoms))
    wanted = mdops.load(MODEL, dtype="float64").compute(atoms[chosen])
    assert energy == pytest.approx(wanted["energy"][0], abs=1e-6)
    np.testing.assert_allclose(forces[chosen], wanted["forces"], atol=1e-6)
    assert not np.delete(forces, chosen, axis=0).any()


@pytest.mark.parametrize("model", ["file", "potential"])
def test_systems_are_saved(model):
    atoms = crystal()
    given = str(MODEL) if model == "file" else mdops.load(MODEL, dtype="float64")
    system = MLPotential("mdops", model=given).createSystem(topology_of(atoms))
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    first, second = (energy_and_forces(context_of(s, atoms)) for s in (system, again))
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4"])
def test_magnetic_moments(kind):
    """As virtual atoms and as vectors, for all atoms and for some; saved systems have them."""
    model, atoms = spin_models.model(kind), spin_models.crystal()
    moments = atoms.get_initial_magnetic_moments()
    potential = MLPotential("mdops", model=model, magnetic_moments=moments)
    cell = np.tril(atoms.cell.array)  # as OpenMM's boxes have to be
    atoms.set_cell(cell, scale_atoms=True)
    system = potential.createSystem(topology_of(atoms))
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    wanted = model.compute(atoms)
    scale = np.abs(wanted["forces"]).max()
    for one in (system, again):
        energy, forces = energy_and_forces(context_of(one, atoms))
        assert energy == pytest.approx(wanted["energy"][0], rel=1e-7)
        np.testing.assert_allclose(forces, wanted["forces"], rtol=0, atol=1e-6 * scale)
    atoms.pbc = False
    mm = openmm.System()
    for mass in atoms.get_masses():
        mm.addParticle(mass)
    mixed = potential.createMixedSystem(topology_of(atoms), mm, [1, 3, 6])
    _, forces = energy_and_forces(context_of(mixed, atoms))
    np.testing.assert_allclose(
        forces[[1, 3, 6]], model.compute(atoms[[1, 3, 6]])["forces"], rtol=0, atol=1e-6 * scale
    )


def test_magnetic_moments_that_do_not_fit():
    model, atoms = spin_models.model("se_e2_a"), spin_models.crystal()
    with pytest.raises(InputError, match="the model has magnetic moments: give `magnetic_moments`"):
        MLPotential("mdops", model=model)
    with pytest.raises(InputError, match="magnetic_moments are given, but the model takes none"):
        MLPotential("mdops", model=str(MODEL), magnetic_moments=np.ones(8))
    with pytest.raises(InputError, match=r"the shape \(8, 2\), expected a number or a vector"):
        MLPotential("mdops", model=model, magnetic_moments=np.ones((8, 2)))
    with pytest.raises(InputError, match=r"magnetic_moments\[0\] is nan"):
        MLPotential("mdops", model=model, magnetic_moments=[np.nan])
    along_z = MLPotential("mdops", model=model, magnetic_moments=np.ones(8))
    energy, _ = energy_and_forces(context_of(along_z.createSystem(topology_of(atoms)), atoms))
    atoms.set_initial_magnetic_moments(np.outer(np.ones(8), [0, 0, 1]))
    assert energy == pytest.approx(model.compute(atoms)["energy"][0], rel=1e-7)
    with pytest.raises(InputError, match="there are 8 magnetic moments, and the topology has 9 atoms"):
        along_z.createSystem(topology_of(atoms + atoms[:1]))


def test_errors_come_when_a_system_is_made():
    with pytest.raises(ModelFileError, match="no such file"):
        MLPotential("mdops", model="nope.dp")
    potential = MLPotential("mdops", model=str(MODEL))
    atoms = crystal()
    atoms.symbols[3] = "Fe"
    with pytest.raises(InputError, match="the model does not know Fe"):
        potential.createSystem(topology_of(atoms))
    topology = topology_of(crystal())
    topology.addAtom("M", None, next(topology.residues()))
    with pytest.raises(InputError, match="atom 108 of the topology has no element"):
        potential.createSystem(topology)


def test_the_example_runs(example):
    assert "eV in all" in example("openmm_md")
