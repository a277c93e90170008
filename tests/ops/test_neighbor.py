"""The neighbour list, pair for pair against ASE's."""

import itertools
import os
import time

import numpy as np
import pytest
import torch
from ase.neighborlist import primitive_neighbor_list
from children import python
from op_cases import captured

from mdops import ops
from mdops.errors import InputError, NeighborOverflowError

ALL_PBC = list(itertools.product([False, True], repeat=3))


def make_system(seed, pbc=(True, True, True), n=40, edge=8.0, spread=1.0, ntypes=3):
    """Atoms in a random triclinic cell, up to `spread` cells outside of it."""
    rng = np.random.default_rng(seed)
    cell = edge * (np.eye(3) + rng.uniform(-0.3, 0.3, (3, 3)))
    positions = rng.uniform(-spread, 1 + spread, (n, 3)) @ cell
    return {
        "positions": torch.tensor(positions),
        "cell": torch.tensor(cell)[None],
        "pbc": torch.tensor([pbc]),
        "batch": torch.zeros(n, dtype=torch.int32),
        "types": torch.tensor(rng.integers(0, ntypes, n), dtype=torch.int32),
    }


def join(systems, order):
    """One batch of several systems, its atoms in the order given."""
    made = {key: torch.cat([s[key] for s in systems]) for key in systems[0]}
    made["batch"] = torch.cat([s["batch"] + k for k, s in enumerate(systems)])
    for key in ("positions", "batch", "types"):
        made[key] = made[key][order]
    return made


def ase_pairs(system, cutoff):
    i, j, shifts = primitive_neighbor_list(
        "ijS",
        system["pbc"][0].tolist(),
        system["cell"][0].numpy(),
        system["positions"].numpy(),
        np.nextafter(cutoff, np.inf),  # ASE leaves out pairs at the cutoff
        self_interaction=False,
    )
    return sorted(map(tuple, np.column_stack([i, j, shifts]).tolist()))


def pairs_of(system, cutoff, device="cpu"):
    """`neighbor_pairs` on a device, brought home."""
    return [t.cpu() for t in ops.neighbor_pairs(**on(device, system), cutoff=cutoff)]


def list_of(system, device="cpu", **options):
    """`neighbor_list` on a device, brought home."""
    found = ops.neighbor_list(**on(device, system), **options)
    return found._replace(**{name: getattr(found, name).cpu() for name in ("neighbors", "images", "counts")})


def on(device, system):
    return {key: value.to(device) if torch.is_tensor(value) else value for key, value in system.items()}


def found_pairs(system, cutoff, device="cpu"):
    i, j, shifts = pairs_of(system, cutoff, device)
    assert i.dtype == j.dtype == torch.int64 and shifts.dtype == torch.int32
    assert torch.all(i[1:] >= i[:-1])
    return sorted(map(tuple, torch.cat([i[:, None], j[:, None], shifts], 1).tolist()))


def matrix_pairs(result, types):
    """The pairs of a list in rows, after checking how the rows are laid out."""
    n, k = result.neighbors.shape
    filled = torch.arange(k) < result.counts.sum(1, keepdim=True)
    assert torch.equal(result.neighbors >= 0, filled)
    assert torch.all(result.images[~filled] == 0)
    bounds = result.counts.cumsum(1)
    kind = (torch.arange(k)[None, :, None] >= bounds[:, None, :]).sum(-1)
    assert torch.equal(kind[filled], types[result.neighbors[filled].long()].long())
    i = torch.arange(n)[:, None].expand(n, k)[filled]
    rows = torch.cat(
        [i[:, None], result.neighbors[filled][:, None], ops.unpack_images(result.images[filled])], 1
    )
    return sorted(map(tuple, rows.tolist()))


def check(system, cutoff, device):
    expected = ase_pairs(system, cutoff)
    assert found_pairs(system, cutoff, device) == expected
    for sort in (False, True):
        result = list_of(system, device, cutoff=cutoff, sort=sort)
        assert matrix_pairs(result, system["types"]) == expected
    return len(expected)


