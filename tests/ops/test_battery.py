"""One battery over every op: what DESIGN asks of all of them."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import warnings
import weakref
from collections import defaultdict

import pytest
import torch
from op_cases import (
    check_gradients,
    each_tensor,
    find,
    goes_a_new_way,
    in_dtype,
    is_first,
    is_list_of_tensors,
    of_gradients,
    samples,
    tensors,
    tensors_in,
    with_leaves,
    with_one_changed,
)
from torch.testing._internal.optests import aot_autograd_check

from mdops.errors import DerivativeError
from mdops.ops import ragged_plan
from mdops.ops.activation import CODES
from mdops.testing import Sample

DEVICES = {"cpu": (), "cuda": pytest.mark.gpu}
# The gradient of these is the second derivative itself.
LAST = (
    "angle_ends",
    "angle_features",
    "angle_moment_backward",
    "degree_norm_backward",
    "edge_frames_backward",
    "edge_rotate_back",
    "order_moments",
    "edge_softmax",
    "edge_splines",
    "edge_update",
    "env_mat_backward",
    "environment_rows_backward",
    "harmonic_rows_backward",
    "harmonic_sums",
    "moment_invariants",
    "node_update",
    "own_message",
    "spline_moment_backward",
    "spline_rows",
    "spline_training",
    "unit_backward",
    "unit_three_backward",
    "add_norm_backward",
    "row_gate_backward",
    "scalar_gate_backward",
    "segment_softmax_backward",
    "segment_weights_backward",
    "message_backward",
    "framed_message",
    "outer_message",
    "edge_attention_backward",
    "so2_messages",
)
# Rows of these, (N or ntypes, ...), are of spline functions: what NaN does not tell which of them it belongs to.
SPLINE_ROWS = (
    "angle_moment",
    "angle_moment_jvp",
    "spline_moment",
    "spline_moment_jvp",
    "spline_training_backward",
)


def cases(keep=lambda sample: True, dtypes=(None,)):
    """Makes a test of a function of a sample: of every sample that `keep` takes, in each of `dtypes`, on every device.
    pytest takes longer for a case than the ops do for most samples: a case has all samples of an op."""
    numbers = defaultdict(list)
    for k, s in enumerate(samples("cpu")):
        if keep(s):
            numbers[s.op].append(k)
    of = [
        pytest.param(device, op, id=f"{device}-{op}", marks=marks)
        for device, marks in DEVICES.items()
        for op in numbers
    ]

    def made(check):
        @pytest.mark.parametrize(("device", "op"), of)
        def test(device, op):
            left_out, calls = [], list(itertools.product(numbers[op], dtypes))
            for k, dtype in calls:
                try:
                    check(find(device, k, dtype))
                except pytest.skip.Exception as reason:
                    left_out.append(reason)
                except BaseException as error:
                    error.add_note(f"{op}, sample {k}, {dtype or 'its own dtype'}")
                    raise
            if len(left_out) == len(calls):
                raise left_out[0]

        test.__doc__ = check.__doc__
        return test

    return made


def differentiable(sample: Sample) -> bool:
    return bool(sample.differentiable)


def tensors_of_arguments(sample: Sample) -> list[torch.Tensor]:
    return [x for value in sample.args for x in tensors_in(value)]


def is_float8(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.itemsize == 1


def with_gradients(sample: Sample):
    """The op as a function of its differentiable arguments alone, and those arguments."""
    leaves = with_leaves(sample, sample.args)
    free = tensors([leaves[k] for k in sample.differentiable])

    def function(*values):
        args, tensors_left = list(sample.args), iter(values)
        for k in sample.differentiable:
            args[k] = each_tensor(lambda _: next(tensors_left), args[k])
        return tuple(r for r in tensors(sample.function(*args)) if r.requires_grad)

    return function, free


def in_float64(function, free):
    if any(x.dtype == torch.float32 for x in free):
        pytest.skip("it computes in float32 alone there; compared with the ops that it is made of elsewhere")
    return function, free


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same values with other strides: every second element of a larger, transposed tensor."""
    big = torch.empty([2 * n for n in reversed(x.shape)], dtype=x.dtype, device=x.device)
    view = big.permute(tuple(reversed(range(x.dim()))))[tuple(slice(None, None, 2) for _ in x.shape)]
    view.copy_(x)
    assert x.numel() <= 1 or not view.is_contiguous()
    return view


