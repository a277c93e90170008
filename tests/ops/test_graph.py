"""Graphs of atoms beside plain loops: edges, angles, truncation, capacities; sums of edges; softmax of segments."""

import itertools
import pickle

import pytest
import torch

from mdops import ops
from mdops.errors import GraphOverflowError, InputError, NeighborOverflowError
from mdops.ops import EdgeIndex, NeighborGraph

OPS = torch.ops.mdops


def crystal(seed: int, atoms: int = 20, length: float = 4.0, ntypes: int = 2):
    """Atoms in a small skewed cell, so that some are neighbours of themselves and of one atom several times."""
    gen = torch.Generator().manual_seed(seed)
    cell = length * torch.eye(3, dtype=torch.float64) + 0.4 * torch.rand(
        3, 3, generator=gen, dtype=torch.float64
    )
    positions = torch.rand(atoms, 3, generator=gen, dtype=torch.float64) @ cell
    types = torch.randint(-1, ntypes, (atoms,), generator=gen).int()
    return positions, cell, types


def expected_edges(positions, cell, types, cutoff, sel, masked, angle_cutoff, angle_sel):
    """(i, j, shift) of every edge, and of each atom how many make angles, from all pairs."""
    pairs = ops.neighbor_pairs(
        positions, cell[None], torch.ones(1, 3, dtype=torch.bool), torch.zeros_like(types), types, cutoff
    )
    i, j, shifts = pairs
    length = (positions[j] - positions[i] + shifts.double() @ cell).norm(dim=1)
    packed = ops.pack_images(shifts).tolist()
    rank = [(round(r, 9), *last) for r, *last in zip(length.tolist(), j.tolist(), packed, strict=True)]
    edges, angles = [], []
    for atom in range(len(positions)):
        mine = sorted(torch.nonzero(i == atom)[:, 0].tolist(), key=lambda k: rank[k])[:sel]
        kept = [(n, k) for n, k in enumerate(mine) if not masked[types[atom], types[int(j[k])]]]
        edges += [(atom, int(j[k]), *shifts[k].tolist()) for _, k in kept]
        angles.append(sum(float(length[k]) < angle_cutoff and n < angle_sel for n, k in kept))
    return edges, angles


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(("sel", "angle_sel"), [(1000, 1000), (9, 4), (30, 1000), (0, 0)])
def test_edges_and_angles_beside_plain_loops(sel, angle_sel, mask, device):
    positions, cell, types = crystal(1)
    masked = torch.tensor([[False, mask], [mask, False]])
    edges, counts = expected_edges(positions, cell, types, 4.5, sel, masked, 3.0, angle_sel)
    graph = ops.neighbor_graph(
        positions.to(device),
        cell.to(device),
        True,
        types.to(device),
        4.5,
        angle_cutoff=3.0,
        edge_sel=sel,
        angle_sel=angle_sel,
        pair_mask=masked.to(device),
        ntypes=2,
    )
    got = torch.cat([graph.i[:, None], graph.j[:, None], graph.shifts], dim=1)
    assert [tuple(row) for row in got.tolist()] == edges
    assert graph.angle_neighbors.tolist() == counts
    assert graph.needed.tolist() == [len(edges), -1]
    first_edges = graph.offsets.tolist()
    angles = [
        (first_edges[i] + a, first_edges[i] + b)
        for i, m in enumerate(counts)
        for a in range(m)
        for b in range(m)
    ]
    assert list(zip(graph.angles.first.tolist(), graph.angles.second.tolist(), strict=True)) == angles
    place = {pair: k for k, pair in enumerate(angles)}
    assert graph.angles.mirror.tolist() == [place[b, a] for a, b in angles]
    starts = graph.angles.offsets.tolist()
    assert all(starts[a] <= k < starts[a + 1] for k, (a, _) in enumerate(angles))


def test_every_edge_of_a_whole_graph_has_its_reverse(device):
    positions, cell, types = (x.to(device) for x in crystal(2))
    graph = ops.neighbor_graph(positions, cell, True, types, 6.0)
    edges = [tuple(row) for row in torch.cat([graph.i[:, None], graph.j[:, None], graph.shifts], 1).tolist()]
    assert any(i == j for i, j, *_ in edges) and len({(i, j) for i, j, *_ in edges}) < len(edges)
    for (i, j, *shift), other in zip(edges, graph.reverse.tolist(), strict=True):
        assert edges[other] == (j, i, *(-s for s in shift))
    cut = ops.neighbor_graph(positions, cell, True, types, 6.0, edge_sel=7)
    assert (cut.reverse < 0).any() and (cut.reverse[cut.reverse][cut.reverse >= 0] >= 0).all()


