"""The engine and the minimiser with magnetic moments, as virtual atoms and as vectors."""

import dataclasses
import warnings

import ase.io
import ase.units
import numpy as np
import pytest
import torch
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE
from spin_models import DESCRIPTORS, SPIN, crystal, model, training_input

from mdops import Potential
from mdops.calculator import MDOps
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.data.labels import SPIN_LABELS
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, EnsembleSettings, Minimizer, Output, Relaxation, run
from mdops.md.engine.propagators import with_offsets, without_moves
from mdops.md.engine.state import ListOrigin
from mdops.md.motion import set_velocities
from mdops.md.relax import relax
from mdops.models.registry import find
from mdops.train import parse_config

NVE = EnsembleSettings("nve", 300, 0.5)
PHYSICS = {
    "nose-hoover": EnsembleSettings("nvt", 600, 0.5, tdamp=20),
    "langevin": EnsembleSettings("nvt", 600, 0.5, "langevin", friction=20),
    "flexible": EnsembleSettings("npt", 600, 0.5, tdamp=20, pressure=4, pdamp=100, flexible=True),
}
FACTORS = {"se_e2_a": 1000, "dpa1": 1000, "dpa3": 10}
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
KINDS = pytest.mark.parametrize("kind", DESCRIPTORS)


def strong(kind: str, device: str = "cpu") -> Potential:
    """With forces of some tenths of eV/A."""
    made = model(kind)
    for net in made.model.fitting.nets if kind in FACTORS else ():
        net[-1].weight.data *= FACTORS[kind]
    return made.to(device)


def moving(seed: int = 0, physics: EnsembleSettings = NVE):
    atoms = crystal(seed)
    set_velocities(atoms, physics, np.random.default_rng(seed), anew=True)
    return atoms


def check_frame(frame, atoms, potential, limit=1e-9):
    """Against the model's answers for a list of its own."""
    wanted = potential.compute(frame.atoms(atoms))
    for name in ("energy", "forces", "virial", "force_mag"):
        found, of = getattr(frame, name), wanted[name]
        np.testing.assert_allclose(found, of.reshape(np.shape(found)), rtol=0, atol=limit * np.abs(of).max())
    assert np.abs(frame.force_mag[:4]).min() > 0 and not frame.force_mag[4:].any()


@DEVICES
@KINDS
def test_the_engine_moves_atoms_as_ases_integrator_does(kind, device):
    """Two structures at once as one after the other; the moments stay."""
    potential = strong(kind, device)
    frames = [moving(0).repeat((2, 1, 1)), moving(1)]
    *_, last = Engine(frames[0], potential, NVE).run(30, 10)
    *_, both = BatchEngine(frames, potential, NVE).run(30, 10)
    moved = frames[0].copy()
    moved.calc = MDOps(potential)
    VelocityVerlet(moved, 0.5 * ase.units.fs).run(30)
    assert np.abs(moved.positions - frames[0].positions).max() > 0.05
    for found in (last.atoms(frames[0]), both[0].atoms(frames[0])):
        np.testing.assert_allclose(found.positions, moved.positions, rtol=0, atol=1e-8)
        kept = [one.get_initial_magnetic_moments() for one in (found, frames[0])]
        np.testing.assert_array_equal(*kept)
        wanted = moved.calc.get_property("force_mag", moved)
        np.testing.assert_allclose(found.calc.results["force_mag"], wanted, rtol=0, atol=1e-8)


@DEVICES
@pytest.mark.parametrize("physics", PHYSICS)
@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4_virtual", "dpa4"])
def test_frames_have_the_models_answers(kind, physics, device):
    settings = PHYSICS[physics]
    potential, frames = strong(kind, device), [moving(0, settings), moving(1, settings)]
    engine = BatchEngine(frames, potential, settings, skin=0.6)
    found = list(engine.run(60, 20))
    for both in found:
        for frame, atoms in zip(both, frames, strict=True):
            check_frame(frame, atoms, potential)
    assert engine.builds < 60  # the skin is of use
    if physics == "flexible":
        assert np.abs(found[-1].cell - [atoms.cell.array for atoms in frames]).max() > 0.05


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa1", "dpa4", "dpa4c"])
def test_energy_is_conserved(kind):
    """To the second order of the time step, by models that are smooth."""
    kinetic, ends = [], []
    for timestep in (0.5, 0.25):
        atoms = moving()
        settings = dataclasses.replace(NVE, timestep=timestep)
        frames = list(Engine(atoms, strong(kind), settings).run(round(50 / timestep), round(5 / timestep)))
        kinetic.append(np.ptp([frame.kinetic for frame in frames]))
        ends.append(np.ptp([frame.conserved for frame in frames]))
    assert kinetic[0] > 0.02 and ends[0] < 2e-3 * kinetic[0]
    assert ends[1] < 0.35 * ends[0]