def test_every_op_has_a_sample():
    defined = {
        name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("mdops::")
    }
    assert defined - {
        "cpu_isa",
        "cpu_bf16",
        "cuda_versions",
        "cuda_is_for_hopper",
        "spline_potential_why_not",
    } == {s.op for s in samples("cpu")}


@cases()
def test_opcheck(sample):
    """Among others what torch.compile makes of it and of its gradients, by fake tensors of any size; test_compile.py
    compiles one sample of each op whole. A trace of symbols takes a hundred times the time of the rest: it is made
    where something is new in it, and not of a first sample without gradients, whose trace is exported below."""
    checks = ["test_autograd_registration", "test_faketensor"]
    if not any(
        map(is_float8, tensors_of_arguments(sample))
    ):  # with which the others of opcheck cannot calculate
        checks.append("test_schema")
        if (sample.differentiable or not is_first(sample)) and goes_a_new_way(sample):
            # "test_aot_dispatch_dynamic" traces clones of all arguments, too: test_schema sees who changes his.
            args = tuple(with_leaves(sample, sample.args))
            aot_autograd_check(sample.function, args, {}, dynamic=True, check_gradients="auto")
    torch.library.opcheck(sample.function, tuple(with_leaves(sample, sample.args)), test_utils=checks)


@cases(differentiable)
def test_gradients(sample):
    check_gradients(*in_float64(*with_gradients(sample)))


@cases(lambda s: s.differentiable and s.op not in LAST)
def test_second_gradients(sample):
    check_gradients(*of_gradients(*in_float64(*with_gradients(sample))))


@pytest.mark.parametrize("place", [(0, 0), (17, 3), (39, 29)])
def test_one_wrong_number_of_a_gradient_is_found(place):
    """By one part in a thousand, of a matrix of a thousand."""
    matrix = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wrong = matrix.clone()
    wrong[place] *= 1.001

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, back):
            ctx.save_for_backward(back)
            return matrix @ x

        @staticmethod
        def backward(ctx, grad):
            return grad @ ctx.saved_tensors[0], None

    x = torch.ones(30, dtype=torch.float64, requires_grad=True)
    check_gradients(lambda x: [Product.apply(x, matrix)], [x])
    with pytest.raises(AssertionError, match="result 0 along argument 0"):
        check_gradients(lambda x: [Product.apply(x, wrong)], [x])


@cases(differentiable)
def test_derivatives_that_there_are_not_are_refused(sample):
    """Not counted as zero, with a warning of PyTorch's. Some ops have derivatives without end."""
    args = with_leaves(sample, sample.args)
    free = tensors([args[k] for k in sample.differentiable])
    refused = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [r for r in tensors(sample.function(*args)) if r.requires_grad]
        for _ in range(3):
            total = sum((r.double() ** 2).sum() for r in found)
            try:
                found = torch.autograd.grad(total, free, create_graph=True, allow_unused=True)
            except DerivativeError as error:
                refused = error
                break
            found = [r for r in found if r is not None and r.requires_grad]
    # The face of spline_training is another function; other ops have the derivatives of message by weights.
    if sample.op in LAST and sample.op not in ("spline_training", "message_backward"):
        assert refused is not None and "mdops::" in str(refused)


@cases()
def test_strides_do_not_matter(sample):
    expected = tensors(sample.function(*sample.args))
    spread_args = [each_tensor(spread, a) for a in sample.args]
    for got, want in zip(tensors(sample.function(*spread_args)), expected, strict=True):
        assert torch.equal(got, want)


