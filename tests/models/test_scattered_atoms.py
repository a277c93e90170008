"""Atoms that are numbered at random in space, on many threads: they are taken in an order of space."""

from pathlib import Path

import numpy as np
import pytest
import torch

import mdops
from mdops.cli.sample_model import water_model
from mdops.jit.sample_box import sample_box

KINDS = Path(__file__).parents[1] / "data/reference_kinds"
COUNT = 1300


def answers(potential, atoms, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return potential.compute(atoms, atom_virial=True)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("pbc", [True, False, [True, True, False]], ids=["crystal", "cluster", "slab"])
@pytest.mark.parametrize("kind", ["se_e2_a", "hybrid_a_r", "pairtab", "zbl_switch"])
def test_answers_are_those_of_one_thread(kind, pbc):
    if kind == "se_e2_a":
        potential = water_model(torch.float64)
    else:
        potential = mdops.load(KINDS / kind / "model.dp", dtype="float64", overflow="extend")
    atoms = sample_box(COUNT, list(potential.type_map)[:2])
    atoms = atoms[np.random.default_rng(0).permutation(COUNT)]
    atoms.positions += (
        atoms.cell.diagonal() * np.random.default_rng(1).integers(-2, 3, (COUNT, 3)) * (pbc is True)
    )
    atoms.pbc = pbc
    if pbc is False:
        atoms.cell = None
    one, many, again = (answers(potential, atoms, threads) for threads in (1, 8, 8))
    for name, value in one.items():
        scale = np.abs(value).max()
        assert np.abs(many[name] - value).max() < 1e-12 * scale, name
        assert np.array_equal(many[name], again[name]), name
    assert any(not np.array_equal(many[name], value) for name, value in one.items())
