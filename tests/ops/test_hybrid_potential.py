"""What is special to `hybrid_potential`; the battery has the rest."""

import pytest
import torch

from mdops.testing import op_samples

MASK, HIGH = 31, 35  # places of arguments


@pytest.mark.parametrize("high", [0.9, 1.2, 1.9])
def test_weights_of_a_blend_are_those_of_near_weight(device, high):
    """And what forces take of the energies is what weights 1 - c take."""
    sample = next(s for s in op_samples(device, torch.float32) if s.op == "hybrid_potential")
    args = list(sample.args)
    args[HIGH] = high
    found = torch.ops.mdops.hybrid_potential(*args)
    c = torch.ops.mdops.near_weight(*args[:7], *args[MASK : HIGH + 1])[0]
    torch.testing.assert_close(found[-1], c, rtol=1e-12, atol=1e-14)
    assert 0 < (c != 0).sum() < (args[3] >= 0).sum()
    args[17], args[MASK] = 1 - c, args[MASK][:0, :0]
    for a, b in zip(found[:-1], torch.ops.mdops.hybrid_potential(*args)[:-1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