@cases(dtypes=(torch.float64, torch.float32))
def test_memory_may_begin_anywhere(sample):
    """Contiguous inputs that begin one element into their memory: aligned as that element is, and no more."""

    def shifted(x):
        flat = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
        flat[1:] = x.reshape(-1)
        return flat[1:].view(x.shape)

    got = tensors(sample.function(*(each_tensor(shifted, a) for a in sample.args)))
    for k, (a, b) in enumerate(zip(got, tensors(sample.function(*sample.args)), strict=True)):
        assert k in sample.opaque or torch.equal(a, b)


@cases(differentiable)
def test_nothing_is_held_after_a_backward_pass(sample):
    """Without waiting for Python to look for what holds itself."""
    gc.disable()
    try:
        args = with_leaves(sample, sample.args)
        free = tensors([args[k] for k in sample.differentiable])
        results = [r for r in tensors(sample.function(*args)) if r.requires_grad]
        torch.autograd.grad(sum(r.sum() for r in results), free, allow_unused=True)
        held = [weakref.ref(x) for x in free]
        del args, free, results
        assert not any(x() is not None for x in held)
    finally:
        gc.enable()


@cases(differentiable)
def test_strides_of_gradients_do_not_matter(sample):
    function, free = with_gradients(sample)
    results = function(*free)
    grads = [torch.randn_like(r) for r in results]
    want = torch.autograd.grad(results, free, grads, retain_graph=True)
    got = torch.autograd.grad(results, free, [spread(g) for g in grads], retain_graph=True)
    expanded = [torch.ones((), dtype=r.dtype, device=r.device).expand(r.shape) for r in results]
    ones = torch.autograd.grad(results, free, [torch.ones_like(r) for r in results], retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(torch.autograd.grad(results, free, expanded), ones, strict=True)
    )


@cases()
def test_float32_agrees_with_float64(sample):
    single = in_dtype(sample, torch.float32)
    pairs = zip(tensors(single.function(*single.args)), tensors(sample.function(*sample.args)), strict=True)
    for k, (low, high) in enumerate(pairs):
        if k in sample.opaque:
            continue
        if high.is_floating_point():
            scale = max(1.0, high.abs().max().item() if high.numel() else 0.0)
            assert torch.all((low.double() - high).abs() <= 3e-5 * scale)
        else:
            assert torch.equal(low, high)


@cases()
def test_no_atoms(sample):
    if not isinstance(sample.args[0], torch.Tensor) or sample.op == "node_layer_pack":
        return  # an op without atoms
    if sample.op == "unpack_ternary":
        return  # how many rows are packed is an argument
    told = (
        "ragged_",
        "attention_layer",
        "attention_moments",
        "spline_rows",
        "environment_rows",
        "harmonic_rows",
        "row_moments",
        "edge_",
        "segment_softmax",
        "segment_weights",
        "message",
        "framed_message",
        "outer_message",
        "angle_ends",
        "angle_products",
        "so2_messages",
        "order_moments",
    )
    if sample.op.startswith(told):
        return  # how many rows there are is told: others have none
    if sample.op.startswith("moment_product"):
        return  # the same: tests/nn/test_moment_steps.py has none
    if sample.op == "spline_training_backward":
        return  # `saved` is of these atoms: the gradients of spline_training without atoms are looked at below
    n = sample.args[0].shape[0]

    def cut(a):
        if isinstance(a, list) and sample.op == "hybrid_potential":
            return [cut(x) for x in a]
        return a[:0] if isinstance(a, torch.Tensor) and a.dim() and is_per_atom(a, n) else a

    empty = with_leaves(sample, [cut(a) for a in sample.args])
    free = tensors([empty[k] for k in sample.differentiable])
    results = tensors(sample.function(*empty))
    for got, want in zip(results, tensors(sample.function(*sample.args)), strict=True):
        assert got.dtype == want.dtype and got.dim() == want.dim()
        assert not got.is_floating_point() or torch.isfinite(got).all()
    if free:
        total = sum(r.sum() for r in results if r.requires_grad)
        for grad in torch.autograd.grad(total, free):
            assert torch.isfinite(grad).all()


