"""Blends with a pair table on a GPU: rows that a warp keeps, and rows that it has no room for."""

import pytest
import torch

from mdops.ops import near_weight, neighbor_list, pair_table

DECAY, SYSTEMS, INTERVALS = 0.1, 2, 500


def blend(box, cutoff, high):
    """Arguments of `pair_table` for atoms of two systems at random, a third of them without weight and one virtual."""
    gen = torch.Generator().manual_seed(5)
    n = 600

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    positions = box * torch.rand(n, 3, generator=gen, dtype=torch.float64)
    cell = box * torch.eye(3, dtype=torch.float64).repeat(SYSTEMS, 1, 1)
    batch = (torch.arange(n) * SYSTEMS // n).int()
    types = torch.randint(0, 2, (n,), generator=gen).int()
    types[n // 3] = -1
    pairs = neighbor_list(
        positions, cell, torch.ones(SYSTEMS, 3, dtype=torch.bool), types, cutoff, batch=batch, ntypes=2
    )
    atoms = (positions, cell, batch, types, *pairs[:3])
    mask = torch.tensor([[False, True], [False, False]])
    near = (torch.zeros(2, 2, dtype=torch.bool), 0.9 * cutoff, DECAY, 0.2, high)
    weight = near_weight(*atoms, *near)[0]
    weight[torch.rand(n, generator=gen) < 0.3] = 0
    other = normal(n), normal(n, 3), normal(SYSTEMS, 3, 3), normal(n, 3, 3)
    table = mask, normal(2, 2, INTERVALS, 4)
    return (*atoms, *table, weight, *other, near[0], 0.0, cutoff / INTERVALS, cutoff, *near[1:], True)


@pytest.mark.gpu
@pytest.mark.parametrize(("box", "cutoff", "longest"), [(11.0, 3.0, 60), (7.0, 4.0, 300)])
def test_a_blend_on_a_gpu_is_the_cpus(box, cutoff, longest):
    """Of some 30 and some 240 neighbours an atom; there is room for 160."""
    args = blend(box, cutoff, 1.2)
    assert longest / 2 < int(args[6].sum(1).max()) < longest
    wanted = pair_table(*args)
    found = pair_table(*(x.cuda() if isinstance(x, torch.Tensor) else x for x in args))
    for value, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(value.cpu(), want, rtol=1e-11, atol=1e-7)
