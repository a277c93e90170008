"""Functions that are one node of autograd, differentiable once."""

import pytest
import torch

from mdops.errors import DerivativeError
from mdops.ops._once import once, traced

RANDOM = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(shape, generator=RANDOM, dtype=torch.float64)


WEIGHT, OF_EACH, OF_WIDE, FACTORS = numbers(3, 2), numbers(4, 3, 6), numbers(1, 5, 6), numbers(3)


def by_trace(trace, x, gate, unused):
    first = trace.beside(trace.first(x), trace.product(gate, WEIGHT))
    wide = trace.sum(trace.shaped(first, 5, 1, 5), trace.shaped(first, 5, 1, 5))
    rows = trace.product_of_each(trace.sum(x, trace.scaled(x, FACTORS)), OF_EACH)
    constant = trace.op("row_gate", FACTORS.view(1, 1, 3), FACTORS[None]).sum()
    gates = trace.shaped(trace.product_of_each(wide, OF_WIDE * constant), 5, 6)
    return trace.op("row_gate", rows, gates)


def by_autograd(x, gate, unused):
    wide = 2 * torch.cat([x[:, 0], gate @ WEIGHT], 1)[:, None]
    rows = torch.einsum("ndi,dio->ndo", x + x * FACTORS, OF_EACH)
    constant = (FACTORS * FACTORS.sigmoid()).sum()
    return rows * torch.einsum("ndi,dio->ndo", wide, OF_WIDE * constant).sigmoid()


def test_a_trace_leads_back_through_its_operations():
    given = [numbers(*shape).requires_grad_() for shape in ((5, 4, 3), (5, 3), (2,))]
    found, wanted = traced(by_trace, *given), by_autograd(*given)
    torch.testing.assert_close(found, wanted)
    grad = numbers(*found.shape)
    by_found = torch.autograd.grad(found, given, grad, retain_graph=True, allow_unused=True)
    for one, want in zip(by_found, torch.autograd.grad(wanted, given, grad, allow_unused=True), strict=True):
        torch.testing.assert_close(one, want)
    assert by_found[2] is None
    with pytest.raises(DerivativeError, match="asked for twice"):
        torch.autograd.grad(found, given[0], grad)


class Squares:
    """x^2, and nothing in the place of y."""

    def forward(self, x, y):
        return (x.square(), None), (2 * x,)

    def backward(self, given, kept, by_squares, nothing):
        assert nothing is None and len(given) == 2
        return by_squares * kept[0], None


def test_written_out_derivatives_are_differentiated_once():
    x, y = (numbers(3).requires_grad_() for _ in range(2))
    squares, nothing = once(Squares(), x, y)
    assert nothing is None
    grad = numbers(3).requires_grad_()
    (by_x,) = torch.autograd.grad(squares, x, grad, create_graph=True)
    torch.testing.assert_close(by_x, 2 * x * grad)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        by_x.sum().backward()
