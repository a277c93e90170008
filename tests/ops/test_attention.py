"""Attention on sequences of any lengths against PyTorch's own operations: values, gradients, and their gradients."""

import itertools

import pytest
import torch
from attention_reference import attention
from op_cases import captured

from mdops.ops import ragged_attention, ragged_plan
from mdops.ops.attention import plan_of

LENGTHS = (5, 0, 1, 17)
COMPILED = []


def counted(graph, inputs):
    """A compiler that keeps what it is given; PyTorch keeps its compilers, so this one must outlive a test."""
    COMPILED.append(graph)
    return graph.forward


class Case:
    """Random arguments of the op; `leaves` are those with gradients."""

    def __init__(
        self, lengths=LENGTHS, heads=1, width=16, values=16, gates=0, dtype=torch.float64, device="cpu", **has
    ):
        generator = torch.Generator().manual_seed(len(lengths) + width)

        def random(*shape):
            return (
                torch.randn(*shape, generator=generator, dtype=torch.float64)
                .to(device, dtype)
                .requires_grad_()
            )

        ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        rows = int(ends[-1])
        self.offsets = ends.to(device)
        self.q, self.k = random(rows, heads, width), random(rows, heads, width)
        self.v = random(rows, heads, values)
        self.bias = random(heads, sum(n * n for n in lengths)) if has.get("bias") else None
        self.gate = random(rows, gates) if gates else None
        self.switch = random(rows).abs().detach().requires_grad_() if has.get("switch") else None
        sums = torch.float64 if dtype == torch.float64 else torch.float32
        count = torch.randint(0, 30, (len(lengths),), generator=generator)
        self.absent = count.to(device, sums) if has.get("absent") else None
        self.scale, self.shift = width**-0.5, 3.0 if has.get("switch") else 0.0
        named = (self.q, self.k, self.v, self.bias, self.gate, self.switch)
        self.leaves = [x for x in named if x is not None]

    def op(self, matmul="float32"):
        plan = plan_of(self.offsets, len(self.q))
        optional = (self.bias, self.gate, self.switch, self.absent)
        return torch.ops.mdops.ragged_attention(
            self.q,
            self.k,
            self.v,
            self.offsets,
            plan.items,
            *optional,
            self.scale,
            self.shift,
            plan.max_length,
            matmul,
        )

    def reference(self):
        optional = (self.bias, self.gate, self.switch, self.absent)
        return attention(self.q, self.k, self.v, self.offsets, *optional, self.scale, self.shift)

    def as_double(self):
        other = object.__new__(Case)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                value = value.detach().double().requires_grad_(value.requires_grad)
            setattr(other, name, value)
        named = (other.q, other.k, other.v, other.bias, other.gate, other.switch)
        other.leaves = [x for x in named if x is not None]
        return other


def results(case, function, seed=0):
    """out, logsumexp, the gradients along a random gradient, and the gradients of these along random directions."""
    generator = torch.Generator().manual_seed(seed)

    def like(x):
        return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype)

    out, logsumexp = function()
    grad = like(out).requires_grad_()
    first = torch.autograd.grad(out, case.leaves, grad, create_graph=True)
    second = torch.autograd.grad(first, [grad, *case.leaves], [like(x) for x in case.leaves])
    return [out, logsumexp, *first, *second]


def assert_close(got, want, tolerance):
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape
        if b.numel():
            assert (a.double() - b.double()).abs().max() <= tolerance * max(1.0, b.abs().max().item()), k


