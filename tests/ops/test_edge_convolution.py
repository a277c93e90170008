"""Convolutions along edges beside PyTorch's operations, and with any number of threads."""

import pytest
import torch

from mdops.ops import edge_convolution, edge_correlation
from mdops.ops.graph import EdgeIndex

NODES, NEIGHBORS, EDGES = 5, 6, 150
SIZES = [(4, 3, 7), (32, 3, 128), (32, 0, 128), (16, 0, 40), (35, 5, 16), (0, 3, 20), (3, 1, 1)]


def of_edges(device):
    """From edges to their centres, which stand side by side and of which one has no edge, and to their neighbours. Some
    have no neighbour, and the last two nothing."""
    gen = torch.Generator().manual_seed(3)
    i = torch.randint(0, NODES - 1, (EDGES,), generator=gen).sort()[0].int()
    j = torch.randint(0, NEIGHBORS, (EDGES,), generator=gen).int()
    j[[3, 60]] = -1
    i[-2:] = j[-2:] = -1
    i, j = i.to(device), j.to(device)
    return EdgeIndex(i, None, EdgeIndex.of(i, NODES).offsets), EdgeIndex.of(j, NEIGHBORS)


def there(of_i, of_j):
    return ((of_i.nodes >= 0) & (of_j.nodes >= 0))[:, None]


def at_edges(x, of):
    return x[of.nodes.clamp(min=0).long()]


def convolution(x, b, w, t, weight, of_x, of):
    rows = at_edges(x, of_x)[:, None] * torch.cat(
        [(w[:, None] * (b @ weight))[:, None], t[:, :, None].expand(-1, -1, x.shape[1])], 1
    )
    rows = rows * there(of_x, of)[..., None]
    y = x.new_zeros(len(of.offsets) - 1, *rows.shape[1:])
    return y.index_add(0, of.nodes.clamp(min=0).long(), rows)


def correlation(a, x, w, weight, of_a, of_x):
    return w[:, None] * ((at_edges(a, of_a) * at_edges(x, of_x)) @ weight.T) * there(of_a, of_x)


def numbers(dtype, device, *shapes):
    gen = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=gen, dtype=dtype).to(device).requires_grad_() for shape in shapes]


def assert_same(own, other, given, ends, dtype):
    """Values and gradients."""
    y, z = own(*given, *ends), other(*given, *ends)
    assert (y - z).abs().max() <= (1e-12 if dtype == torch.float64 else 1e-5) * max(1, z.abs().max())
    along = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=dtype).to(y.device)
    pairs = (torch.autograd.grad(v, given, along, materialize_grads=True) for v in (y, z))
    for a, b in zip(*pairs, strict=True):
        scale = max(1, b.abs().max()) if b.numel() else 1
        assert not a.numel() or (a - b).abs().max() <= (1e-12 if dtype == torch.float64 else 1e-5) * scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("inputs", "turns", "width"), SIZES)
def test_convolution_beside_pytorch(inputs, turns, width, dtype, device):
    of_i, of_j = of_edges(device)
    shapes = (EDGES, inputs), (EDGES,), (EDGES, turns), (inputs, width)
    for of_x, of, nodes in ((of_j, of_i, NEIGHBORS), (of_i, of_j, NODES)):
        x, *others = numbers(dtype, device, (nodes, width), *shapes)
        assert_same(edge_convolution, convolution, (x, *others), (of_x, of), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("inputs", "width"), [(4, 7), (32, 128), (35, 130), (1, 16)])
def test_correlation_beside_pytorch(inputs, width, dtype, device):
    of_i, of_j = of_edges(device)
    given = numbers(dtype, device, (NODES, width), (NEIGHBORS, width), (EDGES,), (inputs, width))
    assert_same(edge_correlation, correlation, given, (of_i, of_j), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("inputs", "turns", "width"), [(4, 3, 7), (32, 3, 128), (35, 5, 16), (3, 1, 1)])
def test_sums_of_own_numbers_beside(inputs, turns, width, dtype):
    of_i, of_j = of_edges("cpu")
    shapes = (NEIGHBORS, width), (EDGES, inputs), (EDGES,), (EDGES, turns), (inputs, width)
    x, b, w, t, weight = numbers(dtype, "cpu", *shapes)
    a, own = numbers(dtype, "cpu", (NODES, 1 + turns, width), (NODES, turns, inputs))
    rows = (t[:, :, None] * b[:, None]) * (of_i.nodes >= 0)[:, None, None]
    sums = b.new_zeros(NODES, turns, inputs).index_add(0, of_i.nodes.clamp(min=0).long(), rows)
    energy = (convolution(x, b, w, t, weight, of_j, of_i) * a).sum() + (sums * own).sum()
    with torch.no_grad():
        found = torch.ops.mdops.edge_convolution_own(a, own, x, b, w, t, weight, *of_i, *of_j)
    for got, wanted in zip(found, torch.autograd.grad(energy, (b, w, t)), strict=True):
        assert (got - wanted).abs().max() <= (1e-12 if dtype == torch.float64 else 1e-5) * wanted.abs().max()


def test_gradients_of_gradients(device):
    of_i, of_j = of_edges(device)
    x, b, w, t, weight, a = numbers(
        torch.float64, device, (NEIGHBORS, 3), (EDGES, 2), (EDGES,), (EDGES, 2), (2, 3), (NODES, 3)
    )
    fast = {"fast_mode": True}
    for inputs, f in (
        ((x, b, w, t, weight), lambda *given: edge_convolution(*given, of_j, of_i)),
        ((a, x, w, weight), lambda *given: edge_correlation(*given, of_i, of_j)),
    ):
        assert torch.autograd.gradcheck(f, inputs, **fast)
        assert torch.autograd.gradgradcheck(f, inputs, **fast)


def test_bits_do_not_depend_on_threads():
    of_i, of_j = of_edges("cpu")
    given = numbers(torch.float32, "cpu", (NEIGHBORS, 40), (EDGES, 8), (EDGES,), (EDGES, 3), (8, 40))
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y = edge_convolution(*given, of_j, of_i)
            found.append((y, *torch.autograd.grad(y.square().sum(), given)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_infinite_numbers_of_edges_without_nodes_are_not_seen(device):
    of_i, of_j = of_edges(device)
    x, b, w, t, weight = (
        v.detach()
        for v in numbers(torch.float32, device, (NEIGHBORS, 8), (EDGES, 4), (EDGES,), (EDGES, 3), (4, 8))
    )
    want = edge_convolution(x, b, w, t, weight, of_j, of_i)
    empty = of_j.nodes < 0
    b[empty], t[empty], w[empty] = torch.inf, torch.inf, torch.nan
    assert torch.equal(edge_convolution(x, b, w, t, weight, of_j, of_i), want)
