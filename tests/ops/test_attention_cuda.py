"""Attention by tensor cores: every dtype and accuracy of products, tiles of every kind, numbers of any size."""

import itertools
from functools import partial

import pytest
import torch
from op_cases import captured
from test_attention import OPTIONS, Case, check_nan, results

from mdops.ops import ragged_plan

pytestmark = pytest.mark.gpu

OPS = torch.ops.mdops

RAGGED = (1, 16, 17, 0, 64, 65, 130, 200)
# Of the norm of each result.
TOLERANCE = {
    (torch.float32, "float32"): 6e-6,
    (torch.float32, "bf16x3"): 6e-6,
    (torch.float32, "tf32"): 8e-3,
    (torch.float32, "bf16"): 8e-3,
    (torch.bfloat16, "float32"): 5e-2,
    (torch.float16, "float32"): 8e-3,
    (torch.float64, "float32"): 1e-13,
}


def first_results(case, function):
    """out, logsumexp and the gradients along a random gradient."""
    generator = torch.Generator().manual_seed(1)
    out, logsumexp = function()
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device, out.dtype)
    return [out, logsumexp, *torch.autograd.grad(out, case.leaves, grad)]


def assert_near(got, want, tolerance):
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= tolerance * b.norm(), k


@pytest.mark.parametrize(("dtype", "matmul"), TOLERANCE, ids=str)
@pytest.mark.parametrize(("width", "values"), [(8, 32), (64, 64), (100, 75), (128, 128)])
@pytest.mark.parametrize("name", ["bare", "bias", "gate, switch and absent", "all"])
def test_accuracy_of_products(name, width, values, dtype, matmul):
    case = Case(RAGGED, 2, width, values, dtype=dtype, device="cuda", **OPTIONS[name])
    double = case.as_double()
    got = first_results(case, lambda: case.op(matmul))
    assert_near(got, first_results(double, double.reference), TOLERANCE[dtype, matmul])


@pytest.mark.parametrize("shared", ["49152", "101376", ""])
@pytest.mark.parametrize("lengths", [(700, 3), (40, 41) * 100], ids=["few", "many"])
@pytest.mark.parametrize("name", ["bare", "all"])
def test_every_kind_of_tile(name, lengths, shared, monkeypatch):
    """Few long sequences and many short ones; chips with little shared memory."""
    monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", shared)
    case = Case(lengths, 1, 64, 64, dtype=torch.float32, device="cuda", **OPTIONS[name])
    double = case.as_double()
    got = first_results(case, case.op)
    assert_near(got, first_results(double, double.reference), 6e-6)


