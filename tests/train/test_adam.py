"""Steps in pieces are the steps of whole tensors."""

import pytest
import torch

from mdops.train.loop.captured_optimizer import PIECE, captured_step

SHAPES = (3 * PIECE + 5,), (PIECE // 16, 16), (7, 3), (1,)


def weights(seed=0):
    """Among them one that is not contiguous."""
    random = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=random) for shape in SHAPES]
    return [torch.nn.Parameter(v) for v in [*values, torch.randn(200, 100, generator=random).t()]]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adams_steps_have_their_bits(kind):
    both = weights(), weights()
    optimizers = [kind(w, 1e-2, betas=(0.8, 0.95), weight_decay=0.1, fused=True) for w in both]
    for step in range(4):
        for a, b in zip(*both, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimizers[0].step()
        captured_step(optimizers[1]) if step else optimizers[1].step()
    for a, b in zip(*both, strict=True):
        assert torch.equal(a, b)
        states = [o.state[p] for o, p in zip(optimizers, (a, b), strict=True)]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