def test_the_image_that_has_no_opposite_finds_none():
    """-512 has ten bits, 512 has not."""
    images = ops.pack_images(torch.tensor([[-512, 0, 0], [-512, 0, 0]]))
    i, j = torch.tensor([0, 1]).int(), torch.tensor([1, 0]).int()
    assert OPS.edge_reverse(i, j, images, torch.tensor([0, 1, 2]).int()).tolist() == [-1, -1]


def test_vectors_are_those_of_the_edges(device):
    positions, cell, types = (x.to(device) for x in crystal(3))
    graph = ops.neighbor_graph(positions, cell, True, types, 5.0, edge_sel=12)
    pairs = graph.pairs
    batch = torch.zeros_like(types)
    d = ops.displacements(positions, cell[None], batch, pairs.neighbors, pairs.images).requires_grad_()
    vectors = graph.vectors(d)
    i, j = graph.i.long(), graph.j.long()
    torch.testing.assert_close(vectors, positions[j] - positions[i] + graph.shifts.double() @ cell)
    (grad,) = torch.autograd.grad(vectors.square().sum() / 2, d)
    assert torch.equal(grad[grad.abs().sum(-1) > 0].norm(dim=1).sort()[0], vectors.norm(dim=1).sort()[0])


def static(positions, cell, types, edges, angles, capacity=128):
    return ops.neighbor_graph(
        positions,
        cell,
        True,
        types,
        4.5,
        angle_cutoff=3.0,
        ntypes=2,
        capacity=capacity,
        edge_capacity=edges,
        angle_capacity=angles,
    )


def test_room_behind_the_last_edge_changes_nothing(device):
    positions, cell, types = (x.to(device) for x in crystal(4))
    exact = ops.neighbor_graph(positions, cell, True, types, 4.5, angle_cutoff=3.0, ntypes=2)
    edges, angles = exact.capacity, len(exact.angles.first)
    roomy = static(positions, cell, types, edges + 7, angles + 9)
    roomy.check()
    for name in ("i", "j", "reverse"):
        assert getattr(roomy, name).tolist() == getattr(exact, name).tolist() + [-1] * 7
    for name in ("first", "second", "mirror"):
        assert getattr(roomy.angles, name).tolist() == getattr(exact.angles, name).tolist() + [-1] * 9
    assert torch.equal(roomy.offsets, exact.offsets)
    assert roomy.angles.offsets.tolist() == exact.angles.offsets.tolist() + [angles] * 7
    gen = torch.Generator().manual_seed(5)
    x = torch.randn(len(positions), 6, generator=gen).to(device)
    for of in ("of_center", "of_neighbor"):
        got, want = (ops.edge_gather(x, getattr(graph, of)) for graph in (roomy, exact))
        assert torch.equal(got[:edges], want) and not got[edges:].any()
        assert torch.equal(
            ops.edge_scatter(got, getattr(roomy, of)), ops.edge_scatter(want, getattr(exact, of))
        )


def test_what_does_not_fit_is_told_and_nothing_is_cut_silently(device):
    positions, cell, types = (x.to(device) for x in crystal(4))
    exact = ops.neighbor_graph(positions, cell, True, types, 4.5, angle_cutoff=3.0, ntypes=2)
    edges, angles = exact.capacity, len(exact.angles.first)
    few = static(positions, cell, types, edges - 1, angles)
    with pytest.raises(GraphOverflowError, match=f"{edges} edges.*edge_capacity={edges}") as error:
        few.check()
    assert pickle.loads(pickle.dumps(error.value)).needed == edges
    assert (few.i == -1).all() and not few.offsets.any() and (few.angles.first == -1).all()
    few = static(positions, cell, types, edges, angles - 1)
    with pytest.raises(GraphOverflowError, match=f"{angles} angles.*angle_capacity={angles}"):
        few.check()
    assert (few.angles.first == -1).all() and not few.angles.offsets.any() and torch.equal(few.i, exact.i)
    with pytest.raises(NeighborOverflowError):
        static(positions, cell, types, edges, angles, capacity=3).check()
    with pytest.raises(GraphOverflowError, match="edge"):
        ops.neighbor_graph(positions, cell, True, types, 4.5, edge_capacity=3)


def test_a_list_that_ends_before_the_cutoff_is_refused():
    positions, cell, types = crystal(5)
    pairs = ops.neighbor_list(positions, cell, True, types, 3.0)
    with pytest.raises(InputError, match=r"the pair list ends at 3 A, before the cutoff of 3\.5 A"):
        NeighborGraph.of_list(pairs, torch.zeros(*pairs.neighbors.shape, 3), types, 3.5)


