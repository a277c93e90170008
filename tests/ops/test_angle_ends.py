"""What messages along angles add for their edges, beside the ops that it could be made of."""

import pytest
import torch

from mdops.ops import EdgeIndex, angle_ends, edge_gather
from mdops.ops.linear import linear

LIMITS = {torch.float64: 1e-12, torch.float32: 2e-6}


def of_edges(device):
    """Atoms with no, some, and many edges, and edges of none behind all others."""
    counts = torch.randint(0, 40, (300,), generator=torch.Generator().manual_seed(3))
    nodes = torch.cat([torch.arange(300).repeat_interleave(counts), torch.full((9,), -1)]).int()
    return EdgeIndex.of(nodes.to(device), 300)._replace(order=None)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("sizes", [(32, 96), (32, 16), (64, 64), (5, 7)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_ends_of_angles_are_products_and_a_row_of_the_atom(sizes, dtype, device):
    inputs, columns = sizes
    of, gen = of_edges(device), torch.Generator().manual_seed(5)
    rows, none = len(of.nodes), (of.nodes < 0)[:, None]

    def random(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype).to(device)

    x, weight, of_atom = random(rows, inputs), random(inputs, 2 * columns), random(300, columns)
    grads, found = (random(rows, columns), random(rows, columns)), []
    for at_once, kind in ((True, dtype), (True, dtype), (False, torch.float64)):
        given, w = [v.to(kind).requires_grad_() for v in (x, of_atom)], weight.to(kind)
        if at_once:
            made = angle_ends(*given, w, of)
        else:
            first, second = w.split(columns, 1)
            p = edge_gather(given[1], of, linear(given[0], first.contiguous()))
            made = tuple(v.masked_fill(none, 0.0) for v in (p, linear(given[0], second.contiguous())))
        loss = sum((y * g.to(kind)).sum() for y, g in zip(made, grads, strict=True))
        found.append([*(y.detach() for y in made), *torch.autograd.grad(loss, given)])
    for a, b, c in zip(*found, strict=True):
        assert torch.equal(a, b)
        assert (a.double() - c).abs().max() < LIMITS[dtype] * c.abs().max()
