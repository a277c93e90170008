"""The product of a dense layer and its adjoints, beside PyTorch's in float64; sizes around those of a GPU's tiles."""

import re
from pathlib import Path

import pytest
import torch

from mdops.ops.linear import _SMALL, degree_linear, linear, linear_input, linear_weight

# Of rows, inputs and outputs: of one, odd, even, of four; several tiles each way; depths that several blocks share; and
# depths of one to four eights behind the last 32, with a B that stays in shared memory; weights of one input, whose
# gradients lie as if they were of many rows, but come with sums for biases.
# On a GPU products below 2^25 multiply-adds have a kernel of their own; from 2^26 on Hopper's warpgroups take them.
SIZES = [
    *((1, 1, 1), (7, 17, 25), (131, 50, 66), (300, 100, 384)),
    *((192, 1601, 240), (9000, 36, 100), (129, 70, 3), (64, 1, 8500)),
    (5000, 120, 116),
    (4100, 130, 126),
    (3001, 129, 175),
    (7001, 110, 98),
    (2300, 384, 100),
]
LARGE = SIZES[-5:]


def _numbers(size, dtype=torch.float64):
    gen = torch.Generator().manual_seed(sum(size))
    n, inputs, outputs = size
    shapes = (n, inputs), (inputs, outputs), (outputs,), (n, outputs)
    return [torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype) for shape in shapes]


def _products(x, weight, bias, grad):
    weights, sums = linear_weight(x, grad)
    return linear(x, weight, bias), linear(x, weight), linear_input(grad, weight), weights, sums


def _by_pytorch(x, weight, bias, grad):
    return x @ weight + bias, x @ weight, grad @ weight.T, x.T @ grad, grad.sum(0)


def _sums_of_sizes(x, weight, bias, grad):
    """What errors are measured by: the sums of the products' sizes."""
    return _by_pytorch(*(t.abs() for t in (x, weight, bias, grad)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 5e-7)])
@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_float64(size, dtype, tolerance, device):
    numbers = _numbers(size, dtype)
    got = _products(*(t.to(device) for t in numbers))
    exact = [t.double() for t in numbers]
    for found, want, scale in zip(got, _by_pytorch(*exact), _sums_of_sizes(*exact), strict=True):
        assert found.dtype == dtype
        assert ((found.cpu() - want).abs() <= tolerance * scale).all()


@pytest.mark.parametrize("size", [*SIZES[1:4], *LARGE])
def test_numbers_far_from_one_keep_their_accuracy(size, device):
    """As gradients are: 1e-20 and less."""
    x, weight, bias, grad = _numbers(size, torch.float32)
    numbers = 1e-9 * x, 1e-12 * weight, 1e-21 * bias, 1e-16 * grad
    got = _products(*(t.to(device) for t in numbers))
    exact = [t.double() for t in numbers]
    for found, want, scale in zip(got, _by_pytorch(*exact), _sums_of_sizes(*exact), strict=True):
        assert ((found.cpu() - want).abs() <= 5e-7 * scale).all()


def test_a_product_has_the_same_bits_every_time_and_wherever_memory_begins(device):
    for size in SIZES:
        numbers = [t.to(device) for t in _numbers(size, torch.float32)]
        moved = [torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) for t in numbers]
        first = _products(*numbers)
        for again in (_products(*numbers), _products(*moved)):
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_add_is_zero(dtype, device):
    def zeros(*shape):
        return torch.zeros(*shape, dtype=dtype, device=device)

    bias = zeros(3) + 2
    assert torch.equal(linear(zeros(4, 0), zeros(0, 3), bias), bias.expand(4, 3))
    weight, sums = linear_weight(zeros(0, 5), zeros(0, 3))
    assert torch.equal(weight, zeros(5, 3)) and torch.equal(sums, zeros(3))
    weight, sums = linear_weight(zeros(2, 0), zeros(2, 3) + 1)
    assert weight.shape == (0, 3) and torch.equal(sums, zeros(3) + 2)


@pytest.mark.parametrize("size", [(130, 40, 70), LARGE[0]])
def test_a_nan_reaches_its_rows_and_columns_alone(size, device):
    x, weight, bias, grad = _numbers(size, torch.float32)
    x[129, 39] = torch.nan
    y = linear(x.to(device), weight.to(device), bias.to(device)).isnan().cpu()
    assert y[129].all() and y.any(1).sum() == 1
    grad[129, 5] = torch.nan
    by_x = linear_input(grad.to(device), weight.to(device)).isnan().cpu()
    assert by_x[129].all() and by_x.any(1).sum() == 1
    grad[129, 5] = 0
    weights, sums = linear_weight(x.to(device), grad.to(device))
    assert weights[39].isnan().all() and weights.isnan().any(1).sum() == 1 and not sums.isnan().any()


def test_a_gradient_by_positions_alone_makes_no_products_for_weights(device):
    x, weight, bias, _ = (t.to(device).requires_grad_() for t in _numbers((7, 17, 25)))

    def products(inputs):
        y = linear(2 * x, weight, bias)
        with torch.profiler.profile() as profile:
            torch.autograd.grad(y.tanh().sum(), inputs)
        kinds = ("aten::mm",) if device == "cpu" else ("mdops::linear_input", "mdops::linear_weight")
        return {row.key: row.count for row in profile.key_averages() if row.key in kinds}

    if device == "cpu":  # PyTorch's own products
        assert products([x]) == products([weight]) == products([x, bias]) == {"aten::mm": 1}
        return
    assert products([x]) == {"mdops::linear_input": 1}
    assert products([weight]) == {"mdops::linear_weight": 1}
    assert products([x, bias]) == {"mdops::linear_input": 1, "mdops::linear_weight": 1}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [(7, 3, 5, 6), (100, 3, 32, 96), (41, 4, 64, 33), (1200, 4, 64, 72)])
def test_products_by_degree_are_those_of_each_degree(size, transposed, device):
    n, degrees, inputs, outputs = size
    gen = torch.Generator().manual_seed(sum(size))
    x = torch.randn(n, degrees**2, inputs, generator=gen)
    weight = torch.randn(degrees, inputs, outputs, generator=gen)
    given = (weight.mT if transposed else weight).contiguous()
    found = degree_linear(x.to(device), given.to(device), transposed).cpu()
    for ell in range(degrees):
        own = slice(ell**2, (ell + 1) ** 2)
        want = x[:, own].double() @ weight[ell].double()
        scale = x[:, own].double().abs() @ weight[ell].double().abs()
        assert ((found[:, own] - want).abs() <= 5e-7 * scale).all(), ell


def test_python_and_kernels_agree_on_what_is_small():
    header = Path(__file__).parents[2] / "source" / "op" / "linear" / "gpu_small.h"
    (power,) = re.findall(r"kSmallProduct = int64_t\{1\} << (\d+);", header.read_text())
    assert 1 << int(power) == _SMALL
