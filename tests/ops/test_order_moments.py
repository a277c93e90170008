"""Moments of rows in their frames, beside the layer and the sum whose place they take."""

import pytest
import torch

from mdops.ops import EdgeIndex, edge_frames, edge_rotate_sum, order_moments, so2_layer

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize(
    ("degree", "channels", "groups"),
    [
        *[(1, 7, 1), (1, 32, 1), (1, 64, 1), (2, 32, 1), (2, 64, 1), (3, 32, 1), (3, 64, 1), (4, 6, 1)],
        *[(1, 9, 3), (1, 32, 2), (2, 32, 2), (2, 64, 2), (3, 32, 2), (3, 64, 2), (3, 64, 4), (4, 6, 2)],
    ],
)
def test_products_of_moments_are_sums_of_products(degree, channels, groups, is_ordered, dtype, most, device):
    """Values and derivatives, by the vectors of the frames, too. Atom 1 has no edges, atom 0 many, and the last edges
    have no atom; edges stand as atoms do, or anyhow. Groups of channels have weights of their own."""
    random = torch.Generator().manual_seed(degree)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    edges, atoms, rows, own = 300, 5, 3 * degree + 1, degree * channels
    nodes = torch.randint(2, atoms, (edges,), generator=random)
    nodes[::3] = 0
    nodes = nodes.sort().values if is_ordered else nodes
    nodes[-9:] = -1
    index = EdgeIndex.of(nodes.int(), atoms)
    if is_ordered:
        index = EdgeIndex(nodes.int(), None, index.offsets)
    # Products keep to their group of channels.
    group = torch.arange(channels) // (channels // groups)
    keeps = (group[:, None] == group).double()
    middle = draw((degree + 1) * channels, (degree + 1) * channels) * keeps.tile(degree + 1, degree + 1)
    both = draw(own, 2 * own) * keeps.tile(degree, 2 * degree)
    vectors, y, weight = (
        one.requires_grad_() for one in (draw(edges, 3), draw(edges, rows, channels), draw(edges, groups))
    )
    _, turn = edge_frames(vectors, degree, 1)
    products = so2_layer(y, middle, both) - y
    weighted = products.unflatten(2, (groups, -1)) * weight[:, None, :, None]
    want = edge_rotate_sum(turn, weighted.flatten(2), index)
    grad = draw(*want.shape)
    by_each = torch.autograd.grad(want, (vectors, y, weight), grad)

    moved = EdgeIndex(*(None if one is None else one.to(device) for one in index))
    leaves = [one.detach().to(device, dtype).requires_grad_() for one in (vectors, y, weight)]
    moments = order_moments(edge_frames(leaves[0], degree, 1)[1], *leaves[1:], moved)
    assert moments.shape == (atoms, (degree + 1) ** 2, rows * channels)
    u, v = both.to(device, dtype).split(own, 1)
    found = []
    for d, column in enumerate(moments.unbind(1)):
        ell = int(d**0.5)
        of_middle, of_u, of_v = column.split([(degree + 1) * channels, own, own], 1)
        sums = of_middle @ middle.to(device, dtype)[:, ell * channels : (ell + 1) * channels]
        if ell:
            outputs = slice((ell - 1) * channels, ell * channels)
            sums = sums + of_u @ u[:, outputs] + of_v @ v[:, outputs]
        found.append(sums)
    got = torch.stack(found, 1)
    for one, other in zip(
        (got, *torch.autograd.grad(got, leaves, grad.to(device, dtype))), (want, *by_each), strict=True
    ):
        assert (one.detach().cpu().double() - other.detach()).abs().max() < most * other.detach().abs().max()
