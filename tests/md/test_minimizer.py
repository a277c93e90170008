"""The minimiser against ASE's FIRE, and what it promises besides."""

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk
from ase.constraints import FixAtoms, FixBondLength
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE
from engine_cases import MODEL, PHYSICS, alloy, skewed

from mdops import load
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.md import Minimizer, Relaxation, UnstableRunError
from mdops.md.engine.fire import _Coordinates

CELLS = {"fixed": 0.0, "volume": 2.0, "all": 2.0}  # GPa


def rattled(seed, make=alloy):
    atoms = make(PHYSICS["nve"], seed)
    atoms.rattle(0.15, seed=seed)
    del atoms.arrays["momenta"]
    return atoms


def structures():
    return [rattled(1), rattled(2, skewed), rattled(3)[:17]]


def by_ase(atoms, potential, relaxation, steps=1000):
    """What ASE makes of a copy, and in how many steps."""
    atoms = atoms.copy()
    atoms.calc = MDOps(potential)
    pressure = relaxation.pressure * units.GPa
    volume = relaxation.cell == "volume"
    moved = (
        atoms
        if relaxation.cell == "fixed"
        else FrechetCellFilter(atoms, scalar_pressure=pressure, hydrostatic_strain=volume)
    )
    search = FIRE(moved, logfile=None)
    assert search.run(fmax=relaxation.fmax, steps=steps)
    return atoms, search.nsteps


def relaxed(minimizer, steps=1000):
    for _ in minimizer.run(steps):
        pass
    return minimizer.structures()