def test_the_fused_step_moves_virtual_atoms():
    potential, atoms = strong("se_e2_a"), moving()
    potential.use_spline()
    assert potential.explain().startswith("fused")
    for frame in Engine(atoms, potential, NVE).run(40, 10):
        check_frame(frame, atoms, potential)


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("kind", ["se_e2_a", "dpa3", "dpa4_virtual", "dpa4"])
def test_atomic_virials_of_frames(kind, afterwards):
    """Of steps that are judged afterwards as well, as on a GPU, with room for more ghosts than there are."""
    potential, atoms = strong(kind), moving()
    potential.evaluator().captures |= afterwards
    engine = Engine(atoms, potential, NVE, atom_virial=True)
    for frame in engine.run(10, 10):
        wanted = potential.compute(frame.atoms(atoms), atom_virial=True)["atom_virial"]
        np.testing.assert_allclose(frame.atom_virial, wanted, rtol=0, atol=1e-10)
        np.testing.assert_allclose(frame.atom_virial.sum(0), frame.virial, rtol=0, atol=1e-9)
    assert (engine.inner["room"][3] > 20) == (afterwards and kind != "se_e2_a")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["dpa3", "dpa4_virtual", "dpa4"])
def test_atomic_virials_are_captured(kind, replays):
    potential, atoms = strong(kind, "cuda"), moving()
    for frame in Engine(atoms, potential, NVE, atom_virial=True).run(40, 10):
        wanted = potential.compute(frame.atoms(atoms), atom_virial=True)["atom_virial"]
        np.testing.assert_allclose(frame.atom_virial, wanted, rtol=0, atol=1e-9)
    assert replays


@pytest.mark.parametrize("seed", range(5))
def test_distances_of_virtual_atoms_from_the_strained_list(seed):
    """No less than those of positions that are made, by little more for an isotropic strain."""
    random = np.random.default_rng(seed)
    cell = torch.tensor(4 * np.eye(3) + random.normal(0, 0.4, (3, 3)))[None]
    strain = 0.1 * torch.tensor(np.eye(3) if seed == 0 else random.normal(size=(3, 3)))
    new = cell + cell @ strain
    offsets = torch.tensor(random.normal(size=(20, 3)))
    offsets *= 2.5 / offsets.norm(dim=1, keepdim=True)
    atoms = torch.tensor(random.normal(size=(20, 3)))
    moved = 0.1 * torch.tensor(random.normal(size=(20, 3)))
    after = atoms + atoms @ strain + moved
    start = atoms + offsets
    virtual = (after + offsets - (start + start @ strain)).square().sum(1).max()
    origin = ListOrigin(atoms, cell, 6.0, 2.5)
    before = torch.full((1, 6), -torch.inf)
    tally = without_moves(torch.ones(1, 6), origin)
    assert tally[0, 0] == -torch.inf and (tally[0, 1:] == 1).all()
    tally[0, 0] = moved.square().sum(1).max()
    found = with_offsets(tally, before, origin, new)
    assert virtual <= found[0, 0] < 4 * virtual and torch.equal(found[:, 1:], tally[:, 1:])
    earlier = before.clone()
    earlier[0, 0] = 50.0
    assert with_offsets(tally, earlier, origin, new)[0, 0] == 50
    assert with_offsets(tally, before, origin._replace(offset=0.0), new) is tally


def test_lists_hold_for_virtual_atoms_in_cells_that_shrink():
    """They do not follow the strain, far as they are from their atoms."""
    potential, atoms = strong("se_e2_a"), crystal()
    atoms.set_initial_magnetic_moments(8 * atoms.get_initial_magnetic_moments())  # 3 A
    settings = EnsembleSettings("npt", 10, 1, tdamp=50, pressure=20, pdamp=1000, flexible=True)
    set_velocities(atoms, settings, np.random.default_rng(0), anew=True)
    engine = Engine(atoms, potential, settings, skin=0.4)
    minimizer = Minimizer([atoms], potential, Relaxation(1e-9, "all", 100), skin=0.4)
    for frames in (list(engine.run(20, 1)), [frames[0] for frames in minimizer.run(30, 1)]):
        assert np.linalg.det(frames[-1].cell) < 0.6 * atoms.get_volume()
        for frame in frames:
            check_frame(frame, atoms, potential)


