"""What is special to `hybrid_potential`; the battery has the rest."""

import pytest
import torch

from mdops.testing import op_samples

WEIGHT, MASK, HIGH, TABLE = 17, 32, 36, 37  # places of arguments


@pytest.mark.parametrize("high", [0.4, 0.9, 1.2, 1.9])
def test_a_blend_is_that_of_the_ops_for_it(device, high):
    """The weights of `near_weight`, the sums of 1 - c times energies, and `pair_table` with these; where no atom is
    near, too."""
    ops = torch.ops.mdops
    samples = [s for s in op_samples(device, torch.float32) if s.op == "hybrid_potential"]
    args, alone = list(samples[0].args), samples[1].args
    args[HIGH - 1 : HIGH + 1] = high / 2, high
    found = ops.hybrid_potential(*args)
    near, (table_mask, coefficients, *places) = args[MASK : HIGH + 1], args[TABLE:-1]
    c = ops.near_weight(*args[:7], *near)[0]
    torch.testing.assert_close(found[-1], c, rtol=1e-12, atol=1e-14)
    assert (0 < (c != 0).sum() < (args[3] >= 0).sum()) if high > 0.4 else not c.any()
    args[WEIGHT], args[MASK:-1] = 1 - c, alone[MASK:-1]
    net = ops.hybrid_potential(*args)
    other = net[0], net[1], net[2], net[6]
    table = ops.pair_table(*args[:7], table_mask, coefficients, c, *other, near[0], *places, *near[1:], True)
    wanted = (*table[:3], *net[3:6], table[5])
    for a, b in zip(found[:-1], wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
