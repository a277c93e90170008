"""The op of a layer's edges beside the ops that it is made of."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from op_cases import check_gradients, of_gradients

from mdops import ops
from mdops.ops.activation import activation
from mdops.ops.edge_layer import EdgeLayerWeights, edge_layer


def inputs(lengths, width, heads, dtype):
    """The arguments of some atoms, with two rows of none behind them."""
    gen, rows = torch.Generator().manual_seed(sum(lengths)), sum(lengths) + 2

    def numbers(*shape):
        return (torch.randn(shape, generator=gen, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype)

    given = [numbers(rows, width), numbers(rows, 3), torch.rand(rows, generator=gen).to(dtype)]
    absent = torch.arange(len(lengths)).to(dtype)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    last = width if heads else 0
    weights = EdgeLayerWeights(
        numbers(width, width),
        numbers(width),
        numbers(width),
        numbers(heads, width, width),
        numbers(heads, width, width),
        *(numbers(last) if last else torch.zeros(0, dtype=dtype) for _ in range(4)),
    )
    return given, absent, offsets, weights


def by_ops(e, r, w, absent, offsets, weights, keep, shift, gated, eps, name):
    found = keep * e + weights.own_factor * activation(name)(e @ weights.own + weights.own_bias)
    if len(weights.queries):
        q = torch.einsum("ec,hck->ehk", e, weights.queries)
        longest = int(offsets.diff().max())
        o = ops.edge_attention(q, e, r, w, absent, offsets, shift=shift, gated=gated, longest=longest)
        x = torch.einsum("ehv,hvc->ec", o, weights.values) + weights.out_bias
        found = found + weights.out_factor * F.layer_norm(
            x, x.shape[1:], weights.norm, weights.norm_bias, eps
        )
    return torch.cat([found[: offsets[-1]], torch.zeros_like(e[offsets[-1] :])])


@pytest.mark.parametrize(("name", "gated"), [("tanh", True), ("silu", False)])
@pytest.mark.parametrize(
    ("lengths", "width", "heads"),
    [((3, 0, 26, 1), 32, 4), ((40, 5), 10, 3), ((70, 2), 35, 1), ((20, 9), 16, 0), ((4, 3), 64, 2)],
)
def test_values_and_gradients_are_those_of_the_ops_it_is_made_of(lengths, width, heads, name, gated):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        given, absent, offsets, weights = inputs(lengths, width, heads, dtype)
        how = {"keep": 0.9, "shift": 20.0, "gated": gated, "eps": 1e-5}
        leaves = [value.requires_grad_() for value in given]
        got = edge_layer(*leaves, absent, offsets, weights, activation=name, **how)
        exact = [value.detach().double().requires_grad_() for value in leaves]
        want = by_ops(
            *exact,
            absent.double(),
            offsets,
            EdgeLayerWeights(*(v.double() for v in weights)),
            *how.values(),
            name,
        )
        grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = torch.autograd.grad(got, leaves, grad.to(dtype))
        wanted = torch.autograd.grad(want, exact, grad, materialize_grads=True)
        for a, b in zip((got, *found), (want, *wanted), strict=True):
            assert (a - b).abs().max() <= tolerance * max(b.abs().max(), 1e-9)


@pytest.mark.parametrize("heads", [0, 2])
def test_derivatives_are_checked(heads):
    given, absent, offsets, weights = inputs((4, 3), 5, heads, torch.float64)

    def f(*leaves):
        how = {"keep": 1.0, "shift": 2.0, "gated": True, "eps": 1e-3, "activation": "tanh"}
        return [edge_layer(*leaves, absent, offsets, weights, **how)]

    leaves = [value.requires_grad_() for value in given]
    check_gradients(f, leaves)
    check_gradients(*of_gradients(f, leaves))


def test_without_edges_there_are_no_rows():
    given, absent, offsets, weights = inputs((0, 0), 8, 2, torch.float32)
    empty = [value[:0].requires_grad_() for value in given]
    how = {"keep": 1.0, "shift": 0.0, "gated": True, "eps": 1e-5, "activation": "tanh"}
    out = edge_layer(*empty, absent, offsets, weights, **how)
    assert out.shape == (0, 8)
    out.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e, w: (e[:, :5], w), "argument `own`"),
        (lambda e, w: (e, w._replace(values=w.values[:1])), "argument `values`"),
        (lambda e, w: (e, w._replace(norm=w.norm[:3])), "argument `norm`"),
    ],
)
def test_arguments_that_do_not_match_are_refused(change, message):
    (e, *given), absent, offsets, weights = inputs((3,), 8, 2, torch.float32)
    e, weights = change(e, weights)
    how = {"keep": 1.0, "shift": 0.0, "gated": True, "eps": 1e-5, "activation": "tanh"}
    with pytest.raises(RuntimeError, match=message):
        edge_layer(e, *given, absent, offsets, weights, **how)