@pytest.mark.parametrize("kind", ["dpa4_virtual", "dpa4"])
@pytest.mark.parametrize("physics", ["langevin", "flexible"])
def test_a_restart_goes_on_to_the_last_bit(kind, physics, tmp_path):
    potential = strong(kind)
    settings = dataclasses.replace(PHYSICS[physics], checkpoint_every=20)
    ends = []
    for name, parts in (("whole", [40]), ("parts", [20, 40])):
        for steps in parts:
            atoms = crystal()
            atoms.calc = MDOps(potential)
            files = tmp_path / f"{name}.npz", 10, tmp_path / f"{name}.extxyz"
            run(atoms, settings, Output(steps, *files, restart=steps != parts[0]))
        ends.append(atoms)
    assert np.abs(ends[0].positions - crystal().positions).max() > 0.1
    assert np.array_equal(ends[0].positions, ends[1].positions)
    assert np.array_equal(ends[0].arrays["momenta"], ends[1].arrays["momenta"])
    assert np.array_equal(ends[0].cell.array, ends[1].cell.array)
    assert (tmp_path / "whole.extxyz").read_bytes() == (tmp_path / "parts.extxyz").read_bytes()


@KINDS
def test_runs_and_relaxations_keep_their_moments(kind, tmp_path):
    """A restart with others is refused. The engine does both."""
    atoms, potential = crystal(), strong(kind)

    def with_moments(factor):
        found = atoms.copy()
        found.set_initial_magnetic_moments(factor * atoms.get_initial_magnetic_moments())
        found.calc = MDOps(potential)
        return found

    output = Output(20, tmp_path / "run.npz", 10, tmp_path / "run.extxyz")
    run(with_moments(1), NVE, output, engine=True)
    for frame in ase.io.read(tmp_path / "run.extxyz", ":"):
        kept = frame.get_initial_magnetic_moments()
        np.testing.assert_allclose(kept, atoms.get_initial_magnetic_moments(), atol=1e-7)
    again = dataclasses.replace(output, steps=40, restart=True)
    with pytest.raises(InputError, match="other magnetic_moments"):
        run(with_moments(0.5), NVE, again)
    run(with_moments(1), NVE, again)
    output = Output(30, tmp_path / "relax.npz", 10)
    (found,) = relax([with_moments(1)], potential, Relaxation(fmax=1e-9), output).structures
    found.calc = MDOps(potential)
    assert found.get_potential_energy() < with_moments(1).get_potential_energy() - 0.01
    with pytest.raises(InputError, match="other magnetic_moments"):
        relax(
            [with_moments(0.5)],
            potential,
            Relaxation(fmax=1e-9),
            dataclasses.replace(output, restart=True),
        )