OPTIONS = {
    "bare": {},
    "bias": {"bias": True},
    "gate": {"gates": 5},
    "gate of three": {"gates": 3},
    "switch": {"switch": True},
    "absent": {"absent": True},
    "gate, switch and absent": {"gates": 3, "switch": True, "absent": True},
    "all": {"bias": True, "gates": 8, "switch": True, "absent": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("heads", [1, 3])
def test_every_option(name, heads, device):
    case = Case(heads=heads, device=device, **OPTIONS[name])
    assert_close(results(case, case.op), results(case, case.reference), 1e-12)


@pytest.mark.parametrize(("width", "values"), [(1, 1), (7, 9), (16, 64), (64, 16), (128, 128), (256, 256)])
def test_every_width(width, values, device):
    case = Case(width=width, values=values, device=device, **OPTIONS["gate, switch and absent"])
    assert_close(results(case, case.op), results(case, case.reference), 1e-12)


@pytest.mark.parametrize("lengths", [(0, 1, 2), (63, 64, 65), (130,), (512, 3), (700,)], ids=str)
@pytest.mark.parametrize("name", ["bias", "gate, switch and absent"])
def test_every_length(lengths, name, device):
    case = Case(lengths, width=8, values=8, device=device, **OPTIONS[name])
    assert_close(results(case, case.op), results(case, case.reference), 1e-12)


def test_no_sequences(device):
    for case in (Case((), device=device, **OPTIONS["all"]), Case((0, 0), device=device, **OPTIONS["all"])):
        out, logsumexp = case.op()
        grads = torch.autograd.grad(out.sum(), case.leaves)
        assert out.shape == (0, 1, 16) and logsumexp.shape == (0, 1)
        assert [g.shape for g in grads] == [x.shape for x in case.leaves]


@pytest.mark.parametrize("name", ["bare", "all"])
def test_float32(name, device):
    case = Case((90, 30), width=128, values=128, dtype=torch.float32, device=device, **OPTIONS[name])
    double = case.as_double()
    assert_close(results(case, case.op), results(double, double.reference), 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bare", "all"])
def test_numbers_of_16_bits(name, dtype, device):
    """Softmax and sums are float32's: what is left is the rounding of inputs, of `out` and of results."""
    case = Case((90, 30), heads=2, width=64, values=32, dtype=dtype, device=device, **OPTIONS[name])
    double = case.as_double()
    got, want = results(case, case.op), results(double, double.reference)
    assert all(x.dtype == dtype for k, x in enumerate(got) if k != 1) and got[1].dtype == torch.float32
    # A GPU's backward pass makes G.o of the rounded `out`.
    assert_close(got, want, 4e-2 if dtype == torch.bfloat16 else 5e-3 if device == "cpu" else 1e-2)


def test_16_bits_are_rounded_to_the_nearest(device):
    """One key a sequence: out is v, through float32 and back."""
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
        v = every[every.isfinite()].reshape(-1, 1, 16).to(device)
        offsets = torch.arange(len(v) + 1, dtype=torch.int32, device=device)
        q = torch.zeros_like(v)
        assert torch.equal(ragged_attention(q, q, v, offsets), v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_of_16_bits_are_rounded_to_the_nearest(dtype):
    """The mean of two numbers that are 0 or halfway between numbers of 16 bits, or too large."""
    x = torch.cat(
        [torch.logspace(-9, 5, 4000), -torch.logspace(-9, 5, 4000), torch.tensor([65519.0, 65520.0])]
    )
    a = x.to(dtype)
    v = torch.stack([a, a.flip(0)], dim=1).reshape(-1, 1, 1).expand(-1, 1, 8).contiguous()
    offsets = torch.arange(0, len(v) + 1, 2, dtype=torch.int32)
    q = torch.zeros_like(v)
    want = ((a.float() + a.flip(0).float()) / 2).to(dtype)
    assert torch.equal(ragged_attention(q, q, v, offsets)[::2, 0, 0], want)


def test_rows_of_no_sequence_are_zero(device):
    case = Case((4, 3, 2), device=device, **OPTIONS["gate, switch and absent"])
    case.offsets = torch.tensor([2, 5, 7], dtype=torch.int32, device=device)
    case.absent = case.absent[:2]
    got = results(case, case.op)
    assert_close(got, results(case, case.reference), 1e-12)
    outside = [0, 1, 7, 8]
    for x in got:
        assert not x[outside].any()


def test_rows_with_all_keys_masked_are_zero(device):
    case = Case((5, 3), device=device, bias=True)
    with torch.no_grad():
        case.bias[0, 5:10] = -torch.inf  # row 1 of the first sequence
        case.bias[0, 10:13] = -torch.inf
    got = results(case, case.op)
    assert not got[0][1].any() and got[1][1, 0] == -torch.inf
    case.bias = torch.where(
        torch.arange(34, device=device) // 5 == 1, -1e30, case.bias.detach()
    ).requires_grad_()
    case.leaves[3] = case.bias
    want = results(case, case.reference)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert torch.isfinite(a).all() or k == 1
        if k in (0, 2, 7):  # by rows of queries
            b = b.detach().clone()
            b[1] = 0
            torch.testing.assert_close(a, b)


def check_nan(case, first, run):
    """A first number of each argument that is none, in turn: only the first rows, a sequence's, have others."""
    for place, leaf in enumerate(case.leaves):
        before = leaf.detach().clone()
        with torch.no_grad():
            leaf.view(-1)[0] = torch.nan
        got = run()
        rows = got[0].shape[0]
        assert not torch.isfinite(got[0][:first]).all(), place
        assert all(torch.isfinite(x[first:]).all() for x in got if x.shape[0] == rows), place
        with torch.no_grad():
            leaf.copy_(before)


def test_nan_stays_in_its_sequence(device):
    case = Case((6, 4), device=device, **OPTIONS["all"])
    check_nan(case, 6, lambda: results(case, case.op))


def test_the_same_bits_on_any_number_of_threads():
    case = Case((90, 3, 300, 40), heads=2, dtype=torch.float32, **OPTIONS["all"])
    runs = []
    for threads in (1, 1, 2, 5):
        torch.set_num_threads(threads)
        runs.append(results(case, case.op))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_the_same_bits_in_every_run(device):
    case = Case((90, 3, 300, 40), heads=2, dtype=torch.float32, device=device, **OPTIONS["all"])
    first, second = results(case, case.op), results(case, case.op)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_tensor_core_is_not_asked_of_the_cpu():
    with pytest.raises(RuntimeError, match="tf32"):
        Case().op("tf32")


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ([0, 5, 4, 23], "falls"),
        ([0, 5, 24], "24, and there are 23"),
        ([-1, 5, 23], "begins with -1"),
        ([], "is empty"),
    ],
)
def test_offsets_that_cannot_be_are_refused(offsets, error):
    case = Case()
    plan = plan_of(case.offsets, 23)
    case.offsets = torch.tensor(offsets, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=error):
        ragged_attention(case.q, case.k, case.v, case.offsets, plan=plan)


def test_sequences_longer_than_the_plan_says_are_refused():
    case = Case()
    plan = plan_of(case.offsets, 23)._replace(max_length=16)
    with pytest.raises(RuntimeError, match="a sequence of 17 rows, and `max_length` is 16"):
        ragged_attention(case.q, case.k, case.v, case.offsets, plan=plan)


@pytest.mark.parametrize("longest_first", [True, False])
def test_a_plan_has_every_tile_once_the_longest_sequences_first(longest_first, device):
    lengths = (3, 0, 200, 64, 65, 129)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    room = {"max_total": 600, "max_batch": 8, "max_length": 256}
    plan = ragged_plan(offsets, **room, longest_first=longest_first)
    assert plan.items.shape == (1 + 8 + 600 // 64, 4) and plan.items.dtype == torch.int32
    (live, *_), *items = plan.items.tolist()
    found = [(b, first) for b, first, _, _ in items[:live]]
    assert sorted(found) == [(b, first) for b, n in enumerate(lengths) for first in range(0, n, 64)]
    costs = [lengths[b] for b, _ in found]
    assert costs == (
        sorted(costs, reverse=True) if longest_first else [lengths[b] for b in sorted(b for b, _ in found)]
    )
    places = [0, *itertools.accumulate(n * n for n in lengths)]
    assert all(low + (high << 31) == places[b] for b, _, low, high in items[:live])
    assert all(row == [-1] * 4 for row in items[live:])


def test_places_in_a_bias_may_be_beyond_32_bits():
    offsets = torch.tensor([0, 60_000, 120_000, 120_001], dtype=torch.int32)
    plan = ragged_plan(offsets, max_total=120_001, max_batch=3, max_length=60_000)
    last = next(row for row in plan.items[1:].tolist() if row[0] == 2)
    assert last[2] + (last[3] << 31) == 2 * 60_000**2


@pytest.mark.parametrize("capacity", [{"max_total": 22}, {"max_batch": 3}, {"max_length": 16}])
def test_what_does_not_fit_into_a_plan_is_said(capacity, device):
    case = Case(device=device, width=8, values=8)
    room = {"max_total": 23, "max_batch": 4, "max_length": 17, **capacity}
    if device == "cpu" or "max_batch" in capacity:
        with pytest.raises(ValueError, match="do not fit"):
            ragged_plan(case.offsets, **room)
        return
    plan = ragged_plan(case.offsets, **room)
    assert plan.items[0, 0] == -1
    assert ragged_attention(case.q, case.k, case.v, case.offsets, plan=plan).isnan().all()


def test_a_plan_for_more_serves_less(device):
    case = Case(device=device)
    plan = ragged_plan(case.offsets, max_total=500, max_batch=9, max_length=100)
    given = (case.q, case.k, case.v, case.offsets)
    torch.testing.assert_close(ragged_attention(*given, plan=plan), ragged_attention(*given))


def test_a_plan_takes_over_another_of_its_capacity_alone(device):
    room = {"max_total": 30, "max_batch": 4, "max_length": 20}
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    plan, other = ragged_plan(offsets, **room), ragged_plan(offsets * 2, **room)
    assert torch.equal(plan.copy_(other).items, other.items)
    with pytest.raises(ValueError, match="the same capacity"):
        plan.copy_(ragged_plan(offsets, **{**room, "max_length": 21}))


def test_it_compiles_with_lengths_that_change(device):
    """One compilation for all lengths of one batch: what a plan holds is no shape."""
    COMPILED.clear()

    @torch.compile(fullgraph=True, backend=counted)
    def step(q, k, v, offsets):
        plan = ragged_plan(offsets, max_total=q.shape[0], max_batch=4, max_length=32)
        return ragged_attention(q, k, v, offsets, plan=plan)

    case = Case(device=device)
    for lengths in (LENGTHS, (3, 3, 3, 3), (0, 0, 0, 20)):
        offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
        given = (case.q, case.k, case.v, offsets)
        torch.testing.assert_close(step(*given), ragged_attention(*given))
    assert len(COMPILED) == 1


def test_a_loop_over_sequences_does_not_compile():
    """What not to do: an op for one sequence, called in a loop over `offsets`, asks for numbers while it is traced."""

    def one_by_one(q, k, v, offsets):
        out = torch.zeros_like(v)
        for b in range(len(offsets) - 1):
            begin, end = offsets[b].item(), offsets[b + 1].item()
            rows = slice(begin, end)
            whole = torch.tensor([0, 1], dtype=torch.int32) * (end - begin)
            out[rows] = ragged_attention(q[rows], k[rows], v[rows], whole)
        return out

    def together(q, k, v, offsets):
        plan = ragged_plan(offsets, max_total=q.shape[0], max_batch=4, max_length=32)
        return ragged_attention(q, k, v, offsets, plan=plan)

    case = Case()
    given = (case.q.detach(), case.k.detach(), case.v.detach(), case.offsets)
    torch.testing.assert_close(one_by_one(*given), together(*given))
    if torch.__version__ < (2, 14):
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            torch.compile(one_by_one, fullgraph=True, mode="reduce-overhead")(*given)
    else:  # it does, but anew for each number of sequences
        COMPILED.clear()
        compiled = torch.compile(one_by_one, fullgraph=True, backend=counted)
        for count in (2, 3, 4):
            compiled(*given[:3], torch.linspace(0, given[0].shape[0], count + 1).int())
        assert len(COMPILED) == 3
    got = torch.compile(together, fullgraph=True, backend=counted)(*given)
    torch.testing.assert_close(got, together(*given))


@pytest.mark.gpu
def test_a_cuda_graph_replays_while_lengths_change():
    case = Case((30, 10), dtype=torch.float32, device="cuda", **OPTIONS["gate, switch and absent"])
    room = {"max_total": 40, "max_batch": 2, "max_length": 40}
    plan = ragged_plan(case.offsets, **room)
    given = [x.detach() for x in (case.q, case.k, case.v)]

    def run():
        return ragged_attention(*given, case.offsets, gate=case.gate.detach(), plan=plan)

    graph, out = captured(run)
    for lengths in ((30, 10), (1, 39), (0, 0), (25, 3)):
        offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
        case.offsets.copy_(offsets)
        plan.copy_(ragged_plan(offsets, **room))
        graph.replay()
        want = ragged_attention(*given, offsets, gate=case.gate.detach())
        assert torch.equal(out, want)
