"""torch.compile of what is built on the ops: in every mode, and once for all numbers of atoms."""

import pytest
import torch
import torch._inductor.config
from op_cases import each_tensor, samples, tensors
from torch._dynamo.testing import CompileCounterWithBackend

from mdops import ops

CUTOFF = 3.0
MODES = ("default", "reduce-overhead", "max-autotune")
# Its shapes follow from the data: no part of a CUDA graph.
DYNAMIC = ("neighbor_pairs",)


def atoms(count, systems, device, dtype=torch.float64):
    """Positions to batch of a few atoms in boxes, and a small net."""
    gen = torch.Generator().manual_seed(count)
    positions = 5.0 * torch.rand(count, 3, generator=gen, dtype=torch.float64)
    cell = 5.0 * torch.eye(3, dtype=torch.float64).repeat(systems, 1, 1)
    batch = (torch.arange(count) * systems // count).int()
    types = (torch.arange(count) % 2).int()
    net = [0.3 * torch.randn(*shape, generator=gen, dtype=dtype) for shape in ((4, 8), (8, 1))]
    found = positions, cell, torch.ones(systems, 3, dtype=torch.bool), batch, types
    return tuple(x.to(device) for x in found), [x.to(device) for x in net]


def deviations(d):
    return torch.ones(2, 2, dtype=d.dtype, device=d.device)


def rows(d, counts, types):
    std = deviations(d)
    mean = 0 * std[0]
    return ops.env_mat(d, counts, types, mean, std, cutoff=CUTOFF, cutoff_smooth=1.0)


def step(positions, cell, pbc, batch, types, net, capacity):
    """Energy and forces without autograd: a list, rows, a net with its gradient, and back."""
    near, images, counts, _ = ops.neighbor_matrix(positions, cell, pbc, batch, types, CUTOFF, 2, capacity)
    d = ops.displacements(positions, cell, batch, near, images, net[0].dtype)
    r = rows(d, counts, types)
    energy, gradient = ops.mlp_value_and_gradient(r.flatten(0, 1), net, [None, None])
    mask = torch.zeros(2, 2, dtype=torch.bool, device=d.device)
    options = (CUTOFF, 1.0, 0.0, False)
    g = torch.ops.mdops.env_mat_backward(gradient.view_as(r), d, counts, types, deviations(d), mask, *options)
    forces, virial, _ = ops.pair_forces(g, d, batch, near, cell.shape[0])
    return energy.sum(), forces, virial


def energy_of(positions, cell, batch, types, near, images, counts, net):
    d = ops.displacements(positions, cell, batch, near, images, net[0].dtype)
    return ops.mlp(rows(d, counts, types).sum(1), net, [None, None]).sum()


def one_of_each(device):
    """A sample of every op, with gradients where an op has them; in float32 where it computes in that alone."""
    found = {}
    for dtype in (torch.float64, torch.float32):
        own = {}
        for sample in sorted(samples(device, dtype), key=lambda s: not s.differentiable):
            own.setdefault(sample.op, sample)
        found = {**own, **found}
    return list(found.values())


def by_one_function(chosen, compiler):
    """The results of samples' ops, all called in one function that `compiler` makes another of; and their gradients,
    for made-up gradients of the results."""
    given = [
        [
            each_tensor(lambda x: x.clone().requires_grad_(), a) if k in s.differentiable else a
            for k, a in enumerate(s.args)
        ]
        for s in chosen
    ]
    free = [
        x for s, args in zip(chosen, given, strict=True) for k in s.differentiable for x in tensors(args[k])
    ]

    def called(arguments):
        return [s.function(*args) for s, args in zip(chosen, arguments, strict=True)]

    function = compiler(called)
    for _ in range(3):  # graphs of CUDA are recorded in the second call, and replayed in the third
        torch.compiler.cudagraph_mark_step_begin()
        results = [
            r
            for s, result in zip(chosen, function(given), strict=True)
            for k, r in enumerate(tensors(result))
            if k not in s.opaque
        ]
        ends = [r for r in results if r.requires_grad]
        shares = [
            torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype, device=r.device).view_as(r) for r in ends
        ]
        gradients = torch.autograd.grad(ends, free, shares) if free else ()
        found = [x.detach().clone() for x in results], [x.clone() for x in gradients]
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "mode"),
    [("cpu", "default"), *(pytest.param("cuda", mode, marks=pytest.mark.gpu) for mode in MODES)],
)
def test_every_op_compiles_in_every_mode(mode, device):
    """Whole, by the compiler people use, and backward where there is a formula: all ops in one function, for an op is a
    call in what is compiled, whatever is beside it. On a CPU PyTorch's own operations are calls, too: loops for them
    take half of the time, and the tests below compile some. Modes differ there in what stands around the ops alone:
    graphs are CUDA's, and PyTorch's own products are what is tuned; a step is compiled in each."""
    groups = {"alone": [], "together": []}
    for sample in one_of_each(device):
        groups["alone" if sample.op in DYNAMIC else "together"].append(sample)
    assert len(groups["alone"]) == 1 and len(groups["together"]) > 60
    if device == "cuda" and mode != "default":
        # PyTorch 2.11 looks for what such an op returns in the memory of a graph (docs/how-to/compile.md).
        del groups["alone"]
    for chosen in groups.values():
        torch._dynamo.reset()
        with torch._inductor.config.patch(fallback_by_default=device == "cpu"):
            got = by_one_function(chosen, lambda f: torch.compile(f, fullgraph=True, mode=mode))
        want = by_one_function(chosen, lambda f: f)
        for found, expected in zip(got, want, strict=True):
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize(
    ("device", "mode"),
    [
        *(("cpu", mode) for mode in MODES),
        *(pytest.param("cuda", mode, marks=pytest.mark.gpu) for mode in MODES),
    ],
)
def test_a_step_compiles_in_every_mode(mode, device):
    """With loops for what is between its ops."""
    where, net = atoms(12, 2, device)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    for _ in range(3):  # graphs of CUDA are recorded in the second call, and replayed in the third
        got = [x.clone() for x in compiled(*where, net, 40)]
    for a, b in zip(got, step(*where, net, 40), strict=True):
        torch.testing.assert_close(a, b)


