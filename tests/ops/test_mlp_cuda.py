"""Nets on a GPU in float32, against float64: a value and its gradient by the kernels of models' nets where these take
the net, everything else by products of layers."""

import itertools
from functools import partial

import pytest
import torch
from op_cases import captured

from mdops.ops import mlp, mlp_value_and_gradient
from mdops.ops.activation import CODES

pytestmark = pytest.mark.gpu

TOLERANCE = 2e-5  # of the largest number: products have 22 bits of what they multiply
WATER = (1600, 240, 240, 240, 1)
# By the kernels of models' nets, but for those of the last two: two outputs, and a first layer that adds its input.
WIDTHS = [
    WATER,
    (100, 17, 17, 34, 1),
    (1, 1, 1),
    (13, 120, 120, 240, 240, 1),
    (257, 256, 256, 1),
    (33, 300, 300, 1),
    (40, 512, 512, 1),
    (65, 33, 1024, 1),  # wider than a multiprocessor's chain
    (4, *[8] * 16, 1),  # the deepest
    (64, 48, 48, 2),
    (24, 24, 48, 1),
]


def net(widths, rows=70, biases=True, timesteps=True):
    """Rows, and the layers' lists, in float32."""
    generator = torch.Generator().manual_seed(sum(widths))

    def random(*shape):
        return torch.randn(*shape, generator=generator).cuda()

    weights = [random(a, b) / a**0.5 for a, b in itertools.pairwise(widths)]
    b = [random(n) if biases else None for n in widths[1:]]
    t = [0.5 + random(n).abs() if timesteps else None for n in widths[1:-1]]
    return random(rows, widths[0]), weights, b, t


def doubled(values):
    return [None if v is None else v.double() for v in values]


def value_and_gradient(case, names="tanh", **options):
    x, weights, biases, timesteps = case
    return mlp_value_and_gradient(x, weights, biases, activation=names, timesteps=timesteps, **options)