@pytest.mark.parametrize("engine", [True, False])
def test_trajectories_are_data_with_magnetic_forces(engine, tmp_path):
    """By ASE's integrators, too, which move structures with constraints."""
    potential, atoms = strong("se_e2_a"), moving()
    if not engine:
        atoms.set_constraint(FixAtoms([7]))
    atoms.calc = MDOps(potential)
    run(atoms, NVE, Output(20, tmp_path / "run.npz", 5, tmp_path / "run.extxyz"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the stress, which is symmetric, does not contradict the virial
        data = load_dataset(str(tmp_path / "run.extxyz"), potential.type_map, known=SPIN_LABELS)
    errors = evaluate(potential, data).errors()
    assert errors["virial"].rmse < 1e-5
    assert errors["force_mag"].count == 5 * 4 * 3
    assert errors["force_mag"].rmse < 1e-6 and errors["energy"].rmse < 1e-5


@pytest.mark.parametrize("cell", ["fixed", "volume", "all"])
@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4"])
def test_a_relaxation_takes_ases_steps(kind, cell, tmp_path):
    potential, frames, steps = strong(kind), [crystal(0), crystal(1)], 25
    relaxation = Relaxation(1e-9, cell, 0.0 if cell == "fixed" else 1.0)
    output = Output(steps, tmp_path / "relax.npz", 5)
    found = relax(frames, potential, relaxation, output, result=tmp_path / "end.extxyz").structures
    written = ase.io.read(tmp_path / "end.extxyz", ":")
    for atoms, own, read in zip(frames, found, written, strict=True):
        moved = atoms.copy()
        moved.calc = MDOps(potential)
        pressure = relaxation.pressure * ase.units.GPa
        volume = cell == "volume"
        search = moved
        if cell != "fixed":
            search = FrechetCellFilter(moved, scalar_pressure=pressure, hydrostatic_strain=volume)
        FIRE(search, logfile=None).run(fmax=1e-9, steps=steps)
        np.testing.assert_allclose(own.positions, moved.positions, rtol=0, atol=1e-8)
        np.testing.assert_allclose(own.cell.array, moved.cell.array, rtol=0, atol=1e-8)
        wanted = potential.compute(own)["force_mag"]
        np.testing.assert_allclose(own.calc.results["force_mag"], wanted, rtol=0, atol=1e-10)
        np.testing.assert_allclose(read.arrays["force_mag"], wanted, rtol=0, atol=1e-7)


def without_moments(kind: str) -> Potential:
    tree = training_input(kind, "nowhere") | {"loss": {"type": "ener"}}
    del tree["model"]["spin"]
    options = parse_config(tree).model
    made = find("model", options.KIND).random(options, 5, torch.float64)
    return Potential(made, overflow="extend").eval()


def with_longer_moments() -> Potential:
    """Whose virtual atoms are farther away, so that it has a list of its own."""
    tree = training_input("se_e2_a", "nowhere")
    tree["model"]["spin"] = {**SPIN, "virtual_scale": [0.7]}
    options = parse_config(tree).model
    made = find("model", options.KIND).random(options, 3, torch.float64)
    return Potential(made, overflow="extend").eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [strong("se_e2_a"), with_longer_moments(), strong("dpa1")],
        lambda: [without_moments("se_e2_a"), strong("se_e2_a")],
        lambda: [strong("dpa4"), without_moments("dpa4")],
        lambda: [strong("dpa4"), strong("dpa4_virtual")],
    ],
)
def test_several_models(make):
    """Their means are the calculator's; the energy of a model without moments does not change with them."""
    models, atoms = make(), moving()
    calculator = MDOps(models)
    for settings in (NVE, PHYSICS["flexible"]):
        for frame in Engine(atoms, models, settings, skin=0.6).run(30, 10):
            found = frame.atoms(atoms)
            want = found.copy()
            want.calc = calculator
            want.get_forces()
            for name in ("forces", "force_mag", "forces_std"):
                of = calculator.results[name]
                np.testing.assert_allclose(found.calc.results[name], of, rtol=0, atol=1e-9 * np.abs(of).max())


def test_an_atom_without_its_moment_is_named():
    frames, potential = [crystal(0), crystal(1)], strong("se_e2_a")
    moments = frames[1].get_initial_magnetic_moments()
    moments[2] = 0
    frames[1].set_initial_magnetic_moments(moments)
    with pytest.raises(InputError, match="system 1: atom 2 has a moment of zero"):
        BatchEngine(frames, potential, NVE)
    with pytest.raises(InputError, match="system 1: atom 2 has a moment of zero"):
        Minimizer(frames, potential)
    del frames[1].arrays["initial_magmoms"]
    with pytest.raises(InputError, match="set_initial_magnetic_moments"):
        BatchEngine(frames, potential, NVE)


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa1", "dpa3", "dpa4_virtual", "dpa4"])
def test_blocks_of_steps_that_are_judged_afterwards(kind):
    """As on a GPU. Reports have rows of atoms, with what is found of their virtual atoms, too."""
    potential, atoms = strong(kind), moving()
    potential.overflow = "error"
    engine = Engine(atoms, potential, NVE, skin=0.6)
    surface = engine._surface
    surface._flags = True
    for frame in engine.run(40, 10):
        check_frame(frame, atoms, potential)
    assert engine.repeats < 3 and engine.builds < 40
    found = surface.forces(engine._state.positions, engine._state.cell)
    distance = np.linalg.norm(atoms.get_initial_magnetic_moments()[0]) * 0.314
    assert len(found.nearest) == len(found.within) == 8 and found.within.shape[1] == len(surface.sel)
    nearest = distance if potential.model.spin.paired else 1.5
    assert float(found.nearest.min()) == pytest.approx(nearest, abs=1e-9 if nearest == distance else 0.3)
    assert (found.within.amax(0) <= surface.sel).all() and (found.within > 10).any()
    surface.sel.fill_(10)  # as if there were too many: these steps are repeated with all checks
    repeats = engine.repeats
    for frame in engine.run(4, 2):
        check_frame(frame, atoms, potential)
    assert engine.repeats > repeats
