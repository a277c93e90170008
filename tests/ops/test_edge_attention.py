"""Attention among edges beside plain operations of PyTorch."""

import itertools

import pytest
import torch

from mdops import ops

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def inputs(lengths, heads, keys, values, dtype, device="cpu"):
    """The arguments of some atoms, with two rows of none behind them."""
    gen, rows = torch.Generator().manual_seed(sum(lengths)), sum(lengths) + 2

    def numbers(*shape):
        return (torch.randn(shape, generator=gen, dtype=torch.float64) / shape[-1] ** 0.5).to(device, dtype)

    w = torch.rand(rows, generator=gen, dtype=torch.float64).to(device, dtype)
    given = [numbers(rows, heads, keys), numbers(rows, values), numbers(rows, 3), w]
    absent = torch.arange(len(lengths)).to(device, dtype)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    return given, absent, offsets


def by_torch(q, x, r, w, absent, offsets, shift, gated):
    found = []
    for i, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        own = slice(begin, end)
        s = torch.einsum("jhk,lk->hjl", q[own], x[own, : q.shape[2]])
        c, a = r[own] @ r[own].T, w[own, None] * w[None, own]
        e = torch.exp(((s * c if gated else s) + shift) * a)
        p = e / (e.sum(2, keepdim=True) + absent[i])
        found.append(torch.einsum("hjl,lv->jhv", p * c * a, x[own]))
    return torch.cat([*found, x.new_zeros(len(q) - int(offsets[-1]), q.shape[1], x.shape[1])])


def derivatives(out, leaves):
    """The result, first derivatives, and second ones along a direction."""
    gen = torch.Generator().manual_seed(1)

    def like(t):
        return torch.randn(t.shape, generator=gen, dtype=torch.float64).to(t)

    grad = like(out).requires_grad_()
    first = torch.autograd.grad((out * grad).sum(), leaves, create_graph=True)
    along = sum((like(by) * by).sum() for by in first)
    return [out, *first, *torch.autograd.grad(along, [grad, *leaves])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("lengths", "shape"),
    [
        ((3, 0, 26, 1), (4, 32, 32)),
        ((40, 5), (3, 7, 10)),
        ((70, 2, 49), (5, 4, 35)),
        ((300, 9), (2, 33, 40)),
    ],
)
def test_values_and_both_derivatives_are_those_of_plain_operations(lengths, shape, gated, device):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        given, absent, offsets = inputs(lengths, *shape, dtype, device)
        leaves = [t.requires_grad_() for t in given]
        scalars = {"shift": 20.0, "gated": gated}
        got = derivatives(
            ops.edge_attention(*leaves, absent, offsets, longest=max(lengths), **scalars), leaves
        )
        exact = [t.detach().double().requires_grad_() for t in leaves]
        want = derivatives(by_torch(*exact, absent.double(), offsets, **scalars), exact)
        for a, b in zip(got, want, strict=True):
            assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_without_edges_there_are_no_rows():
    given, absent, offsets = inputs((0, 0), 2, 3, 3, torch.float32)
    empty = [t[:0].requires_grad_() for t in given]
    out = ops.edge_attention(*empty, absent, offsets, shift=0.0, gated=True, longest=0)
    assert out.shape == (0, 2, 3)
    out.sum().backward()


def test_large_logits_give_finite_shares():
    given, _, offsets = inputs((6,), 1, 4, 4, torch.float32)
    given[0] *= 1e4
    given[3].fill_(1.0)
    out = ops.edge_attention(*given, torch.zeros(1), offsets, shift=20.0, gated=False, longest=6)
    assert torch.isfinite(out).all() and (out[:6] != 0).any()


@pytest.mark.gpu
def test_a_gpu_answers_an_atom_with_too_many_edges_with_nan():
    given, absent, offsets = inputs((5, 3), 2, 3, 3, torch.float32, "cuda")
    out = ops.edge_attention(*given, absent, offsets, shift=0.0, gated=True, longest=4)
    assert out[:5].isnan().all() and out[5:].isfinite().all()
