"""Nets of dense layers against PyTorch's own operations: every shape, activation function and derivative."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from op_cases import check_gradients, of_gradients

from mdops.ops import mlp, mlp_value_and_gradient
from mdops.ops.activation import CODES, activation

SHAPES = [
    (5, 3),  # no hidden layer
    (7, 7, 14, 14, 2),  # the first layer adds its input, one doubles it
    (100, 17, 17, 34, 3),
    (1, 1, 1),
    (20, 240, 240, 240, 1),
    (65, 33, 1024, 1),
    (4, *[8] * 16, 2),  # the deepest
]


def net(widths, device="cpu", dtype=torch.float64, biases=True, timesteps=True):
    generator = torch.Generator().manual_seed(sum(widths))

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    weights = [random(a, b) / a**0.5 for a, b in itertools.pairwise(widths)]
    b = [random(n) if biases else None for n in widths[1:]]
    t = [0.5 + random(n).abs() if timesteps else None for n in widths[1:-1]]
    return random(9 if len(widths) > 9 else 70, widths[0]), weights, b, t


def by_pytorch(x, weights, biases, timesteps, names, residual=True):
    for n, (w, b) in enumerate(zip(weights, biases, strict=True)):
        y = x @ w if b is None else x @ w + b
        if n < len(names):
            y = activation(names[n])(y)
            y = y if timesteps[n] is None else y * timesteps[n]
            if residual and y.shape[1] in (x.shape[1], 2 * x.shape[1]):
                y = y + x.repeat(1, y.shape[1] // x.shape[1])
        x = y
    return x


def leaves_of(x, weights, biases, timesteps):
    leaves = [v for v in (x, *weights, *biases, *timesteps) if v is not None]
    return [v.requires_grad_() for v in leaves]


def close(got, want, tolerance=1e-11):
    if want is None:  # PyTorch sees that nothing depends on it
        assert got is None or not got.any()
        return
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.numel():
        assert (got - want).abs().max() <= tolerance * max(1.0, want.abs().max().item())


def assert_equal_to_pytorch(case, names, residual=True, tolerance=1e-11):
    """Values, gradients by everything, and the gradients of a loss on the gradient by x."""
    x, weights, biases, timesteps = case
    leaves = leaves_of(*case)
    got = mlp(x, weights, biases, activation=names, timesteps=timesteps, residual=residual)
    want = by_pytorch(*case, names, residual)
    close(got, want, tolerance)
    grad = torch.randn_like(want)
    first_got, first_want = (torch.autograd.grad(y, leaves, grad, create_graph=True) for y in (got, want))
    for a, b in zip(first_got, first_want, strict=True):
        close(a, b, tolerance)
    value, gradient = mlp_value_and_gradient(
        x, weights, biases, activation=names, timesteps=timesteps, residual=residual
    )
    (expected,) = torch.autograd.grad(want[:, 0].sum(), x, create_graph=True)
    close(value, want, tolerance)
    close(gradient, expected, tolerance)
    direction = torch.randn_like(x)
    for a, b in ((first_got[0], first_want[0]), (gradient, expected)):
        if not b.requires_grad:
            continue
        second = [
            torch.autograd.grad((g * direction).sum(), leaves, retain_graph=True, allow_unused=True)
            for g in (a, b)
        ]
        for c, d in zip(*second, strict=True):
            close(c, d, 10 * tolerance)


@pytest.mark.parametrize("widths", SHAPES, ids=str)
@pytest.mark.parametrize("absent", ["nothing", "timesteps", "both"])
def test_every_shape(widths, absent, device):
    case = net(widths, device, biases=absent != "both", timesteps=absent == "nothing")
    assert_equal_to_pytorch(case, ["tanh"] * (len(widths) - 2))


@pytest.mark.parametrize("name", [*CODES, "silut:1.0"])
def test_every_activation(name, device):
    assert_equal_to_pytorch(net((6, 11, 22, 22, 1), device), [name] * 3)


def test_an_activation_a_layer(device):
    assert_equal_to_pytorch(net((6, 11, 11, 5, 2), device), ["silu", "gelu", "relu"])


def test_without_residual_layers(device):
    assert_equal_to_pytorch(net((6, 6, 12, 12, 2), device), ["tanh"] * 3, residual=False)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_float32(name, device):
    case = net((40, 60, 60, 120, 1), device, torch.float32)
    assert_equal_to_pytorch(case, [name] * 3, tolerance=2e-5)


@pytest.mark.parametrize("rows", [0, 1, 5, 15, 16, 17, 63, 64, 65, 129, 1000])
def test_any_number_of_rows_on_any_number_of_threads(rows, device):
    _, *layers = net((10, 24, 24, 1), device)
    x = torch.randn(rows, 10, dtype=torch.float64, device=device)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_equal_to_pytorch((x.detach().clone(), *layers), ["tanh", "tanh"])
    finally:
        torch.set_num_threads(before)


def products_of_cpu():
    return ["float32", *(["bf16x3"] if torch.ops.mdops.cpu_bf16() else [])]


@pytest.mark.parametrize("matmul", products_of_cpu())
def test_a_row_does_not_depend_on_the_others_nor_on_threads(matmul):
    """Threads take blocks of rows as they come."""
    _, *layers = net((100, 24, 24, 1), dtype=torch.float32, timesteps=False)
    x = torch.randn(1000, 100)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3, 8):
            torch.set_num_threads(threads)
            found.append(mlp_value_and_gradient(x, *layers[:2], matmul=matmul))
    finally:
        torch.set_num_threads(before)
    pieces = [mlp_value_and_gradient(p, *layers[:2], matmul=matmul) for p in x.split(37)]
    found.append(tuple(torch.cat(of) for of in zip(*pieces, strict=True)))
    for value, gradient in found[1:]:
        assert torch.equal(value, found[0][0]) and torch.equal(gradient, found[0][1])


@pytest.mark.parametrize("columns", [1600, 1601])  # whole lines of the cache, and not
@pytest.mark.parametrize("matmul", products_of_cpu())
def test_large_gradients_are_those_of_small_calls(matmul, columns):
    """Beyond 32 MB they are written past the caches, and their pages are large ones."""
    _, *layers = net((columns, 8, 1), dtype=torch.float32, timesteps=False)
    x = torch.randn(5300, columns)
    _, gradient = mlp_value_and_gradient(x, *layers[:2], matmul=matmul)
    for from_, to in ((0, 64), (2650, 2667), (5269, 5300)):
        _, expected = mlp_value_and_gradient(x[from_:to], *layers[:2], matmul=matmul)
        assert torch.equal(gradient[from_:to], expected)


def kept_bytes():
    """What is this process's until the system is short of memory."""
    return sum(
        1024 * int(kb) for kb in re.findall(r"LazyFree:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    )


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="who frees memory lazily is told by Linux"
)
def test_large_results_leave_their_memory_to_later_ones():
    _, *layers = net((1100, 4, 1), dtype=torch.float32, timesteps=False)
    x = torch.randn(8192, 1100)  # 36 MB

    def gradient(of=x):
        return mlp_value_and_gradient(of, *layers[:2])[1]

    first, expected = gradient(), gradient(-x)
    place, before = first.data_ptr(), kept_bytes()
    assert expected.data_ptr() != place  # both are there
    del first
    assert kept_bytes() - before >= x.nbytes
    again = gradient(-x)
    assert again.data_ptr() == place and kept_bytes() == before
    assert torch.equal(again, expected)

    def same(_):
        return all(torch.equal(gradient(-x), expected) for _ in range(2))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, range(4)))
    many = [gradient() for _ in range(33)]
    del many
    assert kept_bytes() <= 2**30 + x.nbytes  # others in this process may leave memory, too


