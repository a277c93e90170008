"""The features T^T T_<, with what stands behind them; on a GPU beside the CPU's, of every shape that has kernels of its
own."""

import pytest
import torch

from mdops.ops import axis_product


def test_columns_behind_change_nothing_before_them(device):
    random = torch.Generator().manual_seed(1)
    shapes = ((9, 4, 11), (9, 3), (9, 44))
    t, behind, u = (torch.randn(shape, dtype=torch.float64, generator=random).to(device) for shape in shapes)
    t.requires_grad_(), behind.requires_grad_()
    alone, both = axis_product(t, 4), axis_product(t, 4, behind)
    assert torch.equal(both, torch.cat([alone, behind], 1))
    (want,) = torch.autograd.grad(alone, t, u)
    got, of_behind = torch.autograd.grad(both, (t, behind), torch.cat([u, u[:, :3]], 1))
    assert torch.equal(got, want) and torch.equal(of_behind, u[:, :3])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "width", "axis"),
    # Three or four rows as descriptors have them; an axis or a T too large for their kernels; other rows.
    [
        (4, 100, 16),
        (4, 1, 1),
        (4, 33, 33),
        (4, 80, 64),
        (4, 80, 65),
        (4, 1500, 4),
        (1, 40, 1),
        (3, 20, 7),
        (3, 128, 4),
        (2, 20, 7),
    ],
)
def test_gpu_is_the_cpu(rows, width, axis, dtype):
    random = torch.Generator().manual_seed(0)
    t = torch.randn(21, rows, width, dtype=dtype, generator=random)
    grad = torch.randn(21, width * axis + 5, dtype=dtype, generator=random)
    behind, backward = (
        torch.randn(21, 5, dtype=dtype, generator=random),
        torch.ops.mdops.axis_product_backward,
    )
    for cpu, gpu in (
        (axis_product(t, axis), axis_product(t.cuda(), axis)),
        (axis_product(t, axis, behind), axis_product(t.cuda(), axis, behind.cuda())),
        (backward(grad[:, :-5], t, axis), backward(grad[:, :-5].cuda(), t.cuda(), axis)),
        (backward(grad, t, axis), backward(grad.cuda(), t.cuda(), axis)),
    ):
        limit = (1e-5 if dtype == torch.float32 else 1e-14) * cpu.abs().max()
        assert (gpu.cpu() - cpu).abs().max() < limit
