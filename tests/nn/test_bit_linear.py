"""Layers of low-bit products: they train, and freeze to the same results."""

import pytest
import torch

from mdops.nn.lowbit import BitLinear

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = [("ternary", "int8"), ("int8", "int8"), ("e4m3", "e4m3"), ("e4m3", "e5m2")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("weight_kind", "x_kind"), KINDS)
@pytest.mark.parametrize(("per", "groups"), [("tensor", 1), ("column", 1), ("column", 4)])
def test_a_frozen_layer_has_the_same_results(weight_kind, x_kind, per, groups, device):
    torch.manual_seed(0)
    layer = BitLinear(
        24, 10, weight_kind=weight_kind, x_kind=x_kind, weight_per=per, groups=groups, device=device
    )
    frozen = layer.frozen()
    assert not list(frozen.parameters())
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(2, 5, 24, device=device).to(dtype)
        assert layer(x).dtype == dtype and layer(x).shape == (2, 5, 10)
        limit = 0.02 if dtype == torch.bfloat16 else 1e-5
        if x_kind != "int8" and device == "cuda":  # which sums float8 with fewer bits (docs/reference/ops.md)
            limit = limit + 2.0**-10 * (x.float().abs() @ layer.weight.detach().abs().T)
        assert ((frozen(x) - layer(x)).abs() <= limit).all()
    again = BitLinear(24, 10, weight_kind=weight_kind, x_kind=x_kind, weight_per=per, groups=groups).frozen()
    again.load_state_dict(frozen.state_dict())
    torch.testing.assert_close(again.to(device)(x), frozen(x))


@pytest.mark.parametrize("device", DEVICES)
def test_a_net_of_ternary_layers_trains(device):
    """To fit a function and its gradient, as energies and forces are fitted: its loss falls to a fifth."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        BitLinear(4, 128, device=device), torch.nn.Tanh(), BitLinear(128, 128, device=device), torch.nn.Tanh(),
        torch.nn.Linear(128, 1, device=device),
    )  # fmt: skip
    x = torch.rand(256, 4, device=device).requires_grad_()
    target = torch.sin(3 * x).sum(1, keepdim=True)
    (slope,) = torch.autograd.grad(target.sum(), x)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(200):
        value = net(x)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        loss = (value - target.detach()).square().mean() + (gradient - slope).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert losses[-1] < 0.2 * losses[0], losses[::40]


def test_it_says_what_it_is():
    assert repr(BitLinear(3, 5)) == "BitLinear(3, 5, weight_kind='ternary', x_kind='int8')"
    assert BitLinear(3, 5, bias=False).bias is None
