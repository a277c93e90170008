"""The samples of mdops.testing by device, as the tests of the ops find them."""

import functools
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from mdops import ops
from mdops.testing import Sample, has_kernel, op_samples


def samples(device: str, dtype: torch.dtype = torch.float64) -> list[Sample]:
    return _samples(device, dtype)


_samples = functools.cache(op_samples)


def find(device: str, k: int, dtype: torch.dtype | None = None) -> Sample:
    """The sample on a device that has the number k on the CPU; in float64 by default, or in float32 where the op
    computes in that alone."""
    if device == "cpu":
        return samples(device, dtype or torch.float64)[k]
    op = samples("cpu")[k].op
    if not has_kernel(op, device):
        pytest.skip(f"{op} has no kernel for {device}")
    before = sum(s.op == op for s in samples("cpu")[:k])
    for choice in (torch.float64, torch.float32) if dtype is None else (dtype,):
        own = [s for s in samples(device, choice) if s.op == op]
        if own:
            return own[before]
    pytest.skip(f"{op} does not compute in {dtype} on {device}")


def is_list_of_tensors(value) -> bool:
    return isinstance(value, (tuple, list)) and len(value) > 0 and isinstance(value[0], torch.Tensor)


def tensors(result) -> list[torch.Tensor]:
    """All tensors of a result, of lists in it too."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in tensors(part)]


def each_tensor(change, value):
    """An argument with `change` made to it, or to each tensor of a list of them; others as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [change(item) for item in value] if is_list_of_tensors(value) else value


def with_one_changed(args, change):
    """For every tensor among the arguments, those in lists too: the arguments with change(tensor) in its place."""
    for k, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            yield [*args[:k], change(value), *args[k + 1 :]]
        elif is_list_of_tensors(value):
            for j, item in enumerate(value):
                yield [*args[:k], [*value[:j], change(item), *value[j + 1 :]], *args[k + 1 :]]


def with_leaves(sample: Sample, args) -> list:
    """The arguments, those that the op is differentiable in as new leaves of a graph."""
    args = list(args)
    for k in sample.differentiable:
        args[k] = each_tensor(lambda x: x.detach().clone().requires_grad_(), args[k])
    return args


def goes_a_new_way(sample: Sample) -> bool:
    """Whether its op's Python, fake kernel and derivatives, does in it what it does in no earlier sample of the op; or
    a size is a symbol to PyTorch, as all but 0 and 1 are, that is none in those."""
    return id(sample) in _new_ways(sample.op, *_kind(sample))


def in_dtype(sample: Sample, dtype: torch.dtype) -> Sample:
    """The same call with numbers of another dtype."""
    device, own = _kind(sample)
    of_op = [other for other in samples(device, own) if other.op == sample.op]
    others = [other for other in samples(device, dtype) if other.op == sample.op]
    if not others:
        pytest.skip(f"{sample.op} does not compute in {dtype} on {device}")
    return next(other for one, other in zip(of_op, others, strict=True) if one is sample)


def is_first(sample: Sample) -> bool:
    """Of its op, on its device."""
    return sample is next(other for other in samples(*_kind(sample)) if other.op == sample.op)


def _kind(sample: Sample) -> tuple[str, torch.dtype]:
    """The list of samples that it stands in."""
    device = next(x for a in sample.args for x in tensors_in(a)).device.type
    for dtype in (torch.float64, torch.float32):
        if any(other is sample for other in samples(device, dtype)):
            return device, dtype
    raise LookupError(f"{sample.op}: not one of the samples for {device}")


@functools.cache
def _new_ways(op: str, device: str, dtype: torch.dtype) -> set[int]:
    """The `id` of samples."""
    seen, found = set(), set()
    for sample in samples(device, dtype):
        if sample.op == op and (way := _way(sample)) - seen:
            seen |= way
            found.add(id(sample))
    return found


def tensors_in(argument) -> list[torch.Tensor]:
    is_some = isinstance(argument, torch.Tensor) or is_list_of_tensors(argument)
    return tensors(argument) if is_some else []