@contextlib.contextmanager
def memory_of_nan():
    """New tensors hold NaN, or the largest integer, where nothing was written."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@cases()
@memory_of_nan()
def test_results_are_written_where_a_size_is_zero(sample):
    """Each size that the tensors have, as that of the edges, is zero in turn; an op may refuse that, and a GPU answers
    NaN to values that a CPU refuses."""

    def without(n, a):
        if n in a.shape:
            return a.detach()[tuple(slice(0 if k == n else k) for k in a.shape)]
        rises = a.dim() == 1 and a.dtype in (torch.int32, torch.int64) and bool((a.diff() >= 0).all())
        return torch.zeros_like(a) if rises else a.detach()  # offsets say that there are no rows

    given = [t for a in sample.args for t in (a if is_list_of_tensors(a) else [a])]
    for n in {n for t in given if isinstance(t, torch.Tensor) for n in t.shape} - {0}:
        args = [each_tensor(functools.partial(without, n), a) for a in sample.args]
        try:
            results = tensors(sample.function(*with_plan_of_offsets(sample, args)))
        except RuntimeError as refused:
            assert "mdops::" in str(refused)
            continue
        if results[0].is_cuda:
            torch.cuda.synchronize()  # an error is found where it was made
            if is_refused_by_a_cpu(sample, args):
                continue
        for k, result in enumerate(results):
            if result.is_floating_point() and k not in sample.opaque:
                assert not result.isnan().any(), f"result {k} without what there are {n} of"


def with_plan_of_offsets(sample, args):
    """A GPU works by the plan, and a plan of other offsets is one that a CPU, which makes its own, does not see."""
    names = [a.name for a in sample.function._schema.arguments]
    given = dict(zip(names, args, strict=False))
    if given.get("plan") is None or given["plan"].numel() == 0 or len(given["offsets"]) == 0:
        return args
    total, batch = int(given["offsets"].max()), len(given["offsets"]) - 1
    given["plan"] = ragged_plan(
        given["offsets"], max_total=total, max_batch=batch, max_length=given["max_length"]
    ).items
    return list(given.values())


def is_refused_by_a_cpu(sample, args):
    try:
        sample.function(*[each_tensor(lambda x: x.cpu(), a) for a in args])
    except RuntimeError:
        return True
    return False


def is_per_atom(a: torch.Tensor, n: int) -> bool:
    return a.shape[0] == n


def is_of_fewer(sample, args):
    """Whether these are arguments of fewer rows or atoms, and no others' shape says how many there are."""

    def has_one_less(k):
        return args[k] is not None and args[k].dim() == 1 and len(args[k]) == len(sample.args[k]) - 1

    if sample.op == "moment_product":
        return has_one_less(2)
    if (
        sample.op == "moment_product_backward"
    ):  # a row's atom is out of range then, which a GPU answers with NaN
        return args[3].is_cuda and has_one_less(3)
    if sample.op == "fitting_energy":  # with one net for all types; a GPU answers the last type with NaN
        return args[5].is_cuda and len(args[2]) == 1 and has_one_less(5)
    if sample.op in ("ragged_plan", "edge_order"):
        return has_one_less(0)
    if sample.op == "edge_environment":  # the last place is behind the last edge
        return has_one_less(1)
    if sample.op.startswith(("segment_softmax", "segment_weights")) or sample.op == "edge_reverse":
        return has_one_less(len(args) - 1)
    if sample.op == "edge_scatter":  # a row without a sum, which the CPU finds
        return args[3].is_cuda and has_one_less(3)
    if sample.op in ("edge_product", "edge_weighted_sum"):
        return args[-1].is_cuda and any(has_one_less(k) for k in (1, 3, 5, 7))
    if sample.op.startswith("edge_convolution"):
        sums = {"edge_convolution": len(args) - 1, "edge_convolution_nodes": len(args) - 1}.get(sample.op)
        return args[-1].is_cuda and sums is not None and has_one_less(sums)
    if sample.op.startswith(("message", "outer_message")):  # fewer groups than there are, which the CPU finds
        groups = [a.name for a in sample.function._schema.arguments].index("groups")
        return args[0].is_cuda and args[groups] is not None and has_one_less(groups)
    if sample.op == "angle_ends_backward":  # fewer atoms, which the CPU finds
        return args[0].is_cuda and has_one_less(4)
    if sample.op == "framed_message":  # the last row taken is one of none
        return has_one_less(12)
    if sample.op in ("edge_rotate_sum", "edge_rotate_back", "order_moments"):
        return args[0].is_cuda and has_one_less(len(args) - 1)
    if sample.op == "so2_messages":  # of atoms
        return args[0].is_cuda and has_one_less(9)
    if sample.op == "moment_invariants":
        return args[0].is_cuda and has_one_less(6)
    if sample.op == "edge_permute":
        return args[1].is_cuda and has_one_less(1)
    if sample.op == "edge_gather":
        return args[1].is_cuda and args[2] is None and has_one_less(1)
    if sample.op == "attention_moments" and args[13] is not None:  # `absent` says how many atoms there are
        return False
    if sample.op == "row_moments":
        return has_one_less(2)
    return sample.op == "attention_moments" and args[2].is_cuda and has_one_less(2)


