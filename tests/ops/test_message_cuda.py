"""Messages on a GPU, at the widths that tensor cores take and at others, beside the CPU's in float64."""

import pytest
import torch
from test_message import derivatives, framed_and_other_ops, graph_of, inputs, numbers_and_rows

from mdops import ops
from mdops.ops import EdgeIndex

pytestmark = pytest.mark.gpu

LIMITS = {torch.float32: 3e-6, torch.float64: 1e-12}
# By tensor cores in float32 but for the last ones: with several firsts a block and several warps a first, with weights
# in several runs, with nothing kept and with nothing sent.
SIZES = {
    "edges": [(64, 128, 64), (128, 256, 128), (32, 16, 0), (20, 33, 20)],
    "angles": [(32, 64, 32), (32, 0, 32), (64, 64, 0), (64, 128, 64), (7, 20, 7)],
}
CASES = [(along, sizes) for along, every in SIZES.items() for sizes in every]


def moved(value, dtype, device="cuda"):
    if isinstance(value, EdgeIndex):
        return EdgeIndex(*(moved(part, dtype, device) for part in value))
    if value is None or not value.is_floating_point():
        return value if value is None else value.to(device)
    return value.detach().to(device, dtype).requires_grad_()


def run(tensors, indices, activation, matmul="float32"):
    leaves = [x for x in tensors if x is not None]
    first, second, groups = indices
    found = derivatives(ops.message(*tensors, first, second, activation, groups, matmul), leaves)
    return [x.detach() for x in found]


def agree(along, sizes, dtype, atoms, activation, reference, **graph):
    tensors, indices = inputs(graph_of(atoms, **graph), along, *sizes, torch.float64)
    want = run(
        *([moved(x, torch.float64, reference) for x in part] for part in (tensors, indices)), activation
    )
    given = [moved(x, dtype) for x in tensors], [moved(x, dtype) for x in indices]
    got, again = run(*given, activation), run(*given, activation)
    for k, (a, b, c) in enumerate(zip(got, again, want, strict=True)):
        assert torch.equal(a, b), k
        scale = max(1.0, float(c.abs().max())) if c.numel() else 1.0
        error = float((a.to(c) - c).abs().max()) / scale if c.numel() else 0.0
        assert error < LIMITS[dtype], k


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("along", "sizes"), CASES)
def test_a_gpu_finds_what_the_cpu_finds(along, sizes, dtype):
    agree(along, sizes, dtype, 40, "silut:1.0", "cpu")


@pytest.mark.parametrize(("along", "sizes"), [("edges", (64, 128, 64)), ("angles", (32, 64, 32))])
def test_many_rows(along, sizes):
    agree(along, sizes, torch.float32, 2500, "silu", "cuda")


def test_many_angles_of_an_atom():
    # 16 edges and a few more, which kernels take a few at a time.
    agree("angles", (32, 64, 32), torch.float32, 2500, "silu", "cuda", angle_cutoff=3.9)


@pytest.mark.parametrize(("along", "sizes"), [("edges", (64, 128, 64)), ("angles", (32, 64, 32))])
def test_one_product_in_the_place_of_three(along, sizes):
    tensors, indices = inputs(graph_of(40), along, *sizes, torch.float64)
    want = run(*([moved(x, torch.float64) for x in part] for part in (tensors, indices)), "silu")
    given = [moved(x, torch.float32) for x in tensors], [moved(x, torch.float32) for x in indices]
    exact, coarse = (run(*given, "silu", matmul) for matmul in ("float32", "tf32"))
    for a, b, c in zip(exact, coarse, want, strict=True):
        near, off = (float((found.to(c) - c).abs().max() / c.abs().max()) for found in (a, b))
        assert near < LIMITS[torch.float32] and off < 5e-3
    sent, of_one = exact[0], coarse[0]
    assert (sent - of_one).abs().max() > 3e-5 * sent.abs().max()


