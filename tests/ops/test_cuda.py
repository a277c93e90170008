"""What is promised of the ops on a GPU alone, and their agreement with the CPU."""

import math

import pytest
import torch
from op_cases import find, samples, tensors

from mdops.ops.harmonic_moment import largest_functions, padded_basis
from mdops.testing import CUTOFF, PROTECTION, SMOOTH, harmonic_tables, has_kernel

pytestmark = pytest.mark.gpu

OPS = torch.ops.mdops
NUMBERS = [pytest.param(k, id=f"{k}-{s.op}") for k, s in enumerate(samples("cpu"))]
DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}  # of the largest number of a result
# Their shapes follow from values, or their results are of one device alone.
DYNAMIC, HOST = ("neighbor_pairs",), ("spline_potential_pack", "hybrid_potential_pack")
# Where an op has an argument that only another op can make.
PACKED = {"spline_potential": 14, "hybrid_potential": 15, "fitting_energy": 2}


def on_gpu(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value


def assert_agree(got, want, dtype, opaque=(), times=1, rounded=None):
    """`rounded`: results of arguments that are one rounding away, where that changes more than the tolerance."""
    others = tensors(want) if rounded is None else tensors(rounded)
    for k, (a, b, c) in enumerate(zip(tensors(got), tensors(want), others, strict=True)):
        if k in opaque:
            continue
        assert a.is_cuda and a.dtype == b.dtype and a.shape == b.shape
        if b.is_floating_point():
            scale = float(b.abs().max()) if b.numel() else 0.0
            apart = 4 * float((b - c).abs().max()) if b.numel() and rounded is not None else 0.0
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=times * TOLERANCE[dtype] * scale + apart)
        else:
            assert torch.equal(a.cpu(), b)