@cases()
def test_wrong_dtype_and_shape_are_refused(sample):
    wrong = (
        lambda x: x.to(torch.complex64),
        lambda x: x.to(torch.float16),
        lambda x: x[None],
        lambda x: x.reshape(-1)[:-1] if x.numel() else x[None],  # an empty tensor stands for an absent one
    )
    for change in wrong:
        for args in with_one_changed(sample.args, change):
            if is_of_fewer(sample, args):
                continue
            with pytest.raises(RuntimeError, match=f"mdops::{sample.op}: "):
                sample.function(*args)


@cases(lambda s: s.bad)
def test_bad_values_are_refused(sample):
    for k, value in sample.bad.values():
        if isinstance(value, torch.Tensor) and value.is_cuda:
            continue  # values on a GPU are not looked at before the kernel runs: test_cuda.py
        args = list(sample.args)
        args[k] = value
        with pytest.raises(RuntimeError, match=f"mdops::{sample.op}: "):
            sample.function(*args)


@cases(dtypes=(torch.float64, torch.float32))
def test_nan_in_nan_out(sample):
    """Whatever another value of one number changes is not finite when that number is NaN, or the op refuses it."""
    check_nan(sample, torch.tensor(torch.nan))


# The usual one, and one that only its last bit, for which bfloat16 has no place, tells from infinity.
NAN, LAST_BIT = torch.tensor([0x7FC00000, 0x7F800001], dtype=torch.int32).view(torch.float32)


@pytest.mark.skipif(not torch.ops.mdops.cpu_bf16(), reason="this CPU has no bfloat16 units")
@pytest.mark.parametrize("nan", [NAN, LAST_BIT], ids=["nan", "last-bit"])
@pytest.mark.parametrize("matmul", ["bf16x6", "bf16x3", "bf16"])
@pytest.mark.parametrize("k", [k for k, s in enumerate(samples("cpu")) if s.op.startswith("mlp")])
def test_nan_in_nan_out_of_bfloat16_units(k, matmul, nan):
    sample = find("cpu", k, torch.float32)
    args = tuple(matmul if isinstance(value, str) and value == "float32" else value for value in sample.args)
    check_nan(dataclasses.replace(sample, args=args), nan)


@pytest.mark.skipif(not torch.ops.mdops.cpu_bf16(), reason="this CPU has no bfloat16 units")
@pytest.mark.parametrize("nan", [NAN, LAST_BIT], ids=["nan", "last-bit"])
@pytest.mark.parametrize("matmul", ["bf16x6", "bf16x3", "bf16"])
def test_nan_passes_a_step_of_bfloat16_units(matmul, nan):
    """From parameters, and from each weight of a net, to the energies and forces of its atoms."""
    pack, step = (
        next(s for s in samples("cpu", torch.float32) if s.op == op)
        for op in ("spline_potential_pack", "spline_potential")
    )
    nets = pack.function(*pack.args[:-1], matmul)

    def run(nets, extra):
        return step.function(*step.args[:14], nets, extra, *step.args[16:-2], matmul, True)

    extra = step.args[15].clone()
    extra[1] = nan
    energy, forces, *_ = run(torch.stack([nets, nets]), extra)
    assert energy.isnan().nonzero().flatten().tolist() == [1] and forces[1].isnan().all()
    for layer, weight in enumerate(pack.args[0]):
        for place in (0, weight.numel() - 1):
            weights = [w.clone() for w in pack.args[0]]
            weights[layer].view(-1)[place] = nan
            spoilt = pack.function(weights, *pack.args[1:-1], matmul)
            energy, forces, *_ = run(torch.stack([spoilt, nets]), step.args[15])
            assert energy.isnan().nonzero().flatten().tolist() == [0, 3], (layer, place)