@pytest.mark.parametrize("sizes", [(64, 128, 64), (20, 33, 20)])
def test_a_graph_has_it(sizes):
    tensors, indices = inputs(graph_of(40), "edges", *sizes, torch.float32)
    given = [moved(x, torch.float32) for x in tensors], [moved(x, torch.float32) for x in indices]
    want, stream, graph = run(*given, "silu"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        got = run(*given, "silu")
    for value in got:
        value.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("sizes", [(32, 64, 32), (7, 20, 7)])
def test_wrong_indices_are_seen_and_read_nothing(sizes):
    tensors, indices = inputs(graph_of(), "angles", *sizes, torch.float32)
    x, *others = (moved(value, torch.float32) for value in tensors)
    first, second, groups = (moved(value, torch.float32) for value in indices)
    for place, value in ((0, 10**9), (0, -7), (3, 10**9)):
        wrong = [first.nodes, second.nodes, second.order, first.offsets]
        wrong[place] = wrong[place].clone()
        wrong[place][1] = value
        ends = EdgeIndex(wrong[0], None, wrong[3]), EdgeIndex(wrong[1], *second[1:])
        sent, kept = ops.message(x, *others, *ends, "silu", groups)
        torch.cuda.synchronize()
        assert sent.isnan().any() or kept.isnan().any()
        (sent.nansum() + kept.nansum()).backward()
        torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("firsts", "seconds"), [(3, 2), (1, 0)])
def test_no_rows_send_nothing(firsts, seconds, dtype):
    def index(count):
        none = torch.zeros(0, dtype=torch.int32, device="cuda")
        return EdgeIndex(none, none, torch.zeros(count + 1, dtype=torch.int32, device="cuda"))

    def numbers(*shape):
        return torch.rand(shape, device="cuda", dtype=dtype, requires_grad=True)

    tensors = (
        numbers(0, 20),
        numbers(20, 53),
        numbers(firsts, 53),
        numbers(seconds, 53),
        numbers(0),
        numbers(20),
    )
    first, second = index(firsts), index(seconds)
    found = run(tensors, (first._replace(order=None), second, None), "silu")
    assert all(not value.any() for value in found)


# By tensor cores, with several warps a first, with weights in several runs and nothing kept; and by other kernels.
FRAMED = [
    ((64, 128, 64), 32),
    ((64, 128, 0), 64),
    ((128, 256, 128), 128),
    ((32, 16, 32), 4),
    ((20, 33, 20), 7),
]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("sizes", "width"), FRAMED)
def test_frames_go_with_messages(sizes, width, dtype):
    want = framed_and_other_ops(sizes, width, torch.float64, "silut:1.0")[1]
    got, again = (framed_and_other_ops(sizes, width, dtype, "silut:1.0", "cuda")[0] for _ in range(2))
    for k, (a, b, c) in enumerate(zip(got, again, want, strict=True)):
        assert torch.equal(a, b), k
        scale = max(1.0, float(c.abs().max()))
        assert float((a.cpu().to(c) - c).abs().max()) / scale < LIMITS[dtype], k


# With kernels for numbers, also with nothing kept or sent; and for rows.
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("activation", ["silut:1.0", "silu"])
@pytest.mark.parametrize("sizes", [(32, 64, 32), (32, 64, 0), (32, 0, 32), (64, 128, 64), (7, 20, 7)])
def test_rows_may_be_a_number_times_a_vector(sizes, activation, dtype):
    want = numbers_and_rows(sizes, torch.float64, activation)[1]
    got, again = (numbers_and_rows(sizes, dtype, activation, device="cuda")[0] for _ in range(2))
    for k, (a, b, c) in enumerate(zip(got, again, want, strict=True)):
        assert torch.equal(a, b), k
        scale = max(1.0, float(c.abs().max()))
        assert float((a.cpu().to(c) - c).abs().max()) / scale < LIMITS[dtype], k


def test_wrong_groups_of_numbers_are_seen():
    (x, weight, *others), (first, second, groups) = inputs(graph_of(), "angles", 32, 64, 32, torch.float32)
    weight, *others = (moved(value, torch.float32) for value in (weight, *others))
    number, vector = moved(x[:, :1], torch.float32), moved(torch.ones(1, 32), torch.float32)
    first, second, groups = (moved(value, torch.float32) for value in (first, second, groups))
    for place, value in ((0, 10**9), (0, -7), (3, 10**9)):
        wrong = [first.nodes, second.nodes, second.order, first.offsets]
        wrong[place] = wrong[place].clone()
        wrong[place][1] = value
        ends = EdgeIndex(wrong[0], None, wrong[3]), EdgeIndex(wrong[1], *second[1:])
        sent, kept = ops.outer_message(number, vector, weight, *others, *ends, "silu", groups)
        torch.cuda.synchronize()
        assert sent.isnan().any() or kept.isnan().any()
        (sent.nansum() + kept.nansum()).backward()
        torch.cuda.synchronize()
