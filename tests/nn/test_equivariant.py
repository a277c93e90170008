"""The parts of equivariant nets, by themselves."""

import itertools
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from mdops.errors import DerivativeError, InputError
from mdops.nn.equivariant import (
    ChannelLinear,
    DegreeLinear,
    DegreeNorm,
    Gate,
    GridNet,
    GroupLinear,
    OrderLinear,
    OrderNorm,
    ScalarNorm,
    by_order,
    coefficients,
    draw_weights,
    frame_quaternions,
    places,
    spherical_harmonics,
    wigner_rows,
)
from mdops.ops import edge_frames

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


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("channels", [1, 3, 20])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_products_on_rotations_go_angle_by_angle(degree, channels, device):
    grid = GridNet(coefficients(degree), channels, kmax=1).double()
    left, right = (random(4, (degree + 1) ** 2, 1, 3, channels, seed=seed) for seed in (1, 2))
    wanted = grid.from_points(grid.to_points(left) * grid.to_points(right))
    left, right, scale = left.to(device), right.to(device), float(wanted.abs().max())
    found = grid.to(device).product(left, right).cpu()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14 * scale)
    found = grid.float().product(left.float(), right.float()).cpu().double()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6 * scale)


def test_harmonics_and_matrices_are_those_of_e3nn():
    """Up to degree 6, along axes and about axes, too (tests/data/make_harmonics.py)."""
    with np.load(Path(__file__).parents[1] / "data/harmonics.npz") as file:
        wanted = {name: torch.from_numpy(value) for name, value in file.items()}
    vectors = wanted["vectors"]
    torch.testing.assert_close(spherical_harmonics(vectors, 6), wanted["harmonics"], rtol=0, atol=1e-12)
    torch.testing.assert_close(edge_frames(vectors, 6, -1)[0], wanted["harmonics"], rtol=0, atol=1e-12)
    alpha, beta, gamma = (wanted["angles"] / 2).unbind(1)
    w, z = beta.cos() * (alpha + gamma).cos(), beta.cos() * (alpha + gamma).sin()
    x, y = beta.sin() * (gamma - alpha).sin(), beta.sin() * (gamma - alpha).cos()
    found = wigner_rows(torch.stack([w, x, y, z], 1), 6)
    for degree in range(7):
        own = slice(degree**2, (degree + 1) ** 2)
        torch.testing.assert_close(found[:, own, own], wanted[f"matrix_{degree}"], rtol=0, atol=1e-12)
        assert not found[:, own, : degree**2].any()


@pytest.mark.parametrize("order", [0, 1])
def test_frames_of_the_op_are_those_of_quaternions(order):
    for degree in range(order, 7):
        _, turn = edge_frames(directions(), degree, order)
        rows = wigner_rows(frame_quaternions(directions()), degree, by_order(degree, order))
        torch.testing.assert_close(turn, rows, rtol=0, atol=1e-13)


def test_mirror_images_have_mirror_images():
    """Parts that are said to: features of degree l change their sign by (-1)^l if everything is inverted."""
    sign = torch.tensor([(-1.0) ** ell for ell, _ in coefficients(2)]).double()[:, None, None]
    x = random(5, 9, 1, 8)
    for part in (
        filled(DegreeLinear(2, 8, 3, bias=True)),
        filled(DegreeNorm(2, 8)),
        filled(Gate(coefficients(2), 8)),
        filled(GridNet(coefficients(2), 4, kind="mlp")),
    ):
        torch.testing.assert_close(part(sign * x), sign * part(x), rtol=1e-12, atol=1e-11)
    # An edge's frame is mirrored by y to -y, which changes the signs of m < 0.
    sign = torch.tensor([-1.0 if m < 0 else 1.0 for _, m in by_order(2, 2)]).double()[:, None, None]
    rows = random(5, 9, 1, 8)
    keeps, mixes = (filled(OrderLinear(2, 2, 8, 3, bias=True, parity=parity)) for parity in (True, False))
    torch.testing.assert_close(keeps(sign * rows), sign * keeps(rows), rtol=1e-12, atol=1e-12)
    assert (mixes(sign * rows) - sign * mixes(rows)).abs().max() > 0.1


