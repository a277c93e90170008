"""What `fitting_energy` computes; the battery has the rest."""

import pytest
import torch

from mdops.ops import fitting_energy, hybrid_potential_pack, mlp_value_and_gradient
from mdops.ops.activation import CODES

NEURONS, RESIDUAL = [24, 24, 48], [0, 1, 1]
# Of the largest number; a GPU has 22 bits of what it multiplies.
TOLERANCE = {("cpu", torch.float32): 3e-6, ("cpu", torch.float64): 1e-13, ("cuda", torch.float32): 2e-5}


def nets(count, inputs, device, dtype):
    """Weights, biases and timesteps of the layers of so many nets."""
    gen = torch.Generator().manual_seed(0)

    def random(*shape):
        return (torch.randn(shape, generator=gen, dtype=torch.float64) / shape[0] ** 0.5).to(device, dtype)

    shapes = list(zip([inputs, *NEURONS], [*NEURONS, 1], strict=True))
    return [
        ([random(*s) for s in shapes], [random(s[1]) for s in shapes], [random(s[1]) for s in shapes])
        for _ in range(count)
    ]


@pytest.mark.parametrize("activation", ["tanh", "silu"])
@pytest.mark.parametrize("shared", [True, False], ids=["one net", "a net a type"])
@pytest.mark.parametrize(("atoms", "inputs"), [(0, 40), (7, 33), (1_700, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energies_and_gradient_are_those_of_the_nets(device, dtype, atoms, inputs, shared, activation):
    """Of virtual atoms both are zero."""
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("on a GPU in float32")
    of_types = nets(1 if shared else 2, inputs, device, dtype)
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(atoms, inputs, generator=gen, dtype=torch.float64).to(device, dtype)
    types = torch.randint(-1, 2, (atoms,), generator=gen).int().to(device)
    weight = torch.rand(atoms, generator=gen, dtype=torch.float64).to(device)
    scale = torch.tensor([1.5, 0.5][: len(of_types)], dtype=torch.float64, device=device)
    shift = torch.tensor([3.0, -2.0], dtype=torch.float64, device=device)
    packed = torch.stack([hybrid_potential_pack(*net, [], []) for net in of_types])
    energy, gradient = fitting_energy(
        x, types, packed, weight, scale, shift, NEURONS, RESIDUAL, CODES[activation]
    )
    wanted, slopes = torch.zeros_like(weight), torch.zeros_like(x, dtype=torch.float64)
    for t in range(2):
        k, rows = 0 if shared else t, types == t
        w, b, timesteps = ([v.double() for v in values] for values in of_types[k])
        value, slope = mlp_value_and_gradient(
            x[rows].double(),
            w,
            b,
            activation=activation,
            timesteps=timesteps[:-1],
            residual=[False, True, True],
        )
        wanted[rows] = scale[k] * value[:, 0] + shift[t]
        slopes[rows] = scale[k] * weight[rows, None] * slope
    for a, b in ((energy, wanted), (gradient.double(), slopes)):
        assert not b.numel() or (a - b).abs().max() <= TOLERANCE[device, dtype] * b.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_atoms_have_the_energies_that_they_have_among_others(device, dtype, monkeypatch):
    """Kernels divide products in other ways for them, of widths that are no whole vectors, too."""
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("on a GPU in float32")
    monkeypatch.setitem(globals(), "NEURONS", [37, 300, 300])
    (net,) = nets(1, 70, device, dtype)
    x = torch.randn(24, 70, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device, dtype)
    ends = (
        torch.ones(1, dtype=torch.float64, device=device),
        torch.zeros(1, dtype=torch.float64, device=device),
    )
    packed = hybrid_potential_pack(*net, [], [])[None]

    def found(atoms):
        types = torch.zeros(atoms, dtype=torch.int32, device=device)
        options = NEURONS, [0, 0, 1], CODES["tanh"]
        return fitting_energy(x[:atoms], types, packed, ends[0][:0], *ends, *options)

    every = found(24)
    for atoms in range(1, 24):
        for one, of_all in zip(found(atoms), every, strict=True):
            error = (one - of_all[:atoms]).abs().max() / of_all.abs().max()
            assert error <= TOLERANCE[device, dtype], atoms


@pytest.mark.gpu
def test_an_atom_of_no_type_has_no_energy_on_a_gpu():
    (net,) = nets(1, 8, "cuda", torch.float32)
    types = torch.tensor([0, 7, 1], dtype=torch.int32, device="cuda")
    ends = (
        torch.ones(1, dtype=torch.float64, device="cuda"),
        torch.ones(2, dtype=torch.float64, device="cuda"),
    )
    packed = hybrid_potential_pack(*net, [], [])[None]
    energy, _ = fitting_energy(
        torch.ones(3, 8, device="cuda"), types, packed, ends[0][:0], *ends, NEURONS, RESIDUAL, CODES["tanh"]
    )
    assert energy.isnan().tolist() == [False, True, False]


def on_gpu(atoms, inputs):
    """Arguments of the op: as many atoms of two types with nets of their own."""
    of_types = nets(2, inputs, "cuda", torch.float32)
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(atoms, inputs, generator=gen).cuda()
    types = torch.randint(-1, 2, (atoms,), generator=gen).int().cuda()
    packed = torch.stack([hybrid_potential_pack(*net, [], []) for net in of_types])
    ones = torch.ones(2, dtype=torch.float64, device="cuda")
    return x, types, packed, ones[:0], ones, ones, NEURONS, RESIDUAL, CODES["tanh"]


@pytest.mark.gpu
@pytest.mark.parametrize("atoms", [1, 31, 64, 65, 1000, 9000])
@pytest.mark.parametrize("inputs", [3, 128, 1500])
def test_every_way_of_a_net_on_a_gpu_is_the_same(atoms, inputs, monkeypatch):
    """As a kernel a product, as blocks by mma.sync of 32 and of 64 rows, and the way that is chosen."""
    args, found = on_gpu(atoms, inputs), []
    for rows in ("1", "32", "64", ""):
        monkeypatch.setenv("MDOPS_BLOCK_ROWS", rows)
        found.append(fitting_energy(*args))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert (a - b).abs().max() <= 1e-5 * a.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ["32", "64"])
def test_a_feature_that_is_no_number_spoils_its_atom_alone(rows, monkeypatch):
    monkeypatch.setenv("MDOPS_BLOCK_ROWS", rows)
    x, types, *rest = on_gpu(200, 40)
    types[7] = 1
    energy, gradient = fitting_energy(x, types, *rest)
    wrong = x.clone()
    wrong[7, 3] = torch.nan
    spoiled, spoiled_gradient = fitting_energy(wrong, types, *rest)
    others = torch.arange(200, device="cuda") != 7
    assert spoiled[7].isnan() and spoiled_gradient[7].isnan().all()
    assert torch.equal(spoiled[others], energy[others])
    assert torch.equal(spoiled_gradient[others], gradient[others])