@pytest.mark.parametrize("shared", ["101376", "166912", ""], ids=["99 KiB", "163 KiB", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bare", "gate of three", "gate, switch and absent"])
def test_wide_heads_on_every_chip(name, dtype, shared, monkeypatch):
    """By products of warpgroups where Hopper has the shared memory for them, else of warps."""
    monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", shared)
    case = Case(
        (1, 90, 0, 128, 300, 33) + (16,) * 140, 1, 128, 120, dtype=dtype, device="cuda", **OPTIONS[name]
    )
    double = case.as_double()
    got = first_results(case, case.op)
    assert_near(got, first_results(double, double.reference), TOLERANCE[dtype, "float32"])


@pytest.mark.parametrize("place", [0, 1], ids=["by 16 bytes", "by 2 bytes"])
@pytest.mark.parametrize("scale", [0.2, -0.2, 0.0])
@pytest.mark.parametrize(("width", "values"), [(40, 72), (64, 64), (128, 104), (36, 100)])
def test_bfloat16_of_any_width_scale_and_place(width, values, scale, place):
    """By warpgroups where rows are of whole pieces and the scale is above 0, else by warps."""
    case = Case(RAGGED, 3, width, values, dtype=torch.bfloat16, device="cuda", absent=place == 1)
    case.scale = scale

    def moved(x):
        room = x.new_empty(x.numel() + place)
        return room[place:].view(x.shape).copy_(x).detach().requires_grad_()

    case.q, case.k, case.v = case.leaves = [moved(x.detach()) for x in case.leaves]
    double = case.as_double()
    got = first_results(case, case.op)
    want = first_results(double, double.reference)
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b).norm() <= 5e-2 * b.norm() + 1e-6 * len(b)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("power", [-15, -7, 0, 12, 15])
def test_numbers_of_any_size(power, width):
    """What float16 cannot hold; the scale makes up for it in the logits."""
    size = 10.0**power
    case = Case((90, 33), 1, width, width, dtype=torch.float32, device="cuda", gates=3)
    with torch.no_grad():
        case.q *= size
        case.k *= 1e-3 * size
        case.v *= size
    case.scale /= 1e-3 * size * size
    double = case.as_double()
    for a, b in zip(first_results(case, case.op), first_results(double, double.reference), strict=True):
        assert (a.double() - b).abs().max() <= 2e-5 * b.abs().max()


def test_sequences_longer_than_said_give_nan():
    case = Case((5, 3), device="cuda", gates=3)
    items = ragged_plan(case.offsets, max_total=8, max_batch=2, max_length=5).items
    rest = (case.offsets, items, None, case.gate.detach(), None, None, 1.0, 0.0)
    q, k, v = (x.detach() for x in (case.q, case.k, case.v))
    saved = OPS.ragged_attention(q, k, v, *rest, 4, "float32")
    assert all(x.isnan().all() for x in saved)
    grads = OPS.ragged_attention_backward(v, q, k, v, *saved, *rest, 4, "float32")
    assert all(grads[n].isnan().all() for n in (0, 1, 2, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_spoils_its_row_of_queries_alone(value, dtype):
    case = Case((50, 30), 1, 64, 64, dtype=dtype, device="cuda")
    before = case.op()[0].detach()
    with torch.no_grad():
        case.q[3, 0, 5] = value
    after = case.op()[0].detach()
    assert after[3].isnan().all()
    rest = torch.arange(80, device="cuda") != 3
    torch.testing.assert_close(after[rest], before[rest], rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nan_stays_in_its_sequence(dtype):
    for name in ("bare", "all"):
        case = Case((50, 30), 1, 64, 64, dtype=dtype, device="cuda", **OPTIONS[name])
        check_nan(case, 50, partial(first_results, case, case.op))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_with_all_keys_masked_are_zero(dtype):
    case = Case((40, 3), 1, 64, 64, dtype=dtype, device="cuda", bias=True, switch=True)
    with torch.no_grad():
        case.switch.clamp_(min=0.1)
        case.bias[0, 40:80] = -torch.inf  # row 1 of the first sequence
    out, logsumexp, *grads = first_results(case, case.op)
    assert not out[1].any() and logsumexp[1, 0] == -torch.inf
    assert all(g.isfinite().all() for g in grads) and not grads[0][1].any()


# Of sequences in a CUDA graph, one after another; what it has room for.
LENGTHS = (100, 150, 50), (1, 0, 149), (0, 0, 0), (33, 64, 80)
ROOM = {"max_total": 300, "max_batch": 3, "max_length": 150}


def assert_replays(run, offsets):
    """A graph of run(offsets, items) gives the same bits as a call for all lengths; `offsets` are overwritten."""
    plan = ragged_plan(offsets, **ROOM)
    graph, got = captured(run, offsets, plan.items)
    for lengths in LENGTHS:
        now = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
        offsets.copy_(now)
        plan.copy_(ragged_plan(now, **ROOM))
        graph.replay()
        want = run(now, ragged_plan(now, **ROOM).items)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["bare", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cuda_graph_of_both_passes_replays_while_lengths_change(dtype, name):
    case = Case(LENGTHS[0], 2, 64, 64, dtype=dtype, device="cuda", **OPTIONS[name])
    tensors = [None if x is None else x.detach() for x in (case.bias, case.gate, case.switch, case.absent)]
    q, k, v = (x.detach() for x in (case.q, case.k, case.v))
    grad = torch.randn_like(v)

    def run(offsets, items):
        rest = (offsets, items, *tensors, case.scale, case.shift, ROOM["max_length"], "float32")
        saved = OPS.ragged_attention(q, k, v, *rest)
        return [*saved, *OPS.ragged_attention_backward(grad, q, k, v, *saved, *rest)]

    assert_replays(run, case.offsets)


def test_second_derivatives_in_16_bits_and_wide():
    """Those have no tensor cores: any width, sums in float32."""
    case = Case((20, 3), 1, 200, 130, dtype=torch.bfloat16, device="cuda", **OPTIONS["all"])
    double = case.as_double()
    assert_near(results(case, case.op), results(double, double.reference), 5e-2)


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("name", ["bare", "gate of three", "gate, switch and absent", "all"])
@pytest.mark.parametrize(
    "lengths",
    [(200, 90, 0, 3), (512, 64), (520, 65), (70, 130, 1) * 200],
    ids=["tiles", "eight", "nine", "many"],
)
def test_second_derivatives_over_tiles_of_keys(lengths, name, width):
    """With a block for each tile, and where sequences are many or long with one for all. Switches multiply
    logits, here to some tens, whose rounding second derivatives have many times over, on a CPU in float32, too."""
    case = Case(lengths, 1, width, width, dtype=torch.float32, device="cuda", **OPTIONS[name])
    got = results(case, case.op)
    double = case.as_double()
    assert_near(got, results(double, double.reference), 6e-6 if case.switch is None else 3e-4)
    assert all(torch.equal(a, b) for a, b in zip(got, results(case, case.op), strict=True))


def test_second_derivatives_replay_in_a_cuda_graph_while_lengths_change():
    case = Case(
        LENGTHS[0], 1, 128, 128, dtype=torch.float32, device="cuda", **OPTIONS["gate, switch and absent"]
    )
    tensors = [None if x is None else x.detach() for x in (case.bias, case.gate, case.switch, case.absent)]
    q, k, v = (x.detach() for x in (case.q, case.k, case.v))
    along = [None if x is None else torch.randn_like(x) for x in (q, k, v, *tensors[:3])]
    grad = torch.randn_like(v)

    def run(offsets, items):
        rest = (offsets, items, *tensors, case.scale, case.shift, ROOM["max_length"], "float32")
        saved = OPS.ragged_attention(q, k, v, *rest)
        return OPS.ragged_attention_backward_backward(*along, grad, q, k, v, *saved, *rest)

    assert_replays(run, case.offsets)
