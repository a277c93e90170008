"""examples/custom_model.py: its loss falls, and its forces are the slopes of its energies."""

import importlib

import numpy as np
import pytest
import torch

from mdops.train import PairLists, load_dataset, make_batch


@pytest.fixture
def example(examples):
    return importlib.import_module("custom_model")


@pytest.fixture
def data(example):
    return load_dataset(example.DATA, ["Cu", "Al"])


def test_forces_are_the_slopes_of_the_energy(example, data):
    torch.manual_seed(1)
    model = example.MomentPotential(2, torch.float64)
    batch = make_batch(data, PairLists(data, example.CUTOFF), [0, 3])
    _, forces = example.energy_and_forces(model, batch, training=False)
    random, step = np.random.default_rng(0), 2e-5
    for _ in range(5):
        direction = torch.from_numpy(random.standard_normal(forces.shape))
        ahead, behind = (model(batch, batch.system.positions + s * direction) for s in (step, -step))
        slope = float((ahead - behind).sum().detach()) / (2 * step)
        assert slope == pytest.approx(-float((forces * direction).sum()), rel=1e-6)
    assert float(forces.sum(0).norm()) < 1e-10 < float(forces.norm())


def test_gradients_of_a_loss_on_forces(example, data):
    torch.manual_seed(1)
    model = example.MomentPotential(2, torch.float64)
    batch = make_batch(data, PairLists(data, example.CUTOFF), [0])

    def loss():
        return example.energy_and_forces(model, batch, training=True)[1].square().sum()

    loss().backward()
    step = 1e-6
    for parameter in (model.neighbor, model.center, model.net[1].weight):
        slope, entry = float(parameter.grad[0, 1]), parameter.data[0]
        entry[1] += step
        ahead = float(loss().detach())
        entry[1] -= 2 * step
        behind = float(loss().detach())
        entry[1] += step
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-7)


def test_turned_atoms_have_the_same_energy(example, data):
    torch.manual_seed(1)
    model = example.MomentPotential(2, torch.float64)
    batch = make_batch(data, PairLists(data, example.CUTOFF), [1])
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    energy = float(model(batch, batch.system.positions).detach())
    batch.system.cell.copy_(batch.system.cell @ turn)
    turned = float(model(batch, batch.system.positions @ turn).detach())
    assert turned == pytest.approx(energy, rel=1e-12)


def test_it_learns(example, data, examples):
    torch.manual_seed(1)
    errors = example.train(example.MomentPotential(2), data, 100)
    assert np.mean(errors[-10:]) < 0.4 * np.mean(errors[:10])
    assert len((examples / "custom_model.py").read_text().splitlines()) < 100