def test_a_gradient_compiles_with_loops(device):
    """Of an energy, by its positions and by the weights of its net."""
    (positions, cell, pbc, batch, types), net = atoms(12, 2, device)
    pairs = ops.neighbor_list(positions, cell, pbc, types, CUTOFF, batch=batch, ntypes=2, capacity=40)
    torch._dynamo.reset()
    found = []
    for function in (torch.compile(energy_of, fullgraph=True), energy_of):
        free = [x.clone().requires_grad_() for x in (positions, *net)]
        energy = function(free[0], cell, batch, types, *pairs[:3], free[1:])
        found.append([energy.detach(), *torch.autograd.grad(energy.square(), free)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_one_compilation_for_all_numbers_of_atoms_and_systems(device):
    """Forward and backward; nothing of a step is compiled again for another size."""
    torch._dynamo.reset()
    counter, compiled = CompileCounterWithBackend("aot_eager"), set()
    whole = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    for count, systems, capacity in ((13, 5, 40), (21, 6, 50), (35, 4, 60)):
        where, net = atoms(count, systems, device)
        got, want = whole(*where, net, capacity), step(*where, net, capacity)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
        compiled.add(counter.frame_count)
    assert len(compiled) == 1
    counter, compiled = CompileCounterWithBackend("aot_eager"), set()
    energy = torch.compile(energy_of, fullgraph=True, dynamic=True, backend=counter)
    for count, systems in ((13, 5), (22, 6), (35, 4)):
        (positions, cell, pbc, batch, types), net = atoms(count, systems, device)
        pairs = ops.neighbor_list(
            positions, cell, pbc, types, CUTOFF, batch=batch, ntypes=2, capacity=20 + systems
        )
        gradients = []
        for function in (energy, energy_of):
            leaf = positions.clone().requires_grad_()
            value = function(leaf, cell, batch, types, *pairs[:3], net)
            gradients += torch.autograd.grad(value, leaf)
        torch.testing.assert_close(*gradients)
        compiled.add(counter.frame_count)
    assert len(compiled) == 1


def test_one_compilation_for_all_lengths_of_sequences(device):
    def attended(x, offsets, longest):
        plan = ops.ragged_plan(
            offsets, max_total=x.shape[0], max_batch=offsets.shape[0] - 1, max_length=longest
        )
        return ops.ragged_attention(x, x, x, offsets, plan=plan).square().sum()

    torch._dynamo.reset()
    counter, compiled = CompileCounterWithBackend("aot_eager"), set()
    whole = torch.compile(attended, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ([3, 4, 5], [2, 9, 7, 1], [30, 1, 2, 3, 11]):
        gen = torch.Generator().manual_seed(1)
        x = torch.randn(sum(lengths), 2, 8, generator=gen, dtype=torch.float64).to(device)
        offsets = torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int().to(device)
        gradients = []
        for function in (whole, attended):
            leaf = x.clone().requires_grad_()
            gradients += torch.autograd.grad(function(leaf, offsets, max(lengths)), leaf)
        torch.testing.assert_close(*gradients)
        compiled.add(counter.frame_count)
    assert len(compiled) == 1
