"""DPA-1's attention on the neighbours that are there, against the same on rows padded as in DeePMD-kit."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from mdops.ops import neighbor_attention, ragged_plan
from mdops.ops.attention_layer import AttentionWeights, attention_layer

PLACES = 24
COUNTS = (5, 0, 1, 24, 17)


def padded_attention(q, k, v, counts, directions, switch, normalize, scale, places=PLACES):
    """DeePMD-kit's formulas, atom by atom, with `places` slots of which the last are empty."""
    out = []
    for x, y, z, r, w in zip(*(t.split(counts) for t in (q, k, v, directions, switch)), strict=True):
        if normalize:
            x, y, z = (F.normalize(t, dim=-1) for t in (x, y, z))
        n, p = len(x), max(places - len(x), 0)
        x, y, z = (F.pad(t, (0, 0, 0, 0, 0, p)) for t in (x, y, z))
        r, w = F.pad(r, (0, 0, 0, p)), F.pad(w, (0, p))
        a = w[:, None] * w
        logits = (scale * torch.einsum("jhd,lhd->hjl", x, y) + 20.0) * a - 20.0
        weights = torch.softmax(logits, dim=-1) * a * (r @ r.T)
        out.append(torch.einsum("hjl,lhd->jhd", weights, z)[:n])
    return torch.cat(out)


