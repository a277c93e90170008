"""Layers within |m| of edges, beside PyTorch's operations."""

import pytest
import torch

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.indices import by_order
from mdops.nn.equivariant.linear import OrderLinear
from mdops.ops import so2_layer

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("edges", "degrees", "channels"),
    [(2500, 2, 32), (70, 2, 32), (70, 3, 20), (2500, 1, 64), (70, 2, 64), (700, 3, 64)],
)
def test_a_layer_is_its_product_and_its_gate(edges, degrees, channels, dtype, device):
    """Its values and first derivatives; of float32 against float64, on a GPU by tensor cores where rows fit."""
    random = torch.Generator().manual_seed(edges)
    linear = OrderLinear(degrees, 1, channels, channels)
    gate = Gate(by_order(degrees, 1), channels)
    for weight in [*linear.parameters(), *gate.parameters()]:
        torch.nn.init.normal_(weight, std=0.1, generator=random)
    x = torch.randn(edges, 3 * degrees + 1, channels, generator=random, dtype=torch.float64)
    grad = torch.randn(x.shape, generator=random, dtype=torch.float64)
    for layer in (linear, gate):
        layer.to(torch.float64)
    for gated in (True, False):
        leaf = x.clone().requires_grad_()
        rows = linear(leaf[:, :, None])
        want = leaf + (gate(rows) if gated else rows)[:, :, 0]
        (by_x,) = torch.autograd.grad(want, leaf, grad)
        weights = [linear.weight_m0, linear.weight_m[0], gate.gate_linear.weight if gated else None]
        given = [None if weight is None else weight.detach().to(device, dtype) for weight in weights]
        own = x.to(device, dtype).requires_grad_()
        found = so2_layer(own, *given)
        (found_by_x,) = torch.autograd.grad(found, own, grad.to(device, dtype))
        for one, other in ((found, want), (found_by_x, by_x)):
            off = (one.detach().cpu().double() - other.detach()).abs().max() / other.abs().max()
            assert off < (1e-6 if dtype == torch.float32 else 1e-14)