def _way(sample: Sample) -> set:
    """Steps from one instruction to another, and dimensions of tensors that are symbols."""
    way, last, folder = set(), {}, str(Path(ops.__file__).parent)

    def step(frame, event, _):
        if event == "opcode":
            way.add((frame.f_code, last.get(frame), frame.f_lasti))
            last[frame] = frame.f_lasti
        return step

    def call(frame, *_):
        if not frame.f_code.co_filename.startswith(folder):
            return None
        frame.f_trace_opcodes = True
        return step

    for k, a in enumerate(sample.args):
        for j, x in enumerate(tensors_in(a)):
            way |= {(k, j, d) for d, size in enumerate(x.shape) if size > 1}
    before = sys.gettrace()
    with FakeTensorMode() as mode:
        args = with_leaves(sample, [each_tensor(mode.from_tensor, a) for a in sample.args])
        free = [x for k in sample.differentiable for x in tensors(args[k])]
        sys.settrace(call)
        try:
            ends = [r for r in tensors(sample.function(*args)) if r.requires_grad]
            if ends:
                torch.autograd.grad(ends, free, [torch.ones_like(r) for r in ends], allow_unused=True)
        except DynamicOutputShapeException:  # its shapes follow from values: each sample is one of its own
            way.add(id(sample))
        finally:
            sys.settrace(before)
    return way


def of_gradients(function, free):
    """The gradients of a function's results as a function of what they depend on: its arguments, and made-up gradients
    of the results."""
    gen = torch.Generator().manual_seed(0)
    grads = [_random(r, gen).requires_grad_() for r in function(*free)]

    def gradients(*values):
        own, of_results = values[: len(free)], values[len(free) :]
        found = torch.autograd.grad(function(*own), own, of_results, create_graph=True, allow_unused=True)
        return tuple(x for x in found if x is not None and x.requires_grad)

    return gradients, [*free, *grads]


def check_gradients(function, free):
    """By PyTorch's own check, and with bounds on each number closer than its: along random directions in each argument
    every result, in random sums of its numbers, changes as its gradients say. One wrong number among hundreds is an
    error of some of its size in such a sum, which is right to 1e-8 of its terms."""
    some = [k for k, x in enumerate(free) if x.numel()]  # PyTorch's takes no others

    def of_some(*values):
        every = list(free)
        for k, value in zip(some, values, strict=True):
            every[k] = value
        return function(*every)

    assert torch.autograd.gradcheck(of_some, [free[k] for k in some], fast_mode=True, atol=1e-7)
    gen = torch.Generator().manual_seed(1)
    results, fixed = function(*free), [x.detach() for x in free]
    sums = [_random(r, gen) for r in results]
    gradients = [
        torch.autograd.grad(r, free, u, retain_graph=True, allow_unused=True)
        for r, u in zip(results, sums, strict=True)
    ]
    for k in some:
        along = _random(fixed[k], gen)
        step = 1e-3 / along.norm()

        def moved(steps, k=k, change=step * along):
            values = [x + steps * change if j == k else x for j, x in enumerate(fixed)]
            return [r.detach() for r in function(*(x.requires_grad_() for x in values))]

        ends = zip(*map(moved, (1, -1, 2, -2)), strict=True)
        for i, (near, behind, far, farther_behind) in enumerate(ends):
            found = (sums[i] * (8 * (near - behind) - (far - farther_behind))).sum() / (12 * step)
            of_each = along * (0.0 if gradients[i][k] is None else gradients[i][k])
            rounding = 1e-12 * (sums[i] * results[i].detach()).abs().sum() / step
            off, bound = (found - of_each.sum()).abs(), 1e-8 * of_each.abs().sum() + rounding
            assert off <= bound, f"result {i} along argument {k}: {off:.1e} off, {bound:.1e} allowed"


def _random(like, gen):
    """Numbers between 1/2 and 3/2, of either sign."""
    size, sign = (torch.rand(like.shape, generator=gen, dtype=torch.float64) for _ in range(2))
    return ((0.5 + size) * (2 * sign.round() - 1)).to(like)


def captured(function, *static):
    """A graph of function(*static), and its results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*static)
    return graph, results
