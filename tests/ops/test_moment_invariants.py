"""Invariants of moments, against PyTorch's operations."""

import pytest
import torch

from mdops.models.dpa4c import DPA4C, DPA4COptions, Moments
from mdops.ops import moment_invariants
from mdops.tables.invariant_terms import invariant_terms

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("channels", "lmax"), [(8, 2), (16, 4), (128, 3)])
def test_features_of_dpa4c(channels, lmax, dtype, device):
    """With statistics, for more atoms than a block has, and a virtual one among them; and the gradient."""
    options = DPA4COptions(rcut=5.0, channels=channels, lmax=lmax, precision="float64")
    exact = DPA4C.random(options, ["Cu", "Al", "Ni"], [0], torch.float64)
    gen = torch.Generator().manual_seed(channels)
    exact.mean.copy_(torch.randn(exact.width, generator=gen))
    exact.stddev.copy_(0.5 + torch.rand(exact.width, generator=gen))
    widths = exact.invariants.channels
    scalars = torch.randn(45, channels + 2, generator=gen, dtype=torch.float64)
    scalars[:, -2:] = scalars[:, -2:].abs()
    others = torch.randn(45, (lmax + 1) ** 2, widths[1], generator=gen, dtype=torch.float64)
    types = torch.randint(0, 3, (45,), generator=gen)
    grad = torch.randn(45, exact.width, generator=gen, dtype=torch.float64)
    given = scalars.requires_grad_(), others.requires_grad_()
    degrees = [scalars[:, None, :channels]]
    degrees += [others[:, n * n : (n + 1) ** 2, : widths[n]] for n in range(1, lmax + 1)]
    wanted = exact.scaled(exact.described(Moments.of_sums(degrees, scalars[:, channels:]), types)).values
    by_wanted = torch.autograd.grad(wanted, given, grad)

    terms = invariant_terms(exact.to(device=device, dtype=dtype))
    moved = [x.detach().to(device, dtype).requires_grad_() for x in given]
    lists = terms.forth, terms.back, terms.mixed, terms.made
    kinds = types.int().to(device)
    found = moment_invariants(moved[0], moved[1].flatten(1), kinds, terms.behind, *lists)
    by_found = torch.autograd.grad(found, moved, grad.to(found))
    for got, want in zip((found, *by_found), (wanted, *by_wanted), strict=True):
        off = (got.detach().cpu().double() - want.detach()).abs().max()
        assert off < (1e-12 if dtype == torch.float64 else 5e-6) * want.abs().max()
    kinds[3] = -1
    virtual = moment_invariants(moved[0], moved[1].flatten(1), kinds, terms.behind, *lists)
    assert (virtual[3, -channels:] == 0).all() and torch.equal(virtual[:3], found[:3])
