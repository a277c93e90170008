"""Frames, splines and weights of edges, norms and gates of atoms, beside the operations of PyTorch's that they are."""

import pytest
import torch

from mdops.errors import DerivativeError, InputError
from mdops.models.repflow import switch
from mdops.nn.equivariant.indices import by_order
from mdops.nn.equivariant.rotation import frame_quaternions, spherical_harmonics, wigner_rows
from mdops.ops import (
    EdgeIndex,
    degree_norm,
    edge_environment,
    edge_frames,
    edge_gather,
    edge_rotate,
    edge_rotate_sum,
    edge_scatter,
    edge_softmax,
    edge_splines,
    mlp,
    mlp_value_and_gradient,
    own_message,
    row_gate,
    scalar_gate,
    segment_weights,
)
from mdops.tables.spline import collocation

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
LIMITS = {torch.float32: 3e-6, torch.float64: 1e-13}


def numbers(seed, dtype, device):
    random = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=random, dtype=torch.float64).to(device, dtype)


def check_alike(function, other, free, dtype, limit=None):
    """Values and gradients of both, one in float64."""
    results = []
    for one, kind in ((function, dtype), (other, torch.float64)):
        leaves = [value.detach().to(kind).requires_grad_() for value in free]
        found = one(*leaves)
        found = list(found) if isinstance(found, tuple) else [found]
        weight = [(torch.arange(r.numel(), device=r.device) % 7 - 3.0).view(r.shape).to(kind) for r in found]
        results.append([*found, *torch.autograd.grad(found, leaves, weight)])
    for got, want in zip(*results, strict=True):
        scale = max(1.0, float(want.detach().abs().max()))
        off = float((got.detach().double() - want.detach()).abs().max())
        assert off < (limit or LIMITS[dtype]) * scale


def norm_by_pytorch(x, factors, bias, shares, eps, centered):
    first, others = x.split([1, x.shape[1] - 1], 1)
    if centered:
        x = torch.cat([first - first.mean(2, keepdim=True), others], 1)
    square = (x.square() * shares[:, None]).sum((1, 2), keepdim=True)
    y = x * (torch.rsqrt(square + eps) * factors)
    return torch.cat([y[:, :1] + bias, y[:, 1:]], 1)


def gate_by_pytorch(x, gate, scalars):
    a, b = scalars.chunk(2, 1)
    y = x * gate.sigmoid()[:, None]
    return torch.cat([y[:, :1] + (torch.nn.functional.silu(a) * b)[:, None], y[:, 1:]], 1)


def weights_by_pytorch(logits, weight, nothing, of_center):
    raised = torch.where(weight > 0, torch.exp(logits), 0.0) * weight
    return raised / edge_gather(edge_scatter(raised, of_center) + nothing, of_center).clamp(min=1e-300)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("degree", range(7))
def test_frames_are_those_of_quaternions(degree, dtype, device):
    """Rows of any degree, of edges along the axes, too."""
    vectors = numbers(degree, dtype, device)(300, 3)
    vectors[:3] = torch.tensor([[0.0, 0, 2], [0, 0, -1], [1, 0, 0]])
    for order in (0, 1):
        rows = tuple(by_order(degree, min(order, degree)))

        def wanted(v, rows=rows):
            return spherical_harmonics(v, degree), wigner_rows(frame_quaternions(v), degree, rows)

        def found(v, order=order):
            return edge_frames(v, degree, order)

        if degree:
            check_alike(found, wanted, [vectors[3:]], dtype)
        for got, want in zip(found(vectors), wanted(vectors.double()), strict=True):
            assert float((got.double() - want).abs().max()) < LIMITS[dtype]
    harmonics, none = edge_frames(vectors, degree, -1)
    assert torch.equal(harmonics, found(vectors)[0]) and none.shape[1] == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "width"), [(1000, 32), (3, 32), (50, 20), (7, 130)])
