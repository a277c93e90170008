"""The Verlet list: never a pair missing, and seldom built."""

import pytest
import torch

import mdops
from mdops import ops
from mdops.errors import InputError
from mdops.verlet import VerletList

CUTOFF = 3.0


def make_system(device, n=60, edge=9.0, seed=0):
    gen = torch.Generator().manual_seed(seed)
    cell = edge * (torch.eye(3) + 0.2 * torch.rand(3, 3, generator=gen)).double()
    positions = torch.rand(n, 3, generator=gen, dtype=torch.float64) @ cell
    types = torch.randint(0, 2, (n,), generator=gen, dtype=torch.int32)
    return tuple(t.to(device) for t in (positions, cell[None], torch.ones(1, 3, dtype=torch.bool), types))


def short_pairs(found, positions, cell, batch):
    """The pairs within the cutoff as (atom, neighbour, distance to 1e-9 A)."""
    d = ops.displacements(positions, cell, batch, found.neighbors, found.images).norm(dim=-1).cpu()
    found = found._replace(neighbors=found.neighbors.cpu())
    i, k = torch.nonzero((found.neighbors >= 0) & (d < CUTOFF), as_tuple=True)
    return sorted(
        zip(i.tolist(), found.neighbors[i, k].tolist(), d[i, k].round(decimals=9).tolist(), strict=True)
    )


def assert_complete(verlet, positions, cell, pbc, types, batch=None):
    batch = torch.zeros(len(types), dtype=torch.int32, device=types.device) if batch is None else batch
    now = verlet.update(positions, cell, pbc, types, batch)
    fresh = ops.neighbor_list(positions, cell, pbc, types, CUTOFF, batch=batch)
    assert short_pairs(now, positions, cell, batch) == short_pairs(fresh, positions, cell, batch)
    assert now.cutoff == verlet.cutoff + verlet.skin
    return now


def test_random_walk_misses_no_pair(device):
    positions, cell, pbc, types = make_system(device)
    gen = torch.Generator().manual_seed(1)
    verlet = VerletList(CUTOFF, 0.8)
    shapes = set()
    for _ in range(60):
        positions = positions + 0.05 * torch.randn(60, 3, generator=gen, dtype=torch.float64).to(device)
        shapes.add(assert_complete(verlet, positions, cell, pbc, types).neighbors.shape)
    assert 2 < verlet.builds < 30
    assert len(shapes) <= 2


def test_a_dense_structure_does_not_make_later_rows_long(device, monkeypatch):
    dense, sparse = make_system(device, edge=2.5), make_system(device, n=90, edge=20.0)
    for slots in (0, 1 << 22):  # rows are short from the first build on, or after it
        monkeypatch.setattr(mdops.verlet, "_MANY_SLOTS", slots)
        verlet = VerletList(CUTOFF, 0.8)
        longest = [assert_complete(verlet, *system).neighbors.shape[1] for system in (dense, sparse, dense)]
        assert longest[1] < 40 < 400 < longest[0] == longest[2]


def test_strained_cell_misses_no_pair_and_is_not_always_built(device):
    positions, cell, pbc, types = make_system(device, seed=2)
    gen = torch.Generator().manual_seed(3)
    verlet = VerletList(CUTOFF, 0.8)
    for _ in range(60):
        strain = torch.eye(3, dtype=torch.float64) + 0.01 * torch.randn(
            3, 3, generator=gen, dtype=torch.float64
        )
        strain = strain.to(device)
        cell, positions = cell @ strain, positions @ strain
        positions = positions + 0.02 * torch.randn(60, 3, generator=gen, dtype=torch.float64).to(device)
        assert_complete(verlet, positions, cell, pbc, types)
    assert 2 < verlet.builds < 40


def test_a_wrapped_atom_is_found_again(device):
    positions, cell, pbc, types = make_system(device, seed=4)
    verlet = VerletList(CUTOFF, 1.0)
    assert_complete(verlet, positions, cell, pbc, types)
    moved = positions.clone()
    moved[5] += cell[0, 1]
    assert_complete(verlet, moved, cell, pbc, types)
    assert verlet.builds == 2


