"""The sums behind layers of coordinates, as one op."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from mdops.ops import ragged_plan
from mdops.ops.attention_moments import JoinedLayer, _reference, attention_moments, has_moments

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
WAYS = {
    "smooth": {"switch": True, "directions": True, "normalize": True},
    "by angles": {"switch": False, "directions": True, "normalize": True},
    "bare": {"switch": False, "directions": False, "normalize": False},
}
SHAPES = [
    ((90, 30), (32, 64), 100),
    ((70, 0, 1), (64, 64), 50),
    ((16, 113), (32,), 128),
    ((5, 40), (64, 32, 64), 122),
    ((3, 1, 0, 2, 4, 1, 1, 9, 33, 2), (32, 64), 100),  # many atoms in 16 rows
]


def case(counts, widths, features, way):
    """Arguments in float64: those with a gradient by name, and the rest."""
    torch.manual_seed(0)
    behind, total, options = [*widths[1:], features], sum(counts), WAYS[way]

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    layers = [
        JoinedLayer(random(n, m) / n**0.5, random(n, m) / n**0.5, random(m), 0.7, *(later(n) if k else ()))
        for k, (n, m) in enumerate(zip(widths, behind, strict=True))
    ]
    leaves = {"rows": random(total, 4 * widths[0]) / 2, "environment": random(total, 4)}
    if options["directions"]:
        leaves["directions"] = F.normalize(random(total, 3), dim=1)
    if options["switch"]:
        leaves["switch"] = torch.rand(total, dtype=torch.float64)
    rest = {
        "offsets": torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
        "layers": layers,
        "norm": [random(features), random(features)],
        "empty": 3 * torch.rand(len(counts), dtype=torch.float64) if options["switch"] else None,
        "eps": 1e-5,
        "normalize": options["normalize"],
    }
    return leaves, rest


def later(width):
    return (
        torch.randn(width, 3 * width, dtype=torch.float64) / width**0.5,
        torch.randn(3 * width, dtype=torch.float64),
        torch.randn(width, dtype=torch.float64).cos(),
    )


def moved(value, **to):
    if isinstance(value, torch.Tensor):
        return value.to(to["device"]) if value.dtype == torch.int32 else value.to(**to)
    if isinstance(value, JoinedLayer):
        return JoinedLayer(*(moved(x, **to) for x in value))
    return [moved(x, **to) for x in value] if isinstance(value, list) else value


def run(leaves, rest, **to):
    """T and the gradients of its sum with fixed weights by the leaves, on a device in a dtype."""
    own = {name: x.detach().to(**to).requires_grad_() for name, x in leaves.items()}
    known = {name: moved(value, **to) for name, value in rest.items()}
    optional = {"directions": None, "switch": None}
    t = attention_moments(**{**optional, **own}, **known)
    grad = torch.linspace(-1, 1, t.numel(), dtype=torch.float64).sin().view(t.shape).to(**to)
    return [t, *torch.autograd.grad(t, list(own.values()), grad)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("counts", "widths", "features"), [((3, 0, 4), (3, 5), 7), ((2, 1), (4,), 6)], ids=str
)
def test_it_is_the_ops_that_it_is_made_of(counts, widths, features, way):
    leaves, rest = case(counts, widths, features, way)
    for x in leaves.values():
        x.requires_grad_()
    layers, weights = rest["layers"], rest["norm"]
    lists = [list(x) for x in zip(*(layer[:3] for layer in layers), strict=True)]
    lists += [[layer[k] for layer in layers[1:]] for k in (4, 5, 6)]
    scalars = ([0.7] * len(layers), 20.0, 1e-5, rest["normalize"], None, 0)
    optional = (leaves.get("directions"), leaves.get("switch"), rest["empty"])
    want = _reference(
        leaves["rows"], leaves["environment"], rest["offsets"], *lists, *weights, *optional, *scalars
    )
    got = attention_moments(**{"directions": None, "switch": None, **leaves}, **rest)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    grad = torch.randn_like(want)
    free = list(leaves.values())
    for a, b in zip(torch.autograd.grad(got, free, grad), torch.autograd.grad(want, free, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("counts", "widths", "features"), SHAPES, ids=str)
def test_in_float32(counts, widths, features, way, device):
    """Against float64 on the CPU."""
    given = case(counts, widths, features, way)
    got, want = (
        run(*given, device=device, dtype=torch.float32),
        run(*given, device="cpu", dtype=torch.float64),
    )
    assert has_moments(torch.device(device), torch.float32, widths, features)
    for a, b in zip(got, want, strict=True):
        assert (a.double().cpu() - b).abs().max() < 3e-5 * b.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("counts", [(90, 30, 7), (5,), (0, 0)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_no_atom_change_nothing(counts, way):
    """As where a CUDA graph has room for more rows than there are; NaN stands in them."""
    leaves, rest = case(counts, (32, 64), 100, way)
    total, results = sum(counts), []
    for spare in (0, 75):
        more = {n: F.pad(x, (0, 0) * (x.dim() - 1) + (0, spare), value=torch.nan) for n, x in leaves.items()}
        room = {"max_total": total + spare, "max_batch": len(counts), "max_length": 138}
        plan = ragged_plan(rest["offsets"].cuda(), **room)
        found = run(more, {**rest, "plan": plan}, device="cuda", dtype=torch.float32)
        results.append([found[0], *(x[:total] for x in found[1:])])
    for alone, among in zip(*results, strict=True):
        assert torch.equal(among, alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of", ["rows", "environment", "gradient"])
def test_nan_of_an_atom_stays_there(of, device):
    """Its neighbours in memory, of which a GPU takes 16 rows at a time with its own, have what they have without."""
    counts, broken = (5, 3, 20), slice(5, 8)
    leaves, rest = case(counts, (32, 64), 100, "smooth")
    how, results = {"device": device, "dtype": torch.float32}, []
    for number in (0.5, torch.nan):
        own = {name: x.clone() for name, x in leaves.items()}
        if of != "gradient":
            own[of][broken] = number
        free = {name: x.to(**how).requires_grad_() for name, x in own.items()}
        t = attention_moments(**free, **{name: moved(x, **how) for name, x in rest.items()})
        grad = torch.ones_like(t)
        grad[1] = number if of == "gradient" else 1
        results.append([t, *torch.autograd.grad(t, list(free.values()), grad)])
    for k, (good, bad) in enumerate(zip(*results, strict=True)):
        others = [0, 2] if k == 0 else [*range(5), *range(8, 28)]
        assert bool(good.isfinite().all())
        assert (good - bad)[others].abs().max() < 1e-5 * good.abs().max()
    touched = [
        bad[1 if k == 0 else broken].isnan().any() for k, (_, bad) in enumerate(zip(*results, strict=True))
    ]
    assert bool(touched[1]) and bool(touched[0]) == (of != "gradient")


@pytest.mark.gpu
def test_wrong_offsets_make_nan():
    leaves, rest = case((5, 4, 3), (32, 64), 100, "by angles")
    good = run(leaves, rest, device="cuda", dtype=torch.float32)
    assert all(bool(x.isfinite().all()) for x in good)
    for wrong in ([0, 5, 3, 12], [0, 5, 9, 1 << 30], [-4, 5, 9, 12]):
        offsets = torch.tensor(wrong, dtype=torch.int32)
        plan = ragged_plan(rest["offsets"].cuda(), max_total=12, max_batch=3, max_length=12)
        t, by_rows, *_ = run(
            leaves, {**rest, "offsets": offsets, "plan": plan}, device="cuda", dtype=torch.float32
        )
        assert bool(t.isnan().all()) and bool(by_rows.isnan().all())


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_sum(device):
    leaves, rest = case((0, 0), (32,), 6, "smooth")
    t, *grads = run(leaves, rest, device=device, dtype=torch.float32)
    assert t.shape == (2, 4, 6) and not t.any() and all(x.numel() == 0 for x in grads)


@pytest.mark.gpu
def test_what_a_gpu_does_not_take_is_refused():
    for widths, features, words in (((16, 64), 100, "columns"), ((32, 64), 99, "even"), ((32,), 130, "even")):
        leaves, rest = case((4, 3), widths, features, "bare")
        assert not has_moments(torch.device("cuda"), torch.float32, widths, features)
        with pytest.raises(RuntimeError, match=f"mdops::attention_moments: .*{words}"):
            run(leaves, rest, device="cuda", dtype=torch.float32)
