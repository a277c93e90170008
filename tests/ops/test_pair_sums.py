"""Sums over pairs that several threads take: the same in every run, and as one thread has them."""

import pytest
import torch

from mdops.ops import pair_forces

ATOMS, WIDTH, SYSTEMS = 3000, 40, 3


def calls(dtype):
    gen = torch.Generator().manual_seed(3)
    grad, d = (torch.randn(ATOMS, WIDTH, 3, generator=gen, dtype=dtype) for _ in range(2))
    neighbors = torch.randint(-1, ATOMS, (ATOMS, WIDTH), generator=gen, dtype=torch.int32)
    images = torch.randint(0, 3, (ATOMS, WIDTH), generator=gen, dtype=torch.int32)
    batch = torch.arange(ATOMS, dtype=torch.int32) * SYSTEMS // ATOMS
    return {
        "pair_forces": lambda: torch.ops.mdops.pair_forces(grad, d, batch, neighbors, SYSTEMS),
        "no virials of atoms": lambda: torch.ops.mdops.pair_forces(grad, d, batch, neighbors, SYSTEMS, False),
        "displacements_backward": lambda: torch.ops.mdops.displacements_backward(
            grad, batch, neighbors, images, SYSTEMS
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forces_without_the_virials_of_atoms_are_the_same(device, dtype):
    gen = torch.Generator().manual_seed(4)
    grad, d = (torch.randn(300, 40, 3, generator=gen, dtype=dtype).to(device) for _ in range(2))
    neighbors = torch.randint(-1, 300, (300, 40), generator=gen, dtype=torch.int32).to(device)
    batch = (torch.arange(300, dtype=torch.int32) // 100).to(device)
    forces, virial, _ = pair_forces(grad, d, batch, neighbors, SYSTEMS)
    plain = pair_forces(grad, d, batch, neighbors, SYSTEMS, of_atoms=False)
    assert torch.equal(plain[0], forces) and plain[2].shape == (0, 3, 3)
    torch.testing.assert_close(plain[1], virial, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("op", ["pair_forces", "no virials of atoms", "displacements_backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads(op, dtype):
    call = calls(dtype)[op]
    alone = call()
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        together, again = call(), call()
        for one, other, third in zip(alone, together, again, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-11, atol=1e-11)
            assert torch.equal(other, third)
