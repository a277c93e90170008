"""Steps by ops without a graph: what GPUs take in float64. The ops run on the CPU, too, and so does the comparison."""

import copy
import dataclasses
import warnings
from unittest import mock

import pytest
import torch
from reference_cases import CASES, DATA, composed, loaded, references, relative_error

from mdops.cli.sample_model import sample_model
from mdops.evaluators.from_moments import MomentSteps
from mdops.jit.sample_box import sample_box
from mdops.ops import axis_product, moment_product
from mdops.system import from_atoms


def taken(case):
    """A model in float64, if these steps take it somewhere."""
    potential = loaded(case)
    if not MomentSteps.knows(potential):
        pytest.skip("another descriptor")
    with mock.patch.object(type(potential), "device", torch.device("cuda")):
        reason = MomentSteps.why_not(potential)
    if reason is not None:
        pytest.skip(reason)
    return potential


@pytest.mark.parametrize("case", CASES)
def test_steps_are_autograd(case):
    potential = taken(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for reference in references(DATA / case):
            asked = (reference.fparam, reference.aparam)
            near = potential.neighbor_list(reference.system)
            answers, _ = MomentSteps(potential)(reference.system, near, *asked, atom_virial=True)
            found = potential.with_sums(answers, reference.system)
            expected = composed(potential, reference.system, *asked)
            assert found.keys() == expected.keys()
            for name, value in found.items():
                assert relative_error(value, expected[name]) < 1e-11, (reference.name, name)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_float64_on_a_gpu_is_the_cpu(case):
    potential = taken(case)
    (reference, *_) = references(DATA / case)
    expected = potential.evaluate(
        reference.system, None, reference.fparam, reference.aparam, atom_virial=True
    )
    gpu = copy.deepcopy(potential).to("cuda")
    assert isinstance(gpu.evaluator(), MomentSteps)
    fields = {f.name: getattr(reference.system, f.name) for f in dataclasses.fields(reference.system)}
    system = type(reference.system)(
        **{name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in fields.items()}
    )
    parameters = [None if x is None else x.cuda() for x in (reference.fparam, reference.aparam)]
    found = gpu.evaluate(system, None, *parameters, atom_virial=True)
    for name, value in expected.items():
        assert relative_error(found[name].cpu(), value) < 1e-10, name


@pytest.mark.gpu
def test_float64_on_a_gpu_has_the_same_bits_every_time():
    model = sample_model((46, 92), 6.0, (25, 50, 100), 16, (60, 60), torch.float64, activation="gelu")
    model.use_spline(0.5)
    model = model.to("cuda")
    system = from_atoms([sample_box(1536, model.type_map)], model.type_map, "cuda")
    pairs = model.neighbor_list(system)
    first = model.evaluate(system, pairs)
    for name, value in model.evaluate(system, pairs).items():
        assert torch.equal(value, first[name]), name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("rows", "width", "axis"),
    [(4, 100, 16), (4, 40, 7), (4, 150, 3), (4, 70, 64), (4, 130, 100), (1, 3, 2), (9, 33, 7)],
)
def test_axis_product(device, rows, width, axis):
    """Also where a GPU's block does not hold an atom's numbers in shared memory (130 x 100)."""
    generator = torch.Generator().manual_seed(0)
    t = torch.randn(5, rows, width, dtype=torch.float64, generator=generator).to(device).requires_grad_()
    expected = torch.einsum("nak,nal->nkl", t, t[:, :, :axis]).flatten(1)
    found = axis_product(t, axis)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-12)
    weight = torch.randn(found.shape, dtype=torch.float64, generator=generator).to(device)
    (by_t,) = torch.autograd.grad(found, t, weight)
    (wanted,) = torch.autograd.grad(expected, t, weight)
    torch.testing.assert_close(by_t, wanted, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("axis", [0, 6])
def test_an_axis_out_of_range_is_refused(axis):
    with pytest.raises(RuntimeError, match=f"mdops::axis_product: argument `axis` is {axis}, expected 1 to"):
        axis_product(torch.zeros(2, 4, 5), axis)


@pytest.mark.gpu
def test_float64_steps_are_captured():
    """A graph of a step, replayed for other positions, is the step."""
    model = sample_model((46, 92), 6.0, (25, 50, 100), 16, (60, 60), torch.float64)
    model.use_spline(0.5)
    model = model.to("cuda")
    system = from_atoms([sample_box(192, model.type_map)], model.type_map, "cuda")
    system.find_atoms_by_type(2)
    pairs, steps = model.neighbor_list(system), model.evaluator()
    assert isinstance(steps, MomentSteps) and steps.captures
    steps(system, pairs, check=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, _ = steps(system, pairs, check=False)
    generator = torch.Generator("cuda").manual_seed(0)
    system.positions += 0.01 * torch.randn(192, 3, generator=generator, dtype=torch.float64, device="cuda")
    graph.replay()
    expected, _ = steps(system, pairs, check=False)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("columns", "width"), [(4, 130), (4, 100), (3, 7), (1, 300)])
def test_moment_product(device, columns, width):
    """Rows sorted by kinds, where kinds meet within eight rows; an atom without a row has no gradient."""
    generator = torch.Generator().manual_seed(0)
    atoms, basis = 45, 71
    kinds = torch.randint(-1, 3, (atoms,), generator=generator)
    rows = torch.cat([torch.nonzero(kinds == k)[:, 0] for k in range(3)])
    moments, tables = (
        torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((atoms, basis, columns), (3, basis, width))
    )
    expected = moments[rows].transpose(1, 2) @ tables[kinds[rows]]
    weight = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    wanted = torch.autograd.grad(expected, (moments, tables), weight)
    own = [x.detach().to(device).requires_grad_() for x in (moments, tables)]
    found = moment_product(*own, rows.int().to(device), kinds.int().to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-11)
    for a, b in zip(torch.autograd.grad(found, own, weight.to(device)), wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_moment_product_of_no_rows(device):
    """Atoms without rows, and no atoms."""
    tables = torch.ones(2, 7, 6, dtype=torch.float64, device=device)
    rows = torch.zeros(0, dtype=torch.int32, device=device)
    for atoms in (3, 0):
        moments = torch.ones(atoms, 7, 4, dtype=torch.float64, device=device)
        kinds = torch.zeros(atoms, dtype=torch.int32, device=device)
        t = moment_product(moments, tables, rows, kinds)
        assert t.shape == (0, 4, 6)
        back = torch.ops.mdops.moment_product_backward(t, tables, rows, kinds)
        assert back.shape == moments.shape and not back.any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("rows", [[0, 2, 0], [0, 2, 3, 0, 1]])
def test_an_atom_in_two_rows_of_a_moment_product(device, rows):
    """The gradient has one place an atom: refused, or no numbers where the values are not looked at."""
    tables = torch.ones(2, 7, 6, dtype=torch.float64, device=device)
    kinds = torch.zeros(5, dtype=torch.int32, device=device)
    index = torch.tensor(rows, dtype=torch.int32, device=device)
    moments, t = (
        torch.ones(*shape, dtype=torch.float64, device=device) for shape in ((5, 7, 4), (len(rows), 4, 6))
    )
    calls = [
        lambda: torch.ops.mdops.moment_product_backward(t, tables, index, kinds),
        lambda: moment_product(moments, tables, index, kinds),
    ]
    if device == "cpu":
        for call in calls:
            with pytest.raises(RuntimeError, match="argument `rows` holds atom 0 more than once"):
                call()
    else:
        assert calls[0]().isnan().any()