def check_nan(sample, nan):
    before, places = tensors(sample.function(*sample.args)), 5
    for place in range(places):

        def with_value(change, part=place / (places - 1)):
            def put(x):
                if not x.is_floating_point() or not x.numel() or is_float8(x):
                    return x
                x, k = x.clone(), round(part * (x.numel() - 1))
                x.view(-1)[k] = change(x.view(-1)[k])
                return x

            return with_one_changed(sample.args, put)

        pairs = zip(with_value(lambda x: x + 0.013), with_value(lambda x: nan), strict=True)
        for argument, (other, none) in enumerate(pairs):
            try:
                after, results = tensors(sample.function(*other)), tensors(sample.function(*none))
            except RuntimeError as error:
                assert f"mdops::{sample.op}: " in str(error)
                continue
            for k, (a, b, got) in enumerate(zip(before, after, results, strict=True)):
                if not got.is_floating_point():
                    continue
                changed, finite = a != b, torch.isfinite(got)
                if k in sample.opaque:
                    changed, finite = changed.any(), finite.all()
                elif sample.op in SPLINE_ROWS:
                    rows = (len(got), -1)
                    changed, finite = changed.reshape(rows).any(dim=1), finite.reshape(rows).all(dim=1)
                assert not (changed & finite).any(), f"argument {argument}, place {place}, result {k}"


@pytest.mark.parametrize("activation", range(9))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nan_passes_every_activation(activation, dtype):
    """The energies and forces of a whole step that has NaN among its parameters, or its weights."""
    sample = next(s for s in samples("cpu", dtype) if s.op == "spline_potential")
    nets, extra = sample.args[14].clone(), sample.args[15].clone()
    nets[0], extra[1] = torch.nan, torch.nan
    for place, value, spoilt in ((14, nets, [0, 3]), (15, extra, [1])):  # atoms of the first type; one atom
        args = [*sample.args[:place], value, *sample.args[place + 1 :]]
        args[28] = activation
        energy, forces, virial, _, _, atom_virial = sample.function(*args)
        assert energy.isnan().nonzero().flatten().tolist() == spoilt
        if place == 14 or activation != CODES["linear"]:  # through which a parameter changes no force
            assert forces[spoilt].isnan().all()
            assert virial.isnan().flatten(1).any(dim=1).tolist() == [True, 3 in spoilt]
            assert atom_virial.isnan().any()


@cases()
def test_another_device_is_refused(sample):
    if len(tensors_of_arguments(sample)) == 1:
        return  # there is no other device than that one's
    device = tensors(sample.args[0])[0].device.type
    for elsewhere in {"meta", "cpu"} - {device}:
        for args in with_one_changed(sample.args, lambda x, where=elsewhere: x.to(where)):
            with pytest.raises(RuntimeError, match=f"mdops::{sample.op}"):
                sample.function(*args)


@pytest.mark.long
def test_exported_is_eager(device):
    """Every op in a program of torch.export, for tensors of any sizes; float8 cannot be a constant of a program. With
    others beside it, for each program takes its time; by twenties, for its guards take time by the square of them."""
    chosen = {
        s.op: s for dtype in (torch.float32, torch.float64) for s in samples(device, dtype) if is_first(s)
    }
    calls = [s for s in chosen.values() if not any(map(is_float8, tensors_of_arguments(s)))]
    for start in range(0, len(calls), 20):
        check_exported(calls[start : start + 20])


