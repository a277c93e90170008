"""Layers within |m| of edges, beside PyTorch's operations."""

import pytest
import torch

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.indices import by_order
from mdops.nn.equivariant.linear import OrderLinear
from mdops.ops import EdgeIndex, edge_frames, edge_rotate, edge_rotate_sum, order_mix, so2_layer, so2_messages
from mdops.ops.so2_layer import _by_pytorch

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("edges", "degrees", "channels"),
    [
        *((2500, 2, 32), (70, 2, 32), (2500, 3, 32), (70, 1, 32), (70, 3, 20)),
        *((2500, 1, 64), (70, 2, 64), (700, 3, 64)),
    ],
)
def test_a_layer_is_its_product_and_its_gate(edges, degrees, channels, dtype, device):
    """Its values and first derivatives; of float32 against float64, on a GPU by tensor cores where rows fit."""
    _check_layer(edges, degrees, channels, dtype, device)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("edges", "degrees", "channels"),
    [
        (12000, 2, 33),
        (3000, 3, 37),
        (9000, 2, 128),
        (1500, 2, 128),
        (6000, 4, 64),
        (400, 4, 64),
        (900, 1, 255),
    ],
)
def test_layers_of_other_widths_are_large_products(edges, degrees, channels, dtype):
    """Also of rows that begin on four bytes alone, and of few edges, for which blocks could share a product's depth."""
    _check_layer(edges, degrees, channels, dtype, "cuda")


def _check_layer(edges: int, degrees: int, channels: int, dtype: torch.dtype, device: str) -> None:
    random = torch.Generator().manual_seed(edges)
    linear = OrderLinear(degrees, 1, channels, channels)
    gate = Gate(by_order(degrees, 1), channels)
    for weight in [*linear.parameters(), *gate.parameters()]:
        torch.nn.init.normal_(weight, std=0.1, generator=random)
    x = torch.randn(edges, 3 * degrees + 1, channels, generator=random, dtype=torch.float64)
    grad = torch.randn(x.shape, generator=random, dtype=torch.float64)
    for layer in (linear, gate):
        layer.to(torch.float64)
    for gated in (True, False):
        leaf = x.clone().requires_grad_()
        rows = linear(leaf[:, :, None])
        want = leaf + (gate(rows) if gated else rows)[:, :, 0]
        (by_x,) = torch.autograd.grad(want, leaf, grad)
        weights = [linear.weight_m0, linear.weight_m[0], gate.gate_linear.weight if gated else None]
        given = [None if weight is None else weight.detach().to(device, dtype) for weight in weights]
        own = x.to(device, dtype).requires_grad_()
        found = so2_layer(own, *given)
        (found_by_x,) = torch.autograd.grad(found, own, grad.to(device, dtype))
        for one, other in ((found, want), (found_by_x, by_x)):
            off = (one.detach().cpu().double() - other.detach()).abs().max() / other.abs().max()
            assert off < (1e-6 if dtype == torch.float32 else 1e-14)


