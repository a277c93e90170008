"""The features T^T T_< on a GPU beside the CPU's, of every shape that has kernels of its own."""

import pytest
import torch

from mdops.ops import axis_product


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "width", "axis"),
    # Four rows as descriptors have them; an axis or a T too large for their kernels; other rows.
    [(4, 100, 16), (4, 1, 1), (4, 33, 33), (4, 80, 64), (4, 80, 65), (4, 1500, 4), (1, 40, 1), (3, 20, 7)],
)
def test_gpu_is_the_cpu(rows, width, axis, dtype):
    random = torch.Generator().manual_seed(0)
    t = torch.randn(21, rows, width, dtype=dtype, generator=random)
    grad = torch.randn(21, width * axis, dtype=dtype, generator=random)
    backward = torch.ops.mdops.axis_product_backward
    for cpu, gpu in (
        (axis_product(t, axis), axis_product(t.cuda(), axis)),
        (backward(grad, t), backward(grad.cuda(), t.cuda())),
    ):
        limit = (1e-5 if dtype == torch.float32 else 1e-14) * cpu.abs().max()
        assert (gpu.cpu() - cpu).abs().max() < limit
