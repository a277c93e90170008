"""Models that are made of models, and pair tables: what is asked of them (tests/data/make_blends.py)."""

from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from reference_cases import ANSWERS, SHARED, build, references, relative_error

from mdops import system as systems
from mdops.calculator import MDOps
from mdops.io import read_model
from mdops.md import Engine, Physics
from mdops.md.motion import set_velocities
from mdops.system import System

KINDS = Path(__file__).parents[1] / "data" / "reference_kinds"
# Float32 of a net is that of its answers; the largest error of a float32 model is in parts of the largest force.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 5e-5}
# DeePMD-kit's own answers carry the rounding of float32 weights and products.
ROUNDED = ("zbl_float32",)


def cases(kind):
    """The names of the cases of a kind, and of those in ../shared."""
    return sorted(path.name for path in KINDS.glob(f"{kind}*")), [p.name for p in SHARED.glob(f"{kind}*")]


def folder_of(case):
    return KINDS / case if (KINDS / case).exists() else SHARED / case


def tree_of(case):
    return read_model(folder_of(case) / "model.dp").model


def potential_of(case, dtype=torch.float64):
    return build(tree_of(case), dtype, "truncate" if case.endswith("few_places") else "error")


def check_answers(case, dtype):
    """Energies in parts of the largest, forces and virials in parts of theirs."""
    potential, bound = potential_of(case, dtype), TOLERANCE[dtype]
    if case in ROUNDED:
        bound = 5e-5
    for reference in references(folder_of(case)):
        found = potential.evaluate(
            reference.system, None, reference.fparam, reference.aparam, atom_virial=True
        )
        for name in ANSWERS:
            error = relative_error(found[name], reference.answers[name])
            assert error < bound, (reference.name, name, error)


def check_same_trees(a, b, place="model"):
    """Value by value, and array by array; a float32 array and the same in float64 differ."""
    assert type(a) is type(b), (place, a, b)
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (place, a.keys() ^ b.keys())
        for name in a:
            check_same_trees(a[name], b[name], f"{place}.{name}")
    elif isinstance(a, list):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            check_same_trees(x, y, f"{place}[{i}]")
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b), place
    else:
        assert a == b, (place, a, b)


def alloy(repeat=(2, 1, 1), a=3.7, seed=0, rattle=0.1):
    """Cu and Al, as the elements of the cases."""
    atoms = bulk("Cu", cubic=True, a=a) * repeat
    atoms.symbols[::3] = "Al"
    atoms.positions += np.random.default_rng(seed).normal(0, rattle, atoms.positions.shape)
    return atoms


def pair(distance, symbols="Cu2"):
    return Atoms(symbols, [[0, 0, 0], [0, 0, distance]])


def check_slopes(potential, atoms):
    """Forces are the slopes of energies, and their derivatives exist."""
    types = torch.tensor([potential.type_map.index(s) for s in atoms.get_chemical_symbols()])
    cell = torch.tensor(atoms.cell.array)
    pbc = torch.tensor(atoms.pbc)
    neighbors = potential.neighbor_list(_system(potential, atoms))

    def energy(positions):
        answers = potential(positions, types, cell, pbc, neighbors=neighbors)
        return answers["energy"]

    positions = torch.tensor(atoms.positions, requires_grad=True)
    assert torch.autograd.gradcheck(energy, (positions,), eps=1e-5, atol=1e-6, rtol=1e-5)


def check_dynamics(potential, atoms, steps=40):
    """ASE and the engine have the model's forces, which conserve the energy."""
    atoms.calc = MDOps(potential, dtype=potential.dtype)
    assert np.allclose(atoms.get_forces(), potential.compute(atoms)["forces"], atol=1e-10)
    physics = Physics("nve", 100, 0.5)
    set_velocities(atoms, physics, np.random.default_rng(0), anew=True)
    frames = list(Engine(atoms, potential, physics).run(steps, every=10))
    last = frames[-1].atoms(atoms)
    assert np.abs(last.positions - atoms.positions).max() > 0.005
    assert np.allclose(frames[-1].forces, potential.compute(last)["forces"], atol=1e-9)
    totals = [frame.energy + frame.kinetic for frame in frames]
    assert np.ptp(totals) < 1e-3 * max(frame.kinetic for frame in frames)


def check_on_gpu(case, dtype):
    potential, on_gpu = potential_of(case, dtype), potential_of(case, dtype).to("cuda")
    bound = 1e-10 if dtype == torch.float64 else 2e-5
    for reference in references(folder_of(case)):
        here = reference.system
        there = System(*(getattr(here, n).cuda() for n in ("positions", "types", "cell", "pbc", "batch")))
        more = [None if p is None else p.cuda() for p in (reference.fparam, reference.aparam)]
        a = potential.evaluate(here, None, reference.fparam, reference.aparam)
        b = on_gpu.evaluate(there, None, *more)
        for name in ("energy", "forces", "virial"):
            assert relative_error(b[name].cpu(), a[name]) < bound, (reference.name, name)


def _system(potential, atoms):
    return systems.from_atoms([atoms], potential.type_map, potential.device)
