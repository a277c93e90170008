"""Rows of the neighbours against the environment matrix and sums over basis functions by PyTorch's operations."""

import math

import pytest
import torch
import torch.nn.functional as F

from mdops.ops import (
    EdgeIndex,
    edge_gather,
    env_mat,
    environment_rows,
    harmonic_rows,
    neighbor_rows,
    row_moments,
    spline_rows,
)
from mdops.ops.switch_curve import switch_curve
from mdops.tables.spline import basis_matrix
from mdops.testing import CUTOFF, PROTECTION, SMOOTH

S_MAX, INTERVALS = 1.2, 9  # below the largest s


def pairs(device, dtype=torch.float64, atoms=37, width=40, ntypes=3):
    """A made-up list with virtual atoms, atoms without neighbours, full rows, and pairs beyond the cutoff."""
    gen = torch.Generator().manual_seed(atoms)
    counts = torch.randint(0, width // ntypes + 1, (atoms, ntypes), generator=gen).int()
    counts[0], counts[1] = 0, torch.tensor([width - 2, 1, 1])
    types = torch.randint(-1, ntypes, (atoms,), generator=gen).int()
    counts[types < 0] = 0
    present = torch.arange(width) < counts.sum(1, keepdim=True)
    d = F.normalize(torch.randn(atoms, width, 3, generator=gen, dtype=torch.float64), dim=-1)
    d *= 0.6 + 3 * torch.rand(atoms, width, 1, generator=gen, dtype=torch.float64)
    mask = torch.rand(ntypes, ntypes, generator=gen) < 0.3
    mean = torch.rand(ntypes, generator=gen, dtype=torch.float64)
    std = 0.5 + torch.rand(ntypes, 2, generator=gen, dtype=torch.float64)
    found = {"d": (d * present[..., None]).to(dtype), "counts": counts, "types": types, "mask": mask}
    return {
        name: x.to(device) for name, x in (found | {"mean": mean.to(dtype), "std": std.to(dtype)}).items()
    }, gen


def kinds_of(p):
    slot = torch.arange(p["d"].shape[1], device=p["d"].device)
    return (slot[None, :, None] >= p["counts"].cumsum(1)[:, None]).sum(-1)


def listed(p, **keys):
    return neighbor_rows(p["d"], p["counts"], p["types"], cutoff=CUTOFF, pair_mask=p["mask"], **keys)


@pytest.mark.parametrize("size", [(37, 40), (70, 33), (1300, 9)])
def test_rows_are_the_neighbours_that_count(size, device):
    p, gen = pairs(device, atoms=size[0], width=size[1])
    zeroed = (torch.rand(p["mask"].shape, generator=gen) < 0.5).to(device)
    kinds, ntypes = kinds_of(p), p["counts"].shape[1]
    near = (kinds < ntypes) & (p["d"].norm(dim=-1) < CUTOFF)
    of_pair = F.pad(p["mask"], (0, 1))[p["types"].long().clamp(min=0)[:, None], kinds]
    takes = F.pad(zeroed, (0, 1))[p["types"].long().clamp(min=0)[:, None], kinds]
    live = near & ~of_pair
    found = listed(p, zeroed=zeroed)
    assert torch.equal(found.offsets, F.pad(live.sum(1).cumsum(0), (1, 0)).int())
    slots = live.flatten().nonzero()[:, 0].int()
    assert torch.equal(found.slots, F.pad(slots, (0, live.numel() - len(slots)), value=-1))
    assert torch.equal(found.taken, (near & (~of_pair | takes)).sum(1).int())
    assert torch.equal(found.within, near.sum(1).int())
    distance = torch.where(near, p["d"].norm(dim=-1), CUTOFF).amin(1)
    torch.testing.assert_close(found.nearest, distance, rtol=1e-13, atol=0)


def wanted_rows(p, d, slots, table, gated):
    """Differentiable in d."""
    r = d.norm(dim=-1).masked_fill(kinds_of(p) == p["counts"].shape[1], CUTOFF)
    keys = {"cutoff": CUTOFF, "cutoff_smooth": SMOOTH, "protection": PROTECTION}
    rows = env_mat(d, p["counts"], p["types"], p["mean"], p["std"], **keys)
    w = switch_curve(r, SMOOTH, CUTOFF)
    unit = F.normalize(rows[..., 1:], dim=-1)
    at = slots.long()
    s = (w / (r + PROTECTION)).flatten()[at]
    x = s * (INTERVALS / S_MAX)
    inside = x.clamp(max=INTERVALS).cpu()  # beyond, the basis goes on along its tangent
    values, slopes = basis_matrix(inside, INTERVALS), basis_matrix(inside, INTERVALS, 1).detach()
    phi = (values + (x.cpu() - inside)[:, None] * slopes).to(d.device)
    c = p["types"].long()[at // d.shape[1]]
    t = kinds_of(p).flatten()[at]
    w = w.flatten()[at]
    if gated:
        g = torch.einsum("eb,ebm->em", phi, table[c, 0] + w[:, None, None] * table[c, 1 + t])
    else:
        g = torch.einsum("eb,ebm->em", phi, table[c, t])
    return rows.flatten(0, 1)[at], w, unit.flatten(0, 1)[at], g


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("channels", [8, 21, 100, 300])
def test_rows_and_their_gradients(channels, gated, device):
    p, gen = pairs(device)
    shape = (3, 4 if gated else 3, INTERVALS + 5, channels)
    table = torch.randn(shape, generator=gen, dtype=torch.float64).to(device)
    found = listed(p)
    last = int(found.offsets[-1])
    d = p["d"].clone().requires_grad_()
    keys = {
        "cutoff": CUTOFF,
        "cutoff_smooth": SMOOTH,
        "protection": PROTECTION,
        "s_max": S_MAX,
        "gated": gated,
    }
    args = (found.slots, p["counts"], p["types"], p["mean"], p["std"], table)
    got = spline_rows(d, *args, rows=last + 5, **keys)
    want = wanted_rows(p, d, found.slots[:last], table, gated)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a[:last], b, rtol=1e-11, atol=1e-11)
        assert not a[last:].any()
    grads = [torch.randn(x.shape, generator=gen, dtype=torch.float64).to(device) for x in got]
    (by_op,) = torch.autograd.grad(got, d, grads)
    (by_torch,) = torch.autograd.grad(want, d, [g[:last] for g in grads])
    torch.testing.assert_close(by_op, by_torch, rtol=1e-10, atol=1e-10)
    # The same in float32, whose kernels take several columns at once.
    low = {name: x.float() if x.is_floating_point() else x for name, x in p.items()}
    d = low["d"].clone().requires_grad_()
    args = (found.slots, p["counts"], p["types"], low["mean"], low["std"], table.float())
    single = spline_rows(d, *args, rows=last + 5, **keys)
    for a, b in zip(single, got, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    (low,) = torch.autograd.grad(single, d, [g.float() for g in grads])
    assert float((low - by_op).abs().max()) < 1e-5 * float(by_op.abs().max())


def test_rows_without_splines_and_both_derivatives(device):
    """Against the environment matrix, the switch and unit vectors by PyTorch's operations."""
    p, gen = pairs(device)
    found = listed(p)
    last = int(found.offsets[-1])
    d = p["d"].clone().requires_grad_()
    keys = {"cutoff": CUTOFF, "cutoff_smooth": SMOOTH, "protection": PROTECTION}
    got = environment_rows(
        d, found.slots, p["counts"], p["types"], p["mean"], p["std"], rows=last + 5, **keys
    )
    slots = found.slots[:last].long()
    kinds = torch.stack([p["types"].long()[slots // d.shape[1]], kinds_of(p).flatten()[slots]], dim=1)
    assert torch.equal(got.kinds[:last], kinds.int()) and not got.kinds[last:].any()
    shape = (3, 3, INTERVALS + 5, 1)
    want = wanted_rows(p, d, found.slots[:last], torch.zeros(shape, dtype=d.dtype, device=device), False)[:3]
    for a, b in zip(got[:3], want, strict=True):
        torch.testing.assert_close(a[:last], b, rtol=1e-11, atol=1e-11)
        assert not a[last:].any()
    grads = [torch.randn(x.shape, generator=gen, dtype=torch.float64).to(device) for x in got[:3]]
    along = torch.zeros_like(d)  # nowhere else, where PyTorch's roots have no slope
    along.view(-1, 3)[slots] = torch.randn(last, 3, generator=gen, dtype=torch.float64).to(device)
    results = []
    for rows, cut in ((got[:3], None), (want, last)):
        leaves = [g[:cut].clone().requires_grad_() for g in grads]
        (first,) = torch.autograd.grad(rows, d, leaves, create_graph=True)
        second, *rest = torch.autograd.grad(first, [d, *leaves], along)
        results.append([*(x.flatten(0, 1)[slots] for x in (first, second)), *(x[:last] for x in rest)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def solid_harmonics(u, most):
    """Of the degrees 2 to `most` of vectors (E, 3), m from -l to l, by the recurrences of Helgaker, Jorgensen and Olsen
    (2000), 6.4.70 to 6.4.72."""
    x, y, z = u.unbind(1)
    r2, of = u.square().sum(1), {(0, 0): torch.ones_like(x)}
    for n in range(most):
        factor = math.sqrt((2 if n == 0 else 1) * (2 * n + 1) / (2 * n + 2))
        mirrored = 0 if n == 0 else of[n, -n]
        of[n + 1, n + 1] = factor * (x * of[n, n] - y * mirrored)
        of[n + 1, -n - 1] = factor * (y * of[n, n] + x * mirrored)
        for m in range(-n, n + 1):
            before = math.sqrt((n + m) * (n - m)) * r2 * of[n - 1, m] if abs(m) < n else 0
            of[n + 1, m] = ((2 * n + 1) * z * of[n, m] - before) / math.sqrt((n + m + 1) * (n - m + 1))
    return torch.stack([of[n, m] for n in range(2, most + 1) for m in range(-n, n + 1)], dim=1)


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_rows_of_harmonics_and_both_derivatives(degree, device):
    p, gen = pairs(device)
    p["d"][1, 3] = 0  # in the place of another pair: without a distance
    found = listed(p)
    last = int(found.offsets[-1])
    slots, d = found.slots[:last].long(), p["d"].clone().requires_grad_()
    keys = {"cutoff": CUTOFF, "cutoff_smooth": SMOOTH, "protection": PROTECTION, "rows": last + 5}
    args = (found.slots, p["counts"], p["types"], p["mean"], p["std"])
    got = harmonic_rows(d, *args, degree=degree, **keys)
    assert got.shape == (last + 5, (degree + 1) ** 2) and not got[last:].any()
    pair = d.flatten(0, 1)[slots]
    near = pair.detach().square().sum(1) != 0
    assert int((~near).sum()) == 1
    pair, centers = pair[near], p["types"].long()[slots // d.shape[1]][near]
    r = pair.norm(dim=1, keepdim=True)
    radial = switch_curve(r, SMOOTH, CUTOFF) / (r + PROTECTION) / p["std"][centers, :1]
    higher = radial * solid_harmonics(pair / (r + PROTECTION), degree)
    torch.testing.assert_close(got[:last, 4:][near], higher, rtol=1e-11, atol=1e-12)
    assert not got[:last, 4:][~near].any()
    first = environment_rows(d, *args, **keys).environment
    torch.testing.assert_close(got[:last, :4][near], first[:last][near], rtol=1e-13, atol=0)
    want = torch.cat([first[:last][near], higher], dim=1)
    grads = torch.randn(last, want.shape[1], generator=gen, dtype=torch.float64).to(device)[near]
    along = torch.zeros_like(d)
    along.view(-1, 3)[slots[near]] = torch.randn(len(grads), 3, generator=gen, dtype=torch.float64).to(device)
    results = []
    for rows in (got[:last][near], want):
        leaf = grads.clone().requires_grad_()
        (by_d,) = torch.autograd.grad(rows, d, leaf, create_graph=True)
        second, by_leaf = torch.autograd.grad(by_d, [d, leaf], along)
        results.append([*(x.flatten(0, 1)[slots[near]] for x in (by_d, second)), by_leaf])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    low = harmonic_rows(p["d"].float(), *args[:3], *(x.float() for x in args[3:]), degree=degree, **keys)
    there = near.nonzero()[:, 0]
    torch.testing.assert_close(low[there].double(), got[there], rtol=1e-4, atol=1e-5)


def test_directions_keep_their_digits_at_the_cutoff(device):
    """In float32 the rows themselves have lost them there; beyond, they fade within some 1e-4 A."""
    r = CUTOFF - torch.tensor([1e-2, 1e-3, 3e-4], dtype=torch.float64)
    unit = F.normalize(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), dim=0)
    d = (r[:, None] * unit)[None].to(device)
    counts, types = torch.tensor([[3]], device=device).int(), torch.tensor([0], device=device).int()
    found = neighbor_rows(d, counts, types, cutoff=CUTOFF)

    def of(dtype):
        mean, std = torch.zeros(1, dtype=dtype), torch.ones(1, 2, dtype=dtype)
        table = torch.zeros(1, 1, 14, 4, dtype=dtype)
        rest = (x.to(device) for x in (mean, std, table))
        keys = {"cutoff": CUTOFF, "cutoff_smooth": SMOOTH, "s_max": S_MAX, "rows": 3}
        return spline_rows(d.to(dtype), found.slots, counts, types, *rest, **keys)

    low, high = of(torch.float32), of(torch.float64)
    torch.testing.assert_close(low.directions.double(), high.directions, rtol=0, atol=1e-6)
    torch.testing.assert_close(high.directions.cpu(), unit.expand(3, 3), rtol=0, atol=1e-12)
    torch.testing.assert_close(low.switch.double(), high.switch, rtol=1e-2, atol=0)


@pytest.mark.parametrize("components", [4, 3, 1, 9, 25])
@pytest.mark.parametrize("channels", [1, 8, 64, 100, 130])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_over_rows(dtype, channels, components, device):
    lengths = torch.tensor([3, 0, 1, 200, 7])
    offsets = F.pad(lengths.cumsum(0), (1, 0)).int().to(device)
    more = 6  # rows of no atom
    rows, gen = int(lengths.sum()) + more, torch.Generator().manual_seed(2)
    given = [torch.randn(rows, n, generator=gen, dtype=torch.float64) for n in (components, channels)]
    environment, g = (x.to(device, dtype).requires_grad_() for x in given)
    got = row_moments(environment, g, offsets)
    parts = zip(environment.split([*lengths, more]), g.split([*lengths, more]), strict=True)
    want = torch.stack([a.T @ b for a, b in list(parts)[:-1]])
    tolerance = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-4}
    torch.testing.assert_close(got, want, **tolerance)
    grad = torch.randn(want.shape, generator=gen, dtype=torch.float64).to(device, dtype)
    for a, b in zip(
        torch.autograd.grad(got, (environment, g), grad), torch.autograd.grad(want, (environment, g), grad),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(a, b, **tolerance)
    # Those by rows of no atom may be anything.
    found = []
    for leaves_rest in (False, True):
        sums = row_moments(environment, g, offsets, leaves_rest=leaves_rest)
        grads = torch.autograd.grad(sums, (environment, g), grad)
        assert leaves_rest or not any(x[int(lengths.sum()) :].any() for x in grads)
        found.append([sums, *(x[: int(lengths.sum())] for x in grads)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_no_rows(device):
    p, _ = pairs(device, atoms=5)
    empty = {name: x[:0] if name in ("d", "counts", "types") else x for name, x in p.items()}
    for q in (empty, {**p, "counts": 0 * p["counts"]}):
        found = listed(q)
        n = len(q["d"])
        assert found.offsets.tolist() == [0] * (n + 1) and (found.slots == -1).all()
        d = q["d"].clone().requires_grad_()
        table = torch.zeros(3, 3, 14, 4, dtype=d.dtype, device=device)
        rest = (found.slots, q["counts"], q["types"], q["mean"], q["std"], table)
        rows = spline_rows(d, *rest, cutoff=CUTOFF, cutoff_smooth=SMOOTH, s_max=S_MAX, rows=0)
        sums = row_moments(rows.environment, rows.g, found.offsets)
        assert sums.shape == (n, 4, 4) and not sums.any()
        (grad,) = torch.autograd.grad(sums.sum(), d)
        assert grad.shape == d.shape and not grad.any()


@pytest.mark.parametrize("channels", [5, 64, 128])
def test_sums_over_rows_of_nodes(channels, device):
    gen = torch.Generator().manual_seed(channels)
    offsets = torch.tensor([0, 40, 40, 41, 90]).int()
    index = torch.randint(-1, 6, (100,), generator=gen).int()
    index[90:] = -1
    of = EdgeIndex.of(index.to(device), 6)
    given = [torch.randn(*n, generator=gen, dtype=torch.float64) for n in ((100, 3), (6, channels))]
    leaves = [x.to(device).requires_grad_() for x in given]
    rows = offsets.to(device)

    def found(sums):
        by = torch.autograd.grad(sums.sin().sum(), leaves, create_graph=True)
        return [sums, *by, *torch.autograd.grad(sum(x.square().sum() for x in by), leaves)]

    got = found(row_moments(*leaves, rows, of=of))
    want = found(row_moments(leaves[0], edge_gather(leaves[1], of), rows))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11 * float(b.detach().abs().max()))


@pytest.mark.gpu
def test_wrong_indices_are_answered_with_nan():
    p, gen = pairs("cuda")
    found = listed(p)
    wrong = p["types"].clone()
    wrong[1] = 3
    assert listed({**p, "types": wrong}).nearest[1].isnan()
    table = torch.randn(3, 3, 14, 8, generator=gen, dtype=torch.float64).cuda()
    slots = found.slots.clone()
    slots[2], slots[5] = 37 * 40, -7
    rest = (p["counts"], p["types"], p["mean"], p["std"], table)
    keys = {"cutoff": CUTOFF, "cutoff_smooth": SMOOTH, "s_max": S_MAX, "rows": 20}
    for part in spline_rows(p["d"], slots, *rest, **keys):
        assert part[[2, 5]].isnan().all() and part[[0, 1, 3, 4]].isfinite().all()
    environment, g = torch.randn(9, 4).cuda(), torch.randn(9, 8).cuda()
    for offsets in ([0, 4, 2, 9], [0, 3, 99, 9], [-5, 3, 3, 9]):
        offsets = torch.tensor(offsets).int().cuda()
        sums = row_moments(environment, g, offsets)
        bad = [not 0 <= a <= b <= 9 for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        assert sums.isnan().flatten(1).all(1).tolist() == bad
        for leaves_rest in (False, True):
            torch.ops.mdops.row_moments_backward(sums, environment, g, offsets, leaves_rest, None, None, None)
        torch.cuda.synchronize()
