"""Messages along edges and angles, beside the ops that they could be made of."""

import itertools
import math

import pytest
import torch
from test_graph import crystal

from mdops import ops
from mdops.ops import EdgeIndex
from mdops.ops.activation import kernel_code
from mdops.ops.message import _by_other_ops

DTYPES = {torch.float64: 1e-13, torch.float32: 2e-6}


def graph_of(atoms: int = 40, angle_cutoff: float = 2.6):
    positions, cell, types = crystal(3, atoms=atoms, length=7.0 * (atoms / 40) ** (1 / 3))
    angles = max(250, round(45 * (angle_cutoff / 2.6) ** 6))
    room = {"capacity": 90, "edge_capacity": 80 * atoms, "angle_capacity": angles * atoms, "ntypes": 2}
    graph = ops.neighbor_graph(positions, cell, True, types, 4.0, angle_cutoff=angle_cutoff, **room)
    graph.check()
    assert (graph.i < 0).any() and (graph.angles.first < 0).any() and graph.angles.needed[0] > 100
    return graph


def sides(graph, along: str):
    """First, second, groups."""
    if along == "edges":
        return graph.of_center, graph.of_neighbor, None
    return graph.angles.of_first, graph.angles.of_second, graph.offsets if along == "angles" else None


def inputs(graph, along, inputs, sent, kept, dtype):
    first, second, groups = sides(graph, along)
    gen = torch.Generator().manual_seed(4)

    def random(*shape):
        value = torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)
        return value.requires_grad_()

    rows, (firsts, seconds) = first.nodes.shape[0], (len(of.offsets) - 1 for of in (first, second))
    columns = sent + kept
    tensors = (
        random(rows, inputs),
        (random(inputs, columns).detach() / math.sqrt(inputs)).requires_grad_(),
        random(firsts, columns),
        random(seconds, columns),
        random(rows),
        random(kept) if kept else None,
    )
    return tensors, (first, second, groups)


def by_other_ops(tensors, indices, activation):
    *given, scale = tensors
    first, second, groups = indices
    c = given[0].new_empty(0) if scale is None else scale
    every = first.nodes, first.offsets, *second, groups
    return _by_other_ops(*given, c, *every, *kernel_code(activation))


def derivatives(made, leaves):
    """Of a sum of what is made, first and second ones, as in the training of forces."""
    values = [y for y in made if y is not None and y.numel()]
    loss = sum(
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)).sum()
        for y in values
    )
    forces = torch.autograd.grad(
        loss, [leaves[0], *leaves[2:5]], create_graph=True, allow_unused=True, materialize_grads=True
    )
    every = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    again = torch.autograd.grad(sum(f.square().sum() for f in forces), leaves, **every)
    return [*values, *torch.autograd.grad(loss, leaves, **every), *forces, *again]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("along", "sizes", "activation"),
    [
        ("edges", (20, 33, 20), "silut:1.0"),
        ("edges", (16, 16, 0), "silu"),
        ("angles", (8, 64, 8), "silut:10"),
        ("angles", (32, 0, 32), "tanh"),
        ("angles", (1, 5, 0), "linear"),
        ("ungrouped", (7, 20, 7), "gelu"),
    ],
)
def test_values_and_derivatives_are_those_of_other_ops(along, sizes, activation, dtype):
    tensors, indices = inputs(graph_of(), along, *sizes, dtype)
    leaves = [x for x in tensors if x is not None]
    got = derivatives(ops.message(*tensors, *indices[:2], activation, indices[2]), leaves)
    want = derivatives(by_other_ops(tensors, indices, activation), leaves)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a - b).abs().max() <= DTYPES[dtype] * b.abs().max(), k


