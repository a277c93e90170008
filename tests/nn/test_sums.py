"""Sums over systems: right, without an order, differentiable."""

import math

import pytest
import torch

from mdops.nn.sums import fixed_point_sum, sum_systems


def terms(device="cpu", atoms=5000, systems=7):
    gen = torch.Generator().manual_seed(0)
    values = 200 * torch.randn(atoms, generator=gen, dtype=torch.float64) - 150
    batch = torch.randint(0, systems, (atoms,), generator=gen)
    return values.to(device), batch.to(device)


def exact(values, batch, systems):
    return [math.fsum(values[batch == s].tolist()) for s in range(systems)]


@pytest.mark.parametrize("scale", [1e-290, 1e-9, 1.0, 1e12, 1e290])
def test_sums_are_right_at_any_scale(device, scale):
    values, batch = terms(device)
    got = fixed_point_sum(scale * values, batch, 8)
    want = torch.tensor(exact(scale * values, batch, 8), dtype=torch.float64)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-14, atol=scale * 1e-9)
    assert got[7] == 0


def test_the_order_of_the_terms_does_not_matter(device):
    values, batch = terms(device)
    want = fixed_point_sum(values, batch, 7)
    for seed in range(10):
        order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed)).to(device)
        assert torch.equal(fixed_point_sum(values[order], batch[order], 7), want)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_term_that_is_not_finite_spoils_its_own_system(device, value):
    values, batch = terms(device)
    before = fixed_point_sum(values, batch, 7)
    values[3] = value
    got, own = fixed_point_sum(values, batch, 7), int(batch[3])
    assert not math.isfinite(got[own])
    others = [s for s in range(7) if s != own]
    torch.testing.assert_close(got[others], before[others], rtol=1e-14, atol=0)


def test_nothing_sums_to_zero(device):
    none = torch.zeros(0, dtype=torch.float64, device=device)
    assert sum_systems(none, none.int(), 3).tolist() == [0, 0, 0]
    assert fixed_point_sum(torch.zeros(4, dtype=torch.float64), torch.zeros(4).long(), 2).tolist() == [0, 0]


@pytest.mark.parametrize("systems", [1, 7])
def test_sums_are_differentiable_twice(device, systems):
    values, batch = terms(device, atoms=40, systems=systems)
    values.requires_grad_()
    weight = torch.arange(1.0, systems + 1, dtype=torch.float64, device=device)

    def loss(v):
        return (weight * sum_systems(v.square() / 100, batch.int(), systems)).sum()

    (gradient,) = torch.autograd.grad(loss(values), values, create_graph=True)
    torch.testing.assert_close(gradient, weight[batch] * values / 50)
    (second,) = torch.autograd.grad(gradient.sum(), values)
    torch.testing.assert_close(second, weight[batch] / 50)


@pytest.mark.gpu
@pytest.mark.parametrize("systems", [1, 7, 300])
def test_the_same_bits_in_every_run(systems):
    values, batch = terms("cuda", atoms=200_000, systems=systems)
    want = sum_systems(values, batch.int(), systems)
    for _ in range(20):
        assert torch.equal(sum_systems(values, batch.int(), systems), want)