@pytest.mark.parametrize("pbc", ALL_PBC)
def test_random_cells_against_ase(pbc, device):
    for seed in range(6):
        n, edge, cutoff = [(40, 8, 3), (60, 12, 2.5), (5, 3, 4), (1, 2.5, 7), (30, 5, 6), (200, 20, 4)][seed]
        assert check(make_system(seed, pbc, n, edge), cutoff, device) or pbc != (True, True, True)


def test_many_bins_against_ase(device):
    # ten bins and more along each direction, so that the whole stencil is inside
    check(make_system(7, n=2000, edge=28.0), 4.0, device)


@pytest.mark.parametrize("pbc", ALL_PBC)
def test_directions_without_pbc_may_have_no_lattice_vector(pbc, device):
    system = make_system(3, pbc, spread=0.2)
    expected = ase_pairs(system, 3.0)
    system["cell"][0, ~system["pbc"][0]] = 0.0
    assert found_pairs(system, 3.0, device) == expected


def test_very_skewed_cell(device):
    system = make_system(4, n=20)
    system["cell"][0] = torch.tensor([[4.0, 0, 0], [11.0, 4.0, 0], [-9.0, 13.0, 4.0]])
    assert check(system, 5.0, device) > 100


@pytest.mark.parametrize("pbc", [[True, False, True], (True, False, True), np.array([True, False, True])])
def test_directions_may_be_a_list_or_an_array(pbc):
    own = make_system(1)
    given = own["positions"], own["cell"][0]
    found = ops.neighbor_list(*given, pbc, own["types"], 4.0)
    wanted = ops.neighbor_list(*given, torch.tensor([True, False, True]), own["types"], 4.0)
    assert torch.equal(found.neighbors, wanted.neighbors) and torch.equal(found.images, wanted.images)


def test_coincident_atoms_are_neighbors(device):
    system = make_system(5, n=4)
    system["positions"][1] = system["positions"][0]
    assert (0, 1, 0, 0, 0) in found_pairs(system, 1.0, device)
    assert (0, 0, 0, 0, 0) not in found_pairs(system, 1.0, device)


def test_a_lone_atom_far_away_does_no_harm(device):
    system = make_system(6, (False, False, False), n=300)
    system["positions"][17] = torch.tensor([3e5, -8e5, 1e6])
    pairs = found_pairs(system, 3.0, device)
    near = [k for k in range(300) if k != 17]
    system = {k: v[near] if len(v) == 300 else v for k, v in system.items()}
    rename = dict(enumerate(near))
    assert pairs == [(rename[i], rename[j], *s) for i, j, *s in found_pairs(system, 3.0, device)]


def scattered(pbc, seed=3):
    """A compact cluster, another one beyond, and atoms that have flown away along the directions without pbc."""
    rng = np.random.default_rng(seed)
    system = make_system(seed, pbc, n=900, edge=12.0, spread=0.2, ntypes=2)
    away = torch.tensor([0.0 if p else 1.0 for p in pbc])
    system["positions"][300:450] += 5e3 * away
    system["positions"][450:470] += torch.tensor(rng.uniform(-1e9, 1e9, (20, 3))) * 0.99 * away
    return system


@pytest.mark.parametrize("pbc", [p for p in ALL_PBC if not all(p)])
def test_atoms_far_apart_against_those_near(pbc, device):
    """The pairs are those of the clusters on their own: nothing flies within another one's cutoff."""
    system = scattered(pbc)
    expected = []
    for of in (
        list(range(300)) + list(range(470, 900)),
        list(range(300, 450)),
        *([k] for k in range(450, 470)),
    ):
        own = {k: v[of] if len(v) == 900 else v for k, v in system.items()}
        own["positions"] = own["positions"] - (5e3 if of[0] == 300 else 0) * torch.tensor(
            [not p for p in pbc]
        )
        expected += [(of[i], of[j], *shift) for i, j, *shift in ase_pairs(own, 2.5)]
    assert found_pairs(system, 2.5, device) == sorted(expected)
    result = list_of(system, device, cutoff=2.5, sort=True)
    assert matrix_pairs(result, system["types"]) == sorted(expected)


def test_a_gas_without_pbc_against_ase(device):
    system = make_system(12, (False, False, False), n=500, edge=90.0, spread=0)
    system["positions"][:100] = system["positions"][100:200] + 0.5
    assert check(system, 4.0, device) >= 200