def test_the_same_bits_in_every_run(device):
    x, *layers = net((100, 64, 64, 1), device, torch.float32)
    leaves = leaves_of(x, *layers)

    def gradients():
        value, gradient = mlp_value_and_gradient(x, layers[0], layers[1], timesteps=layers[2])
        return torch.autograd.grad((gradient**2).sum() + value.sum(), leaves)

    first, second = gradients(), gradients()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_third_derivatives(device):
    x, weights, biases, timesteps = net((3, 4, 8, 1), device)
    x = x[:3]

    def gradient(x, *flat):
        return mlp_value_and_gradient(x, flat[:3], flat[3:6], timesteps=flat[6:8])

    free = leaves_of(x.clone(), weights, biases, timesteps)
    check_gradients(gradient, free)
    check_gradients(*of_gradients(gradient, free))


def test_numbers_of_layers_must_match():
    x, weights, biases, timesteps = net((3, 4, 8, 1))
    for arguments in (
        {"biases": biases[:2]},
        {"timesteps": timesteps[:1]},
        {"activation": ["tanh"]},
        {"residual": [True, True, True]},
    ):
        with pytest.raises(ValueError, match="a net of 3 layers"):
            mlp(x, weights, **arguments)


def test_what_no_kernel_takes_is_refused(device):
    x, weights, _, _ = net((3, 4, 1), device)
    with pytest.raises(RuntimeError, match="mdops::mlp: argument `matmul`"):
        mlp(x, weights, matmul="high")
    with pytest.raises(RuntimeError, match="mdops::mlp: argument `weights` has 18 layers"):
        mlp(x[:, :1], [x.new_zeros(1, 1)] * 18)
    with pytest.raises(RuntimeError, match="mdops::mlp: argument `weights`"):
        mlp(x, [w.float() for w in weights])


def test_a_compiled_net_is_the_net(device):
    x, weights, biases, timesteps = net((3, 4, 8, 1), device)
    free = leaves_of(x, weights, biases, timesteps)

    def loss(x, *flat):
        value, gradient = mlp_value_and_gradient(x, flat[:3], flat[3:6], timesteps=flat[6:8])
        return (gradient**2).sum() + value.sum()

    torch._dynamo.reset()
    want = torch.autograd.grad(loss(*free), free)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*free), free)
    for a, b in zip(got, want, strict=True):
        close(a, b)