def test_the_number_of_threads_changes_no_bit():
    tensors, indices = inputs(graph_of(120), "angles", 8, 20, 8, torch.float32)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(derivatives(ops.message(*tensors, *indices[:2], "silu", indices[2]), tensors))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_pass_for_forces_spares_the_sums_by_weights():
    tensors, indices = inputs(graph_of(), "edges", 8, 4, 8, torch.float64)
    found = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "message_backward" in str(function):
                found.append(args[-1])
            return function(*args, **(kwargs or {}))

    sent, kept = ops.message(*tensors, *indices[:2], "tanh")
    with Record():
        torch.autograd.grad(kept.sum() + sent.sum(), tensors[0], retain_graph=True)
        torch.autograd.grad(kept.sum() + sent.sum(), tensors[1])
    assert found == [False, True]


def test_rows_of_none_keep_what_they_have():
    tensors, indices = inputs(graph_of(), "edges", 6, 4, 6, torch.float64)
    none = indices[0].nodes < 0
    _, kept = ops.message(*tensors, *indices[:2], "tanh")
    by_x, by_weight = torch.autograd.grad(kept.sum(), [tensors[0], tensors[4]])
    assert torch.equal(kept[none], tensors[0][none]) and not torch.equal(kept, tensors[0])
    assert (by_x[none] == 1).all() and (by_weight[none] == 0).all()


def test_nothing_at_all():
    none = torch.zeros(0, dtype=torch.int32)
    of = EdgeIndex(none, None, torch.zeros(1, dtype=torch.int32))
    empty, rows = torch.zeros(0, 5), EdgeIndex(none, None, torch.zeros(4, dtype=torch.int32))
    weight, row_weight, scale = torch.ones(3, 5), torch.zeros(0), torch.ones(3, requires_grad=True)
    for first in (of, rows):
        p = torch.ones(len(first.offsets) - 1, 5, requires_grad=True)
        sent, kept = ops.message(torch.zeros(0, 3), weight, p, p, row_weight, scale, first, first, "tanh")
        assert sent.shape == (len(p), 2) and kept.shape == (0, 3) and not sent.any()
        by_p, by_scale = torch.autograd.grad(sent.sum() + kept.sum(), [p, scale])
        assert not by_p.any() and not by_scale.any()
    sent, kept = ops.message(
        empty, torch.ones(5, 0), empty[:, :0], empty[:, :0], row_weight, None, of, of, "tanh"
    )
    assert sent.shape == (0, 0) and kept is None


def test_groups_are_of_all_pairs():
    graph = graph_of()
    tensors, (first, second, groups) = inputs(graph, "angles", 4, 4, 0, torch.float32)
    # Of two atoms with angles the first's last edge goes to the second.
    ends = groups.tolist()
    at = next(
        k for k, (a, b) in enumerate(itertools.pairwise(ends)) if b - a > 1 and graph.angle_neighbors[k] > 1
    )
    moved = groups.clone()
    moved[at + 1] = ends[at] + 1
    with pytest.raises(
        RuntimeError, match=r"first \d+ of argument `groups` has \d+ rows, and its group is of 1"
    ):
        ops.message(*tensors, first, second, "tanh", moved)
    nodes = second.nodes.clone()
    nodes[:2] = nodes[:2].flip(0)
    turned = EdgeIndex.of(nodes, len(second.offsets) - 1)
    with pytest.raises(
        RuntimeError, match=r"mdops::message: the second of row \d+ is -?\d+, expected \d+ of"
    ):
        ops.message(*tensors, first, turned, "tanh", groups)
    beyond = first._replace(nodes=second.nodes)
    with pytest.raises(RuntimeError, match=r"mdops::message: argument `first_offsets` has row"):
        ops.message(*tensors, beyond, second, "tanh", groups)


def leaves_on(device, dtype):
    """Takes what an op is given to a device: numbers in that dtype, as leaves of their own."""

    def on(value):
        if isinstance(value, EdgeIndex):
            return EdgeIndex(*(on(part) for part in value))
        if value is None or not value.is_floating_point():
            return value if value is None else value.to(device)
        return value.detach().to(device, dtype).requires_grad_()

    return on


def values_and_gradients(made, leaves):
    values = [y for y in made if y is not None and y.numel()]
    loss = sum(
        (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y)).sum()
        for y in values
    )
    return [*(y.detach() for y in values), *torch.autograd.grad(loss, leaves)]


