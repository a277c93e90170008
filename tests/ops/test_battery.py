"""One battery over every op: what DESIGN asks of all of them."""

import pytest
import torch

from mdops.testing import Sample, op_samples

SAMPLES = [pytest.param(s, id=f"{k}-{s.op}") for k, s in enumerate(op_samples())]
DIFFERENTIABLE = [p for p in SAMPLES if p.values[0].differentiable]
# The gradient of these is the second derivative itself.
LAST = ("env_mat_backward", "spline_moment_backward")
TWICE = [p for p in DIFFERENTIABLE if p.values[0].op not in LAST]


def tensors(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def with_gradients(sample: Sample):
    """The op as a function of its differentiable arguments alone, and those arguments."""
    free = [sample.args[k].detach().clone().requires_grad_() for k in sample.differentiable]

    def function(*values):
        args = list(sample.args)
        for k, value in zip(sample.differentiable, values, strict=True):
            args[k] = value
        return tuple(r for r in tensors(sample.function(*args)) if r.requires_grad)

    return function, free


def spread(x: torch.Tensor) -> torch.Tensor:
    """The same values with other strides: every second element of a larger, transposed tensor."""
    big = torch.empty(*(2 * n for n in reversed(x.shape)), dtype=x.dtype)
    view = big.permute(*reversed(range(x.dim())))[tuple(slice(None, None, 2) for _ in x.shape)]
    view.copy_(x)
    assert x.numel() <= 1 or not view.is_contiguous()
    return view


def test_every_op_has_a_sample():
    defined = {
        name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("mdops::")
    }
    assert defined - {"cpu_isa", "cuda_versions"} == {s.values[0].op for s in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample):
    args = list(sample.args)
    for k in sample.differentiable:
        args[k] = args[k].detach().clone().requires_grad_()
    torch.library.opcheck(sample.function, tuple(args))


@pytest.mark.parametrize("sample", DIFFERENTIABLE)
def test_gradients(sample):
    function, free = with_gradients(sample)
    assert torch.autograd.gradcheck(function, free)


@pytest.mark.parametrize("sample", TWICE)
def test_second_gradients(sample):
    function, free = with_gradients(sample)
    assert torch.autograd.gradgradcheck(function, free)


@pytest.mark.parametrize("sample", SAMPLES)
def test_strides_do_not_matter(sample):
    expected = tensors(sample.function(*sample.args))
    spread_args = [spread(a) if isinstance(a, torch.Tensor) else a for a in sample.args]
    for got, want in zip(tensors(sample.function(*spread_args)), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("sample", DIFFERENTIABLE)
def test_strides_of_gradients_do_not_matter(sample):
    function, free = with_gradients(sample)
    results = function(*free)
    grads = [torch.randn_like(r) for r in results]
    want = torch.autograd.grad(results, free, grads, retain_graph=True)
    got = torch.autograd.grad(results, free, [spread(g) for g in grads], retain_graph=True)
    expanded = [torch.ones((), dtype=r.dtype).expand(r.shape) for r in results]
    ones = torch.autograd.grad(results, free, [torch.ones_like(r) for r in results], retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(torch.autograd.grad(results, free, expanded), ones, strict=True)
    )


@pytest.mark.parametrize("sample", SAMPLES)
def test_float32_agrees_with_float64(sample, request):
    if sample.op == "spline_potential_pack":
        return  # a layout that depends on the dtype
    k = int(request.node.callspec.id.split("-")[0])
    single = op_samples(dtype=torch.float32)[k]
    for low, high in zip(
        tensors(single.function(*single.args)), tensors(sample.function(*sample.args)), strict=True
    ):
        if high.is_floating_point():
            scale = high.abs().max().clamp(min=1)
            assert torch.all((low.double() - high).abs() <= 3e-5 * scale)
        else:
            assert torch.equal(low, high)


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_atoms(sample):
    if not isinstance(sample.args[0], torch.Tensor):
        return  # an op without atoms
    n = sample.args[0].shape[0]
    empty = [
        a[:0] if isinstance(a, torch.Tensor) and a.dim() and is_per_atom(a, n) else a for a in sample.args
    ]
    for got, want in zip(
        tensors(sample.function(*empty)), tensors(sample.function(*sample.args)), strict=True
    ):
        assert got.dtype == want.dtype and got.dim() == want.dim()
        assert not got.is_floating_point() or torch.isfinite(got).all()


def is_per_atom(a: torch.Tensor, n: int) -> bool:
    return a.shape[0] == n


@pytest.mark.parametrize("sample", SAMPLES)
def test_wrong_dtype_and_shape_are_refused(sample):
    for k, value in enumerate(sample.args):
        if not isinstance(value, torch.Tensor):
            continue
        for bad in (value.to(torch.complex64), value.to(torch.float16), value[None], value.reshape(-1)[:-1]):
            args = list(sample.args)
            args[k] = bad
            with pytest.raises(RuntimeError, match=f"mdops::{sample.op}: "):
                sample.function(*args)


@pytest.mark.parametrize("sample", [p for p in SAMPLES if p.values[0].bad])
def test_bad_values_are_refused(sample):
    for k, value in sample.bad.values():
        args = list(sample.args)
        args[k] = value
        with pytest.raises(RuntimeError, match=f"mdops::{sample.op}: "):
            sample.function(*args)


@pytest.mark.parametrize("sample", SAMPLES)
def test_another_device_is_refused(sample):
    for k, value in enumerate(sample.args):
        if isinstance(value, torch.Tensor):
            args = list(sample.args)
            args[k] = value.to("meta")
            with pytest.raises(RuntimeError, match=f"mdops::{sample.op}"):
                sample.function(*args)


@pytest.mark.parametrize("sample", DIFFERENTIABLE)
def test_compiled_is_eager(sample):
    function, free = with_gradients(sample)

    def loss(*values):
        return sum((r * r).sum() for r in function(*values))

    torch._dynamo.reset()
    want = torch.autograd.grad(loss(*free), free)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*free), free)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_by_the_default_backend():
    """A loss on forces through a chain of ops, by the compiler people use."""
    by_name = {p.values[0].op: p.values[0] for p in reversed(SAMPLES)}
    pairs, moments = by_name["displacements"].args, by_name["spline_moment"].args

    def loss(positions):
        d = torch.ops.mdops.displacements(positions, *pairs[1:])
        energy = torch.ops.mdops.spline_moment(d, *moments[1:])[0].square().sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy + gradient.square().sum()

    positions = pairs[0].clone().requires_grad_()
    torch._dynamo.reset()
    energy = torch.compile(
        lambda x: torch.ops.mdops.spline_moment(torch.ops.mdops.displacements(x, *pairs[1:]), *moments[1:])[
            0
        ].sum(),
        fullgraph=True,
    )
    (got,) = torch.autograd.grad(energy(positions), positions)
    (want,) = torch.autograd.grad(
        torch.ops.mdops.spline_moment(torch.ops.mdops.displacements(positions, *pairs[1:]), *moments[1:])[
            0
        ].sum(),
        positions,
    )
    torch.testing.assert_close(got, want)
    assert torch.autograd.gradcheck(loss, positions)