def test_own_messages_are_those_of_operations(rows, width, dtype, device):
    random = numbers(5, torch.float64, device)
    x, weights = random(rows, width), (random(width, width) / width**0.5, random(width), random(width))

    def wanted(x):
        return 0.7 * x + weights[2] * torch.tanh(x @ weights[0] + weights[1])

    def found(x):
        return own_message(x, *(w.to(dtype) for w in weights), keep=0.7, activation="tanh")

    check_alike(found, wanted, [x.to(dtype)], dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("protection", [0.0, 0.2])
def test_environments_are_those_of_operations(protection, dtype, device):
    """Of edges below the switch, within it and beyond it, of atoms of two types; slots without an edge have zeros."""
    random, (atoms, width, edges) = numbers(3, torch.float64, device), (40, 9, 250)
    d = 2.5 * random(atoms, width, 3)
    picked = torch.randperm(atoms * width, generator=torch.Generator().manual_seed(4)).to(device)
    slots = torch.cat([picked[:edges], picked.new_full((3,), -1)]).int()
    of_slot = torch.full((atoms * width,), -1, dtype=torch.int32, device=device)
    of_slot[picked[:edges]] = torch.arange(edges, dtype=torch.int32, device=device)
    types = torch.arange(atoms, dtype=torch.int32, device=device) % 3 - 1
    mean, std, lengths = random(2), random(2, 2).exp(), {"smooth": 2.0, "cutoff": 6.0}

    def wanted(given):
        kinds = types.clamp(min=0).long()[slots[:edges].long() // width]
        v = given.reshape(-1, 3)[slots[:edges].long()]
        r = v.norm(dim=1, keepdim=True)
        w, inverse = switch(r, 2.0, 6.0, False), 1 / (r + protection)
        vectors = v * (inverse**2 * w) / std[kinds, 1:]
        rows = (inverse * w - mean[kinds, None]) / std[kinds, :1], vectors, w, w * 0.3, vectors * w * 0.7
        return tuple(torch.nn.functional.pad(row, (0, 0, 0, 3)) for row in rows)

    def found(given):
        others = slots, of_slot.view(atoms, width), types, mean.to(dtype), std.to(dtype)
        factors = {"protection": protection, "of_means": 0.3, "of_turning": 0.7}
        return tuple(edge_environment(given, *others, **lengths, **factors))

    check_alike(found, wanted, [d.to(dtype)], dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("functions", [1, 13, 32])
def test_splines_follow_functions_and_their_slopes(functions, dtype, device):
    cutoff, intervals = 6.0, 96
    rates = torch.linspace(0.2, 2.0, 3 * functions, dtype=torch.float64).view(3, 1, functions)
    points, matrix = collocation(intervals)
    table = matrix.solve(torch.sin(rates * (points * cutoff / intervals)[:, None]))
    kinds = torch.arange(-1, 299, dtype=torch.int32, device=device) % 4 - 1
    lengths = cutoff * numbers(1, torch.float64, device)(300, 1).sigmoid()
    given, places = table.to(device, dtype), kinds.long().clamp(min=0)

    def wanted(r):
        values = torch.sin(rates.to(device)[places, 0] * r)
        return torch.where(kinds[:, None] < 0, 0.0, values)

    def found(r):
        return edge_splines(r, kinds, given, cutoff)

    check_alike(found, wanted, [lengths.to(dtype)], dtype, {torch.float32: 1e-5, torch.float64: 1e-8}[dtype])
    beyond = edge_splines(lengths.new_full((1, 1), 7.0).to(dtype), kinds[2:3] * 0, given, cutoff)
    slope = rates[0, 0] * torch.cos(rates[0, 0] * cutoff)
    assert float((beyond[0].cpu() - torch.sin(rates[0, 0] * cutoff) - slope).abs().max()) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "width"), [(1, 32), (3, 15), (2, 80)])
def test_weights_are_those_of_operations(heads, width, dtype, device):
    """Of atoms with many edges and with none, and of edges that have faded."""
    random, count, nodes = numbers(heads, torch.float64, device), 900, 9
    picked = torch.Generator().manual_seed(2)
    centers = torch.randint(0, 4, (count,), generator=picked).sort().values.int().to(device)
    centers[-3:] = -1
    others = torch.randint(0, nodes, (count,), generator=picked, dtype=torch.int32).to(device)
    others[-3:] = -1
    of_atom, of_node = EdgeIndex.of(centers, 6), EdgeIndex.of(others, nodes)
    of_atom = of_atom._replace(order=None)
    fades = random(count, 1).sigmoid()
    fades[::11] = 0
    fades[-3:] = 0
    nothing = random(heads).exp()
    free = random(6, width), random(nodes, width), random(count, heads), fades

    def wanted(q, k, bias, u):
        products = edge_gather(q, of_atom) * edge_gather(k, of_node)
        logits = 0.3 * products.view(count, heads, -1).sum(2) + bias
        return weights_by_pytorch(logits, u**2, nothing, of_atom)

    def found(q, k, bias, u):
        return edge_softmax(q, k, bias, u, nothing.to(q), of_atom, of_node, scale=0.3)

    check_alike(found, wanted, [one.to(dtype) for one in free], dtype)

    def of_segments(logits, u, n):
        return segment_weights(logits, u**2, n, of_atom.offsets)

    def of_operations(logits, u, n):
        return weights_by_pytorch(logits, u**2, n, of_atom)

    given = [one.to(dtype) for one in (random(count, heads), fades, nothing)]
    check_alike(of_segments, of_operations, given, dtype)
    logits = 1e4 + given[0]  # beyond what has an exponential
    assert of_segments(logits, *given[1:]).isfinite().all()
    with pytest.raises(ValueError, match="atom after atom"):
        edge_softmax(*free, nothing, of_node, of_node, scale=0.3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_and_gates_are_those_of_operations(dtype, device):
    random = numbers(3, dtype, device)
    for rows, channels, centered in ((9, 32, True), (1, 32, False), (3, 21, True)):
        shares = random(rows).exp().double()

        def norm(x, f, b, shares=shares, centered=centered):
            return degree_norm(x, f, b, shares.to(x), eps=1e-5, centered=centered)

        def of_norm(x, f, b, shares=shares, centered=centered):
            return norm_by_pytorch(x, f, b, shares, 1e-5, centered)

        free = [random(70, rows, channels), random(rows, channels), random(channels)]
        check_alike(norm, of_norm, free, dtype)
    for rows, channels, size in ((27, 96, 1), (3, 5, 1), (2, 21, 400)):  # 400: sigmoids of 0 and of 1
        free = [random(40, rows, channels), size * random(40, channels), size * random(40, 2 * channels)]
        check_alike(scalar_gate, gate_by_pytorch, free, dtype)
        check_alike(row_gate, lambda x, gate: x * gate.sigmoid()[:, None], free[:2], dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_gates_that_are_no_numbers_give_none(device):
    """Whatever bits they have: those of GPUs are all set."""
    bits = torch.tensor([0x7FC00000, 0x7FC00001, 0x7FFFFFFF, -1], dtype=torch.int32, device=device)
    gate = bits.view(torch.float32).repeat(5)[None]
    ones = torch.ones(1, 2, 20, device=device)
    assert row_gate(ones, gate).isnan().all()
    assert scalar_gate(ones, 0 * ones[:, 0], torch.cat([gate, ones[:, 0]], 1))[:, 0].isnan().all()


def test_forward_mode_is_refused():
    """PyTorch would take the results of an op as constants."""
    random = numbers(2, torch.float64, "cpu")
    of = EdgeIndex.of(torch.tensor([0, 1, 1], dtype=torch.int32), 2)
    weights = [random(4, 5), random(5, 1)]
    matrices, factors, bias, shares = random(3, 2, 4), random(4, 3), random(3), random(4).exp()
    functions = {
        "edge_frames": (lambda x: edge_frames(x, 2, 1)[1], random(3, 3)),
        "edge_rotate": (lambda x: edge_rotate(matrices, x, of), random(2, 4, 3)),
        "degree_norm": (
            lambda x: degree_norm(x, factors, bias, shares, eps=1e-5, centered=True),
            random(2, 4, 3),
        ),
        "mlp": (lambda x: mlp(x, weights), random(2, 4)),
        "mlp_value_and_gradient": (lambda x: mlp_value_and_gradient(x, weights)[0], random(2, 4)),
    }
    for name, (function, x) in functions.items():
        for call in (
            lambda function=function, x=x: torch.func.jvp(function, (x,), (x,)),
            lambda function=function, x=x: torch.func.jacfwd(function)(x),
        ):
            with pytest.raises(DerivativeError, match=f"mdops::{name} has no derivatives in forward mode"):
                call()
        constant = torch.func.jvp(lambda a, function=function, x=x: a * function(x).sum(), (x,), (x,))
        torch.testing.assert_close(constant[0], constant[1])


def test_a_tensor_is_no_index_of_edges():
    nodes, rows = torch.tensor([0, 1, 1], dtype=torch.int32), torch.ones(3, 2)
    matrices = torch.ones(3, 2, 2)
    for call in (
        lambda: edge_gather(rows, nodes),
        lambda: edge_scatter(rows, nodes),
        lambda: edge_rotate(matrices, matrices, nodes),
        lambda: edge_rotate_sum(matrices, matrices, nodes),
    ):
        with pytest.raises(
            InputError, match=r"a Tensor is no index of edges: expected an mdops\.ops\.EdgeIndex"
        ):
            call()