def framed_and_other_ops(sizes, width, dtype, activation, device="cpu"):
    """What `framed_message` makes, and its gradients; and what the ops that do the same make."""
    (x, weight, p, q, row_weight, scale), (first, second, _) = inputs(
        graph_of(), "edges", *sizes, torch.float64
    )
    taken = torch.arange(0, len(x), 3, dtype=torch.int32).repeat_interleave(2)
    taken[-4:] = -1
    gen = torch.Generator().manual_seed(9)
    frame = torch.randn(len(x), 3, generator=gen, dtype=torch.float64)

    on = leaves_on(device, dtype)
    x, weight, p, q, row_weight, scale, frame = map(on, (x, weight, p, q, row_weight, scale, frame))
    first, second, taken = map(on, (first, second, EdgeIndex.of(taken, len(first.nodes))))
    taken = taken._replace(order=None)
    leaves = x, p, q, row_weight, frame
    found = []
    for framed in (True, False):
        if framed:
            given = frame, first, second, taken, width, activation
            made = ops.framed_message(x, weight, p, q, row_weight, scale, *given)
        else:
            made = (
                *ops.message(x, weight, p, q, row_weight, scale, first, second, activation),
                *(
                    ops.row_moments(frame, x, first.offsets),
                    ops.edge_gather(x, taken, width=width),
                ),
            )
        found.append(values_and_gradients(made, leaves))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "width"), [((20, 33, 20), 11), ((16, 16, 0), 16), ((32, 48, 32), 0)])
def test_frames_go_with_messages(sizes, width, dtype):
    for k, (a, b) in enumerate(zip(*framed_and_other_ops(sizes, width, dtype, "silut:1.0"), strict=True)):
        assert a.shape == b.shape
        assert not a.numel() or (a - b).abs().max() <= DTYPES[dtype] * max(1.0, float(b.abs().max())), k


def test_no_rows_are_taken():
    (x, weight, p, q, row_weight, scale), (first, second, _) = inputs(
        graph_of(), "edges", 6, 4, 6, torch.float64
    )
    frame = torch.ones(len(x), 3, dtype=torch.float64)
    given = x, weight, p, q, row_weight, scale, frame, first, second, None, 6, "tanh"
    _, kept, moments, rows = ops.framed_message(*given)
    assert rows.shape == (0, 6) and torch.equal(moments[:, 0], moments[:, 2])
    (by_x,) = torch.autograd.grad(kept.sum() + moments.sum(), x)
    assert torch.equal(by_x[first.nodes < 0], torch.ones_like(by_x[first.nodes < 0]))


def numbers_and_rows(sizes, dtype, activation, along="angles", device="cpu"):
    """What `outer_message` makes, and its gradients; and those of `message` of rows made of the numbers."""
    (x, *others), indices = inputs(graph_of(), along, *sizes, torch.float64)
    gen = torch.Generator().manual_seed(7)
    vector = torch.randn(1, sizes[0], generator=gen, dtype=torch.float64)

    on = leaves_on(device, dtype)
    number, vector, (weight, p, q, row_weight, scale) = on(x[:, :1]), on(vector), map(on, others)
    first, second, groups = map(on, indices)
    leaves, found = (number, p, q, row_weight), []
    for outer in (True, False):
        rows = (number, vector) if outer else (number * vector,)
        run = ops.outer_message if outer else ops.message
        made = run(*rows, weight, p, q, row_weight, scale, first, second, activation, groups)
        found.append(values_and_gradients(made, leaves))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("along", "sizes"),
    [
        ("angles", (32, 64, 32)),
        ("angles", (5, 7, 0)),
        ("angles", (4, 0, 4)),
        ("ungrouped", (7, 20, 7)),
    ],
)
def test_rows_may_be_a_number_times_a_vector(along, sizes, dtype):
    for k, (a, b) in enumerate(zip(*numbers_and_rows(sizes, dtype, "silut:1.0", along), strict=True)):
        assert a.shape == b.shape and (a - b).abs().max() <= DTYPES[dtype] * b.abs().max(), k