def test_a_skin_and_float32_leave_the_same_edges(device):
    positions, cell, types = (x.to(device) for x in crystal(6))
    want = ops.neighbor_graph(positions, cell, True, types, 4.0)
    pairs = ops.neighbor_list(positions, cell, True, types, 5.0)
    batch = torch.zeros_like(types)
    d = ops.displacements(positions, cell[None], batch, pairs.neighbors, pairs.images, torch.float32)
    got = NeighborGraph.of_list(pairs, d, types, 4.0)
    assert torch.equal(got.j, want.j) and torch.equal(got.images, want.images)
    assert torch.equal(got.within[:, 0], (got.offsets[1:] - got.offsets[:-1]))


def test_a_distance_that_is_not_a_number_is_an_edge(device):
    positions, cell, types = (x.to(device) for x in crystal(7))
    pairs = ops.neighbor_list(positions, cell, True, types.clamp(min=0), 4.0)
    batch = torch.zeros_like(types)
    d = ops.displacements(positions, cell[None], batch, pairs.neighbors, pairs.images)
    d[3, 1] = torch.nan
    graph = NeighborGraph.of_list(pairs, d, types.clamp(min=0), 4.0, edge_sel=2)
    assert int(graph.slots[graph.offsets[3]]) == 3 * d.shape[1] + 1


def test_the_nodes_may_be_more_than_the_rows(device):
    """As of an atom's copies in other processes, which are neighbours and have no rows."""
    positions, cell, types = (x.to(device) for x in crystal(8))
    whole = ops.neighbor_list(positions, cell, True, types, 4.0)
    batch = torch.zeros_like(types)
    d = ops.displacements(positions, cell[None], batch, whole.neighbors, whole.images)
    rows = whole._replace(neighbors=whole.neighbors[:9], images=whole.images[:9], counts=whole.counts[:9])
    part = NeighborGraph.of_list(rows, d[:9], types[:9], 4.0, nodes=20)
    full = NeighborGraph.of_list(whole, d, types, 4.0)
    edges = part.capacity
    assert torch.equal(part.j, full.j[:edges]) and len(part.of_neighbor.offsets) == 21
    want = torch.where(full.reverse < edges, full.reverse, -1)[:edges]
    assert torch.equal(part.reverse, want.int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 4, 33, 128])
def test_sums_go_in_order(dtype, width, device):
    """In that of the edges on a CPU; on a GPU, where several warps share a node, in another that is always the same."""
    gen = torch.Generator().manual_seed(width)
    index = torch.randint(-1, 50, (700,), generator=gen).int()
    y = torch.randn(700, width, generator=gen, dtype=torch.float64).to(dtype)
    want = torch.zeros(60, width, dtype=dtype)
    for e, m in enumerate(index.tolist()):
        if m >= 0:
            want[m] += y[e]
    of = EdgeIndex.of(index.to(device), 60)
    got = ops.edge_scatter(y.to(device), of)
    assert torch.equal(got, ops.edge_scatter(y.to(device), of))

    def close(found, wanted):
        difference = (found.cpu() - wanted).abs().max()
        assert difference <= (0 if device == "cpu" else 20 * torch.finfo(dtype).eps * wanted.abs().max())

    close(got, want)
    base, more, row = (
        torch.randn(rows, width, generator=gen, dtype=torch.float64).to(dtype) for rows in (60, 60, 1)
    )
    for added in (more, row):
        sums = base + added
        for e, m in enumerate(index.tolist()):
            if m >= 0:
                sums[m] += y[e]
        close(ops.edge_scatter(y.to(device), of, base.to(device), added.to(device)), sums)
    gathered = ops.edge_gather(got, of).cpu()
    assert torch.equal(gathered, torch.where(index[:, None] < 0, 0, got.cpu()[index.long()]))
    narrow = (width + 1) // 2
    first = y[:, :narrow].contiguous().to(device)
    added = ops.edge_gather(got, of, first, narrow).cpu()
    assert torch.equal(added, first.cpu() + gathered[:, :narrow])
    ends = base.to(device), more.to(device)
    wider, every = ops.edge_scatter(first, of, *ends, width), ops.edge_scatter(y.to(device), of, *ends)
    close(wider[:, :narrow], every.cpu()[:, :narrow])
    assert torch.equal(wider.cpu()[:, narrow:], (base + more)[:, narrow:])