def _messages(
    edges: int, layers: int, nodes: int, atoms: int, degrees: int = 2, channels: int = 32
) -> tuple[list[torch.Tensor], list[list[torch.Tensor]], list[EdgeIndex]]:
    """Vectors and mixtures of edges, rows of neighbours, weights of edges and a gradient; weights of layers, all but
    the last with gates; the neighbours and the atoms of edges, of which the last have none, and atom 1 has no edges."""
    random = torch.Generator().manual_seed(edges)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    columns, side = (degrees + 1) ** 2, degrees * channels
    given = [
        draw(edges, 3),
        0.5 * draw(edges, columns + degrees**2),
        draw(nodes, columns, channels),
        draw(edges, 1),
        draw(atoms, columns, channels),
    ]
    shapes = ((side + channels,) * 2, layers), ((side, 2 * side), layers), ((channels, side), layers - 1)
    weights = [[0.1 * draw(*shape) for _ in range(count)] for shape, count in shapes]
    of_neighbor = torch.randint(0, nodes, (edges,), generator=random).int()
    of_center = torch.randint(0, atoms, (edges,), generator=random).int()
    of_center = torch.where(of_center == 1, 0, of_center).sort().values
    for of in (of_neighbor, of_center):
        of[edges - edges // 20 :] = -1
    offsets = EdgeIndex.of(of_center, atoms).offsets
    return given, weights, [EdgeIndex.of(of_neighbor, nodes), EdgeIndex(of_center, None, offsets)]


def _moved(index: EdgeIndex, device: str) -> EdgeIndex:
    return EdgeIndex(*(None if one is None else one.to(device) for one in index))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "matmul", "most"),
    [(torch.float64, "float32", 1e-13), (torch.float32, "float32", 5e-6), (torch.float32, "tf32", 2e-3)],
)
@pytest.mark.parametrize(
    ("edges", "layers", "atoms", "size"),
    [
        (0, 3, 40, (2, 32)),
        (1, 3, 2, (2, 32)),
        (300, 2, 40, (2, 32)),
        (130, 4, 90, (2, 32)),
        (20_300, 3, 200, (2, 32)),
        (300, 2, 4, (1, 5)),
        (300, 3, 7, (3, 20)),
        (90, 2, 40, (6, 3)),
        (90, 1, 7, (2, 32)),
    ],
)
def test_messages_are_frames_mixtures_layers_and_sums(
    edges, layers, atoms, size, dtype, matmul, most, device
):
    """Their values and derivatives, on a GPU in float32 by one kernel: tiles of which the last is not full, atoms with
    few edges and with many."""
    if matmul == "tf32" and (device == "cpu" or size != (2, 32)):
        pytest.skip("there are no such products")
    (*given, grad), weights, (of_neighbor, of_center) = _messages(edges, layers, 40, atoms, *size)
    leaves = [one.clone().requires_grad_() for one in given]
    vectors, mixture, x, weight = leaves
    _, turn = edge_frames(vectors, size[0], 1)
    rows = edge_rotate(order_mix(mixture, turn, size[0]), x, of_neighbor)
    for layer in zip(*weights[:2], [*weights[2], turn.new_empty(0, 0)], strict=True):
        rows = _by_pytorch(rows, *layer)
    want = edge_rotate_sum(turn * weight[:, :, None], rows, of_center)
    by_each = torch.autograd.grad(want, leaves, grad)
    own = [one.to(device, dtype).requires_grad_() for one in given]
    lists = [[one.to(device, dtype) for one in ones] for ones in weights]
    indices = [_moved(of, device) for of in (of_neighbor, of_center)]

    def computed() -> list[torch.Tensor]:
        found = so2_messages(*own, *indices, *lists, matmul)
        return [found, *torch.autograd.grad(found, own, grad.to(device, dtype))]

    got = computed()
    for one, other in zip(got, (want, *by_each), strict=True):
        assert one.shape == other.shape
        if edges:
            off = (one.detach().cpu().double() - other.detach()).abs().max() / other.abs().max()
            assert off < most
    assert all(torch.equal(one, other) for one, other in zip(got, computed(), strict=True))


@pytest.mark.gpu
def test_messages_of_a_wrong_node_are_no_numbers():
    (*given, _), weights, (of_neighbor, of_center) = _messages(300, 3, 40, 7)
    wrong = of_neighbor.nodes.clone()
    wrong[7], wrong[200] = 40, -2
    own, *lists = [[one.float().cuda() for one in ones] for ones in (given, *weights)]
    bad = _moved(EdgeIndex(wrong, of_neighbor.order, of_neighbor.offsets), "cuda")
    found = so2_messages(*own, bad, _moved(of_center, "cuda"), *lists)
    atoms = sorted({int(of_center.nodes[k]) for k in (7, 200)})
    assert found.isnan().flatten(1).any(1).nonzero().flatten().tolist() == atoms