def errors(case, names="tanh", part=1.0, **options):
    """Of value and gradient off float64, of the largest number; of so large a part of the rows."""
    x, *layers = case
    answer = value_and_gradient(case, names, **options)
    options.pop("matmul", None)
    wanted = value_and_gradient((x.double(), *map(doubled, layers)), names, **options)
    found = []
    for a, b in zip(answer, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == torch.float32
        of_rows = (a - b).abs().amax(1) / b.abs().max()
        found.append(of_rows.quantile(part).item())
    return found


def _small(found):
    assert max(found) < TOLERANCE


def same(found, wanted):
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("absent", ["nothing", "timesteps", "both"])
def test_every_shape(widths, absent):
    case = net(widths, biases=absent != "both", timesteps=absent == "nothing")
    _small(errors(case))
    _small(errors(case, residual=False))


@pytest.mark.parametrize("name", [*CODES, "silut:1.0"])
@pytest.mark.parametrize("rows", [192, 5000])
def test_every_activation(name, rows):
    """Few rows beside a kink may be on its other side."""
    case = net((60, 40, 80, 80, 1), rows)
    _small(errors(case, name, part=0.99 if name.startswith("relu") else 1.0))


@pytest.mark.parametrize("rows", [1, 15, 192, 397, 5000, 70_000])
def test_any_number_of_rows(rows):
    _small(errors(net((50, 100, 100, 1), rows)))


def test_no_rows():
    value, gradient = value_and_gradient(net((50, 100, 100, 1), 0))
    assert value.shape == (0, 1) and gradient.shape == (0, 50)


def test_water_in_several_chunks():
    """More rows than are in memory at a time."""
    _small(errors(net(WATER, 70_000)))


@pytest.mark.parametrize("rows", ["128", "96", "64", "32"])
@pytest.mark.parametrize("widths", [(130, 240, 240, 1), (130, 128, 256, 1), (150, 96, 128, 128, 1)], ids=str)
def test_every_kind_of_chain(widths, rows, monkeypatch):
    monkeypatch.setenv("MDOPS_CHAIN_ROWS", rows)
    for count in (1, 1000):
        _small(errors(net(widths, count)))


@pytest.mark.parametrize("shared", ["166912", "101376"])
def test_what_chips_with_less_shared_memory_do(shared, monkeypatch):
    monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", shared)
    for rows in (30, 3000):
        _small(errors(net((130, 240, 240, 1), rows)))


def test_an_activation_a_layer():
    _small(errors(net((60, 40, 40, 40, 1), 500), ["tanh", "silu", "gelu"]))


@pytest.mark.parametrize("rows", [192, 5000])
@pytest.mark.parametrize("widths", [(200, 240, 240, 1), (65, 33, 1024, 1)], ids=str)
def test_a_name_is_the_least_accuracy(widths, rows):
    case = net(widths, rows)
    by_name = {name: value_and_gradient(case, matmul=name) for name in ("float32", "bf16x6", "bf16x3")}
    by_name |= {name: value_and_gradient(case, matmul=name) for name in ("tf32", "bf16")}
    assert same(by_name["bf16x6"], by_name["float32"]) and same(by_name["bf16x3"], by_name["float32"])
    assert same(by_name["bf16"], by_name["tf32"])
    for two, one in zip(errors(case), errors(case, matmul="tf32"), strict=True):
        assert two < TOLERANCE and 10 * two < one < 1e-2


@pytest.mark.parametrize("matmul", ["float32", "tf32"])
@pytest.mark.parametrize("rows", [100, 5000])
@pytest.mark.parametrize("widths", [(200, 240, 240, 1), (65, 33, 1024, 1)], ids=str)
def test_what_is_no_number_stays_in_its_row(widths, rows, matmul):
    case = net(widths, rows)
    wanted = value_and_gradient(case, matmul=matmul)
    x = case[0].clone()
    x[17, 3], x[40, 5] = torch.nan, torch.inf
    found = value_and_gradient((x, *case[1:]), matmul=matmul)
    others = torch.ones(rows, dtype=torch.bool)
    others[[17, 40]] = False
    for a, b in zip(found, wanted, strict=True):
        assert a[[17, 40]].isnan().all()
        assert torch.equal(a[others.cuda()], b[others.cuda()])


@pytest.mark.parametrize("rows", [100, 5000])
@pytest.mark.parametrize("of", ["first weight", "last weight", "bias"])
def test_of_weights_that_are_no_numbers_nothing_is_one(of, rows):
    x, weights, biases, timesteps = net((200, 240, 240, 1), rows)
    {"first weight": weights[0], "last weight": weights[2], "bias": biases[1]}[of].view(-1)[7] = torch.nan
    value, gradient = value_and_gradient((x, weights, biases, timesteps))
    assert value.isnan().all() and gradient.isnan().all()


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_rows_of_any_size(size):
    """Each row of x, and each column of weights, has a power of two of its own."""
    x, weights, *_ = net((200, 120, 120, 1), 1000, biases=False, timesteps=False)
    few = x.clone()
    few[::2] *= size
    nothing = [None] * 3
    found = value_and_gradient((few, weights, nothing, nothing[1:]), "linear", residual=False)
    wanted = value_and_gradient(
        (few.double(), doubled(weights), nothing, nothing[1:]), "linear", residual=False
    )
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        for a, b in zip(found, wanted, strict=True):
            assert (a[rows] - b[rows]).norm() < 2e-6 * b[rows].norm()


@pytest.mark.parametrize("rows", [192, 5000])
@pytest.mark.parametrize("columns", [63, 64])
def test_the_same_bits_wherever_memory_begins_and_however_it_lies(columns, rows):
    x, *layers = net((columns, 96, 96, 1), rows)
    wanted = value_and_gradient((x, *layers))
    assert same(value_and_gradient((x, *layers)), wanted)
    wide = torch.zeros(rows, columns + 3, device="cuda")
    wide[:, 1 : 1 + columns] = x
    behind = torch.zeros(rows * columns + 1, device="cuda")[1:].view(rows, columns).copy_(x)
    for other in (wide[:, 1 : 1 + columns], behind, x.T.contiguous().T):
        assert same(value_and_gradient((other, *layers)), wanted)
    turned = [w.T.contiguous().T for w in layers[0]]
    assert same(value_and_gradient((x, turned, *layers[1:])), wanted)


@pytest.mark.parametrize("rows", [192, 5000])
@pytest.mark.parametrize("matmul", ["float32", "tf32"])
def test_a_captured_call_answers_for_new_rows_and_weights(rows, matmul):
    x, *layers = net((200, 240, 240, 1), rows)
    graph, found = captured(partial(value_and_gradient, (x, *layers), matmul=matmul))
    for factor in (-0.5, 1.75):
        x.mul_(factor)
        layers[0][1].mul_(factor)
        graph.replay()
        assert same(found, value_and_gradient((x, *layers), matmul=matmul))


def derivatives(case, names):
    """Values, gradients by everything, and the gradients of a loss on the gradient by x, in the case's dtype."""
    x, weights, biases, timesteps = case
    leaves = [v.clone().requires_grad_() for v in (x, *weights, *biases, *timesteps)]
    layers = len(weights)
    x, w, b, t = (
        leaves[0],
        leaves[1 : 1 + layers],
        leaves[1 + layers : 1 + 2 * layers],
        leaves[1 + 2 * layers :],
    )
    y = mlp(x, w, b, activation=names, timesteps=t)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(y.shape, generator=generator).to(x)
    first = torch.autograd.grad(y, leaves, grad, create_graph=True)
    direction = torch.randn(x.shape, generator=generator).to(x)
    # The last bias does not act on the gradient by x.
    second = torch.autograd.grad((first[0] * direction).sum(), leaves, allow_unused=True)
    return [y, *first, *(s for s in second if s is not None)]


@pytest.mark.parametrize("rows", [0, 1, 192, 5000])
@pytest.mark.parametrize(
    "widths", [(400, 240, 240, 1), (400, 120, 240, 3), (65, 65, 130, 1), (31, 17, 17, 2)], ids=str
)
def test_derivatives_have_float32s_accuracy(widths, rows):
    x, *layers = net(widths, rows)
    found = derivatives((x, *layers), "tanh")
    wanted = derivatives((x.double(), *map(doubled, layers)), "tanh")
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and (a - b).norm() <= 1e-5 * b.norm()
    assert same(derivatives((x, *layers), "tanh"), found)


def test_a_gradients_gradient_is_that_of_the_ops_own_answer():
    """`mlp_value_and_gradient` is differentiated by other kernels than those that computed it."""
    x, weights, biases, timesteps = net((100, 60, 60, 1), 300)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [v.to(dtype).requires_grad_() for v in (x, *weights)]
        b, t = ([v.to(dtype) for v in values] for values in (biases, timesteps))
        value, gradient = mlp_value_and_gradient(leaves[0], leaves[1:], b, timesteps=t)
        results.append(torch.autograd.grad(value.sum() + (gradient**2).sum(), leaves))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