def test_every_op_has_a_kernel():
    """But for the whole training step, which begins at the moments on a GPU (`mdops.train.loop.prediction`), and the
    layers of DPA-2 that a CPU takes at once."""
    missing = {s.op for s in samples("cpu") if not has_kernel(s.op, "cuda")}
    layers = {"edge_layer", "edge_layer_backward", "node_layer", "node_layer_backward", "node_layer_pack",
              "edge_convolution_own"}  # fmt: skip
    assert missing == layers | {"spline_training", "spline_training_backward"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", NUMBERS)
def test_agrees_with_the_cpu(k, dtype):
    gpu, cpu = find("cuda", k, dtype), find("cpu", k, dtype)
    if cpu.op in HOST:
        pytest.skip("its layout is the device's own")
    assert_agree(gpu.function(*gpu.args), cpu.function(*cpu.args), dtype, cpu.opaque)


def water_like(atoms: int, width: int, ntypes: int, dtype: torch.dtype, systems: int = 3):
    """A made-up list of full length with every kind of neighbour, on the CPU, and a gradient's generator."""
    gen = torch.Generator().manual_seed(atoms + width)
    counts = torch.randint(0, width // ntypes + 1, (atoms, ntypes), generator=gen).int()
    present = torch.arange(width) < counts.sum(1, keepdim=True)
    neighbors = torch.randint(0, atoms, (atoms, width), generator=gen).int().masked_fill(~present, -1)
    images = torch.randint(0, 1 << 30, (atoms, width), generator=gen).int().masked_fill(~present, 0)
    d = torch.randn(atoms, width, 3, generator=gen, dtype=torch.float64)
    d *= (0.6 + 3 * torch.rand(atoms, width, 1, generator=gen, dtype=torch.float64)) / d.norm(
        dim=-1, keepdim=True
    )
    types = torch.randint(-1, ntypes, (atoms,), generator=gen).int()
    counts[types < 0] = 0
    return {
        "gen": gen,
        "d": (d * present[..., None]).to(dtype),
        "counts": counts,
        "types": types,
        "neighbors": neighbors,
        "images": images,
        "batch": torch.randint(0, systems, (atoms,), generator=gen).int(),
        "mean": torch.rand(ntypes, generator=gen).to(dtype),
        "std": (0.5 + torch.rand(ntypes, 2, generator=gen)).to(dtype),
        "mask": torch.rand(ntypes, ntypes, generator=gen) < 0.2,
        "sel": torch.randint(0, width, (ntypes,), generator=gen).int(),
    }


def moment_calls(p, intervals: int, radial: bool, gated: bool = False, grading: float = 0.0):
    """The calls on those pairs, as (op, args)."""
    n, ntypes = p["counts"].shape
    dtype, columns = p["d"].dtype, 1 if radial else 4
    norm = (p["counts"], p["types"], p["mean"], p["std"], p["mask"])
    switch = (CUTOFF, SMOOTH, PROTECTION)
    grad = torch.randn(n, ntypes, intervals + 5, columns, generator=p["gen"], dtype=torch.float64).to(dtype)
    tangent = torch.randn(p["d"].shape, generator=p["gen"], dtype=torch.float64).to(dtype)
    kind, knots = (radial, gated), (1.2, grading)
    own, shared = (p["sel"], p["sel"][:0]), (p["sel"][:1], p["types"].clamp(min=0).flip(0))
    return [
        *(
            (OPS.spline_moment, (p["d"], *norm, p["mask"].T, *places, *switch, *knots, intervals, *kind))
            for places in (own, shared)
        ),
        (OPS.spline_moment_backward, (grad, p["d"], *norm, *switch, *knots, *kind)),
        (OPS.spline_moment_jvp, (tangent, p["d"], *norm, *switch, *knots, intervals, *kind)),
        (OPS.spline_moment_hvp, (tangent, grad, p["d"], *norm, *switch, *knots, *kind)),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("radial", "gated", "grading"),
    [(False, False, 0.0), (False, False, 1e-6), (True, False, 0.0), (False, True, 0.0)],
)
@pytest.mark.parametrize("intervals", [1, 72, 2000])  # 2,000 in float64: more than fits into shared memory
@pytest.mark.parametrize(("atoms", "width", "ntypes"), [(130, 97, 2), (65, 200, 7), (9, 33, 1), (40, 3, 2)])
def test_moments_of_large_lists(atoms, width, ntypes, intervals, radial, gated, grading, dtype):
    p = water_like(atoms, width, ntypes, dtype)
    q = p | {
        "d": p["d"] * (1 + torch.finfo(dtype).eps),
        "gen": torch.Generator().set_state(p["gen"].get_state()),
    }
    calls = [moment_calls(each, intervals, radial, gated, grading) for each in (p, q)]
    for (op, args), (_, others) in zip(*calls, strict=True):
        assert_agree(op(*map(on_gpu, args)), op(*args), dtype, rounded=op(*others))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("intervals", [1, 216, 2000])  # 2,000: more than fits into shared memory
@pytest.mark.parametrize(("atoms", "width", "ntypes"), [(130, 97, 2), (65, 200, 7), (9, 33, 1)])
def test_harmonic_sums_of_large_lists(atoms, width, ntypes, intervals, degree, dtype):
    p = water_like(atoms, width, ntypes, dtype)
    args = (p["d"], p["counts"], p["types"], p["mask"], CUTOFF, intervals, degree)
    times = max(1, intervals // 100)  # the place within an interval has the more of the rounding of a length

    def numbers(*shape):
        return torch.randn(shape, generator=p["gen"], dtype=torch.float64).to(dtype)

    # By polynomials of all functions in float32, and by splines.
    for functions, seconds in ((8, 4), (34, 2**degree)):
        knots = numbers(ntypes, functions, ntypes, padded_basis(intervals))
        sums = (*args[:4], *harmonic_tables(knots, intervals, seconds), *args[4:], seconds)
        results = OPS.harmonic_sums(*sums)
        assert_agree(OPS.harmonic_sums(*map(on_gpu, sums)), results, dtype, (), times)
        back = (*(numbers(*result.shape) for result in results[:2]), *sums)
        found = [OPS.harmonic_sums_backward(*map(on_gpu, back)) for _ in range(2)]
        assert torch.equal(*found)
        assert_agree(found[0], OPS.harmonic_sums_backward(*back), dtype, (), times)
        for systems in (1, 3):
            batch, most = p["batch"].clamp(max=systems - 1), largest_functions(*sums[5:7])
            forces = (*back[:2], most, results[3], batch, p["neighbors"], systems, *sums)
            found = [OPS.harmonic_forces(*map(on_gpu, forces)) for _ in range(2)]
            assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
            assert_agree(found[0], OPS.harmonic_forces(*forces), dtype, (), times)


def pair_forces_gradients(p, g):
    """Arguments of pair_forces_backward: the gradients of its results, and what pair_forces takes."""
    grads = [
        torch.randn(*shape, generator=p["gen"], dtype=torch.float64)
        for shape in ((len(g), 3), (3, 3, 3), (len(g), 3, 3))
    ]
    return (*grads, g, p["d"], p["batch"], p["neighbors"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("atoms", "width"), [(130, 97), (65, 200), (9, 33), (4000, 40)])
def test_pair_sums_of_large_lists(atoms, width, dtype):
    p = water_like(atoms, width, 2, dtype)
    g = torch.randn(p["d"].shape, generator=p["gen"], dtype=torch.float64).to(dtype)
    cell = torch.randn(3, 3, 3, generator=p["gen"], dtype=torch.float64)
    x = torch.randn(atoms, 3, generator=p["gen"], dtype=torch.float64)
    lists = (p["batch"], p["neighbors"], p["images"])
    for op, args in (
        (OPS.displacements, (x, cell, *lists, dtype)),
        (OPS.displacements_backward, (g, *lists, 3)),
        (OPS.pair_forces, (g, p["d"], p["batch"], p["neighbors"], 3)),
        (OPS.pair_forces_backward, pair_forces_gradients(p, g)),
    ):
        assert_agree(op(*map(on_gpu, args)), op(*args), dtype)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_pair_sums_keep_their_accuracy_at_any_scale(scale):
    p = water_like(200, 50, 2, torch.float64)
    g = scale * torch.randn(p["d"].shape, generator=p["gen"], dtype=torch.float64)
    args = (g, p["d"], p["batch"], p["neighbors"], 3)
    assert_agree(OPS.pair_forces(*map(on_gpu, args)), OPS.pair_forces(*args), torch.float64)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_spoils_its_atoms_and_system_alone(value):
    p = water_like(50, 20, 1, torch.float32, systems=1)
    p["batch"] = (torch.arange(50) >= 25).int()
    p["neighbors"] = torch.where(p["neighbors"] < 0, -1, p["neighbors"] % 25 + 25 * p["batch"][:, None])
    p["neighbors"][3, 0] = 7
    g = torch.randn(p["d"].shape, generator=p["gen"])
    args = [g, p["d"], p["batch"], p["neighbors"].int(), 2]
    before = OPS.pair_forces(*map(on_gpu, args))
    g[3, 0, 1] = value
    forces, virial, atom_virial = OPS.pair_forces(*map(on_gpu, args))
    assert not forces[3].isfinite().all() and not forces[7].isfinite().all()
    assert not virial[0].isfinite().all() and not atom_virial[7].isfinite().all()
    others = torch.tensor([i for i in range(50) if i not in (3, 7)])
    torch.testing.assert_close(forces[others], before[0][others])
    torch.testing.assert_close(atom_virial[others], before[2][others])
    torch.testing.assert_close(virial[1], before[1][1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_in_every_run(dtype):
    p = water_like(3000, 90, 2, dtype)
    g = torch.randn(p["d"].shape, generator=p["gen"], dtype=torch.float64).to(dtype)
    calls = [
        (OPS.displacements_backward, (g, p["batch"], p["neighbors"], p["images"], 3)),
        (OPS.pair_forces, (g, p["d"], p["batch"], p["neighbors"], 3)),
        (OPS.pair_forces_backward, pair_forces_gradients(p, g)),
        *moment_calls(p, 72, False),
    ]
    for op, args in calls:
        gpu_args = [on_gpu(a) for a in args]
        first = tensors(op(*gpu_args))
        for _ in range(10):
            assert all(torch.equal(a, b) for a, b in zip(tensors(op(*gpu_args)), first, strict=True)), op


@pytest.mark.parametrize("k", NUMBERS)
def test_bad_values_give_nan_and_no_crash(k):
    """The CPU refuses them; the GPU does not wait to look at them, but answers NaN and reads nothing wrong."""
    sample = find("cuda", k)
    want = tensors(sample.function(*sample.args))
    for name, (place, value) in sample.bad.items():
        args = list(sample.args)
        args[place] = value
        try:
            got = [r for r in tensors(sample.function(*args)) if r.is_floating_point()]
            assert not got or any(r.isnan().any() for r in got), name
        except RuntimeError as error:
            assert f"mdops::{sample.op}: " in str(error), name
    torch.cuda.synchronize()
    for a, b in zip(tensors(sample.function(*sample.args)), want, strict=True):
        assert torch.equal(a, b)


def changed(sample):
    """Other arguments that the op takes as well: floating numbers scaled by 1.01, but for packed weights."""
    return [
        1.01 * value
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.itemsize > 1  # there is no arithmetic with float8
        and PACKED.get(sample.op) != place
        else value
        for place, value in enumerate(sample.args)
    ]


@pytest.mark.parametrize("k", NUMBERS)
def test_captured_in_a_graph(k):
    sample = find("cuda", k)
    if sample.op in DYNAMIC + HOST:
        pytest.skip("its shapes follow from values, or it prepares weights once")
    static = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample.args]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # the copies are made there
    with torch.cuda.stream(stream):
        sample.function(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        got = tensors(sample.function(*static))
    for args in (sample.args, changed(sample)):
        for place, value in enumerate(args):
            if isinstance(value, torch.Tensor):
                static[place].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(got, tensors(sample.function(*args)), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("k", NUMBERS)
def test_work_goes_to_the_current_stream(k):
    """On a stream whose inputs come late: an op on any other stream would read what was there before."""
    sample = find("cuda", k)
    if not any(isinstance(a, torch.Tensor) for a in sample.args):
        pytest.skip("no tensors among its arguments")
    late = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample.args]
    for a in late:
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            a.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(2e7))  # some 10 ms
        for a, b in zip(late, sample.args, strict=True):
            if isinstance(a, torch.Tensor):
                a.copy_(b)
        got = tensors(sample.function(*late))
    stream.synchronize()
    for a, b in zip(got, tensors(sample.function(*sample.args)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("k", NUMBERS)
def test_another_gpu_than_the_current_one(k):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    sample = find("cuda", k)

    def move(value):
        if isinstance(value, (list, tuple)):
            return [move(v) for v in value]
        return value.to("cuda:1") if isinstance(value, torch.Tensor) else value

    got = tensors(sample.function(*map(move, sample.args)))
    assert torch.cuda.current_device() == 0
    for a, b in zip(got, tensors(sample.function(*sample.args)), strict=True):
        assert a.device == torch.device("cuda:1") and torch.equal(a.to("cuda:0"), b)


def first_integer(sample) -> int:
    return next(place for place, value in enumerate(sample.args) if type(value) is int)


@pytest.mark.parametrize("value", [2**31, 2**32 + 1, 2**62, -1, -(2**31) - 1])
@pytest.mark.parametrize("k", NUMBERS)
def test_integers_of_any_size(k, value):
    """One that no kernel can count is refused: nothing is read or written out of bounds, and later calls go on."""
    sample = find("cuda", k)
    want = tensors(sample.function(*sample.args))
    for place, old in enumerate(sample.args):
        if type(old) is int:
            args = [*sample.args[:place], value, *sample.args[place + 1 :]]
            exponent = place == first_integer(sample) and sample.op.startswith("angle_")
            order = place == len(args) - 1 and sample.op == "edge_frames"
            if value == old or (value == -1 and (exponent or order)):  # which may be negative
                sample.function(*args)
                continue
            with pytest.raises(RuntimeError):
                sample.function(*args)
    torch.cuda.synchronize()
    for a, b in zip(tensors(sample.function(*sample.args)), want, strict=True):
        assert torch.equal(a, b)


def test_virials_beyond_what_one_integer_holds():
    """A system whose atoms have virials of up to 2^29 eV each: their sum is right."""
    by_name = {s.op: s for s in reversed(samples("cpu"))}
    args = list(by_name["spline_potential"].args)
    args[-1] = False  # virials of atoms have less room
    copies, far, atoms = 200, 1e5, len(args[0])
    # All lengths times `far`, and with them what 1/A is in: energies and virials stay, forces fall.
    for k in (0, 1, 18, 19, 20):
        args[k] = args[k] * far
    for k in (7, 8, 21):
        args[k] = args[k] / far
    factor = 3e8 / float(OPS.spline_potential(*args)[2].abs().max())
    args[16], args[17] = args[16] * factor, args[17] * factor
    shifts = atoms * torch.arange(copies, dtype=torch.int32).repeat_interleave(atoms)
    for k in (0, 2, 3, 4, 5, 6, 15):
        args[k] = args[k].repeat(copies, *[1] * (args[k].dim() - 1))
    args[4] = torch.where(args[4] < 0, -1, args[4] + shifts[:, None]).int()
    expected = OPS.spline_potential(*args)[2]
    assert expected.abs().max() > 2.0**34
    single = {s.op: s for s in reversed(samples("cuda", torch.float32))}
    gpu_args = [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]
    for k in (7, 8, 13, 15):
        gpu_args[k] = gpu_args[k].float()
    gpu_args[14] = single["spline_potential"].args[14]
    virial = OPS.spline_potential(*gpu_args)[2]
    assert_agree(virial, expected, torch.float32)


@pytest.mark.fills_gpu
def test_more_numbers_than_32_bits_count():
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs 40 GiB")
    atoms, width = 1 << 28, 4  # 3.2e9 numbers, 12.9 GB
    neighbors = torch.full((atoms, width), -1, dtype=torch.int32, device="cuda")
    neighbors[-1, -1] = atoms - 2
    x = torch.zeros(atoms, 3, dtype=torch.float64, device="cuda")
    x[-2] = torch.tensor([1.0, 2.0, 3.0])
    batch = torch.zeros(atoms, dtype=torch.int32, device="cuda")
    cell = torch.eye(3, dtype=torch.float64, device="cuda")[None]
    images = torch.zeros_like(neighbors)
    d = OPS.displacements(x, cell, batch, neighbors, images, torch.float32)
    assert d[-1, -1].tolist() == [1, 2, 3] and int(d.count_nonzero()) == 3
    del x
    gradient, _ = OPS.displacements_backward(d, batch, neighbors, images, 1)
    assert gradient[-2].tolist() == [1, 2, 3] and gradient[-1].tolist() == [-1, -2, -3]
    assert int(gradient.count_nonzero()) == 6


@pytest.mark.fills_gpu
def test_more_pair_gradients_than_32_bits_count():
    """pair_forces_backward: its last row is the first's of a list that begins with it."""
    if torch.cuda.get_device_properties(0).total_memory < 75 * 2**30:
        pytest.skip("needs 45 GiB")
    atoms, width = 45 << 20, 16  # 2.3e9 numbers of 4 bytes, four times
    d = torch.zeros(atoms, width, 3, device="cuda")
    d[-1, -1] = torch.tensor([1.0, 2.0, 3.0])
    neighbors = torch.full((atoms, width), -1, dtype=torch.int32, device="cuda")
    neighbors[-1, -1] = atoms - 2
    batch = torch.zeros(atoms, dtype=torch.int32, device="cuda")
    grad_forces = torch.zeros(atoms, 3, dtype=torch.float64, device="cuda")
    grad_forces[-1] = 5.0
    none = torch.zeros(atoms, 3, 3, dtype=torch.float64, device="cuda")
    virial = torch.eye(3, dtype=torch.float64, device="cuda")[None]
    by_g, by_d = OPS.pair_forces_backward(grad_forces, virial, none, d, d, batch, neighbors)
    rows = (grad_forces[-2:], virial, none[-2:], d[-2:], d[-2:], batch[-2:], neighbors[-2:].clamp(max=0))
    last_g, last_d = OPS.pair_forces_backward(*rows)
    assert torch.equal(by_g[-1], last_g[-1]) and torch.equal(by_d[-1], last_d[-1])
    assert int(by_g.count_nonzero()) == int(last_g[-1].count_nonzero()) > 0


@pytest.mark.fills_gpu
def test_more_moments_than_32_bits_count():
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs 30 GiB")
    p = water_like(64, 4, 2, torch.float32)
    repeats = 1 << 16  # 4 million atoms, 2.6e9 moments
    many = {
        n: v.repeat(repeats, *[1] * (v.dim() - 1)) if n in ("d", "counts", "types") else v
        for n, v in ((n, on_gpu(v)) for n, v in p.items() if n != "gen")
    }

    def call(q):
        norm = (q["counts"], q["types"], q["mean"], q["std"], q["mask"])
        places = q["mask"], q["sel"], q["sel"][:0]
        switch = CUTOFF, SMOOTH, PROTECTION
        return OPS.spline_moment(q["d"], *norm, *places, *switch, 1.2, 0.0, 72, False, False)[0]

    got, want = call(many), call({n: on_gpu(v) for n, v in p.items() if n != "gen"})
    assert got.numel() > 1 << 31
    assert torch.equal(got[-64:], want) and torch.equal(got[:64], want)
    norm = (many["counts"], many["types"], many["mean"], many["std"], many["mask"])
    pulled = OPS.spline_moment_backward(
        got, many["d"], *norm, CUTOFF, SMOOTH, PROTECTION, 1.2, 0.0, False, False
    )
    assert torch.equal(pulled[-64:], pulled[:64])
