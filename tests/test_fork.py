"""Children that are forked after their parent has computed."""

import multiprocessing

import numpy as np
import torch
from ase import Atoms

from mdops.calculator import MDOps
from mdops.cli.sample_model import water_model
from mdops.jit.sample_box import sample_box

ATOMS = 96


def energy(calculator: MDOps, seed: int) -> float:
    atoms = sample_box(ATOMS, ["O", "H"])
    atoms.positions += 0.05 * np.random.default_rng(seed).standard_normal((ATOMS, 3))
    return Atoms(atoms, calculator=calculator).get_potential_energy()


def energy_in_child(seed: int) -> float:
    torch.rand(300, 300).matmul(torch.rand(300, 300)).sum()
    result = energy(parents, seed)
    assert torch.get_num_threads() == 1
    return result


def test_a_pool_of_two():
    global parents
    parents = MDOps(water_model(torch.float32))
    torch.set_num_threads(2)
    wanted = [energy(parents, seed) for seed in range(4)]
    torch.rand(300, 300).matmul(torch.rand(300, 300)).sum()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        got = pool.map_async(energy_in_child, range(4)).get(timeout=60)
    assert torch.get_num_threads() == 2
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