def test_atoms_that_have_flown_away_leave_the_search_quick():
    """All others shared one bin: the time grew with the square of their number."""
    system = make_system(7, (False, False, False), n=30000, edge=70.0, spread=0, ntypes=1)

    def seconds():
        times = []
        for _ in range(3):
            begin = time.process_time()
            ops.neighbor_list(**system, cutoff=4.0, sort=False)
            times.append(time.process_time() - begin)
        return min(times)

    together = seconds()
    system["positions"][[5, 77, 4096]] += torch.tensor([[3e5, -8e5, 1e6], [2e7, 1e7, 1e7], [-1e5, 1e5, 1e5]])
    assert seconds() < 15 * together


@pytest.mark.parametrize("where", [1.0, -300.0, 1e5])
def test_images_refer_to_the_positions_as_given(where, device):
    """Atoms far outside the cell, all together or each somewhere else."""
    system = make_system(8, n=30, spread=0)
    home = pairs_of(system, 4.0, device)
    moves = torch.randint(-200, 200, (30, 3)) + int(where)
    system["positions"] += moves.double() @ system["cell"][0]
    i, j, shifts = pairs_of(system, 4.0, device)
    assert len(i) == len(home[0])
    back = shifts + moves[j] - moves[i]
    assert set(zip(i.tolist(), j.tolist(), map(tuple, back.tolist()), strict=True)) == set(
        zip(home[0].tolist(), home[1].tolist(), map(tuple, home[2].tolist()), strict=True)
    )
    result = list_of(system, device, cutoff=4.0)
    d = ops.displacements(
        system["positions"], system["cell"], system["batch"], result.neighbors, result.images
    )
    length = d.norm(dim=-1)[result.neighbors >= 0]
    assert len(length) == len(i) and length.max() < 4.0


def test_images_that_do_not_fit_are_refused(device):
    system = make_system(9, n=10, spread=0)
    system["positions"][3] += 600 * system["cell"][0, 1]
    with pytest.raises(InputError, match=r"image .* along lattice vector 1, expected -512 to 511"):
        list_of(system, device, cutoff=6.0)
    # a far atom whose only neighbours are its own images is no error
    found_pairs({k: v[3:4] if len(v) == 10 else v for k, v in system.items()}, 6.0, device)


def test_batch_is_its_systems(device):
    systems = [
        make_system(10, (True, True, True), 30),
        make_system(11, (True, False, True), 1, edge=3.0),
        make_system(12, (False, False, False), 90),
        make_system(13, (True, True, True), 7, edge=4.0),
    ]
    n = sum(len(s["types"]) for s in systems)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    place = torch.argsort(order).tolist()
    expected, first = [], 0
    for s in systems:
        expected += [(place[i + first], place[j + first], *shift) for i, j, *shift in ase_pairs(s, 4.0)]
        first += len(s["types"])
    batch = join(systems, order)
    assert found_pairs(batch, 4.0, device) == sorted(expected)
    assert matrix_pairs(list_of(batch, device, cutoff=4.0), batch["types"]) == sorted(expected)


def test_virtual_atoms_and_absent_systems(device):
    system = make_system(14, n=50)
    system["types"][::3] = -1
    system["positions"][0] = float("nan")  # nothing is known of a virtual atom
    real = torch.nonzero(system["types"] >= 0)[:, 0]
    alone = {k: v[real] if len(v) == 50 else v for k, v in system.items()}
    expected = sorted((int(real[i]), int(real[j]), *s) for i, j, *s in ase_pairs(alone, 4.0))
    assert found_pairs(system, 4.0, device) == expected
    assert matrix_pairs(list_of(system, device, cutoff=4.0), system["types"]) == expected
    # three systems, of which the first and the last are empty
    three = dict(
        system, cell=system["cell"].expand(3, 3, 3), pbc=system["pbc"].expand(3, 3), batch=system["batch"] + 1
    )
    assert found_pairs(three, 4.0, device) == expected