def test_order_of_edges(device):
    index = torch.tensor([3, 0, -1, 3, 1, 0], dtype=torch.int32, device=device)
    order, offsets = OPS.edge_order(index, 5)
    assert order.tolist() == [1, 5, 4, 0, 3, -1] and offsets.tolist() == [0, 2, 3, 3, 5, 5]
    order, offsets = OPS.edge_order(index[:0], 3)
    assert order.tolist() == [] and offsets.tolist() == [0] * 4
    order, offsets = OPS.edge_order(index[2:3], 0)
    assert order.tolist() == [-1] and offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("order", "offsets"),
    [
        ([1, 0, 2], [0, 2, 3]),  # falls
        ([0, 0, 2], [0, 2, 3]),  # twice
        ([0, 2, 1], [0, 2, 3]),  # of the other node
        ([0, 1, 3], [0, 2, 3]),
        ([0, 1, -1], [0, 2, 3]),
        ([0, 1, 2], [0, 1, 3]),
        ([0, 1, 2], [0, 2, 2]),  # leaves one out
    ],
)
def test_an_order_of_other_rows_is_refused(order, offsets):
    index = torch.tensor([0, 0, 1], dtype=torch.int32)
    of = EdgeIndex(index, torch.tensor(order).int(), torch.tensor(offsets).int())
    for op, rows in ((ops.edge_gather, 2), (ops.edge_scatter, 3)):
        with pytest.raises(RuntimeError, match=r"mdops::edge_.*(order|index)"):
            op(torch.zeros(rows, 4), of)


@pytest.mark.gpu
def test_a_gpu_answers_an_order_of_other_rows_with_nan():
    index = torch.tensor([0, 0, 1], dtype=torch.int32, device="cuda")
    for order in ([0, 2, 1], [0, 1, 3], [0, 1, -1]):
        of = EdgeIndex(index, torch.tensor(order).int().cuda(), torch.tensor([0, 2, 3]).int().cuda())
        assert ops.edge_scatter(torch.zeros(3, 4, device="cuda"), of).isnan().any()
    back = torch.tensor([1, 0], dtype=torch.int32, device="cuda")
    assert ops.edge_permute(torch.zeros(2, 4, device="cuda"), back, back.flip(0)).isnan().all()


@pytest.mark.parametrize("more", [None, 5])
def test_edges_that_make_angles_have_rows_of_their_own(more, device):
    positions, cell, types = (x.to(device) for x in crystal(5))
    graph = ops.neighbor_graph(positions, cell, True, types, 4.5, angle_cutoff=3.0)
    count = int(graph.angle_neighbors.sum())
    found = graph.angle_edges(None if more is None else count + more)
    edges, angles = found.of_edge.nodes[:count].long(), graph.angles
    assert (found.of_edge.nodes[count:] == -1).all() and len(found.of_edge.nodes) == count + (more or 0)
    assert 0 < count < graph.capacity
    for name in ("first", "second"):
        assert torch.equal(edges[getattr(found.angles, name).long()], getattr(angles, name).long())
    assert torch.equal(found.of_center.nodes[:count], graph.i[edges])
    x = torch.randn(graph.capacity, 3, device=device, dtype=torch.float64)
    rows = ops.edge_gather(x, found.of_edge)
    assert torch.equal(rows[:count], x[edges]) and not rows[count:].any()
    back = ops.edge_scatter(rows, found.of_edge)
    assert torch.equal(back[edges], x[edges]) and (back != 0).all(1).sum() == count
    sums = ops.edge_scatter(rows, found.of_center)
    torch.testing.assert_close(sums, ops.edge_scatter(back, graph.of_center))


def test_softmax_is_that_of_each_segment(device):
    gen = torch.Generator().manual_seed(9)
    x = torch.randn(70, 3, generator=gen, dtype=torch.float64) * 20
    offsets = torch.tensor([0, 1, 1, 40, 64], dtype=torch.int32)
    got = ops.segment_softmax(x.to(device), offsets.to(device)).cpu()
    ends = offsets.tolist()
    want = torch.cat([x[a:b].softmax(0) for a, b in itertools.pairwise(ends)] + [torch.zeros(6, 3).double()])
    torch.testing.assert_close(got, want)
    large = torch.tensor([[1e4], [1e4 - 1], [-torch.inf]], device=device)
    one = ops.segment_softmax(large, torch.tensor([0, 3], dtype=torch.int32, device=device))
    torch.testing.assert_close(one, large.softmax(0))


