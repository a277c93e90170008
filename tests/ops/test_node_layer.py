"""The op of a layer's nodes beside PyTorch's operations."""

import pytest
import torch
from op_cases import check_gradients, of_gradients

from mdops.ops.activation import activation
from mdops.ops.node_layer import NodeLayerWeights, node_layer, node_layer_packed

OPS = torch.ops.mdops

HOW = {"keep": 0.9, "axis": 3}


def inputs(
    rows, width, edges, sums, has_edges, *, own=True, weighed=True, takes_nodes=False, dtype=torch.float64
):
    gen = torch.Generator().manual_seed(rows + width)

    def numbers(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    given = numbers(rows, width), numbers(rows, sums, width), numbers(rows, 3 * has_edges, edges)
    inner = takes_nodes * width + HOW["axis"] * (edges * has_edges + width * (sums == 4))
    of_own, of_sum = width * own, width * weighed
    weights = NodeLayerWeights(
        numbers(of_own, of_own),
        numbers(of_own),
        numbers(of_own),
        numbers(of_sum),
        numbers(inner, width) / max(inner, 1),
        numbers(width),
        numbers(width),
    )
    return given, weights


def by_torch(n, v, e, w, takes_nodes, name):
    f, parts = activation(name), [n] if takes_nodes else []
    sums = [t for t in (e, v[:, 1:]) if t.shape[1]]
    parts += [torch.einsum("nal,nak->nlk", t[:, :, : HOW["axis"]], t).flatten(1) for t in sums]
    found = HOW["keep"] * n + w.factor * f(torch.cat(parts, 1) @ w.every + w.bias)
    if len(w.own):
        found = found + w.own_factor * f(n @ w.own + w.own_bias)
    return found + w.sum_factor * v[:, 0] if len(w.sum_factor) else found


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((67, 128, 32, 4, True), {}),
        ((40, 20, 7, 4, True), {"takes_nodes": True, "own": False}),
        ((5, 16, 16, 4, False), {"weighed": False}),
        ((33, 35, 12, 1, True), {}),
        ((9, 10, 5, 0, True), {"weighed": False, "takes_nodes": True}),
        ((0, 8, 4, 4, True), {}),
    ],
)
@pytest.mark.parametrize("name", ["tanh", "silu"])
def test_values_and_gradients_are_those_of_plain_operations(shape, options, name):
    takes_nodes = options.get("takes_nodes", False)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        given, weights = inputs(*shape, dtype=dtype, **options)
        leaves = [value.requires_grad_() for value in given]
        got = node_layer(*leaves, weights, takes_nodes=takes_nodes, activation=name, **HOW)
        exact = [value.detach().double().requires_grad_() for value in leaves]
        want = by_torch(*exact, NodeLayerWeights(*(value.double() for value in weights)), takes_nodes, name)
        grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = torch.autograd.grad(got, leaves, grad.to(dtype))
        wanted = torch.autograd.grad(want, exact, grad, allow_unused=True, materialize_grads=True)
        for a, b in zip((got, *found), (want, *wanted), strict=True):
            if b.numel():
                assert (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_weights_give_the_same_bits(dtype):
    given, weights = inputs(3, 5, 4, 4, True, takes_nodes=True, dtype=dtype)
    args = *given, *weights, True, *HOW.values(), 1, 0.0
    forward, back = node_layer_packed(weights)
    plain, packed = OPS.node_layer(*args), OPS.node_layer(*args, forward)
    grad = (torch.ones_like(plain[0]), *plain[1:])
    both = (
        (*plain, *packed),
        (*OPS.node_layer_backward(*grad, *args), *OPS.node_layer_backward(*grad, *args, back)),
    )
    for found in both:
        half = len(found) // 2
        assert all(torch.equal(a, b) for a, b in zip(found[:half], found[half:], strict=True))
    with pytest.raises(RuntimeError, match="argument `packed`"):
        OPS.node_layer(*args, forward[:-1])


def test_derivatives_are_checked():
    given, weights = inputs(3, 5, 4, 4, True, takes_nodes=True)

    def f(*leaves):
        return [node_layer(*leaves, weights, takes_nodes=True, activation="tanh", **HOW)]

    leaves = [value.requires_grad_() for value in given]
    check_gradients(f, leaves)
    check_gradients(*of_gradients(f, leaves))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given, w: ((given[0], given[1][:, :2], given[2]), w), "argument `v` has 2 rows"),
        (lambda given, w: ((*given[:2], given[2][:, :1]), w), "argument `e` has 1 rows"),
        (lambda given, w: (given, w._replace(every=w.every[1:])), "argument `every` has"),
        (lambda given, w: ((given[0], given[1][:, :0], given[2]), w), "`sum_factor` multiplies the first"),
    ],
)
def test_arguments_that_do_not_match_are_refused(change, message):
    given, weights = change(*inputs(3, 5, 4, 4, True))
    with pytest.raises(RuntimeError, match=message):
        node_layer(*given, weights, takes_nodes=False, activation="tanh", **HOW)