def check_exported(calls):
    free = [x for s in calls for x in tensors_of_arguments(s)]

    class Calls(torch.nn.Module):
        def forward(self, *given):
            left = iter(given)
            return [
                tensors(s.function(*(each_tensor(lambda _: next(left), a) for a in s.args))) for s in calls
            ]

    sizes = tuple({k: torch.export.Dim.AUTO for k in range(x.dim())} for x in free)
    program = torch.export.export(Calls(), tuple(free), dynamic_shapes=(sizes,), strict=False).module()
    for sample, answers in zip(calls, program(*free), strict=True):
        for a, b in zip(answers, tensors(sample.function(*sample.args)), strict=True):
            assert torch.equal(a, b), sample.op


@cases()
def test_vmap_is_the_op_for_each_member(sample):
    """By a batch of the first tensor of numbers; of other dimensions than the first, and beside tensors without one."""
    place = next(
        (k for k, a in enumerate(sample.args) if isinstance(a, torch.Tensor) and a.is_floating_point()), None
    )
    if place is None:
        place = next(k for k, a in enumerate(sample.args) if tensors_of_arguments(sample))
    value = sample.args[place]

    def function(x):
        return sample.function(*sample.args[:place], x, *sample.args[place + 1 :])

    def members(change):
        return each_tensor(change, value)

    scaled = [members(lambda x, k=k: x * (1 + 1e-3 * k) if is_number(x) else x) for k in range(2)]
    if isinstance(value, torch.Tensor):
        batch = torch.stack(scaled, dim=-1)
    else:
        batch = [torch.stack(pair, dim=-1) for pair in zip(*scaled, strict=True)]
    got = tensors(torch.vmap(function, in_dims=-1)(batch))
    for k, x in enumerate(scaled):
        for a, b in zip(got, tensors(function(x)), strict=True):
            assert torch.equal(a[k], b)


def is_number(x: torch.Tensor) -> bool:
    return x.is_floating_point() and not is_float8(x)


def test_vmap_says_where_shapes_follow_from_the_data():
    sample = next(s for s in samples("cpu") if s.op == "neighbor_pairs")
    positions = torch.stack([sample.args[0], 4 * sample.args[0]])
    with pytest.raises(RuntimeError, match=r"mdops::neighbor_pairs: torch\.vmap needs results of one shape"):
        torch.vmap(lambda x: sample.function(x, *sample.args[1:]))(positions)


@cases(dtypes=(torch.float32,))
def test_autocast_changes_nothing(sample):
    """No op casts: the same bits, of a graph of its derivatives, too, but for the order in which autograd adds those of
    a graph, some of whose nodes its own threads made."""
    device, twice = tensors_of_arguments(sample)[0].device.type, sample.op not in LAST

    def answers(enabled):
        args = with_leaves(sample, sample.args)
        free = tensors([args[k] for k in sample.differentiable])
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            results = tensors(sample.function(*args))
            found = [r for k, r in enumerate(results) if k not in sample.opaque]
            totals = [(r * r).sum() for r in found if r.requires_grad]
            if totals:
                found += torch.autograd.grad(sum(totals), free, create_graph=twice)
        added = []
        if totals and twice:
            added = torch.autograd.grad(sum((g * g).sum() for g in found[-len(free) :]), free)
        return found, added

    (found, added), (expected, expected_added) = answers(True), answers(False)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    for a, b in zip(added, expected_added, strict=True):
        scale = float(b.abs().nan_to_num().amax()) if b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * scale, equal_nan=True)


def test_a_loss_on_forces_through_two_ops_has_gradients(device):
    by_name = {s.op: s for s in reversed(samples(device))}
    pairs, moments = by_name["displacements"].args, by_name["spline_moment"].args

    def loss(positions):
        d = torch.ops.mdops.displacements(positions, *pairs[1:])
        energy = torch.ops.mdops.spline_moment(d, *moments[1:])[0].square().sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy + gradient.square().sum()

    assert torch.autograd.gradcheck(loss, pairs[0].clone().requires_grad_())