def test_nothing_at_all(device):
    none = torch.zeros(0, dtype=torch.int32, device=device)
    graph = ops.neighbor_graph(
        torch.zeros(0, 3, dtype=torch.float64, device=device), None, None, none, 3.0, angle_cutoff=2.0
    )
    assert graph.capacity == 0 and graph.offsets.tolist() == [0] and graph.needed.tolist() == [0, -1]
    assert graph.angles.offsets.tolist() == [0] and graph.reverse.tolist() == []
    x = torch.zeros(0, 4, device=device, requires_grad=True)
    y = ops.edge_gather(x, graph.of_neighbor)
    assert ops.edge_scatter(y, graph.of_center).shape == (0, 4)
    assert torch.autograd.grad(y.sum(), x)[0].shape == (0, 4)
    assert ops.segment_softmax(y, graph.offsets).shape == (0, 4)
    three = EdgeIndex.of(torch.full((2,), -1, dtype=torch.int32, device=device), 3)
    assert ops.edge_scatter(torch.ones(2, 0, device=device), three).shape == (3, 0)
    assert not ops.edge_scatter(torch.ones(2, 5, device=device), three).any()


def message_passing(positions, cell, types, w, edges=256, angles=2048):
    """An energy of two layers with angles and attention, from positions, in fixed shapes."""
    graph = static(positions, cell, types, edges, angles, capacity=40)
    batch = torch.zeros_like(types)
    d = ops.displacements(positions, cell[None], batch, graph.pairs.neighbors, graph.pairs.images)
    vectors = graph.vectors(d)
    present = (graph.i >= 0)[:, None]
    r = torch.where(present, vectors, 1.0).norm(dim=1, keepdim=True)
    e = torch.where(present, (1 / r) * (1 - r / 4.5) ** 3, 0.0) * w
    n = ops.edge_scatter(e, graph.of_center)
    u = torch.where(present, vectors / r, 0.0)
    a = (ops.edge_gather(u, graph.angles.of_first) * ops.edge_gather(u, graph.angles.of_second)).sum(1, True)
    e = e + e * ops.edge_scatter(a * w, graph.angles.of_first)
    weights = ops.segment_softmax(e, graph.offsets)
    n = n + ops.edge_scatter(weights * ops.edge_gather(n.tanh(), graph.of_neighbor), graph.of_center)
    return n.square().sum()


def test_a_layer_is_differentiable_twice_and_compiles_whole(device):
    positions, cell, types = (x.to(device) for x in crystal(10, atoms=6, length=5.0))
    types = types.clamp(min=0)
    w = torch.rand(3, dtype=torch.float64, device=device).requires_grad_()
    positions = positions.requires_grad_()

    def forces(x, w):
        (grad,) = torch.autograd.grad(message_passing(x, cell, types, w), x, create_graph=True)
        return grad

    static(positions, cell, types, 256, 2048, capacity=40).check()
    assert torch.autograd.gradcheck(lambda x: message_passing(x, cell, types, w), positions)
    assert torch.autograd.gradcheck(forces, (positions, w))
    torch._dynamo.reset()
    whole = torch.compile(message_passing, fullgraph=True, backend="aot_eager")
    (got,) = torch.autograd.grad(whole(positions, cell, types, w), positions)
    torch.testing.assert_close(got, forces(positions, w))


@pytest.mark.gpu
def test_a_large_graph_on_a_gpu_is_that_of_the_cpu():
    """Every integer, also of neighbours that are as near: a lattice."""
    side = torch.arange(12, dtype=torch.float64) * 2.0
    positions = torch.cartesian_prod(side, side, side)
    cell, types = 24.0 * torch.eye(3, dtype=torch.float64), (torch.arange(1728) % 3).int()
    mask = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    made = []
    for device in ("cpu", "cuda"):
        given = positions.to(device), cell.to(device), True, types.to(device), 6.1
        graph = ops.neighbor_graph(
            *given, angle_cutoff=4.1, edge_sel=70, angle_sel=20, pair_mask=mask.to(device)
        )
        made.append(graph)
    cpu, gpu = made
    for name in ("i", "j", "images", "offsets", "angle_neighbors", "within", "needed", "reverse"):
        assert torch.equal(getattr(gpu, name).cpu(), getattr(cpu, name)), name
    for a, b in zip((*gpu.angles, *gpu.of_neighbor), (*cpu.angles, *cpu.of_neighbor), strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.gpu
def test_whole_steps_in_a_cuda_graph():
    """List, graph, energy and forces, replayed with other positions."""
    positions, cell, types = (x.cuda() for x in crystal(10, atoms=6, length=5.0))
    types, w = types.clamp(min=0), torch.rand(3, dtype=torch.float64, device="cuda")
    held = positions.clone().requires_grad_()

    def step():
        return torch.autograd.grad(message_passing(held, cell, types, w), held)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        got = step()
    for move in (0.0, 0.1):
        with torch.no_grad():
            held.copy_(positions + move * torch.sin(positions))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, step())
