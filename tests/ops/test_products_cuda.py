"""Products in float64 by a GPU's tensor cores, beside the CPU's, where nothing is a whole tile."""

import pytest
import torch

from mdops.ops import moment_product

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shared", [None, "99000"])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    ("atoms", "basis", "width", "tables"),
    [(1, 1, 1, 1), (7, 3, 2, 2), (33, 17, 31, 2), (257, 50, 101, 3), (1500, 45, 100, 2), (9000, 21, 36, 4)],
)
def test_moments_times_tables_and_back(atoms, basis, width, tables, is_sorted, shared, monkeypatch):
    """Also where a GPU has less shared memory."""
    if shared:
        monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", shared)
    gen = torch.Generator().manual_seed(atoms)

    def random(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    kinds = torch.randint(tables, (atoms,), generator=gen, dtype=torch.int32)
    rows = kinds.argsort(stable=True) if is_sorted else torch.randperm(atoms, generator=gen)
    rows = rows[: atoms - atoms // 5].int()  # some have none
    leaves = random(atoms, basis, 4), random(tables, basis, width)
    grad = random(len(rows), 4, width)
    answers = []
    for device in ("cpu", "cuda"):
        moments, table = (x.to(device).requires_grad_() for x in leaves)
        t = moment_product(moments, table, rows.to(device), kinds.to(device))
        answers.append((t, *torch.autograd.grad(t, (moments,), grad.to(device))))
    for want, got in zip(*answers, strict=True):
        assert (got.cpu() - want).abs().max() <= 1e-12 * want.abs().max()