@pytest.mark.parametrize("cell", CELLS)
def test_several_steps_in_one_go_are_the_steps(models, cell):
    """As a GPU's graphs of several steps have them."""
    found = []
    for counts in ((3,), (1, 1, 1)):
        minimizer = Minimizer(structures(), models("cpu"), Relaxation(1e-9, cell, CELLS[cell]))
        with torch.no_grad():
            for k, count in enumerate(counts):
                minimizer._steps(count, rebuild=k == 0)
        found.append(minimizer._state.memory.clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("cell", CELLS)
def test_its_steps_are_ases(models, cell):
    potential = models("cpu")
    relaxation = Relaxation(fmax=0.02, cell=cell, pressure=CELLS[cell])
    given = structures()
    minimizer = Minimizer(given, potential, relaxation)
    assert not minimizer.converged.any()
    found = relaxed(minimizer)
    assert minimizer.converged.all() and minimizer.step == max(minimizer.steps)
    assert (minimizer.largest_force < 0.02).all()
    for s, (atoms, own) in enumerate(zip(given, found, strict=True)):
        wanted, steps = by_ase(atoms, potential, relaxation)
        assert minimizer.steps[s] == steps
        np.testing.assert_allclose(own.positions, wanted.positions, atol=1e-8)
        np.testing.assert_allclose(own.cell.array, wanted.cell.array, atol=1e-8)
        assert own.get_potential_energy() == pytest.approx(wanted.get_potential_energy(), abs=1e-8)
        largest = np.linalg.norm(own.get_forces(), axis=1).max()
        assert largest < (0.02 if cell == "fixed" else 0.03)  # a strained cell's coordinates are others
        if cell != "fixed":
            pressure = -np.trace(own.get_stress(voigt=False)) / 3 / units.GPa
            assert pressure == pytest.approx(2.0, abs=0.25)  # fmax, for each atom's volume


@pytest.mark.gpu
@pytest.mark.parametrize("cell", CELLS)
def test_a_gpu_finds_the_same_minima(models, cell):
    """In float32, with and without CUDA graphs, which have the same bits."""
    relaxation = Relaxation(fmax=0.02, cell=cell, pressure=CELLS[cell])
    wanted = relaxed(Minimizer(structures(), models("cpu"), relaxation))
    minimizers = [Minimizer(structures(), models("cuda"), relaxation, graphs=g) for g in (True, False)]
    found, plain = (relaxed(m) for m in minimizers)
    assert minimizers[0].converged.all()
    for a, b, c in zip(found, plain, wanted, strict=True):
        assert np.array_equal(a.positions, b.positions)
        assert a.get_potential_energy() == pytest.approx(c.get_potential_energy(), abs=2e-3)


def test_what_has_converged_stays(models):
    """To the last bit, while others go on; a run of what has converged takes no step."""
    minimizer = Minimizer(structures(), models("cpu"), Relaxation(fmax=0.05))
    frames = list(minimizer.run(1000, every=1))
    steps = minimizer.steps
    assert len(set(steps)) > 1 and len(frames) == max(steps)
    for s, k in enumerate(steps):
        for later in frames[k - 1 :]:
            assert np.array_equal(later[s].positions, frames[k - 1][s].positions)
    assert not list(minimizer.run(100, every=1)) and minimizer.step == max(steps)


@pytest.mark.parametrize("cell", ["fixed", "all"])
def test_a_stop_changes_only_rounding(models, cell):
    """What `inner` has and the structures of a frame are enough to go on."""
    relaxation = Relaxation(fmax=0.02, cell=cell)
    whole = Minimizer(structures(), models("cpu"), relaxation)
    relaxed(whole)
    first = Minimizer(structures(), models("cpu"), relaxation)
    for _ in first.run(20):
        pass
    now, halfway = first.frame(), first.structures()
    second = Minimizer(halfway, models("cpu"), relaxation, step=first.step, velocities=now.momenta)
    second.inner = first.inner
    relaxed(second)
    assert np.array_equal(second.steps, whole.steps) and second.step == whole.step
    for a, b in zip(second.structures(), whole.structures(), strict=True):
        np.testing.assert_allclose(a.positions, b.positions, atol=1e-9)
        np.testing.assert_allclose(a.cell.array, b.cell.array, atol=1e-9)


def test_it_goes_down_the_gradient(models):
    """Of E + pV by the coordinates of atoms and cell, far from the cell of the beginning."""
    potential, pressure = models("cpu"), 3.0
    minimizer = Minimizer([rattled(2, skewed)], potential, Relaxation(1e-9, "all", pressure))
    for _ in minimizer.run(12):
        pass
    fire, state, system = minimizer._propagator, minimizer._state, minimizer._surface.system
    random, one = torch.Generator().manual_seed(0), torch.ones(1, dtype=torch.float64)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    def enthalpy(way):
        x, cell, log = fire._moved(state, way, one)
        found = potential.evaluate(type(system)(x, system.types, cell, system.pbc, system.batch))
        moved = found | {"positions": x, "cell": cell, "log": log}
        return found["energy"].item() + pressure * units.GPa * torch.linalg.det(cell).abs().item(), moved

    # Far strained, and turned.
    strained = _Coordinates(0 * state.positions, 0.05 * fire._sizes * normal(1, 3, 3))
    _, start = enthalpy(strained)
    state.positions.copy_(start["positions"])
    state.cell.copy_(start["cell"])
    state.cell_momenta.view(-1, 6, 3)[:, :3] = start["log"]
    force = fire._downhill(state, start | {"cell_momenta": state.cell_momenta})
    for _ in range(4):
        way = _Coordinates(normal(*state.positions.shape), normal(1, 3, 3) * fire._sizes)
        h = 1e-5
        up, down = (enthalpy(way.times(sign * h * one, state.batch.long()))[0] for sign in (1.0, -1.0))
        wanted = (force.atoms * way.atoms).sum() + (force.cell * way.cell).sum()
        assert (down - up) / (2 * h) == pytest.approx(wanted.item(), rel=1e-5, abs=1e-4)


def test_fixed_atoms_stay(models):
    potential, relaxation = models("cpu"), Relaxation(fmax=0.02)
    slab = rattled(5)
    slab.pbc = [True, True, False]
    slab.cell[2] *= 2
    slab.set_constraint(FixAtoms(mask=slab.positions[:, 2] < 1))
    other = rattled(6)
    minimizer = Minimizer([slab, other], potential, relaxation)
    found = relaxed(minimizer)
    for s, atoms in enumerate((slab, other)):
        wanted, steps = by_ase(atoms, potential, relaxation)
        assert minimizer.steps[s] == steps
        np.testing.assert_allclose(found[s].positions, wanted.positions, atol=1e-8)
    fixed = slab.constraints[0].index
    assert np.array_equal(found[0].positions[fixed], slab.positions[fixed]) and len(found[0].constraints) == 1


def test_several_models_relax_by_their_mean(models):
    other = load(MODEL, dtype="float64")
    with torch.no_grad():
        for p in other.model.fitting.parameters():
            p *= 1.01
    both = [models("cpu"), other]
    relaxation = Relaxation(fmax=0.02)
    minimizer = Minimizer([rattled(1)], both, relaxation)
    (found,) = relaxed(minimizer)
    wanted, steps = by_ase(rattled(1), both, relaxation)
    assert minimizer.steps[0] == steps
    np.testing.assert_allclose(found.positions, wanted.positions, atol=1e-8)


@pytest.mark.parametrize(
    ("given", "relaxation", "says"),
    [
        (bulk("Cu"), Relaxation(), "a list of ase.Atoms"),
        ([], Relaxation(), "no structures"),
        (
            [bulk("Cu"), Atoms("Cu")],
            Relaxation(cell="all"),
            "system 1: a cell can relax only where it is periodic",
        ),
    ],
)
def test_what_cannot_relax_is_refused(models, given, relaxation, says):
    with pytest.raises(InputError, match=says):
        Minimizer(given, models("cpu"), relaxation)


def test_constraints_that_it_does_not_know_are_refused(models):
    atoms = rattled(1)
    atoms.set_constraint(FixAtoms([0]))
    with pytest.raises(InputError, match="with fixed atoms cannot relax"):
        Minimizer([atoms], models("cpu"), Relaxation(cell="all"))
    atoms.set_constraint(FixBondLength(0, 1))
    with pytest.raises(InputError, match="has FixBondLength"):
        Minimizer([atoms], models("cpu"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fmax": 0.0}, "fmax is 0"),
        ({"cell": "shape"}, "cell is 'shape'"),
        ({"pressure": 1.0}, "acts on a cell that moves"),
        ({"cell": "all", "pressure": np.nan}, "pressure is nan"),
    ],
)
def test_options_that_cannot_be_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        Relaxation(**options)


def test_a_failure_names_its_step(models):
    """Atoms that are driven together: a huge pressure on a small cell."""
    atoms = rattled(1)[:4]
    atoms.set_cell([3.0, 3.0, 3.0])
    with pytest.raises((UnstableRunError, InputError), match=r"step|same place|neighbours"):
        relaxed(Minimizer([atoms], models("cpu"), Relaxation(cell="all", pressure=1e6)), 2000)