def rows(device, dtype=torch.float64, counts=COUNTS, heads=1, width=12):
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    total = sum(counts)
    q, k, v = (random(total, heads, width).requires_grad_() for _ in range(3))
    directions = F.normalize(random(total, 3), dim=1).requires_grad_()
    switch = random(total).sigmoid().requires_grad_()
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device=device)
    empty = torch.tensor([max(PLACES - n, 0) for n in counts], dtype=dtype, device=device)
    return (q, k, v, directions, switch), offsets, empty


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_empty_places_are_counted_in_closed_form(normalize, heads, device):
    leaves, offsets, empty = rows(device, heads=heads)
    q, k, v, directions, switch = leaves

    def found(temperature):
        how = {"normalize": normalize, "temperature": temperature, "scaling_factor": 0.5}
        return neighbor_attention(q, k, v, offsets, directions=directions, switch=switch, empty=empty, **how)

    for temperature, scale in ((None, (12 * 0.5) ** -0.5), (1.3, 1.3)):
        got = found(temperature)
        want = padded_attention(*leaves[:3], list(COUNTS), directions, switch, normalize, scale)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        grad = torch.randn_like(want)
        for a, b in zip(
            torch.autograd.grad(got, leaves, grad), torch.autograd.grad(want, leaves, grad), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_rough_attention_is_plain_softmax(device):
    (q, k, v, directions, _), offsets, _ = rows(device)
    got = neighbor_attention(q, k, v, offsets, directions=directions, normalize=False)
    ones = torch.ones(len(q), dtype=q.dtype, device=device)
    # No empty places, and a switch of 1, leave the shift without effect.
    want = padded_attention(q, k, v, list(COUNTS), directions, ones, False, 12**-0.5, places=0)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_second_derivatives(device):
    leaves, offsets, empty = rows(device, counts=(3, 0, 1), width=3)

    def energy(q, k, v, directions, switch):
        return neighbor_attention(
            q, k, v, offsets, directions=directions, switch=switch, empty=empty, normalize=True
        )

    assert torch.autograd.gradgradcheck(energy, leaves)


# -- A whole layer as one op


def layer(features, width, how="", dtype=torch.float64):
    """With "factors", and where q, k and v are "given", without the products for them; "ready": without both."""
    generator = torch.Generator().manual_seed(features)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    weights = AttentionWeights(
        random(features, 3 * width) / features**0.5,
        0.1 * random(3 * width),
        random(width, features) / width**0.5,
        *(0.5 + random(features) for _ in range(3)),
        # Cosines; that of one direction is zero.
        random(width).cos() * (torch.arange(width) > 0) if how in ("factors", "given") else None,
    )
    return weights._replace(project=None, project_bias=None) if how in ("given", "ready") else weights


def moved(weights, **to):
    return AttentionWeights(*(w if w is None else w.to(**to) for w in weights))


LAYERS = ["smooth", "rough", "no angles", "not normalised"]


def layer_arguments(options, counts, features):
    """In float64 on the CPU: the leaves, g first; offsets; keywords."""
    (_, _, _, directions, switch), offsets, empty = rows("cpu", counts=counts)
    torch.manual_seed(0)  # attention of long vectors is badly conditioned for some numbers
    g = torch.randn(sum(counts), features, dtype=torch.float64).requires_grad_()
    if options == "rough":
        switch = empty = None
    if options == "no angles":
        directions = None
    leaves = [x for x in (g, directions, switch) if x is not None]
    normalize = options != "not normalised"
    return (
        leaves,
        offsets,
        {"directions": directions, "switch": switch, "empty": empty, "normalize": normalize},
    )


def by_parts(g, weights, offsets, directions, switch, empty, normalize):
    g, parts = g[:, : len(weights.norm)], g[:, -3 * len(weights.out) :]
    if weights.project is not None:
        parts = g @ weights.project + weights.project_bias
    q, k, v = parts[:, None].chunk(3, dim=-1)
    if weights.factors is not None:
        if normalize:
            q, k, v, normalize = *(F.normalize(x, dim=-1) for x in (q, k, v)), False
        q = q * weights.factors
    keys = {"directions": directions, "switch": switch, "empty": empty}
    o = neighbor_attention(q, k, v, offsets, normalize=normalize, temperature=0.8, **keys)[:, 0]
    h = g + o @ weights.out + weights.out_bias
    return F.layer_norm(h, h.shape[1:], weights.norm, weights.norm_bias, 1e-5)


@pytest.mark.parametrize(
    ("counts", "features", "width", "weights"),
    [
        (COUNTS, 12, 12, ""),
        ((90, 64, 65), 100, 128, ""),
        ((1,), 1, 1, ""),
        ((200, 3), 33, 17, ""),
        ((0, 0), 5, 4, ""),
        (COUNTS, 33, 17, "factors"),
        ((90, 3), 100, 64, "factors"),
        (COUNTS, 33, 16, "given"),
        ((90, 0, 3), 100, 48, "given"),
        (COUNTS, 33, 16, "ready"),
        ((90, 0, 3), 100, 48, "ready"),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", LAYERS)
def test_a_layer_is_the_ops_that_it_is_made_of(counts, features, width, weights, options):
    weights = layer(features, width, weights)
    columns = features if weights.project is not None else features + 3 * width + features % 8
    leaves, offsets, how = layer_arguments(options, counts, columns)
    g = leaves[0]
    for threads in (1, 3):
        torch.set_num_threads(threads)
        got = attention_layer(g, offsets, weights, scale=0.8, eps=1e-5, **how)
        want = by_parts(g, weights, offsets, **how)
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
        grad = torch.randn_like(want)
        for a, b in zip(
            torch.autograd.grad(got, leaves, grad), torch.autograd.grad(want, leaves, grad), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


SHAPES = [
    ((90, 30), 100, 128, ""),
    ((70, 0, 1), 33, 17, ""),
    ((16, 17), 64, 64, ""),
    ((140, 90), 128, 120, ""),
    ((90, 30), 100, 64, "factors"),
    ((70, 0, 1), 128, 33, "factors"),
    ((90, 30), 128, 112, "factors"),
    *(
        (*shape, weights)
        for weights in ("given", "ready")
        for shape in (
            ((90, 30), 100, 32),
            ((70, 0, 1), 33, 16),
            ((16, 17), 128, 32),
            ((140, 90), 128, 48),
            ((140, 90), 99, 128),
        )
    ),
]


@pytest.mark.parametrize(("counts", "features", "width", "weights"), SHAPES, ids=str)
@pytest.mark.parametrize("options", LAYERS)
def test_a_layer_in_float32(counts, features, width, weights, options, device):
    """Against float64 on the CPU."""
    weights = layer(features, width, weights)
    columns = features if weights.project is not None else features + 3 * width + features % 8
    leaves, offsets, how = layer_arguments(options, counts, columns)
    grad = torch.randn(sum(counts), features, dtype=torch.float64)
    results = []
    for to in ({"device": device, "dtype": torch.float32}, {"device": "cpu", "dtype": torch.float64}):
        own = {id(x): x.detach().to(**to).requires_grad_() for x in leaves}
        keys = {
            name: own.get(id(x), x.to(**to)) if isinstance(x, torch.Tensor) else x for name, x in how.items()
        }
        g, own_weights = own[id(leaves[0])], moved(weights, **to)
        out = attention_layer(g, offsets.to(to["device"]), own_weights, scale=0.8, eps=1e-5, **keys)
        results.append([out, *torch.autograd.grad(out, list(own.values()), grad.to(**to))])
    for a, b in zip(*results, strict=True):
        assert (a.double().cpu() - b).abs().max() < 2e-5 * b.abs().max()


@pytest.mark.gpu
def test_a_layer_with_little_shared_memory(monkeypatch):
    """The weights of q, k and v one after another, as on chips with 100 KiB a block; and answers that stay the same."""
    leaves, offsets, how = layer_arguments("smooth", (90, 30), 100)
    weights = moved(layer(100, 128), device="cuda", dtype=torch.float32)
    keys = {name: x.cuda().float() if isinstance(x, torch.Tensor) else x for name, x in how.items()}
    results = []
    for _ in range(2):
        g = leaves[0].detach().cuda().float().requires_grad_()
        out = attention_layer(g, offsets.cuda(), weights, scale=0.8, eps=1e-5, **keys)
        results.append((out, *torch.autograd.grad(out.square().sum(), g)))
        monkeypatch.setenv("MDOPS_GPU_SHARED_BYTES", str(99 << 10))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("counts", [(90, 30, 7), (5,), (0, 0)], ids=str)
@pytest.mark.parametrize("kind", ["", "factors", "given", "ready"])
def test_rows_of_no_atom_change_nothing(counts, kind):
    """As where a CUDA graph has room for more rows than there are; NaN stands in them."""
    weights = moved(layer(100, 32 if kind else 128, kind), device="cuda", dtype=torch.float32)
    options = "not normalised" if kind == "ready" else "smooth"
    leaves, offsets, how = layer_arguments(options, counts, 100 if weights.project is not None else 200)
    keys = {name: x.detach().cuda().float() if isinstance(x, torch.Tensor) else x for name, x in how.items()}
    total, results = sum(counts), []
    for spare in (0, 75):
        room = {"max_total": total + spare, "max_batch": len(counts), "max_length": 138}
        plan = ragged_plan(offsets.cuda(), **room)

        def more(x, spare=spare):
            return F.pad(x, (0, 0) * (x.dim() - 1) + (0, spare), value=torch.nan)

        g = more(leaves[0].detach().cuda().float()).requires_grad_()
        of_rows = {name: more(keys[name]) for name in ("directions", "switch")}
        out = attention_layer(
            g, offsets.cuda(), weights, scale=0.8, eps=1e-5, plan=plan, **{**keys, **of_rows}
        )
        results.append((out, *torch.autograd.grad(out, g, more(torch.ones(total, 100, device="cuda")))))
    for alone, among in zip(*results, strict=True):
        assert torch.equal(among[:total], alone)


def test_vectors_of_length_zero_stay_zero():
    """As PyTorch's own operations have it: a vector of zeros is not made longer."""
    (_, _, _, directions, switch), offsets, empty = rows("cpu", counts=(4, 3))
    weights = layer(6, 5)
    weights = weights._replace(project_bias=torch.zeros(15, dtype=torch.float64))
    g = torch.randn(7, 6, dtype=torch.float64)
    g[2] = 0
    g = g.requires_grad_()
    how = {"directions": directions, "switch": switch, "empty": empty, "normalize": True}
    got = attention_layer(g, offsets, weights, scale=0.8, eps=1e-5, **how)
    want = by_parts(g, weights, offsets, **how)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    grads = [torch.autograd.grad(x.square().sum(), g)[0] for x in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)
