"""Sums of splines times harmonics, against their formula."""

import pytest
import torch
from torch.autograd import gradcheck

from mdops.models.dpa4c import envelope
from mdops.ops import harmonic_forces, harmonic_rows, harmonic_sums, neighbor_rows, pair_forces
from mdops.ops.harmonic_moment import largest_functions, padded_basis
from mdops.tables.spline import basis_matrix
from mdops.testing import harmonic_tables

CUTOFF = 3.0
COUNTS = torch.tensor([[3, 4], [0, 6], [5, 0], [0, 0], [2, 2]], dtype=torch.int32)
TYPES = torch.tensor([0, 1, 1, 0, -1], dtype=torch.int32)
MASK = torch.tensor([[False, False], [True, False]])


def pairs(dtype=torch.float64, far=1.2):
    gen = torch.Generator().manual_seed(0)
    d = torch.randn(5, 7, 3, generator=gen, dtype=torch.float64)
    d *= (0.4 + far * CUTOFF * torch.rand(5, 7, 1, generator=gen)) / d.norm(dim=2, keepdim=True)
    return d.to(dtype)


def tables_of(ntypes, intervals, dtype=torch.float64):
    """Of six functions, four of which are summed with harmonics."""
    gen = torch.Generator().manual_seed(1)
    knots = torch.randn(ntypes, 6, ntypes, padded_basis(intervals), generator=gen, dtype=torch.float64)
    return [x.to(dtype) for x in harmonic_tables(knots, intervals, 4, CUTOFF)]


def sums_of(d, counts, types, intervals, degree, mask=None):
    """All sums of each atom side by side."""
    tables = tables_of(counts.shape[1], intervals, d.dtype)
    settings = {"cutoff": CUTOFF, "intervals": intervals, "degree": degree, "seconds": 4, "pair_mask": mask}
    first, second, _, _ = harmonic_sums(d, counts, types, tables, **settings)
    assert not second[:, 0].any()
    return torch.cat([first, second[:, 1:].flatten(1)], 1)


def formula(d, intervals, degree, mask=None):
    """The same by rows of neighbours, and de Boor's splines."""
    mask = torch.zeros(2, 2, dtype=torch.bool) if mask is None else mask
    found = neighbor_rows(d, COUNTS, TYPES, cutoff=CUTOFF, pair_mask=mask)
    count = int(found.offsets[-1])
    plain = torch.zeros(2, dtype=d.dtype), torch.ones(2, 2, dtype=d.dtype)
    lists = found.slots, COUNTS, TYPES, *plain
    rows = harmonic_rows(d, *lists, cutoff=2 * CUTOFF, cutoff_smooth=CUTOFF, rows=count, degree=degree)
    r = 1 / rows[:, :1]
    harmonics = rows * r
    atom = torch.repeat_interleave(torch.arange(5), found.offsets.diff().long())
    kinds = (found.slots[:count].long() % 7 >= COUNTS[atom, 0]).long()
    phi, chi = basis_matrix(r[:, 0] * (intervals / CUTOFF), intervals), envelope(r, CUTOFF)
    coefficients = tables_of(2, intervals)[1].unflatten(2, (2, -1))[..., : intervals + 5]
    found = torch.zeros(5, 8 + 4 * ((degree + 1) ** 2 - 1), dtype=d.dtype)
    for n in range(count):
        f = coefficients[TYPES[atom[n]], :, kinds[n]] @ phi[n]
        with_harmonics = chi[n] ** 2 * f[:4] * harmonics[n, 1:, None]
        found[atom[n]] += torch.cat([chi[n] * f, chi[n] ** 2, chi[n] ** 4, with_harmonics.flatten()])
    return found


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("intervals", [1, 9, 40])
def test_sums_are_those_of_the_formula(degree, intervals):
    d = pairs()
    for mask in (None, MASK):
        found = sums_of(d, COUNTS, TYPES, intervals, degree, mask)
        torch.testing.assert_close(found, formula(d, intervals, degree, mask), rtol=1e-11, atol=1e-11)
    assert (found[3:] == 0).all()  # no neighbours, and a virtual atom


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_gradients(degree):
    d = pairs().requires_grad_()
    assert gradcheck(lambda x: sums_of(x, COUNTS, TYPES, 7, degree, MASK), d, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_neighbours_and_long_rows(dtype):
    """More neighbours than are taken at once, all of one atom; the same whatever the order of equal ones."""
    gen = torch.Generator().manual_seed(2)
    d = torch.randn(1, 300, 3, generator=gen, dtype=torch.float64).to(dtype)
    counts, types = torch.tensor([[300]], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    whole = sums_of(d, counts, types, 100, 4)
    parts = [sums_of(d[:, k : k + 50], counts // 6, types, 100, 4) for k in range(0, 300, 50)]
    torch.testing.assert_close(whole, sum(parts), rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-4)


def test_atoms_at_the_same_place_and_what_is_not_a_number():
    d = pairs(far=0.5)
    d[0, 0] = 0.0
    d[1, 2, 0] = float("nan")
    d.requires_grad_()
    found = sums_of(d, COUNTS, TYPES, 9, 3)
    assert found[0].isfinite().all() and found[1].isnan().any() and found[2].isfinite().all()
    (grad,) = torch.autograd.grad(found[0].sum() + found[2].sum(), d)
    assert (grad[0, 0] == 0).all() and grad[0].isfinite().all()


def test_forces_are_those_of_the_gradients_of_pairs():
    gen = torch.Generator().manual_seed(3)
    d = pairs().requires_grad_()
    neighbors = torch.randint(0, 5, (5, 7), generator=gen).int()
    neighbors[torch.arange(7) >= COUNTS.sum(1, keepdim=True)] = -1
    tables, batch = tables_of(2, 9), torch.tensor([0, 0, 1, 1, 1], dtype=torch.int32)
    settings = {"cutoff": CUTOFF, "intervals": 9, "degree": 3, "seconds": 4, "pair_mask": MASK}
    *sums, _, nearest = harmonic_sums(d, COUNTS, TYPES, tables, **settings)
    by = [torch.randn(x.shape, generator=gen, dtype=x.dtype) for x in sums]
    (grad,) = torch.autograd.grad(sums, d, by)
    most = largest_functions(*tables[1:3])
    lists = d.detach(), COUNTS, TYPES, tables, most, nearest.detach(), batch, neighbors, 2
    found = harmonic_forces(*by, *lists, **settings)
    wanted = pair_forces(grad, d.detach(), batch, neighbors, 2, of_atoms=False)
    for one, want in zip(found, wanted[:2], strict=True):
        torch.testing.assert_close(one, want, rtol=1e-13, atol=1e-13)