@pytest.mark.parametrize("systems", [0, 1, 3])
def test_no_atoms(systems, device):
    none = {
        "positions": torch.zeros(0, 3, dtype=torch.float64),
        "cell": torch.eye(3, dtype=torch.float64).expand(systems, 3, 3),
        "pbc": torch.ones(systems, 3, dtype=torch.bool),
        "batch": torch.zeros(0, dtype=torch.int32),
        "types": torch.zeros(0, dtype=torch.int32),
    }
    assert found_pairs(none, 3.0, device) == []
    result = ops.neighbor_matrix(**on(device, none), cutoff=3.0, ntypes=2, capacity=5)
    assert [r.shape for r in result] == [(0, 5), (0, 5), (0, 2), (2,)]
    assert result[3].tolist() == [0, -1]


def test_sorted_rows_hold_the_nearest_first(device):
    system = make_system(15, n=80)
    result = list_of(system, device, cutoff=5.0, sort=True)
    d = ops.displacements(
        system["positions"], system["cell"], system["batch"], result.neighbors, result.images
    )
    for distance, counts in zip(d.square().sum(-1), result.counts.tolist(), strict=True):
        for part in distance[: sum(counts)].split(counts):
            assert torch.all(part[1:] >= part[:-1] - 1e-12)


def test_equal_distances_are_ordered_by_index(device):
    grid = torch.tensor(list(itertools.product(range(3), repeat=3)), dtype=torch.float64)
    grid = grid[torch.randperm(27, generator=torch.Generator().manual_seed(1))]
    system = {"positions": grid, "cell": None, "pbc": None, "types": torch.zeros(27, dtype=torch.int32)}
    result = list_of(system, device, cutoff=1.5, sort=True)
    center = int(torch.nonzero((grid == 1).all(1)))
    near = torch.nonzero((grid - 1).square().sum(1) == 1)[:, 0]
    assert result.neighbors[center, :6].tolist() == near.tolist()