@pytest.mark.parametrize("groups", [1, 2])
def test_parity_is_a_matrix_of_zeros(groups):
    """OrderLinear with parity is the one without, where V is zero."""
    keeps = filled(OrderLinear(2, 2, 4, 3, groups, bias=True, parity=True))
    whole = OrderLinear(2, 2, 4, 3, groups, bias=True)
    with torch.no_grad():
        whole.weight_m0.copy_(keeps.weight_m0)
        whole.bias0.copy_(keeps.bias0)
        for own, given in zip(whole.weight_m, keeps.weight_m, strict=True):
            u = given.view(len(given), groups, -1)
            own.copy_(torch.cat([u, torch.zeros_like(u)], -1).flatten(1))
    x = random(5, 9, groups, 4)
    torch.testing.assert_close(keeps(x), whole(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["glu", "mlp", "branch"])
@pytest.mark.parametrize("kmax", [None, 1])
@pytest.mark.parametrize("crossed", [False, True])
def test_grids_of_groups_are_grids_of_one_group(crossed, kmax, kind):
    """With zeros between the weights of groups, and channels of a frame side by side."""
    net = GridNet(coefficients(2), 4, groups=3, kmax=kmax, kind=kind, crossed=crossed, bias=True)
    net = filled(net)
    width = 4 if crossed else 8 * net.frames
    given = [random(5, 9, 3, width, seed=seed) for seed in range(1 + crossed)]

    def in_one(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(3, (-1, 4)).transpose(2, 3).reshape(5, 9, 1, -1)

    found = net.in_one_group()(*(map(in_one, given)))
    torch.testing.assert_close(found, in_one(net(*given)), rtol=1e-12, atol=1e-12)


PARTS = {
    "degree linear": (lambda: DegreeLinear(2, 4, 3, bias=True), (9, 1, 4)),
    "degree linear in groups": (lambda: DegreeLinear(2, 4, 3, 2), (9, 2, 4)),
    "degree norm": (lambda: DegreeNorm(2, 4), (9, 1, 4)),
    "degree norm in groups": (lambda: DegreeNorm(2, 4, 2), (9, 2, 4)),
    "gate": (lambda: Gate(coefficients(2), 4), (9, 1, 4)),
    "grid": (lambda: GridNet(coefficients(2), 2), (9, 1, 4)),
    "grid of rotations": (lambda: GridNet(coefficients(2), 2, kmax=1), (9, 1, 12)),
    "order linear": (lambda: OrderLinear(2, 1, 4, 3, bias=True), (7, 1, 4)),
    "order linear in groups": (lambda: OrderLinear(2, 1, 4, 3, 2), (7, 2, 4)),
    "order linear with parity": (lambda: OrderLinear(2, 1, 4, 3, parity=True), (7, 1, 4)),
    "order norm": (lambda: OrderNorm(2, 1, 4), (7, 1, 4)),
    "channel linear": (lambda: ChannelLinear(4, 3), (9, 1, 4)),
    "group linear": (lambda: GroupLinear(4, 3, 2), (2, 4)),
    "scalar norm": (lambda: ScalarNorm(4), (9, 1, 4)),
    "scalar norm in groups": (lambda: ScalarNorm(4, 2), (9, 2, 4)),
}


@pytest.mark.parametrize("name", PARTS)
def test_rows_of_other_shapes_and_dtypes_are_refused(name):
    """Whatever does not fit, also what PyTorch would broadcast, or read as more or fewer edges."""
    make, shape = PARTS[name]
    part = filled(make())
    assert part(random(0, *shape)).shape[0] == 0
    last = {"channel linear", "scalar norm", "scalar norm in groups"}  # which take any dimensions in front
    wrong = [
        (*shape[:-1], 2 * shape[-1]),
        (*shape[:-1], 1),
        (*shape[:-2], 3, shape[-1]) if name not in last else shape[-1:] * 3 + (5,),
        *([] if name in last else [shape[1:], (5, *shape), (shape[0] + 1, *shape[1:])]),
    ]
    for other in wrong:
        with pytest.raises(InputError, match=r"x has shape .* expected"):
            part(random(6, *other))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(InputError, match=r"x has dtype .* its weights have torch\.float64"):
            part(random(6, *shape).to(dtype))


@pytest.mark.parametrize("name", PARTS)
def test_strides_change_nothing(name):
    make, shape = PARTS[name]
    part, x = filled(make()), random(6, *shape)
    strided = x.mT.contiguous().mT.flip(0).flip(0).as_strided(x.shape, x.mT.contiguous().mT.stride())
    strided.copy_(x)
    assert not strided.is_contiguous() or 1 in x.shape
    torch.testing.assert_close(part(strided), part(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", PARTS)
def test_all_have_two_derivatives(name):
    """By rows and by weights."""
    make, shape = PARTS[name]
    part, x = filled(make()), random(2, *shape, seed=9).requires_grad_()
    names = [own for own, _ in part.named_parameters()]

    def function(x, *weights):
        return torch.func.functional_call(part, dict(zip(names, weights, strict=True)), (x,))

    given = (x, *part.parameters())
    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("name", PARTS)
def test_norms_and_grids_alone_end_at_the_second_derivative(name):
    make, shape = PARTS[name]
    part, x = filled(make()), random(2, *shape, seed=9).requires_grad_()
    ends = "grid" in name or "scalar norm" in name or ("norm" in name and "groups" not in name)
    y = part(x)
    for _ in range(2):
        (y,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    with pytest.raises(DerivativeError) if ends else nullcontext():
        torch.autograd.grad(y.sin().sum(), x)


FUNCTIONS = {
    "harmonics": (lambda v: spherical_harmonics(v, 3), 3),
    "frames": (frame_quaternions, 3),
    "matrices": (lambda q: wigner_rows(q, 2, by_order(2, 1)), 4),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *PARTS])
def test_all_compile_as_one_graph(name):
    if name in FUNCTIONS:
        function, columns = FUNCTIONS[name]
        shape = (columns,)
    else:
        make, shape = PARTS[name]
        function = filled(make())
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x, weights = random(6, *shape), None
    grads = []
    for one in (function, compiled):
        given = x.clone().requires_grad_()
        y = one(given)
        weights = random(*y.shape, seed=4) if weights is None else weights
        (y * weights).sum().backward()
        grads.append((y, given.grad))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-12)


def test_products_of_degrees_can_be_transformed():
    part, x = filled(DegreeLinear(2, 4, 3)), random(2, 5, 9, 1, 4)
    torch.testing.assert_close(torch.func.vmap(part)(x), torch.stack([part(one) for one in x]))
    _, along = torch.func.jvp(part, (x[0],), (x[1],))
    torch.testing.assert_close(along, part(x[1]))


def test_tables_outlive_an_export():
    """What an export traces is no number, and is not kept for what is computed later."""
    rows, quaternions = ((3, 2), (3, -1)), torch.nn.functional.normalize(random(4, 4), dim=1)

    class Rows(torch.nn.Module):
        def forward(self, q):
            return wigner_rows(q, 3, rows)

    exported = torch.export.export(Rows(), (quaternions,)).module()
    torch.testing.assert_close(exported(quaternions), wigner_rows(quaternions, 3, rows))
    assert type(wigner_rows(quaternions, 3, rows)) is torch.Tensor


def test_tables_outlive_inference_mode():
    """What is first computed where nothing is kept for derivatives can be differentiated later."""
    rows, quaternions = ((4, 2), (4, -1)), torch.nn.functional.normalize(random(4, 4), dim=1)
    with torch.inference_mode():
        wigner_rows(quaternions, 4, rows)
    quaternions.requires_grad_()
    wigner_rows(quaternions, 4, rows).square().sum().backward()
    assert quaternions.grad.isfinite().all()


def test_functions_refuse_what_they_have_no_answer_for():
    vectors, quaternions = random(4, 3), frame_quaternions(random(4, 3))
    for function, given in (
        (lambda v: spherical_harmonics(v, 2), vectors),
        (frame_quaternions, vectors),
        (lambda q: wigner_rows(q, 2), quaternions),
    ):
        assert len(function(given[:0])) == 0
        for other in (given[:, :2], torch.cat([given, given], 1), given[0, 0]):
            with pytest.raises(InputError, match="have shape"):
                function(other)
        for dtype in (torch.int64, torch.float16, torch.bfloat16, torch.complex128):
            with pytest.raises(InputError, match="expected float32 or float64"):
                function(given.to(dtype))
    for lmax in (-1, 1.5):
        for function in (spherical_harmonics, wigner_rows):
            with pytest.raises(InputError, match="lmax is"):
                function(vectors if function is spherical_harmonics else quaternions, lmax)
    for rows in ([(1, -2)], [(1, 2)], [(3, 0)]):
        with pytest.raises(InputError, match="there is no coefficient"):
            wigner_rows(quaternions, 2, rows)
    with pytest.raises(InputError, match="there is no coefficient"):
        places([(1, -2)])
    for function in (coefficients, by_order, lambda lmax, mmax: OrderLinear(lmax, mmax, 2, 2)):
        for lmax, mmax in ((2, 3), (2, -1), (-1, 0)):
            with pytest.raises(InputError, match="expected a whole number"):
                function(lmax, mmax)


def test_a_vector_of_no_length_has_no_number():
    """NaN, which nobody takes for an answer."""
    zero = torch.zeros(1, 3, dtype=torch.float64)
    assert spherical_harmonics(zero, 2)[:, 1:].isnan().all()
    assert frame_quaternions(zero).isnan().all()
    harmonics, turn = edge_frames(zero, 2, 1)
    assert harmonics[:, 1:].isnan().all() and turn[:, 1:3].isnan().any()


def test_grids_refuse_what_they_would_not_multiply():
    for chosen in ([], [(1, 0), (0, 0)], [(0, 0), (2, 0)], [(0, 0), (1, 2)]):
        for make in (GridNet, Gate):
            with pytest.raises(InputError, match="coefficient"):
                make(chosen, 3)
    with pytest.raises(InputError, match="kmax is 2"):
        GridNet(coefficients(1), 3, kmax=2)
    with pytest.raises(InputError, match="kind is 'product'"):
        GridNet(coefficients(1), 3, kind="product")
    x = random(4, 9, 1, 8)
    with pytest.raises(InputError, match="expected two arguments"):
        filled(GridNet(coefficients(2), 8, crossed=True))(x)
    with pytest.raises(InputError, match="expected one argument"):
        filled(GridNet(coefficients(2), 4))(x, x)


def test_weights_are_drawn_for_all_parts():
    """The same of the same numbers, and none stays zero."""
    net = torch.nn.Sequential(DegreeLinear(2, 4, 8), GridNet(coefficients(2), 4), Gate(coefficients(2), 4))
    draw_weights(net, np.random.default_rng(1))
    first = [weight.clone() for weight in net.parameters()]
    assert all(weight.abs().max() > 0 for weight in first)
    draw_weights(net, np.random.default_rng(1))
    assert all(torch.equal(*pair) for pair in zip(first, net.parameters(), strict=True))
