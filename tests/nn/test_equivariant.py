"""The parts of equivariant nets, by themselves."""

import itertools

import numpy as np
import pytest
import torch

from mdops.nn.equivariant import (
    DegreeLinear,
    DegreeNorm,
    Gate,
    GridNet,
    OrderLinear,
    OrderNorm,
    by_order,
    coefficients,
    frame_quaternions,
    places,
    spherical_harmonics,
    wigner_rows,
)

AXES = [(x, y, z) for x, y, z in itertools.product((-1.0, 0.0, 1.0), repeat=3) if (x, y, z) != (0, 0, 0)]


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def directions():
    """Along axes and diagonals, and any."""
    return torch.cat([torch.tensor(AXES, dtype=torch.float64), random(20, 3)])


def matrices(quaternions):
    """(E, 3, 3), of the rotations themselves."""
    w, x, y, z = quaternions.unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def filled(module, seed=1):
    """With random numbers in all its weights."""
    with torch.no_grad():
        for k, weight in enumerate(module.parameters()):
            weight.copy_(random(*weight.shape, seed=seed + k))
    return module.double()


def test_harmonics_of_low_degree():
    x, y, z = random(7, 3).unbind(1)
    r = (x * x + y * y + z * z).sqrt()
    found = spherical_harmonics(torch.stack([x, y, z], 1), 2)
    torch.testing.assert_close(found[:, :4], torch.stack([torch.ones_like(x), -y / r, z / r, -x / r], 1))
    torch.testing.assert_close(found[:, 6], (3 * z * z / r**2 - 1) / 2)
    torch.testing.assert_close(found[:, 4], 3**0.5 * x * y / r**2)
    squares = spherical_harmonics(directions(), 6).square()
    for degree in range(7):
        torch.testing.assert_close(
            squares[:, degree**2 : (degree + 1) ** 2].sum(1), torch.ones(len(squares)).double()
        )


@pytest.mark.parametrize("lmax", [0, 1, 3, 6])
def test_rotations_turn_harmonics(lmax):
    quaternions = torch.nn.functional.normalize(random(46, 4), dim=1)
    turned = torch.einsum("eij,ej->ei", matrices(quaternions), directions())
    found = torch.einsum(
        "erd,ed->er", wigner_rows(quaternions, lmax), spherical_harmonics(directions(), lmax)
    )
    torch.testing.assert_close(found, spherical_harmonics(turned, lmax), rtol=0, atol=1e-13)
    single = wigner_rows(quaternions.float(), lmax)
    torch.testing.assert_close(single.double(), wigner_rows(quaternions, lmax), rtol=0, atol=3e-5)


def test_frames_lie_along_the_edge():
    quaternions = frame_quaternions(directions())
    torch.testing.assert_close(quaternions.norm(dim=1), torch.ones(46).double())
    along = torch.einsum("eij,ej->ei", matrices(quaternions), directions())
    assert along[:, :2].abs().max() < 1e-14 and (along[:, 2] > 0).all()
    rows = tuple(by_order(3, 1))
    turned = torch.einsum(
        "erd,ed->er", wigner_rows(quaternions, 3, rows), spherical_harmonics(directions(), 3)
    )
    assert (turned[:, :4] - 1).abs().max() < 1e-13 and turned[:, 4:].abs().max() < 1e-13


@pytest.mark.parametrize("vectors", [AXES[::3], random(4, 3).tolist()])
def test_what_frames_make_has_derivatives_everywhere(vectors):
    """Of what does not depend on the turn about the edge, which is left free."""
    weights, rows = random(9, 2, seed=3), tuple(by_order(2, 1))
    mix = filled(OrderLinear(2, 1, 2, 2))

    def messages(v):
        turn = wigner_rows(frame_quaternions(v), 2, rows)
        return torch.einsum("erd,erc->edc", turn, mix((turn @ weights)[:, :, None])[:, :, 0])

    v = torch.tensor(vectors, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(messages, v, atol=1e-7)
    assert torch.autograd.gradgradcheck(messages, v, atol=1e-6, fast_mode=True)


def turn_of(lmax):
    quaternion = torch.nn.functional.normalize(random(1, 4, seed=5), dim=1)
    return wigner_rows(quaternion, lmax)[0]


@pytest.mark.parametrize("groups", [1, 2])
def test_parts_turn_with_what_they_are_given(groups):
    lmax, channels = 2, 4
    chosen = coefficients(lmax)
    x = random(5, len(chosen), groups, channels)
    turn = turn_of(lmax)

    def turned(of):
        return torch.einsum("rd,ndfc->nrfc", turn, of)

    two = filled(GridNet(chosen, channels, groups=groups, kmax=1, crossed=True, kind="mlp"))
    own = filled(GridNet(chosen, channels // 2, groups=groups, kind="branch", branches=3))
    for part in (
        filled(DegreeLinear(lmax, channels, 3, groups, bias=True)),
        filled(DegreeNorm(lmax, channels, groups)),
        filled(Gate(chosen, channels, groups)),
        lambda of: two(of, of.flip(3)),
        own,
    ):
        found, wanted = part(turned(x)), turned(part(x).flatten(3))
        torch.testing.assert_close(found.flatten(3), wanted, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("groups", [1, 3])
def test_parts_in_frames_turn_about_the_edge(groups):
    lmax, mmax, channels = 3, 2, 4
    order = by_order(lmax, mmax)
    half = torch.tensor(0.35, dtype=torch.float64)
    about = torch.stack([half.cos(), 0 * half, 0 * half, half.sin()])[None]
    turn = wigner_rows(about, lmax)[0][:, places(order)][places(order)]
    x = random(5, len(order), groups, channels)

    def turned(of):
        return torch.einsum("rd,ndfc->nrfc", turn, of)

    for part in (
        filled(OrderLinear(lmax, mmax, channels, 2, groups, bias=True)),
        filled(OrderNorm(lmax, mmax, channels, groups)),
        filled(Gate(order, channels, groups)),
        filled(GridNet(order, channels // 2, groups=groups, mmax=mmax)),
    ):
        found, wanted = part(turned(x)), turned(part(x).flatten(3))
        torch.testing.assert_close(found.flatten(3), wanted, rtol=1e-12, atol=1e-11)


def test_a_grid_multiplies_functions():
    """Y_1 times Y_1 has a scalar part, and one of degree 2."""
    grid = GridNet(coefficients(2), 1).double()
    z = torch.zeros(1, 9, 1, 1, dtype=torch.float64)
    z[0, 2] = 1
    product = grid.from_points(grid.to_points(z[..., None]).square())[0, :, 0, 0, 0]
    # z^2 = 1/3 + 2/3 P_2, and functions are divided by the root of lmax + 1.
    wanted = torch.zeros(9, dtype=torch.float64)
    wanted[[0, 6]] = torch.tensor([1 / 3, 2 / 3]).double() / 3**0.5
    torch.testing.assert_close(product, wanted)


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_products_on_rotations_go_angle_by_angle(channels):
    grid = GridNet(coefficients(2), channels, kmax=1).double()
    left, right = random(4, 9, 1, 3, channels, seed=1), random(4, 9, 1, 3, channels, seed=2)
    wanted = grid.from_points(grid.to_points(left) * grid.to_points(right))
    torch.testing.assert_close(grid.product(left, right), wanted, rtol=0, atol=1e-13)
    grid.float()
    found = grid.product(left.float(), right.float()).double()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