def test_the_pair_vector_in_float64_decides(device):
    """A cutoff at a pair's very length, where float32 says nothing."""
    system = make_system(16, n=40, spread=20.0)
    result = list_of(system, device, cutoff=4.0)
    d = ops.displacements(
        system["positions"], system["cell"], system["batch"], result.neighbors, result.images
    )
    # |d|^2 summed as the search sums it
    lengths = (d[..., 0] ** 2 + d[..., 1] ** 2 + d[..., 2] ** 2).sqrt()[result.neighbors >= 0].sort().values
    for pick in range(0, len(lengths), len(lengths) // 20):
        length = float(lengths[pick])
        below, above = length * (1 - 1e-15), length * (1 + 1e-15)
        assert len(pairs_of(system, below, device)[0]) <= pick
        assert len(pairs_of(system, above, device)[0]) > pick


def test_both_directions_of_a_pair_on_a_lattice(device):
    """Whole shells at the cutoff: either both i -> j and j -> i are listed or none."""
    grid = torch.tensor(list(itertools.product(range(5), repeat=3)), dtype=torch.float64) * 1.1
    cell = torch.eye(3, dtype=torch.float64)[None] * 5.5
    system = {"positions": grid, "cell": cell, "pbc": torch.ones(1, 3, dtype=torch.bool)}
    system |= {"batch": torch.zeros(125, dtype=torch.int32), "types": torch.zeros(125, dtype=torch.int32)}
    for cutoff in (1.1, 2.2, 3.3, 1.1 * 3**0.5):
        pairs = set(found_pairs(system, cutoff, device))
        assert pairs == {(j, i, -a, -b, -c) for i, j, a, b, c in pairs}


@pytest.mark.parametrize("cutoff", [1e-30, 1e-45, 1e-160, 1e-300])
def test_a_cutoff_that_is_almost_zero_finds_nothing(cutoff, device):
    """Rows are written all the same, whatever was in their memory."""
    p = make_system(3, n=50, edge=6.0)
    for _ in range(3):
        torch.full((50, 8), 7, dtype=torch.int32)  # freed, and likely to be what the rows get
        args = {name: value.to(device) for name, value in p.items()}
        neighbors, _, counts, needed = ops.neighbor_matrix(**args, cutoff=cutoff, ntypes=3, capacity=8)
        assert (neighbors == -1).all() and (counts == 0).all() and needed[0] == 0


def test_result_does_not_depend_on_threads():
    system = make_system(17, n=3000, edge=30.0)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(ops.neighbor_matrix(**system, cutoff=5.0, ntypes=3, capacity=70))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_overflow_is_an_error_that_says_what_is_needed(device):
    system = make_system(18, n=60)
    full = list_of(system, device, cutoff=5.0)
    rows = full.counts.sum(1)
    longest, atom = int(rows.max()), int(rows.argmax())
    with pytest.raises(
        NeighborOverflowError, match=f"atom {atom} has {longest} neighbours.* {longest - 1}:"
    ) as caught:
        list_of(system, device, cutoff=5.0, capacity=longest - 1)
    assert (caught.value.needed, caught.value.capacity, caught.value.atom) == (longest, longest - 1, atom)
    # the op itself cuts the rows, and its counts with them
    cut = ops.neighbor_matrix(**on(device, system), cutoff=5.0, ntypes=3, capacity=longest // 2)
    cut = [t.cpu() for t in cut]
    assert cut[3].tolist() == [longest, atom]
    assert torch.equal(cut[2].sum(1), rows.clamp(max=longest // 2))
    assert torch.equal(cut[0], full.neighbors[:, : longest // 2])
    roomy = list_of(system, device, cutoff=5.0, capacity=longest + 9)
    assert torch.equal(roomy.neighbors[:, :longest], full.neighbors)


def test_inputs_need_not_be_contiguous(device):
    system = make_system(19, n=50)
    expected = found_pairs(system, 4.0, device)
    system["positions"] = torch.stack([system["positions"]] * 2, -1)[..., 0]
    system["cell"] = system["cell"].mT.contiguous().mT
    system["types"] = torch.stack([system["types"]] * 2, -1)[..., 1]
    system["batch"] = torch.zeros((), dtype=torch.int32).expand(50)
    assert not any(system[k].is_contiguous() for k in ("positions", "cell", "types", "batch"))
    assert found_pairs(system, 4.0, device) == expected


BAD_INPUT = {
    "nan": (lambda s: s["positions"][7].fill_(float("nan")), "`positions` holds nan for atom 7"),
    "far": (lambda s: s["positions"][7].fill_(1e300), "`positions` holds 1e.300 for atom 7"),
    "infinite": (lambda s: s["positions"][7].fill_(float("-inf")), "`positions` holds -inf for atom 7"),
    "singular cell": (lambda s: s["cell"][0, 2].copy_(s["cell"][0, 1]), "`cell` of system 0 is singular"),
    "no cell": (lambda s: s["cell"].zero_(), "`cell` of system 0 is singular"),
    "nan cell": (lambda s: s["cell"][0, 1].fill_(float("nan")), "`cell` holds nan in system 0"),
    "tiny cell": (lambda s: s["cell"].mul_(1e-3), "`cutoff` .* reaches over too many periodic images"),
    "flat cell": (lambda s: s["cell"][0, 0].mul_(5e-4), "`cutoff` .* reaches over too many periodic images"),
    "batch": (lambda s: s["batch"][5].fill_(1), "`batch` holds 1 for atom 5"),
    "negative batch": (lambda s: s["batch"][5].fill_(-1), "`batch` holds -1 for atom 5"),
    "types": (lambda s: s["types"][5].fill_(3), "`types` holds 3 for atom 5"),
    "negative types": (lambda s: s["types"][5].fill_(-2), "`types` holds -2 for atom 5"),
    "positions dtype": (lambda s: s.update(positions=s["positions"].float()), "`positions` has dtype"),
    "types dtype": (lambda s: s.update(types=s["types"].long()), "`types` has dtype"),
    "positions shape": (lambda s: s.update(positions=s["positions"][:, :2]), "`positions` has shape"),
    "cell shape": (lambda s: s.update(cell=s["cell"][..., :2]), "`cell` has shape"),
    "pbc shape": (lambda s: s.update(pbc=torch.ones(2, 3, dtype=torch.bool)), "`pbc` has shape"),
    "types length": (lambda s: s.update(types=s["types"][1:]), "`types` has shape"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused(name, device):
    spoil, message = BAD_INPUT[name]
    system = make_system(20, n=20)
    spoil(system)
    with pytest.raises(InputError, match="mdops::neighbor_matrix: .*" + message):
        list_of(system, device, cutoff=3.0, ntypes=3)


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_bad_cutoff_is_refused(cutoff, device):
    with pytest.raises(InputError, match=r"`cutoff` is .*, expected a positive length"):
        list_of(make_system(21, n=5), device, cutoff=cutoff)


@pytest.mark.parametrize("pbc", [ALL_PBC[0], ALL_PBC[3], ALL_PBC[7]])
def test_extreme_lengths_are_no_trouble(pbc, device):
    system = make_system(24, pbc, n=20)
    assert found_pairs(system, 5e-324, device) == []
    big = {**system, "positions": system["positions"] * 5e7, "cell": system["cell"] * 5e7}
    assert found_pairs(big, 3.0 * 5e7, device) == found_pairs(system, 3.0, device)
    assert len(found_pairs({**system, "pbc": torch.zeros(1, 3, dtype=torch.bool)}, 1e9, device)) == 20 * 19


def test_bad_numbers_are_refused(device):
    for name, value in (("ntypes", 0), ("capacity", -1)):
        with pytest.raises(InputError, match=f"`{name}` is {value}"):
            list_of(make_system(21, n=5), device, cutoff=3.0, **{name: value})
    with pytest.raises(InputError, match="`pbc` has shape"):
        list_of(make_system(21, n=5) | {"pbc": [True, False]}, device, cutoff=3.0)


def test_a_list_that_the_memory_cannot_hold_is_refused(monkeypatch):
    system = water_like(300)
    ops.neighbor_list(**system, cutoff=5.0)
    monkeypatch.setattr("mdops.ops.neighbor.memory", lambda: 10_000)
    with pytest.raises(
        InputError, match=r"of 300 atoms would take .* GiB.*within 5 A. Are positions and cell in A"
    ):
        ops.neighbor_list(**system, cutoff=5.0)


def test_face_takes_one_system_plainly():
    system = make_system(22, (True, False, True))
    expected = ops.neighbor_list(**system, cutoff=4.0)
    plain = ops.neighbor_list(
        system["positions"].requires_grad_(), system["cell"][0], (True, False, True), system["types"], 4.0
    )
    assert all(torch.equal(a, b) for a, b in zip(plain[:3], expected[:3], strict=True))
    assert plain.cutoff == 4.0 and not plain.neighbors.requires_grad
    open_system = ops.neighbor_list(system["positions"], None, None, system["types"], 4.0)
    no_pbc = ops.neighbor_list(system["positions"], system["cell"], False, system["types"], 4.0)
    assert torch.equal(open_system.counts, no_pbc.counts)


def test_images_pack_and_unpack():
    shifts = torch.tensor(
        list(itertools.product([-512, -511, -1, 0, 1, 2, 511], repeat=3)), dtype=torch.int32
    )
    packed = ops.pack_images(shifts)
    assert packed.dtype == torch.int32 and len(packed.unique()) == len(shifts) and packed.min() >= 0
    assert torch.equal(ops.unpack_images(packed), shifts)
    assert ops.pack_images(torch.zeros(0, 3, dtype=torch.int64)).shape == (0,)
    with pytest.raises(InputError):
        ops.pack_images(torch.tensor([[0, 512, 0]]))


def test_compiled_without_graph_breaks():
    system = make_system(23)

    def lengths(positions, cell):
        neighbors, images, _, needed = ops.neighbor_matrix(
            positions, cell, system["pbc"], system["batch"], system["types"], 4.0, 3, 40
        )
        return ops.displacements(positions, cell, system["batch"], neighbors, images).norm(dim=-1), needed

    def shifted(positions, cell):
        i, j, _ = ops.neighbor_pairs(positions, cell, system["pbc"], system["batch"], system["types"], 4.0)
        return positions[j] - positions[i]

    torch._dynamo.reset()
    for function in (lengths, shifted):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        got, want = (f(system["positions"], system["cell"]) for f in (compiled, function))
        torch.testing.assert_close(got, want)


CHECKSUM = """
import torch, mdops
g = torch.Generator().manual_seed(0)
x = 40 * torch.rand(4000, 3, generator=g, dtype=torch.float64) - 5
t = torch.randint(-1, 3, (4000,), generator=g, dtype=torch.int32)
n = mdops.ops.neighbor_list(x, 20 * torch.eye(3, dtype=torch.float64), True, t, 3.7)
weight = torch.arange(n.neighbors.numel()).view_as(n.neighbors) % 1009
result = int(((n.neighbors.long() + 7 * n.images.long()) * weight).sum()), int(n.counts.sum())
"""


@pytest.mark.skipif(torch.ops.mdops.cpu_isa() in ("portable", "v2"), reason="one instruction set only")
def test_instruction_sets_agree():
    here: dict = {}
    exec(CHECKSUM, here)
    v2 = python("-c", CHECKSUM + "print(result)", env=os.environ | {"MDOPS_CPU_ISA": "v2"}, check=True)
    assert v2.stdout.strip() == str(here["result"])


def water_like(n):
    """Atoms at the density of water, in the order of a lattice shaken up."""
    gen = torch.Generator().manual_seed(3)
    edge = (n / 0.1) ** (1 / 3)
    return {
        "positions": edge * torch.rand(n, 3, generator=gen, dtype=torch.float64),
        "cell": edge * torch.eye(3, dtype=torch.float64)[None],
        "pbc": torch.ones(1, 3, dtype=torch.bool),
        "batch": torch.zeros(n, dtype=torch.int32),
        "types": torch.randint(0, 2, (n,), generator=gen, dtype=torch.int32),
    }


@pytest.mark.gpu
def test_gpu_rows_are_the_cpus_and_do_not_change():
    system = water_like(20000)
    cpu = ops.neighbor_list(**system, cutoff=7.0, sort=True)
    gpu = list_of(system, "cuda", cutoff=7.0, sort=True)
    for a, b in zip(gpu[:3], cpu[:3], strict=True):
        assert torch.equal(a, b)
    plain = [list_of(system, "cuda", cutoff=7.0) for _ in range(3)]
    for other in plain[1:]:
        assert torch.equal(other.neighbors, plain[0].neighbors)


@pytest.mark.gpu
def test_many_small_systems_on_a_gpu():
    systems = [make_system(s, ALL_PBC[s % 8], n=1 + s % 24, edge=6.0) for s in range(300)]
    n = sum(len(s["types"]) for s in systems)
    batch = join(systems, torch.randperm(n, generator=torch.Generator().manual_seed(0)))
    assert found_pairs(batch, 4.0, "cuda") == found_pairs(batch, 4.0)


@pytest.mark.gpu
def test_gpu_refuses_by_value_through_needed():
    """The op itself does not wait: `needed` tells, and rows of other systems in memory are not touched."""
    system = make_system(20, n=20)
    system["positions"][7] = float("inf")
    assert ops.neighbor_matrix(**on("cuda", system), cutoff=3.0, ntypes=3, capacity=4)[3].tolist() == [-5, 7]
    system = make_system(20, n=20)
    system["batch"][5] = 9
    assert ops.neighbor_matrix(**on("cuda", system), cutoff=3.0, ntypes=3, capacity=4)[3].tolist() == [-3, 5]
    with pytest.raises(RuntimeError, match=r"mdops::neighbor_pairs: .*`batch` is out of range for atom 5"):
        ops.neighbor_pairs(**on("cuda", system), cutoff=3.0)


@pytest.mark.gpu
def test_captured_in_a_graph_with_another_cell():
    """Capacity is all that is fixed: the cell, and with it the bins, may change between replays."""
    system = on("cuda", water_like(3000))

    def search():
        return ops.neighbor_matrix(**system, cutoff=5.0, ntypes=2, capacity=128, sort=True)

    graph, results = captured(search)
    for scale in (1.0, 1.2, 0.97):
        system["cell"] *= scale
        system["positions"] *= scale
        graph.replay()
        assert 30 < int(results[3][0]) <= 128
        for a, b in zip(results, search(), strict=True):
            assert torch.equal(a, b)
