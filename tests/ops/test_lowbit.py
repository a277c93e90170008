"""Products of low-bit numbers against exact integers, quantisation, and straight-through gradients."""

import functools
import itertools

import pytest
import torch

from mdops import ops

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OUT = [torch.float32, torch.bfloat16, torch.float16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
# M, N, K: one, none, whole tiles, and multiples of nothing.
SHAPES = [
    *itertools.product((0, 1), (0, 1), (0, 1)),
    *((3, 5, 7), (16, 32, 64), (33, 31, 129), (64, 64, 256)),
    *((65, 130, 100), (129, 200, 384), (7, 257, 1000), (200, 72, 48)),
]
# What a GPU may choose for a product, by the name that forces it.
WAYS = [
    *("small", "middle", "large", "thin", "thin_pair"),
    *("wide_64", "wide_128", "wide_256", "pair_128", "pair_256"),
]
FLOAT8_BOUND = 2.0**-10


def numbers(*shape: int, seed: int = 0, low: int = -128, high: int = 128) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=gen, dtype=torch.int8)


def scales(*shape: int, seed: int = 1) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(shape))
    return 1e-3 * (0.5 + torch.rand(shape, generator=gen))


def group_parts(depth: int, groups: int) -> list[slice]:
    size = -(-depth // groups)
    return [slice(g * size, min(depth, (g + 1) * size)) for g in range(groups)]


def takes(depth: int, groups: int) -> bool:
    return groups == 1 or depth > (groups - 1) * -(-depth // groups)


def reference(a, b, a_scale, b_scale, out_dtype):
    """The formula of the documentation, in PyTorch on the CPU; exact sums."""
    groups = len(b_scale) if b_scale.dim() == 2 else 1
    sums = [(a[:, k].double() @ b[k].double()).float() for k in group_parts(a.shape[1], groups)]
    terms = [s * (b_scale[g] if b_scale.dim() == 2 else b_scale) for g, s in enumerate(sums)]
    total = functools.reduce(torch.add, terms)
    return (total * (a_scale[:, None] if a_scale.dim() else a_scale)).to(out_dtype)


def right_factors(b):
    """An int8 matrix in the order of rows, and by columns."""
    return {"rows": b, "columns": b.t().contiguous().t()}


def scale_forms(m: int, n: int, k: int):
    for a_form, b_form in itertools.product((None, m), (None, 0, 1, 2, 3, 4)):
        if b_form and not takes(k, b_form):
            continue
        a_scale = scales() if a_form is None else scales(m)
        yield a_scale, scales() if b_form is None else scales(n) if b_form == 0 else scales(b_form, n)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_has_the_bits_of_the_integer_reference(shape, device):
    m, n, k = shape
    a, b = numbers(m, k), numbers(k, n, seed=9)
    for (a_scale, b_scale), out in itertools.product(scale_forms(m, n, k), OUT):
        want = reference(a, b, a_scale, b_scale, out)
        for name, right in right_factors(b).items():
            args = (x.to(device) for x in (a, right, a_scale, b_scale))
            got = ops.gemm_lowbit(*args, out_dtype=out)
            assert got.dtype == out and got.shape == want.shape
            assert torch.equal(got.cpu(), want), (name, tuple(b_scale.shape), out)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ternary_has_the_bits_of_the_integer_reference(shape, device):
    m, n, k = shape
    a, b = numbers(m, k), numbers(k, n, low=-1, high=2)
    packed = ops.pack_ternary(b.to(device))
    assert packed.dtype == torch.uint8 and packed.shape == (-(-k // 4), n)
    assert torch.equal(ops.unpack_ternary(packed, k).cpu(), b)
    for (a_scale, b_scale), out in itertools.product(scale_forms(m, n, k), OUT):
        want = reference(a, b, a_scale, b_scale, out)
        got = ops.gemm_lowbit(a.to(device), packed, a_scale.to(device), b_scale.to(device), out_dtype=out)
        assert torch.equal(got.cpu(), want), (tuple(b_scale.shape), out)


@pytest.mark.parametrize("shape", [(1030, 600, 1100), (260, 1000, 4200), (700, 70, 333)], ids=str)
def test_large_products_have_their_bits_on_any_number_of_threads(shape):
    """What is cut into pieces, and whether rows are prepared for all threads or by each, depends on their number."""
    m, n, k = shape
    a, b, a_scale, b_scale = numbers(m, k), numbers(k, n, seed=9), scales(m), scales(n)
    want = reference(a, b, a_scale, b_scale, torch.float32)
    before = torch.get_num_threads()
    try:
        for threads, right in itertools.product((1, 2, 5), right_factors(b).values()):
            torch.set_num_threads(threads)
            assert torch.equal(ops.gemm_lowbit(a, right, a_scale, b_scale), want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(FLOAT8, FLOAT8)))
def test_float8_is_within_its_bound(left, right, out, device):
    for m, n, k in SHAPES:
        gen = torch.Generator().manual_seed(k)
        a = (16 * torch.randn(m, k, generator=gen)).to(left)
        b = (torch.randn(k, n, generator=gen) + 0.3).to(right)
        for a_scale, b_scale in scale_forms(m, n, k):
            exact = reference(a.float(), b.float(), a_scale.double(), b_scale.double(), torch.float64)
            size = reference(
                a.float().abs(), b.float().abs(), a_scale.double(), b_scale.double(), torch.float64
            )
            rounding = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}[out]
            for other in right_factors(b).values():
                args = (x.to(device) for x in (a, other, a_scale, b_scale))
                got = ops.gemm_lowbit(*args, out_dtype=out).cpu().double()
                bound = (FLOAT8_BOUND if device == "cuda" else 2.0**-18) * size
                assert ((got - exact).abs() <= bound + rounding * exact.abs() + 1e-7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_kernel_of_a_gpu_gives_the_same(way, monkeypatch):
    monkeypatch.setenv("MDOPS_LOWBIT_TILE", way)
    for m, n, k in [
        (1, 1, 16),
        (130, 260, 400),
        (300, 520, 1024),
        (257, 33, 4096),
        (1000, 1000, 1000),
        (3, 700, 640),
        (20, 304, 1030),
        (130, 400, 3090),
    ]:
        a, b = numbers(m, k), numbers(k, n, seed=9)
        ternary = numbers(k, n, low=-1, high=2)
        for groups in (0, 5, 8, 13):
            if groups and not takes(k, groups):
                continue
            a_scale, b_scale = scales(m), scales(n) if groups == 0 else scales(groups, n)
            for out in OUT:
                there = (a_scale.cuda(), b_scale.cuda())
                for values, given in [
                    *((b, right.cuda()) for right in right_factors(b).values()),
                    (ternary, ops.pack_ternary(ternary.cuda())),
                ]:
                    got = ops.gemm_lowbit(a.cuda(), given, *there, out_dtype=out)
                    assert torch.equal(got.cpu(), reference(a, values, a_scale, b_scale, out)), (
                        m,
                        n,
                        k,
                        groups,
                        out,
                    )
            for left, right in itertools.product(FLOAT8, FLOAT8):
                x, y = a.div(8).to(left), b.div(8).to(right)
                exact = reference(x.float(), y.float(), a_scale.double(), b_scale.double(), torch.float64)
                size = reference(
                    x.float().abs(), y.float().abs(), a_scale.double(), b_scale.double(), torch.float64
                )
                for given in right_factors(y).values():
                    got = ops.gemm_lowbit(x.cuda(), given.cuda(), a_scale.cuda(), b_scale.cuda())
                    assert ((got.cpu().double() - exact).abs() <= FLOAT8_BOUND * size + 1e-7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_kernel_of_a_gpu_keeps_nan_where_it_is(way, monkeypatch):
    """Of scales and of numbers, in factors that are copied first."""
    monkeypatch.setenv("MDOPS_LOWBIT_TILE", way)
    m, n, k = 150, 270, 700
    a, b = numbers(m, 2 * k).cuda()[:, ::2], numbers(n, k + 3, seed=9).cuda()[:, :k].t()
    a_scale, b_scale = torch.ones(m, device="cuda"), torch.ones(n, device="cuda")
    a_scale[[3, 140]], b_scale[[7, 201]] = torch.nan, torch.nan
    for out in OUT:
        got = ops.gemm_lowbit(a, b, a_scale, b_scale, out_dtype=out)
        want = reference(a.cpu(), b.cpu(), a_scale.cpu(), b_scale.cpu(), out)
        assert torch.equal(got.cpu().nan_to_num(0.5), want.nan_to_num(0.5))
        assert torch.equal(got.isnan().cpu(), want.isnan())
        x, y = a.div(64).to(FLOAT8[0]), b.div(64).to(FLOAT8[0])
        x[5, 9], y[11, 13] = torch.nan, torch.nan
        spoilt = ops.gemm_lowbit(x, y, a_scale, b_scale, out_dtype=out).isnan()
        assert spoilt[[3, 5, 140]].all() and spoilt[:, [7, 13, 201]].all()
        assert int(spoilt.sum()) == 3 * n + 3 * m - 9


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_kernel_of_a_gpu_gives_the_same_bits_behind_others(way, monkeypatch):
    """Kernel after kernel in a graph, where blocks begin early and a ring of stages goes round many times."""
    monkeypatch.setenv("MDOPS_LOWBIT_TILE", way)
    for kind, (m, n, k) in itertools.product([torch.int8, FLOAT8[0]], [(128, 1000, 4112), (500, 2056, 1536)]):
        a, b = numbers(m, k), numbers(n, k, seed=3)
        a, b = (x.cuda() if kind == torch.int8 else x.div(16).to(kind).cuda() for x in (a, b))
        a_scale, b_scale = scales(m).cuda(), scales(n).cuda()
        want = ops.gemm_lowbit(a, b.t(), a_scale, b_scale)
        x, y, both = a.float().double(), b.float().double().t(), b_scale * a_scale[:, None]
        exact, size = (x @ y) * both, (x.abs() @ y.abs()) * both
        assert ((want.double() - exact).abs() <= FLOAT8_BOUND * size).all()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [ops.gemm_lowbit(a, b.t(), a_scale, b_scale) for _ in range(20)]
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(want, got) for got in results)


@pytest.mark.gpu
def test_rows_that_fill_an_h100_go_in_pairs(monkeypatch):
    """Which kernel it was tell float8's bits, by the order of sums: parts of the depth differ in size, so that
    sums are rounded. `thin` keeps few columns, little depth and more rows."""
    chip = torch.cuda.get_device_properties()
    if (chip.major, chip.minor, chip.multi_processor_count) != (9, 0, 132):
        pytest.skip("the shapes are chosen for an H100 of 132 multiprocessors")
    monkeypatch.delenv("MDOPS_LOWBIT_TILE", raising=False)
    one = torch.ones((), device="cuda")
    for m, n, k, way in [
        (100, 4224, 1024, "thin_pair"),
        (65, 4096, 4096, "thin_pair"),
        (100, 4224, 1008, "thin"),
        (128, 2240, 2048, "thin"),
        (300, 1024, 2048, "thin"),
    ]:
        sizes = numbers(-(-k // 128), low=-12, high=13).repeat_interleave(128)[:k]
        x = (numbers(m, k).div(64) * 2.0**sizes).to(FLOAT8[1]).cuda()
        y = numbers(n, k, seed=9).div(64).to(FLOAT8[1]).cuda()
        chosen = ops.gemm_lowbit(x, y.t(), one, one)
        same = {}
        for name in ("thin", "thin_pair"):
            with monkeypatch.context() as forced:
                forced.setenv("MDOPS_LOWBIT_TILE", name)
                same[name] = torch.equal(chosen, ops.gemm_lowbit(x, y.t(), one, one))
        assert same == {"thin": way == "thin", "thin_pair": way == "thin_pair"}, (m, n, k)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_large_products_of_a_gpu(kind):
    """Some rows and columns of products that many blocks share; the same bits again."""
    m, n, k = 2500, 3000, 4112
    a, b = numbers(m, k), numbers(k, n, seed=3)
    a, b = (a, b) if kind == torch.int8 else (a.div(16).to(kind), b.div(16).to(kind))
    a_scale, b_scale = scales(m), scales(n)
    there = [x.cuda() for x in (a, b, a_scale, b_scale)]
    got = ops.gemm_lowbit(*there)
    assert torch.equal(got, ops.gemm_lowbit(*there))
    rows, cols = torch.arange(0, m, 97), torch.arange(0, n, 89)
    x, y = a[rows].double(), b[:, cols].double()
    want = reference(x, y, a_scale[rows], b_scale[cols], torch.float32)
    part = got.cpu()[rows][:, cols]
    if kind == torch.int8:
        assert torch.equal(part, want)
    else:
        size = reference(x.abs(), y.abs(), a_scale[rows], b_scale[cols], torch.float64)
        worst = float(((part.double() - want).abs() / size).max())
        print(f"float8 error {worst:.2e} of the sum of sizes")
        assert worst < FLOAT8_BOUND


@pytest.mark.parametrize("depth", [1, 64, 4099, 131071])
def test_the_largest_sums(depth, device):
    """All -128: products of 16,384, and sums up to 2^31 - 16,384."""
    a = torch.full((3, depth), -128, dtype=torch.int8, device=device)
    b = torch.full((depth, 5), -128, dtype=torch.int8, device=device)
    one = torch.ones((), device=device)
    for right in (b, -1 - b):
        want = torch.full((3, 5), float(depth * 128 * 128 if right is b else -128 * 127 * depth))
        assert torch.equal(ops.gemm_lowbit(a, right, one, one).cpu(), want)


def test_sums_that_do_not_fit_are_refused(device):
    a = torch.zeros(1, 131072, dtype=torch.int8, device=device)
    one = torch.ones((), device=device)
    with pytest.raises(
        RuntimeError, match=r"mdops::gemm_lowbit: .* summed over 131072 numbers.*give `b_scale` for groups"
    ):
        ops.gemm_lowbit(a, a.t(), one, one)
    assert ops.gemm_lowbit(a, a.t(), one, torch.ones(2, 1, device=device)).item() == 0


def test_nan_scales_and_numbers_give_nan(device):
    m, n, k = 20, 40, 64
    a, b = numbers(m, k).to(device), numbers(k, n).to(device)
    for packed in (b, ops.pack_ternary(b.clamp(-1, 1))):
        a_scale, b_scale = torch.ones(m, device=device), torch.ones(2, n, device=device)
        a_scale[3], b_scale[1, 7] = torch.nan, torch.nan
        for out in OUT:
            got = ops.gemm_lowbit(a, packed, a_scale, b_scale, out_dtype=out).isnan()
            assert got[3].all() and got[:, 7].all() and int(got.sum()) == m + n - 1
    one = torch.ones((), device=device)
    for left, right in itertools.product(FLOAT8, FLOAT8):
        x, y = a.div(64).to(left), b.div(64).to(right)
        x[5, 9], y[11, 13] = torch.nan, torch.nan
        for other in (y, y.t().contiguous().t()):
            got = ops.gemm_lowbit(x, other, one, one).isnan()
            assert got[5].all() and got[:, 13].all() and int(got.sum()) == m + n - 1


def test_strides_do_not_matter(device):
    """Slices, expanded rows, every second number: whatever is no plain matrix is copied."""
    a, b = numbers(40, 100).to(device), numbers(100, 60).to(device)
    one = torch.ones((), device=device)
    for left in (a[::2, 3:35], a[:, ::3][:, :32], a[:1, :32].expand(7, 32), a.t()[:20, :32]):
        for right in (b[:32, 1:33], b[::3][:32], b.t()[:32], b[:32, :1].expand(32, 5), b[:32, ::2]):
            got = ops.gemm_lowbit(left, right, one, one).cpu()
            assert torch.equal(got, left.cpu().float() @ right.cpu().float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(4, 8)}, "`a` has dtype Float, expected int8, float8_e4m3fn or float8_e5m2"),
        ({"a": torch.zeros(4, 8, dtype=torch.uint8)}, "`a` has dtype Byte"),
        ({"b": torch.zeros(8, 6)}, "`b` has dtype Float, expected int8, or uint8"),
        ({"b": torch.zeros(8, 6, dtype=torch.float8_e5m2)}, "`b` has dtype Float8_e5m2, expected int8"),
        ({"a": torch.zeros(4, 8, dtype=torch.float8_e5m2)}, "`b` has dtype Char, expected float8"),
        ({"b": torch.zeros(7, 6, dtype=torch.int8)}, r"`b` has shape \(7, 6\), expected \(8, \*\)"),
        ({"b": torch.zeros(8, 6, dtype=torch.uint8)}, r"`b` has shape \(8, 6\), expected \(2, \*\)"),
        ({"b": torch.zeros(8, dtype=torch.int8)}, "`b` has shape"),
        ({"a_scale": torch.zeros(5)}, r"`a_scale` has shape \(5\), expected \(4\)"),
        ({"a_scale": torch.zeros(4).double()}, "`a_scale` has dtype Double"),
        ({"a_scale": torch.zeros(1, 4)}, "`a_scale` has shape"),
        ({"b_scale": torch.zeros(5)}, r"`b_scale` has shape \(5\), expected \(6\)"),
        ({"b_scale": torch.zeros(2, 5)}, r"`b_scale` has shape \(2, 5\), expected \(\*, 6\)"),
        ({"b_scale": torch.zeros(0, 6)}, "`b_scale` has 0 groups"),
        ({"b_scale": torch.zeros(5, 6)}, r"`b_scale` has 5 groups, of which ceil\(K / groups\) = 2"),
        ({"out_dtype": torch.float64}, "`out_dtype` is Double, expected float32, bfloat16 or float16"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_wrong_arguments_are_refused(change, message, device):
    args = {
        "a": torch.zeros(4, 8, dtype=torch.int8),
        "b": torch.zeros(8, 6, dtype=torch.int8),
        "a_scale": torch.ones(4),
        "b_scale": torch.ones(6),
        "out_dtype": torch.float32,
    }
    args = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in (args | change).items()}
    with pytest.raises(RuntimeError, match=f"mdops::gemm_lowbit: argument {message}"):
        ops.gemm_lowbit(**args)


# Quantisation.

CASES = [("tensor", 1), ("row", 1), ("column", 1), ("column", 3), ("column", 8)]


def expected_quantize(x, kind, per, groups):
    """The documentation's formula in PyTorch."""
    parts = group_parts(len(x), groups) if per == "column" else [slice(None)]
    dim = {"tensor": (0, 1), "row": 1, "column": 0}[per]
    values, found = [], []
    for part in parts:
        size = x[part].abs().double().mean(dim) if kind == "ternary" else x[part].abs().amax(dim)
        most = {"int8": 127.0, "ternary": 1.0, "e4m3": 448.0, "e5m2": 57344.0}[kind]
        scale = size.float() if kind == "ternary" else size / most
        scale = torch.where(scale == 0, 1.0, scale)
        ratio = x[part] / (scale[:, None] if per == "row" else scale)
        if kind in ("int8", "ternary"):
            values.append(ratio.round().clamp(-most, most).to(torch.int8))
        else:
            values.append(ratio.clamp(-most, most).to({"e4m3": FLOAT8[0], "e5m2": FLOAT8[1]}[kind]))
        found.append(scale)
    return torch.cat([v.view(torch.int8) for v in values]).view(values[0].dtype), (
        torch.stack(found) if groups > 1 else found[0]
    )


@pytest.mark.parametrize(("per", "groups"), CASES)
@pytest.mark.parametrize("kind", ["int8", "ternary", "e4m3", "e5m2"])
def test_quantize_is_its_formula(kind, per, groups, device):
    for rows, cols in [(50, 40), (24, 1), (1000, 70), (23, 513)]:
        gen = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, cols, generator=gen) * torch.rand(rows, 1, generator=gen)
        x[:, -1] = 0
        x[0] = 0
        values, scale = ops.quantize(x.to(device), kind, per=per, groups=groups)
        want, want_scale = expected_quantize(x, kind, per, groups)
        assert values.dtype == want.dtype and scale.dtype == torch.float32 and scale.shape == want_scale.shape
        torch.testing.assert_close(scale.cpu(), want_scale, rtol=1.5e-7 if kind == "ternary" else 0, atol=0)
        assert torch.equal(values.cpu().view(torch.int8), want.view(torch.int8))


def test_quantize_takes_dtypes_by_name_and_other_floats():
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for name, dtype in (("int8", torch.int8), ("e4m3", FLOAT8[0]), ("e5m2", FLOAT8[1])):
        one, two = ops.quantize(x, name), ops.quantize(x.double(), dtype)
        assert torch.equal(one[0].view(torch.int8), two[0].view(torch.int8)) and one[1] == two[1]
    with pytest.raises(
        RuntimeError, match=r"mdops::quantize: argument `kind` is int4, expected int8, ternary"
    ):
        ops.quantize(x, "int4")
    with pytest.raises(RuntimeError, match=r"mdops::quantize: the scales are per page"):
        ops.quantize(x, "int8", per="page")
    with pytest.raises(RuntimeError, match=r"mdops::quantize: argument `groups` is 2"):
        ops.quantize(x, "int8", per="row", groups=2)
    with pytest.raises(
        RuntimeError, match=r"mdops::quantize: argument `groups` is 4, of which .* leave some empty"
    ):
        ops.quantize(x, "int8", per="column", groups=4)


@pytest.mark.parametrize(("per", "groups"), CASES)
@pytest.mark.parametrize("kind", ["int8", "ternary", "e4m3", "e5m2"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_in_the_scale(value, kind, per, groups, device):
    x = torch.ones(24, 10)
    x[9, 4] = value
    x = x.to(device)
    values, scale = ops.quantize(x, kind, per=per, groups=groups)
    assert int((~scale.isfinite()).sum()) == 1
    spoilt = ops.fake_quantize(x, kind, per=per, groups=groups)
    assert not spoilt[9, 4].isfinite()
    if per == "column":
        one = torch.ones((), device=device)
        left, _ = ops.quantize(
            torch.ones(3, 24, device=device), "int8" if kind in ("int8", "ternary") else kind
        )
        result = ops.gemm_lowbit(left, values, one, scale)
        assert not result[:, 4].isfinite().any() and result[:, :4].isfinite().all()


def test_packing_refuses_other_numbers():
    with pytest.raises(RuntimeError, match=r"mdops::pack_ternary: argument `values` has 2 in row 1"):
        ops.pack_ternary(torch.tensor([[0], [2]], dtype=torch.int8))
    with pytest.raises(RuntimeError, match=r"mdops::unpack_ternary: argument `rows` is 9"):
        ops.unpack_ternary(torch.zeros(2, 3, dtype=torch.uint8), 9)
    assert ops.unpack_ternary(torch.zeros(2, 3, dtype=torch.uint8)).shape == (8, 3)


def test_the_layout_of_packed_numbers(device):
    values = torch.tensor([[1, 0], [-1, 1], [0, 0], [1, -1], [-1, 1]], dtype=torch.int8, device=device)
    packed = ops.pack_ternary(values).cpu()
    assert packed.tolist() == [[0b01001101, 0b11000100], [0b11, 0b01]]


# Gradients.


def test_gradients_to_the_scales(device):
    m, n, k = 5, 7, 12
    a, b = numbers(m, k).to(device), numbers(k, n).to(device)
    ternary = b.clamp(-1, 1)
    for groups, (values, given) in itertools.product(
        (None, 0, 1, 3, 4), ((b, b), (ternary, ops.pack_ternary(ternary)))
    ):
        shape = () if groups is None else (n,) if groups == 0 else (groups, n)
        for a_shape in ((), (m,)):
            a_scale, b_scale = (scales(*s).to(device).requires_grad_() for s in (a_shape, shape))
            grad = torch.randn(m, n, generator=torch.Generator().manual_seed(0)).to(device)
            got = torch.autograd.grad(ops.gemm_lowbit(a, given, a_scale, b_scale), (a_scale, b_scale), grad)
            parts = group_parts(k, groups or 1)
            rows = b_scale if b_scale.dim() == 2 else [b_scale]
            terms = [(a[:, part].float() @ values[part].float()) * rows[g] for g, part in enumerate(parts)]
            want_of = sum(terms) * (a_scale[:, None] if a_shape else a_scale)
            for one, two in zip(got, torch.autograd.grad(want_of, (a_scale, b_scale), grad), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5 * float(two.detach().abs().max()))


KINDS = [("int8", "int8"), ("int8", "ternary"), ("e4m3", "e4m3"), ("e5m2", "e4m3")]


def straight_through(x, weight, x_kind, weight_kind, per, groups):
    """x W with x as it is quantised but with the gradient of x, in float64."""

    def rounded(value, kind, **how):
        return value + (ops.fake_quantize(value.detach(), kind, **how).double() - value).detach()

    return rounded(x, x_kind, per="row") @ rounded(weight, weight_kind, per=per, groups=groups)


@pytest.mark.parametrize(("per", "groups"), [("tensor", 1), ("column", 1), ("column", 3)])
@pytest.mark.parametrize(("x_kind", "weight_kind"), KINDS)
def test_gradients_go_straight_through(x_kind, weight_kind, per, groups, device):
    """First and second derivatives of a loss on the gradient, as training on forces takes them."""
    gen = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*s, generator=gen).to(device).requires_grad_() for s in ((6, 12), (12, 5)))

    def derivatives(product, *leaves):
        y = product(*leaves)
        energy = torch.tanh(y).sum()
        (force,) = torch.autograd.grad(energy, leaves[0], create_graph=True)
        return (y, force, *torch.autograd.grad(force.square().sum() + energy, leaves))

    got = derivatives(
        lambda x, w: ops.lowbit_linear(
            x, w, x_kind=x_kind, weight_kind=weight_kind, weight_per=per, groups=groups
        ),
        x,
        weight,
    )
    doubles = (x.detach().double().requires_grad_(), weight.detach().double().requires_grad_())
    want = derivatives(lambda x, w: straight_through(x, w, x_kind, weight_kind, per, groups), *doubles)
    tolerance = 1e-5 if x_kind == "int8" or device == "cpu" else 4 * FLOAT8_BOUND
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.double(), two, rtol=0, atol=tolerance * float(two.detach().abs().max())
        )


def test_wrong_factors_of_a_layer_are_refused(device):
    x, weight = torch.randn(3, 8, device=device), torch.randn(8, 4, device=device)
    for change, message in [
        ({"x_kind": "ternary"}, "`x_kind` and `weight_kind` are ternary and ternary"),
        ({"x_kind": "e4m3"}, "are e4m3 and ternary, expected int8 beside int8 or ternary, or two float8"),
        ({"weight_per": "row"}, "`weight_per` is row"),
        ({"weight_kind": "int3"}, "`weight_kind` is int3"),
    ]:
        with pytest.raises(RuntimeError, match=f"mdops::lowbit_linear: .*{message}"):
            ops.lowbit_linear(x, weight, **change)
    with pytest.raises(RuntimeError, match=r"mdops::lowbit_linear: argument `weight` has shape"):
        ops.lowbit_linear(x, weight[1:])


def test_it_compiles_in_one_graph(device):
    def loss(x, weight):
        a, a_scale = ops.quantize(x, "int8", per="row")
        b, b_scale = ops.quantize(weight, "ternary", per="column", groups=2)
        packed = ops.pack_ternary(b)
        product = ops.gemm_lowbit(a, packed, a_scale, b_scale, out_dtype=torch.bfloat16)
        return product.float().sum() + ops.lowbit_linear(x, weight).square().sum()

    gen = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*s, generator=gen).to(device).requires_grad_() for s in ((6, 12), (12, 5)))
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, weight), loss(x, weight))
    for one, two in zip(
        *(torch.autograd.grad(f(x, weight), (x, weight)) for f in (compiled, loss)), strict=True
    ):
        torch.testing.assert_close(one, two)