def test_half_the_skin_is_the_limit(device):
    positions, cell, pbc, types = make_system(device, seed=5)
    verlet = VerletList(CUTOFF, 1.0)
    first = verlet.update(positions, cell, pbc, types)
    away = positions.clone()
    away[3, 2] += 0.4999
    assert verlet.update(away, cell, pbc, types) is first
    away[3, 2] += 0.0002
    assert verlet.update(away, cell, pbc, types) is not first
    assert verlet.builds == 2


def test_positions_changed_in_place_are_noticed(device):
    positions, cell, pbc, types = make_system(device, seed=6)
    verlet = VerletList(CUTOFF, 1.0)
    verlet.update(positions, cell, pbc, types)
    positions[0] += 3.0
    assert_complete(verlet, positions, cell, pbc, types)
    assert verlet.builds == 2


def test_any_other_change_builds_anew(device):
    positions, cell, pbc, types = make_system(device, seed=7)
    both, two_pbc = torch.cat([cell, cell]), torch.cat([pbc, pbc])
    batch = torch.zeros(60, dtype=torch.int32, device=device)
    batch[::2] = 1
    slab = torch.tensor([[True, True, False]], device=device)
    steps = [
        (positions, cell, pbc, types, None),
        (positions, cell, pbc, 1 - types, None),
        (positions, cell, slab, 1 - types, None),
        (positions, cell * 1.0001, slab, 1 - types, None),
        (positions[:59], cell, slab, types[:59], None),
        (positions, both, two_pbc, types, batch),
        (positions, both, two_pbc, types, 1 - batch),
    ]
    verlet = VerletList(CUTOFF, 1.0)
    for count, step in enumerate(steps, 1):
        assert_complete(verlet, *step)
        assert_complete(verlet, *step)
        assert verlet.builds == count


def test_batches_strain_each_in_its_own_way(device):
    positions, cell, pbc, types = make_system(device, seed=8)
    cells, pbc = torch.cat([cell, 1.1 * cell]), torch.cat([pbc, pbc])
    batch = (torch.arange(60, device=device) % 2).int()
    verlet = VerletList(CUTOFF, 1.0)
    for scale in (1.0, 1.01, 1.02):
        factors = torch.tensor([scale, 1 / scale], dtype=torch.float64, device=device)
        assert_complete(
            verlet, positions * factors[batch.long(), None], cells * factors[:, None, None], pbc, types, batch
        )
    assert verlet.builds == 1


def test_empty_system(device):
    verlet = VerletList(CUTOFF, 1.0)
    none = torch.zeros(0, 3, dtype=torch.float64, device=device)
    cell, types = torch.eye(3, dtype=torch.float64, device=device), none[:, 0].int()
    for _ in range(2):
        found = verlet.update(none, cell, True, types)
    assert found.neighbors.shape == (0, 0) and verlet.builds == 1


def test_bad_input_is_refused_at_every_step(device):
    positions, cell, pbc, types = make_system(device, seed=9)
    verlet = VerletList(CUTOFF, 1.0)
    verlet.update(positions, cell, pbc, types)
    broken = positions.clone()
    broken[4, 1] = float("nan")
    with pytest.raises(InputError, match="nan for atom 4"):
        verlet.update(broken, cell, pbc, types)
    with pytest.raises(InputError, match="`cell` holds nan"):
        verlet.update(positions, cell * float("nan"), pbc, types)
    for arguments in ((0.0, 1.0), (float("nan"), 1.0), (3.0, -0.1), (3.0, float("nan"))):
        with pytest.raises(InputError, match="VerletList: argument"):
            VerletList(*arguments)
    assert_complete(verlet, positions, cell, pbc, types)


def test_tensors_changed_in_place_are_noticed(device):
    """On a GPU, types, pbc and batch that are the very tensors of the last call are not compared again."""
    positions, cell, pbc, types = make_system(device, seed=10)
    batch = torch.zeros(60, dtype=torch.int32, device=device)
    verlet = VerletList(CUTOFF, 1.0)
    first = verlet.update(positions, cell, pbc, types, batch)
    assert verlet.update(positions, cell.clone(), pbc, types, batch) is first
    assert verlet.update(positions, cell, pbc, types.clone(), batch) is first
    types[3] = 1 - types[3]
    assert verlet.update(positions, cell, pbc, types, batch) is not first
    pbc[0, 1] = False
    assert_complete(verlet, positions, cell, pbc, types, batch)
    assert verlet.builds == 3
