"""Neighbours at the cutoff itself, as in perfect crystals, count as in DeePMD-kit, where models jump there."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms

import mdops
from mdops.ops import neighbor_list

KINDS = Path(__file__).parents[1] / "data" / "reference_kinds"
NEAR = [[0.9, 0.8, 0.1], [-0.7, 0.9, -0.9], [-0.3, -1.1, 1.2]]


def energies(case, lengths, spline, dtype="float64"):
    """Of an atom with others at these lengths along x, y and z, a little nearer, and a little farther; eV."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mdops.load(KINDS / case / "model.dp", dtype=dtype, spline=spline, overflow="truncate")
    found = []
    for factor in (1, 1 - 1e-10, 1 + 1e-10):
        positions = [[0, 0, 0], *(np.eye(3)[: len(lengths)] * lengths[:, None] * factor), *NEAR]
        symbols = [model.type_map[k % 2] for k in range(len(positions))]
        found.append(float(model.compute(Atoms(symbols, positions))["energy"].sum()))
    return found


@pytest.mark.parametrize("spline", [True, False])
@pytest.mark.parametrize(
    ("case", "lengths", "energy"),
    [
        ("dpa1_rough", [3.8], -16.156688658320334),
        ("dpa2_rough_mean", [3.4, 3.6, 4.6], -8.86928702790225),
        ("hybrid_a_a", [3.8, 5.0], -1.7696345511170568),
    ],
)
def test_they_are_neighbours(case, lengths, energy, spline):
    """The energies are DeePMD-kit 3.2.0's."""
    at, inside, outside = energies(case, np.array(lengths), spline)
    assert at == pytest.approx(energy, abs=1e-7 if spline else 1e-12)
    assert at == pytest.approx(inside, abs=1e-8) and abs(at - outside) > 1e-3


def test_they_make_no_angles():
    """That cutoff of DPA-3 is 3.1 A; the energy is DeePMD-kit 3.2.0's."""
    at, inside, outside = energies("dpa3_average", np.array([3.1, 3.8]), False)
    assert at == pytest.approx(-11.722609221985511, abs=1e-12)
    assert at == pytest.approx(outside, abs=1e-8) and abs(at - inside) > 1e-5


def test_the_images_at_the_cutoff_are_listed(device):
    for cutoff, count in ((4.0, 6), (8.0, 32), (3.999999999999999, 0)):
        found = neighbor_list(
            torch.zeros(1, 3, dtype=torch.float64, device=device),
            4 * torch.eye(3, dtype=torch.float64, device=device),
            torch.tensor([True] * 3, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            cutoff,
        )
        assert int(found.counts.sum()) == count
