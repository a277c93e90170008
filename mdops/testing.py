"""Sample inputs for every op, for tests of the ops and of code that uses them."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from mdops.ops.activation import kernel_code
from mdops.ops.angle_moment import POWERS, ROW, AngleGrid
from mdops.ops.attention import plan_of, ragged_plan
from mdops.ops.attention_moments import WIDTHS, has_moments
from mdops.ops.harmonic_moment import knot_slopes, largest_functions, padded_basis, spline_pieces
from mdops.ops.moment_invariants import Polynomial, Terms, term_gradients

__all__ = ["Sample", "has_kernel", "op_samples"]


@dataclasses.dataclass
class Sample:
    """One call of an op.

    Attributes:
        op: the name in `torch.ops.mdops`.
        args: the arguments, with tensors on the requested device and of the requested dtype.
        differentiable: indices in `args` by which the op is differentiable.
        opaque: indices of results that are in the kernels' own layout.
        bad: changes of single arguments that the op must refuse: name -> (index, replacement).
    """

    op: str
    args: tuple[Any, ...]
    differentiable: tuple[int, ...] = ()
    opaque: tuple[int, ...] = ()
    bad: dict[str, tuple[int, Any]] = dataclasses.field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(torch.ops.mdops, self.op).default


CUTOFF, SMOOTH, PROTECTION = 3.0, 1.0, 0.05


def _pairs(device: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Two systems of three and two atoms, two types and a virtual atom, with a made-up pair list."""
    gen = torch.Generator().manual_seed(1)
    positions = 2.0 * torch.rand(5, 3, generator=gen, dtype=torch.float64)
    neighbors = torch.tensor(
        [[1, 2, 2, 0, -1], [2, 0, 2, 2, -1], [0, 1, -1, -1, -1], [3, 3, 3, 3, 3], [-1] * 5]
    )
    counts = torch.tensor([[1, 3], [1, 3], [2, 0], [3, 2], [0, 0]])
    shifts = torch.randint(-2, 3, (5, 5, 3), generator=gen) * (neighbors >= 0)[..., None]
    shifts[3, 0], shifts[3, 1] = torch.tensor([1, 0, 0]), torch.tensor([-1, 2, 0])
    images = (shifts[..., 0] & 1023) | (shifts[..., 1] & 1023) << 10 | (shifts[..., 2] & 1023) << 20
    d = torch.randn(5, 5, 3, generator=gen, dtype=torch.float64)
    d = (
        d
        / d.norm(dim=-1, keepdim=True)
        * (0.6 + 2.8 * torch.rand(5, 5, 1, generator=gen, dtype=torch.float64))
    )
    cell = torch.eye(3, dtype=torch.float64) * 2.5 + 0.3 * torch.rand(
        2, 3, 3, generator=gen, dtype=torch.float64
    )
    made = {
        "positions": positions,
        "cell": cell,
        "batch": torch.tensor([0, 0, 0, 1, 1], dtype=torch.int32),
        "types": torch.tensor([0, 1, 1, 0, -1], dtype=torch.int32),
        "neighbors": neighbors.int(),
        "images": images.int(),
        "counts": counts.int(),
        "d": (d * (neighbors >= 0)[..., None]).to(dtype),
        "mean": torch.tensor([0.2, 0.1], dtype=dtype),
        "std": torch.tensor([[0.5, 0.3], [0.7, 0.4]], dtype=dtype),
        "mask": torch.tensor([[False, True], [False, False]]),
        "sel": torch.tensor([4, 3], dtype=torch.int32),
    }
    return {name: value.to(device) for name, value in made.items()}


def has_kernel(op: str, device: torch.device | str) -> bool:
    """Whether `torch.ops.mdops.<op>` runs on tensors of the device."""
    key = {"cpu": "CPU", "cuda": "CUDA"}[torch.device(device).type]
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"mdops::{op}", key)


def op_samples(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> list[Sample]:
    """Small inputs for every op that the device has: virtual atoms, absent neighbours, pairs beyond the cutoff,
    masks."""
    p = _pairs(device, dtype)

    def numbers(seed: int) -> Callable[..., torch.Tensor]:
        gen = torch.Generator().manual_seed(seed)

        def random(*shape: int, like: torch.dtype = dtype) -> torch.Tensor:
            return torch.randn(*shape, generator=gen, dtype=torch.float64).to(device, like)

        return random

    random = numbers(
        2
    )  # samples that only some devices have use other generators, so that these are the same on all devices

    samples = _pair_samples(p, random, dtype) + _step_samples(p, random) + _net_samples(random)
    for radial in (False, True):
        samples += _moment_samples(p, random, radial)
    samples += _invariant_samples(p, numbers(11))
    samples += _harmonic_samples(p, numbers(9)) + _angle_samples(p, random)
    samples += _cell_step_samples(p, random) + _low_bit_samples(random) + _attention_samples(random, device)
    if torch.device(device).type == "cpu" or dtype == torch.float32:  # on a GPU only in float32
        samples += _attention_layer_samples(numbers(7), device)
        samples += _attention_moments_samples(numbers(8), device, dtype)
    samples += _row_samples(p, numbers(10)) + _graph_samples(p, numbers(18))
    samples += _message_samples(p, numbers(19)) + _so2_samples(numbers(24)) + _layer_samples(p, numbers(30))
    samples += _grid_samples(numbers(25)) + _order_samples(numbers(26))
    samples += _edge_attention_samples(p, numbers(23)) + _frame_samples(numbers(27))
    samples += _edge_function_samples(numbers(28)) + _atom_row_samples(numbers(29))
    samples += _edge_environment_samples(numbers(31)) + _own_message_samples(numbers(32))
    rows = random(4, 21)
    samples += [
        Sample("unit", (rows,), (0,)),
        Sample("unit_backward", (random(4, 21), rows), (0, 1)),
        Sample("unit_backward_backward", (random(4, 21), random(4, 21), rows)),
    ]
    of_three = [random(4, 7) for _ in range(3)]
    samples += [
        Sample("unit_three", (rows,), (0,)),
        Sample("unit_three_backward", (*of_three, rows), (0, 1, 2, 3)),
        Sample("unit_three_backward_backward", (random(4, 21), *of_three, rows)),
    ]
    numbers_of_wide = numbers(17)  # a GPU reads their parts 16 bytes at a time
    wide, of_parts = numbers_of_wide(3, 24), [numbers_of_wide(3, 8) for _ in range(3)]
    samples += [
        Sample("unit_three", (wide,), (0,)),
        Sample("unit_three_backward", (*of_parts, wide), (0, 1, 2, 3)),
        Sample("unit_three_backward_backward", (numbers_of_wide(3, 24), *of_parts, wide)),
    ]
    distances = 1 + 6 * numbers(14)(3, 4).sigmoid()
    samples += [Sample("switch_curve", (distances, 1.5, 6.0, order), (0,)) for order in range(7)]
    orders = [(5, order) for order in range(11)] + [(1, 0), (1, 2), (7, 1)]
    samples += [Sample("fade_curve", (distances, 6.0, *of), (0,), bad={"exponent": (2, 0)}) for of in orders]
    samples += _norm_samples(numbers(12)) + _layer_output_samples(numbers(15)) + _linear_samples(numbers(16))
    numbers_of_t = numbers(10)
    for width, axis in ((5, 3), (4, 4), (1, 1)):
        t = numbers_of_t(3, 4, width)
        samples.append(Sample("axis_product", (t, axis, None), (0,)))
        samples.append(Sample("axis_product", (t, axis, numbers_of_t(3, 2)), (0, 2)))
        for more in (0, 2):
            grad = numbers_of_t(3, width * axis + more)
            samples.append(Sample("axis_product_backward", (grad, t, axis), (0, 1)))
    samples += _product_samples(numbers(11))
    if torch.device(device).type == "cpu" or (
        dtype == torch.float32 and has_kernel("hybrid_potential", device)
    ):
        samples += _hybrid_samples(p, numbers(8))
    samples += _table_samples(p, numbers(9))
    # On a GPU the whole step computes only in float32.
    if torch.device(device).type == "cpu" or (
        dtype == torch.float32 and has_kernel("spline_potential", device)
    ):
        samples += _potential_samples(p, random, dtype)
    return [sample for sample in samples if has_kernel(sample.op, device)]


def _pair_samples(p: dict[str, torch.Tensor], random: Callable[..., Any], dtype: torch.dtype) -> list[Sample]:
    """From positions to pairs, and from pairs to forces."""
    pbc = torch.tensor([[True, True, True], [True, False, False]], device=p["cell"].device)
    search = (p["positions"], p["cell"], pbc, p["batch"], p["types"], CUTOFF)
    bad_search = {
        "nan": (0, p["positions"] / 0),
        "singular": (1, 0 * p["cell"]),
        "batch": (3, p["batch"] + 1),
        "types": (4, p["types"] - 1),
        "cutoff": (5, -1.0),
    }
    return [
        Sample("neighbor_matrix", (*search, 2, 64, True), bad=bad_search),
        Sample("neighbor_pairs", search, bad=bad_search),
        Sample(
            "displacements",
            (p["positions"], p["cell"], p["batch"], p["neighbors"], p["images"], dtype),
            (0, 1),
            bad={"index": (3, p["neighbors"] + 4), "batch": (2, p["batch"] + 1)},
        ),
        Sample("displacements_backward", (random(5, 5, 3), p["batch"], p["neighbors"], p["images"], 2), (0,)),
        Sample("pair_forces", (random(5, 5, 3), p["d"], p["batch"], p["neighbors"], 2), (0, 1)),
        Sample("pair_forces", (random(5, 5, 3), p["d"], p["batch"], p["neighbors"], 2, False), (0, 1)),
        Sample(
            "pair_forces_backward",
            (
                random(5, 3, like=torch.float64),
                random(2, 3, 3, like=torch.float64),
                random(5, 3, 3, like=torch.float64),
                random(5, 5, 3),
                p["d"],
                p["batch"],
                p["neighbors"],
            ),
            (0, 1, 2, 3, 4),
            bad={"index": (6, p["neighbors"] + 4), "batch": (5, p["batch"] + 1)},
        ),
    ]


def _moment_samples(p: dict[str, torch.Tensor], random: Callable[..., Any], radial: bool) -> list[Sample]:
    """Rows of the environment matrix, all of them or the radial one, and their spline moments."""
    columns = 1 if radial else 4
    switch = (CUTOFF, SMOOTH, PROTECTION)
    lists = (p["counts"], p["types"])
    bad = {
        "counts": (1, p["counts"] + 3),
        "types": (2, p["types"] + 1),
        "cutoff": (-4, 0.0),
        "smooth": (-3, 4.0),
    }
    samples = [
        Sample("env_mat", (p["d"], *lists, p["mean"], p["std"], p["mask"], *switch, radial), (0,), bad=bad),
        Sample(
            "env_mat_backward",
            (random(5, 5, columns), p["d"], *lists, p["std"], p["mask"], *switch, radial),
            (0, 1),
        ),
        Sample(
            "env_mat_backward_backward",
            (
                random(5, 5, 3),
                random(5, 5, columns),
                p["d"],
                *lists,
                p["std"],
                p["mask"],
                *switch,
                radial,
            ),
        ),
    ]
    norm = (*lists, p["mean"], p["std"], p["mask"])
    for grading in (0.0, 0.05):
        samples += _spline_samples(p, random, norm, (*switch, 1.2, grading, 9), radial)
    return samples


def _spline_samples(
    p: dict[str, torch.Tensor],
    random: Callable[..., Any],
    norm: tuple[torch.Tensor, ...],
    scalars: tuple[Any, ...],
    radial: bool,
) -> list[Sample]:
    """Their s_max is below the largest s, so that the tangent beyond it is used, too."""
    *knots, intervals = scalars
    grad = random(5, 2, intervals + 5, 1 if radial else 4)
    bad = {
        "counts": (1, p["counts"] + 3),
        "types": (2, p["types"] + 1),
        "s_max": (-5, -1.0),
        "grading": (-4, -0.1),
    }
    samples = [
        Sample(
            "spline_moment",
            (p["d"], *norm, p["mask"], p["sel"], p["sel"][:0], *scalars, radial, False),
            (0,),
            bad=bad,
        ),
        # Slots that all types share.
        Sample(
            "spline_moment",
            (p["d"], *norm, ~p["mask"], p["sel"][:1], p["types"].clamp(min=0), *scalars, radial, False),
            (0,),
            bad={**bad, "padding": (8, p["types"].clamp(min=0) + 2), "sel": (7, p["sel"])},
        ),
    ]
    for gated in (False, True) if not radial else (False,):
        ends = (radial, gated)
        if gated:
            places = (~p["mask"], p["sel"], p["sel"][:0])
            samples.append(Sample("spline_moment", (p["d"], *norm, *places, *scalars, *ends), (0,)))
        samples += [
            Sample("spline_moment_backward", (grad, p["d"], *norm, *knots, *ends), (0, 1)),
            Sample("spline_moment_jvp", (random(5, 5, 3), p["d"], *norm, *scalars, *ends)),
            Sample("spline_moment_hvp", (random(5, 5, 3), grad, p["d"], *norm, *knots, *ends)),
        ]
    return samples


def _angle_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Moments of angles and their features; the largest angles are beyond the last octave."""
    norm = (p["counts"], p["types"], 2.0 * p["std"], p["mask"])
    switch, grid = (CUTOFF, SMOOTH, PROTECTION), AngleGrid(-1, 2, 1)
    bad = {
        "counts": (1, p["counts"] + 3),
        "types": (2, p["types"] + 1),
        "cutoff": (5, 0.0),
        "octaves": (9, 0),
        "fineness": (10, 20),
    }
    samples = []
    for gated in (False, True):
        ends = (*switch, *grid, gated)
        grad = random(5, 3, grid.pieces, POWERS)
        samples += [
            Sample("angle_moment", (p["d"], *norm, *ends), (0,), bad=bad),
            Sample("angle_moment_backward", (grad, p["d"], *norm, *ends), (0, 1)),
            Sample("angle_moment_jvp", (random(5, 5, 3), p["d"], *norm, *ends)),
            Sample("angle_moment_hvp", (random(5, 5, 3), grad, p["d"], *norm, *ends)),
        ]
    for channels, has_gates in ((9, False), (2, True)):
        tables = random(2, 3, grid.pieces, channels, ROW)
        tables[..., POWERS:] = 0
        tables[:, :, grid.side - 1 :: grid.side, :, 2:] = 0  # linear on the pieces without an end
        both = (tables[0], tables[1] if has_gates else tables[0][:0])
        bad = {"tables": (5, tables[0][..., :0, :]), "gates": (6, tables[1][:1])}
        args = (p["d"], *norm, *both, *switch, *grid)
        samples.append(Sample("angle_features", args, (0,), bad=bad))
        samples.append(Sample("angle_features_backward", (random(5, channels), *args)))
    return samples


def _step_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """The halves of a step without thermostat, with chains, and (the first) with noise."""

    def double(*shape: int) -> torch.Tensor:
        return random(*shape, like=torch.float64)

    atoms = (double(5, 3), double(5, 3), 0.1 + double(5).abs(), p["batch"])
    freedom, kinetic = 3 * p["batch"].bincount().double(), 0.1 * double(2).abs()
    ends = (double(5), 0.5 + random(5).abs(), p["counts"], p["sel"])
    samples = []
    for links, noisy in ((0, False), (3, False), (0, True)):
        chains = (double(2, links), double(2, links), freedom)
        noise = double(5 if noisy else 0, 3)
        scalars = (0.1, 0.03, 2.0)
        first_half = (p["positions"], *atoms, 1 + 0.1 * double(2), kinetic, *chains, noise, *scalars, 0.9)
        second_half = (p["positions"], double(5, 3), *atoms, *ends, *chains, double(2, 6), *scalars)
        bad: dict[str, tuple[int, Any]] = {"batch": (4, p["batch"] + 1), "dt": (11, float("nan"))}
        if links:
            bad |= {"kT": (12, 0.0), "tau": (13, -1.0), "freedom": (9, 0 * freedom)}
        if noisy:
            bad |= {"keep": (14, 1.5), "kT": (12, float("nan"))}
        samples.append(Sample("begin_step", first_half, bad=bad))
        if not noisy:
            bad = {"batch": (5, p["batch"] + 1), "unsorted": (5, 1 - p["batch"]), "dt": (14, float("inf"))}
            samples.append(Sample("end_step", second_half, bad=bad))
        both = (*second_half[:-3], noise, *scalars, 0.9)
        bad = {"batch": (5, p["batch"] + 1), "unsorted": (5, 1 - p["batch"]), "dt": (15, float("inf"))}
        samples.append(Sample("next_step", both, bad=bad))
    return samples


def _cell_step_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """The halves of a step in cells of any shape without thermostats, and with chains and volume changes only."""

    def double(*shape: int) -> torch.Tensor:
        return random(*shape, like=torch.float64)

    atoms = (double(5, 3), double(5, 3), 0.1 + double(5).abs(), p["batch"])
    freedom, inertia = 3 * p["batch"].bincount().double(), 5 + double(2).abs()
    ends = (double(5), 0.5 + random(5).abs(), p["counts"], p["sel"])
    old_cell = p["cell"] + 0.01 * double(2, 3, 3)
    samples = []
    for links, flexible in ((0, True), (3, False)):
        momenta = double(2, 6) if flexible else double(2, 1) * torch.tensor([1.0, 1, 1, 0, 0, 0]).to(freedom)
        chains = (*(double(2, links) for _ in range(4)), freedom, inertia)
        scalars = (0.1, 0.03, 2.0, 0.01, 5.0)
        cells = (double(2, 3, 3), p["cell"], momenta, *chains)
        first_half = (
            p["positions"],
            *atoms,
            1 + 0.1 * double(2),
            double(2, 6).abs(),
            *cells,
            *scalars,
            flexible,
        )
        places = (p["positions"], double(5, 3), *atoms, *ends, double(2, 25), old_cell)
        second_half = (*places, *cells, double(2, 6), *scalars, 6.0, flexible)
        bad: dict[str, tuple[int, Any]] = {"batch": (4, p["batch"] + 1), "pressure": (19, math.inf)}
        if links:
            bad |= {"kT": (17, 0.0), "period": (20, -1.0), "freedom": (14, 0 * freedom)}
        samples.append(Sample("begin_cell_step", first_half, bad=bad))
        bad = {"batch": (5, p["batch"] + 1), "unsorted": (5, 1 - p["batch"]), "cutoff": (27, math.nan)}
        samples.append(Sample("end_cell_step", second_half, bad=bad))
    return samples


def _norm_samples(random: Any) -> list[Sample]:
    samples = []
    for width in (5, 130):
        x, y, grad, direction = (random(4, width) for _ in range(4))
        weight, bias, along_weight, along_bias = (random(width) for _ in range(4))
        for added in (y, None):
            of_both = (0, 1, 2, 3) if added is y else (0, 2, 3)
            of_back = (0, 1, 2, 3) if added is y else (0, 1, 3)
            second = (direction, along_weight, along_bias, grad, x, added, weight, 1e-5)
            samples += [
                Sample("add_norm", (x, added, weight, bias, 1e-5), of_both),
                Sample("add_norm_backward", (grad, x, added, weight, 1e-5), of_back),
                Sample("add_norm_backward_backward", second),
            ]
    return samples


def _low_bit_samples(random: Callable[..., Any]) -> list[Sample]:
    """Products of every kind of number, by tensor, channel and group, and the ops that quantise."""

    def single(*shape: int) -> torch.Tensor:
        return random(*shape, like=torch.float32)

    def whole(*shape: int, most: int = 127) -> torch.Tensor:
        return (60 * single(*shape)).clamp(-most, most).to(torch.int8)

    rows, cols, depth = 5, 7, 13
    a, b, signs = whole(rows, depth), whole(depth, cols), whole(depth, cols, most=1)
    packed = torch.ops.mdops.pack_ternary(signs)
    one, scale, groups = single(1)[0].abs(), single(rows).abs(), single(4, cols).abs()
    bad = {"groups": (3, groups[:0]), "out_dtype": (4, torch.float64)}
    samples = [
        Sample("gemm_lowbit", (a, b, scale, groups, torch.float32), bad=bad),
        Sample("gemm_lowbit", (a, packed, one, one, torch.bfloat16), bad=bad),
        Sample("gemm_lowbit", (a, packed, scale, groups[:3], torch.float16), bad=bad),
    ]
    for left, right in ((torch.float8_e4m3fn, torch.float8_e5m2), (torch.float8_e5m2, torch.float8_e4m3fn)):
        factors = (single(rows, depth).to(left), single(depth, cols).to(right))
        samples.append(Sample("gemm_lowbit", (*factors, scale, one, torch.float32), bad=bad))
    x, weight = single(rows, depth), single(depth, cols)
    bad = {"kind": (1, "int4"), "per": (2, "page"), "groups": (3, 99)}
    for kind, per, count in (("int8", "row", 1), ("ternary", "tensor", 1), ("int8", "column", 1)):
        samples.append(Sample("quantize", (x, kind, per, count), bad=bad))
        samples.append(Sample("fake_quantize", (x, kind, per, count), bad=bad))
    bad = {"x_kind": (2, "ternary"), "weight_kind": (3, "e4m3"), "per": (4, "row"), "groups": (5, 99)}
    return [
        *samples,
        Sample("lowbit_linear", (x, weight, "int8", "ternary", "column", 2), bad=bad),
        Sample("pack_ternary", (signs,), bad={"numbers": (0, b)}),
        Sample("unpack_ternary", (packed, depth), bad={"rows": (1, 17)}),
    ]


def _net_samples(random: Callable[..., Any]) -> list[Sample]:
    """A net on 4 rows: a layer twice as wide as its input, one as wide, with two activations; one without optional
    tensors; and one like models' fitting nets."""
    widths = (3, 6, 6, 2)
    weights = [0.7 * random(a, b) for a, b in itertools.pairwise(widths)]
    biases, timesteps = ([random(n) for n in widths[1:]] for _ in range(2))
    timesteps[-1] = timesteps[-1][:0]
    kinds = ([1, 1], [1, 2], [3.0, 3.0], "float32")
    net = (weights, biases, timesteps, *kinds)
    x, direction, grad, grad_value = random(4, 3), random(4, 3), random(4, 2), random(4, 2)
    bare = (weights, [biases[0], *(b[:0] for b in biases[1:])], [t[:0] for t in timesteps], *kinds)
    bad = {
        "inputs": (0, x[:, :2]),
        "rows": (1, [weights[0][:2], *weights[1:]]),
        "biases": (2, biases[:2]),
        "timesteps": (3, [*timesteps[:2], random(2)]),
        "residual": (4, [1]),
        "activation": (5, [1, 99]),
        "matmul": (7, "high"),
    }

    def shifted(places: int) -> dict[str, tuple[int, Any]]:
        return {name: (k + places, value) for name, (k, value) in bad.items()}

    fitting = (
        [*weights[:2], weights[2][:, :1].contiguous()],
        [*biases[:2], biases[2][:0]],
        timesteps,
        [0, 1],
        [1, 1],
        [3.0, 3.0],
        "float32",
    )
    lists = (0, 1, 2, 3)
    return [
        Sample("mlp", (x, *net), lists, bad=bad),
        Sample("mlp", (x, *bare), (0, 1), bad=bad),
        Sample("mlp_value_and_gradient", (x, *net), lists, bad=bad),
        Sample("mlp_value_and_gradient", (x, *fitting), lists),
        Sample("mlp_backward", (grad, x, *net, True), (0, *(k + 1 for k in lists)), bad=shifted(1)),
        Sample(
            "mlp_backward_backward",
            (direction, grad, grad_value, x, *net, True),
            (0, 1, 2, *(k + 3 for k in lists)),
            bad=shifted(3),
        ),
    ]


def _product_samples(random: Callable[..., Any]) -> list[Sample]:
    """All atoms in rows by kinds, and some of them; 4 columns and 3."""
    samples = []
    for columns, rows in ((4, [3, 0, 4, 1, 2]), (3, [4, 1])):
        moments, tables = random(5, 7, columns), random(2, 7, 6)
        kinds = torch.tensor([0, 1, 1, 0, 0], dtype=torch.int32, device=moments.device)
        index = torch.tensor(rows, dtype=torch.int32, device=moments.device)
        bad = {"kinds": (3, kinds + 1), "tables": (1, tables[:, :, 0]), "dtype": (2, index.long())}
        some = {"rows": (2, index + 2)} if len(rows) == 5 else {}
        own = (tables, index, kinds)
        grad = random(len(rows), columns, 6)
        samples += [
            Sample("moment_product", (moments, *own), (0, 1), bad={**bad, **some}),
            Sample("moment_product_backward", (grad, *own), (0, 1), bad={**bad, **some}),
        ]
    return samples


def _attention_samples(random: Callable[..., Any], device: torch.device | str) -> list[Sample]:
    """Sequences of 3, 0, 1 and 4 rows, and a row that belongs to none: with all options of attention, with a gate and a
    switch as in DPA-1, and with absent keys only."""
    if not has_kernel("ragged_attention", device):
        return []
    offsets = torch.tensor([0, 3, 3, 4, 8], dtype=torch.int32, device=device)
    plan = ragged_plan(offsets, max_total=9, max_batch=4, max_length=5)
    samples = []

    def moved(bad: dict[str, tuple[int, Any]], tensors: int, others: int) -> dict[str, tuple[int, Any]]:
        """Moves the positions of q, k and v by `tensors`, and those after them by `others`."""
        return {name: (k + (tensors if k < 3 else others), value) for name, (k, value) in bad.items()}

    for heads, width, values, gates, has_bias, has_switch in (
        (2, 3, 2, 2, True, True),
        (1, 4, 4, 3, False, True),
        (3, 2, 5, 0, False, False),
    ):
        q, k, v = random(9, heads, width), random(9, heads, width), random(9, heads, values)
        bias = random(heads, 26) if has_bias else None
        gate = random(9, gates) if gates else None
        switch = (0.2 + random(9).abs()).clamp(max=1) if has_switch else None
        sums = torch.float64 if q.dtype == torch.float64 else torch.float32
        absent = torch.tensor([2.0, 1.0, 0.0, 5.0], dtype=sums, device=device)
        scalars = (0.7, 1.3 if has_switch else 0.0, 5, "float32")
        optional = (bias, gate, switch, absent)
        args = (q, k, v, offsets, plan.items, *optional, *scalars)
        bad: dict[str, tuple[int, Any]] = {
            "falls": (3, offsets.flip(0)),
            "beyond": (3, offsets + 2),
            # On a GPU offsets are not checked before the kernels run.
            "max_length": (11, 3 if torch.device(device).type == "cpu" else -1),
            "matmul": (12, "high"),
            "width": (0, q[..., :1]),
            "columns": (4, plan.items[:, :3]),
        }
        if has_bias:
            bad["bias"] = (5, random(heads, 25))
        place = [k for k, x in enumerate(optional, 5) if x is not None and k < 8]
        samples.append(Sample("ragged_attention", args, (0, 1, 2, *place), bad=bad))
        # Its derivatives take the forward pass's results for the same arguments: none of them may change alone.
        out, logsumexp = torch.ops.mdops.ragged_attention(*args)
        grad = random(9, heads, values)
        saved = (grad, q, k, v, out, logsumexp, *args[3:])
        samples.append(Sample("ragged_attention_backward", saved, bad=moved(bad, 1, 3)))
        directions = [None if x is None else random(*x.shape) for x in optional[:3]]
        along = (random(*q.shape), random(*k.shape), random(*v.shape), *directions, *saved)
        samples.append(Sample("ragged_attention_backward_backward", along, bad=moved(bad, 7, 9)))
    return samples


def _attention_moments_samples(
    random: Callable[..., Any], device: torch.device | str, dtype: torch.dtype
) -> list[Sample]:
    """Two layers of coordinates, smooth and with angles, and one without either."""
    features, width = 6, WIDTHS[0]
    if not has_moments(torch.device(device), dtype, WIDTHS, features):
        return []
    offsets = torch.tensor([0, 2, 2, 3], dtype=torch.int32, device=device)
    rows, plan = 3, plan_of(offsets, 3)
    samples = []
    for smooth, layers in ((True, 2), (False, 1)):
        behind, later = [width] * (layers - 1) + [features], range(layers - 1)
        lists = (
            [0.3 * random(width, m) for m in behind],
            [0.3 * random(width, m) for m in behind],
            [random(m) for m in behind],
            [0.3 * random(width, 3 * width) for _ in later],
            [random(3 * width) for _ in later],
            [random(width).cos() for _ in later],
        )
        directions = torch.nn.functional.normalize(random(rows, 3), dim=1)
        keys = (directions, (0.2 + random(rows).abs()).clamp(max=1), 3 * random(3).abs())
        fixed = (random(features), random(features), *(keys if smooth else (None, None, None)))
        scalars = ([0.7] * layers, 20.0, 1e-5, smooth, plan.items, plan.max_length)
        args = (0.5 * random(rows, 4 * width), random(rows, 4), offsets, *lists, *fixed, *scalars)
        bad = {
            "falls": (2, offsets[[0, 3, 1, 2]]),
            "width": (0, random(rows, 4 * width + 1)),
            "no layers": (3, []),
            "a bias less": (5, lists[2][1:]),
            "environment": (1, random(rows, 3)),
        }
        if smooth:
            bad |= {
                "short": (2, offsets[:-1]),
                "directions": (11, random(rows, 4)),
                "factors": (8, [random(2)]),
            }
        samples.append(
            Sample("attention_moments", args, (0, 1, 11, 12) if smooth else (0, 1), opaque=(1,), bad=bad)
        )
        saved = torch.ops.mdops.attention_moments(*args)[1]
        shifted = {name: (k + 2, value) for name, (k, value) in bad.items()}
        # `saved` is what the forward pass made of the same arguments: nothing of theirs may change alone.
        backward = (random(3, 4, features), saved, *args)
        samples.append(
            Sample("attention_moments_backward", backward, bad={**shifted, "saved": (1, saved[:-1])})
        )
    return samples


def _attention_layer_samples(random: Callable[..., Any], device: torch.device | str) -> list[Sample]:
    """A layer of DPA-1, smooth and with angles, and without either; the same with coordinates, and with those that
    attention reads in place."""
    if not has_kernel("attention_layer", device):
        return []
    offsets = torch.tensor([0, 4, 4, 5, 8], dtype=torch.int32, device=device)
    rows, features = 8, 6
    plan = plan_of(offsets, rows)
    samples = []
    for smooth, normalize, width, scaled in (
        (True, True, 4, False),
        (False, False, 4, False),
        (True, True, 16, True),
        (False, False, 16, True),
        (True, False, 16, False),
    ):
        given = width == 16
        g = random(rows, features + 2 + 3 * width if given else features)
        weights = (
            None if given else 0.5 * random(features, 3 * width),
            None if given else random(3 * width),
            random(width, features),
            *(random(features) for _ in range(3)),
            random(width).cos() if scaled else None,
        )
        directions = torch.nn.functional.normalize(random(rows, 3), dim=1)
        keys = (
            (directions, (0.2 + random(rows).abs()).clamp(max=1), 3 * random(4).abs())
            if smooth
            else (None, None, 3 * random(4).abs())
        )
        args = (g, offsets, *weights, *keys, 0.7, 20.0, 1e-5, normalize, plan.items, plan.max_length)
        bad = {
            "falls": (1, offsets[[0, 2, 1, 3, 4]].flip(0)),
            "short": (1, offsets[:-1]),
            "width": (0, g[:, 3:]),
            "both": (2, random(features, 3 * width) if given else None),
        }
        if given:
            bad["odd width"] = (4, random(width - 1, features))
        if smooth:
            bad["directions"] = (9, random(rows, 4))
        places = (0, 9, 10) if smooth else (0,)
        samples.append(Sample("attention_layer", args, places, opaque=(1,), bad=bad))
        saved = torch.ops.mdops.attention_layer(*args)[1]
        shifted = {name: (k + 2, value) for name, (k, value) in bad.items()}
        # `saved` is what the forward pass made of the same arguments: nothing of theirs may change alone.
        backward = (random(rows, features), saved, *args)
        samples.append(
            Sample("attention_layer_backward", backward, bad={**shifted, "saved": (1, saved[:-1])})
        )
    return samples


def _harmonic_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Sums of each degree, with more splines than fit and fewer than fill eight lanes."""
    samples = []
    for degree, intervals in ((2, 3), (3, 12), (4, 5)):
        # Few functions, all of them with polynomials, and more than lanes.
        size, seconds = {2: (8, 4), 3: (70, 8), 4: (16, 16)}[degree]
        tables = harmonic_tables(random(2, size, 2, padded_basis(intervals)), intervals, seconds)
        listed = p["d"], p["counts"], p["types"], p["mask"]
        sums = (*listed, *tables, CUTOFF, intervals, degree, seconds)
        bad = {
            "counts": (1, p["counts"] + 3),
            "types": (2, p["types"] + 1),
            "cutoff": (8, -1.0),
            "intervals": (9, 0),
            "degree": (10, 5),
            "seconds": (11, 3),
            "table": (4, tables[0][:, :-1]),
            "pieces": (7, tables[3][..., :3]),
        }
        samples.append(Sample("harmonic_sums", sums, (0,), bad=bad))
        grads = random(5, size + 2), random(5, (degree + 1) ** 2, seconds)
        moved = {name: (k + 2, value) for name, (k, value) in bad.items()}
        samples.append(Sample("harmonic_sums_backward", (*grads, *sums), bad=moved))
        nearest = torch.ops.mdops.harmonic_sums(*sums)[3]
        more = largest_functions(*tables[1:3]), nearest, p["batch"], p["neighbors"], 2
        moved = {name: (k + 7, value) for name, (k, value) in bad.items()}
        moved |= {"most": (2, more[0][0]), "neighbors": (5, p["neighbors"] + 5)}
        samples.append(Sample("harmonic_forces", (*grads, *more, *sums), bad=moved))
    return samples


def harmonic_tables(
    rows: torch.Tensor, intervals: int, seconds: int, cutoff: float = CUTOFF
) -> tuple[torch.Tensor, ...]:
    """Tables of `harmonic_sums` for coefficients (ntypes, F, ntypes, B), with the polynomials of up to 16 functions, or
    else of the first `seconds`."""
    exact = rows.double()
    known = exact if rows.shape[1] <= 16 else exact[:, :seconds]
    pieces = spline_pieces(known.transpose(1, 2), intervals).to(rows)
    slopes = knot_slopes(exact, cutoff, intervals).flatten(2).to(rows)
    flat = rows.flatten(2)
    return flat.mT.contiguous(), flat, slopes, pieces


def _invariant_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Three sums and six, with mixtures, with products of them, and with none, and terms of zero to four
    factors."""
    samples = []
    for count, own in ((2, 0), (0, 0), (2, 2), (0, 1)):
        mixtures: list[Polynomial] = [{(k, k + 1): 0.3, (k + 4,): -1.2} for k in range(count)]
        made: list[Polynomial] = [{(k, 10 + count): 0.8, (k, k, 2): 0.4} for k in range(own)]
        last = 10 + count + own
        features: list[Polynomial] = [
            {(0,): 1.0, (): -0.2},
            {(1, 9): 0.7, (2, 2, last): 1.3},
            {},
            {(3, 4, 5, last): 0.4, (6, 6, 6, 7): -0.6},
            {(0, 8): 0.5},
        ]
        scalars = torch.cat([random(5, 3), 0.5 + random(5, 2).abs()], 1)
        forth = Terms.of([*mixtures, *made, *features], scalars)
        back = Terms.of(term_gradients(mixtures, made, features, 11), scalars)
        args = (scalars, random(5, 6), p["types"], random(2, 2), *forth, *back, count, own)
        wrong = forth.numbers.clone()
        wrong[2, 0] = 2000  # the second mixture's, or the second feature's
        bad = {"types": (2, p["types"] + 2), "forth_index": (4, wrong), "mixed": (10, -1)}
        samples.append(Sample("moment_invariants", args, (0, 1), bad=bad))
        moved = {name: (k + 1, value) for name, (k, value) in bad.items() if count or name != "forth_index"}
        moved["scalars"] = (1, scalars[:, :1].contiguous())
        backward = (random(5, 7), *args)
        samples.append(Sample("moment_invariants_backward", backward, bad=moved))
    return samples


def _row_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """The neighbours as rows, more rows than there are neighbours, and sums over them."""
    lists = (p["counts"], p["types"])
    bad_lists = {"counts": p["counts"] + 3, "types": p["types"] + 1}
    listed = (p["d"], *lists, p["mask"], p["mask"].T, CUTOFF)
    bad: dict[str, tuple[int, Any]] = {
        name: (1 + k, value) for k, (name, value) in enumerate(bad_lists.items())
    }
    samples = [Sample("neighbor_rows", listed, bad={**bad, "cutoff": (5, -1.0)})]
    offsets, slots, *_ = torch.ops.mdops.neighbor_rows(*listed)
    rows, channels = 16, 21  # channels that are no multiple of a vector
    assert int(offsets[-1]) < rows
    for gated in (False, True):
        table = random(2, 3 if gated else 2, 14, channels)
        scalars = (CUTOFF, SMOOTH, PROTECTION, 1.2, 0.05 * gated, rows, gated)  # s_max below the largest s
        args = (p["d"], slots, *lists, p["mean"], p["std"], table, *scalars)
        bad = {name: (2 + k, value) for k, (name, value) in enumerate(bad_lists.items())}
        bad |= {
            "slots": (1, slots + 25),
            "functions": (6, table[:, 1:]),
            "smooth": (8, 4.0),
            "grading": (11, -1.0),
            "rows": (12, 26),
        }
        samples.append(Sample("spline_rows", args, (0,), bad=bad))
        grads = (random(rows, 4), random(rows), random(rows, 3), random(rows, channels))
        moved = {name: (k + 4, value) for name, (k, value) in bad.items()}
        samples.append(Sample("spline_rows_backward", (*grads, *args), bad=moved))
    given = (p["d"], slots, *lists, p["mean"], p["std"], CUTOFF, SMOOTH, PROTECTION, rows)
    bad = {name: (2 + k, value) for k, (name, value) in enumerate(bad_lists.items())}
    bad |= {"slots": (1, slots + 25), "smooth": (7, 4.0), "rows": (9, 26)}
    samples.append(Sample("environment_rows", given, (0,), bad=bad))
    first = (random(rows, 4), random(rows), random(rows, 3), *given)
    moved = {name: (k + 3, value) for name, (k, value) in bad.items()}
    samples.append(Sample("environment_rows_backward", first, (0, 1, 2, 3), bad=moved))
    moved = {name: (k + 4, value) for name, (k, value) in bad.items()}
    second = (random(*p["d"].shape), *first)
    samples.append(Sample("environment_rows_backward_backward", second, bad=moved))
    for degree in (2, 4):
        components = (degree + 1) ** 2
        of_degree = (*given, degree)
        unknown = {**bad, "degree": (10, 5)}
        samples.append(Sample("harmonic_rows", of_degree, (0,), bad=unknown))
        backward = (random(rows, components), *of_degree)
        moved = {name: (k + 1, value) for name, (k, value) in unknown.items()}
        samples.append(Sample("harmonic_rows_backward", backward, (0, 1), bad=moved))
        moved = {name: (k + 2, value) for name, (k, value) in unknown.items()}
        along = (random(*p["d"].shape), *backward)
        samples.append(Sample("harmonic_rows_backward_backward", along, bad=moved))
    offsets = torch.tensor([0, 4, 4, 5, 8], dtype=torch.int32, device=p["d"].device)
    samples.append(Sample("ragged_plan", (offsets, 20, 6, 5), bad={"batch": (2, 3), "total": (1, -1)}))
    falls = {"falls": offsets.flip(0), "beyond": offsets + 2}
    index = torch.tensor([2, 0, 2, -1, 1, 1, 0, 2], dtype=torch.int32, device=p["d"].device)
    for components in (4, 9):
        for of, count in (((None, None, None), 8), ((index, *torch.ops.mdops.edge_order(index, 3)), 3)):
            summed = (random(8, components), random(count, channels), offsets, False, *of)
            bad = {name: (2, value) for name, value in falls.items()}
            samples.append(Sample("row_moments", summed, (0, 1), bad=bad))
            bad = {name: (3, value) for name, value in falls.items()}
            of_sums = (random(4, components, channels), *summed)
            samples.append(Sample("row_moments_backward", of_sums, (0, 1, 2), bad=bad))
    return samples


def _graph_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Edges with and without masked pairs and truncation, with room left after them; rows of several widths."""
    lists = (p["neighbors"], p["images"], p["counts"], p["types"])
    bad: dict[str, tuple[int, Any]] = {
        "neighbors": (1, p["neighbors"] + 4),
        "counts": (3, p["counts"] + 3),
        "types": (4, p["types"] + 1),
        "cutoff": (6, -1.0),
        "angle_cutoff": (7, 4.0),
        "nodes": (10, -1),
    }
    samples = [
        Sample("neighbor_edges", (p["d"], *lists, mask, CUTOFF, 2.0, *sel, 5, room), bad=bad)
        for mask, sel, room in (
            (p["mask"], (3, 2), 16),
            (torch.zeros_like(p["mask"]), (9, 9), 20),
            (p["mask"], (3, 2), 2),
        )
    ]
    i, j, images, _, offsets, _, counts, *_ = samples[1].function(*samples[1].args)
    samples.append(Sample("edge_reverse", (i, j, images, offsets), bad={"offsets": (3, offsets + 9)}))
    looks = not j.is_cuda  # at values; a GPU answers with NaN, or names of nothing
    bad = {"index": (0, j + 3)} | ({"rows": (1, 2)} if looks else {})
    samples.append(Sample("edge_order", (j, 5), bad=bad))
    for room in (40, 3):
        bad = {"falls": (0, offsets.flip(0)), "counts": (1, counts + 9)} | (
            {"edges": (2, 3)} if looks else {}
        )
        samples.append(Sample("edge_angles", (offsets, counts, 20, room), bad=bad))
    # The last edge has a node, so an index without it does not match `offsets`.
    index = torch.tensor([2, -1, 0, 2, 3, 0, 2], dtype=torch.int32, device=p["d"].device)
    sorted_index = torch.tensor([0, 0, 2, 2, 2, 3, 3], dtype=torch.int32, device=p["d"].device)
    for width, of in ((5, index), (8, sorted_index)):
        order, starts = torch.ops.mdops.edge_order(of, 4)
        given = (of, None if of is sorted_index else order, starts)
        bad = {"index": (1, of + 9), "offsets": (3, starts + 1)}
        gathered = {"index": (1, of + 9), "wide": (5, width + 1)}
        for base, narrow in ((None, width), (random(7, 4), 4)):
            places: tuple[int, ...] = (0,) if base is None else (0, 4)
            samples.append(
                Sample("edge_gather", (random(4, width), *given, base, narrow), places, bad=gathered)
            )
            scattered = random(7, narrow), *given, None, None, width
            less = bad | {"width": (6, narrow - 1)}
            samples.append(Sample("edge_scatter", scattered, (0,), bad=less))
        for base, more in (
            (random(4, width), random(4, width)),
            (random(4, width), None),
            (None, random(1, width)),
        ):
            places = (0, *(k for k, value in ((4, base), (5, more)) if value is not None))
            scattered = random(7, width), *given, base, more, width
            samples.append(Sample("edge_scatter", scattered, places, bad=bad))
    both = [(of, None if of is sorted_index else torch.ops.mdops.edge_order(of, 4)[0],
             torch.ops.mdops.edge_order(of, 4)[1]) for of in (index, sorted_index)]  # fmt: skip
    for (first, second), width in (((0, 1), 5), ((1, 0), 8), ((0, 0), 4)):
        x, y = random(4, width), random(4, width)
        bad = {"x_index": (1, both[first][0] + 9), "y_index": (5, both[second][0] + 9)}
        samples.append(Sample("edge_product", (x, *both[first], y, *both[second]), (0, 4), bad=bad))
        bad = {"x_index": (2, both[first][0] + 9), "offsets": (7, both[second][2] + 1)}
        args = random(7, width), x, *both[first], *both[second]
        samples.append(Sample("edge_weighted_sum", args, (0, 1), bad=bad))
    for (first, second), inputs, turns, width in (
        ((0, 1), 3, 3, 8),
        ((1, 0), 5, 0, 5),
        ((0, 0), 34, 4, 20),
        ((1, 0), 0, 1, 6),
    ):
        samples += _convolution_samples(random, both[first], both[second], inputs, turns, width)
    for index_of, rows, columns, channels in (
        (both[0], 3, 4, 6),
        (both[1], 7, 9, 32),
        (both[0], 2, 11, 5),
        (both[1], 10, 16, 64),
    ):
        small = channels < 64
        turn, y, x = random(7, rows, columns), random(7, rows, channels), random(4, columns, channels)
        wrong: dict[str, tuple[int, Any]] = {"index": (2, index_of[0] + 9)}
        samples.append(Sample("edge_rotate", (turn, x, *index_of), (0, 1) if small else (), bad=wrong))
        samples.append(Sample("edge_rotate_outer", (y, x, *index_of), (0, 1) if small else (), bad=wrong))
        wrong = wrong | {"offsets": (4, index_of[2] + 1)}
        samples.append(Sample("edge_rotate_sum", (turn, y, *index_of), (0, 1) if small else (), bad=wrong))
        weight = random(7, 1)
        wrong = {"index": (3, index_of[0] + 9), "offsets": (5, index_of[2] + 1), "weight": (2, random(7, 2))}
        samples.append(
            Sample("edge_rotate_back", (turn, y, weight, *index_of), (0, 1, 2) if small else (), bad=wrong)
        )
        wrong = {"grad": (0, random(4, columns + 1, channels))}
        samples.append(Sample("edge_rotate_back_backward", (x, turn, y, weight, *index_of), bad=wrong))
    for index_of, degree, channels, groups in (
        (both[0], 1, 6, 1),
        (both[1], 2, 32, 1),
        (both[0], 0, 5, 1),
        (both[1], 3, 64, 1),
        (both[0], 7, 3, 1),
        (both[1], 1, 6, 3),
        (both[0], 2, 32, 2),
        (both[1], 3, 64, 2),
    ):
        samples += _order_moment_samples(random, index_of, degree, channels, groups)
    taken, back = (
        torch.tensor(x, dtype=torch.int32, device=p["d"].device)
        for x in ([3, -1, 0, 4, 1], [2, 4, -1, 0, 3, -1])
    )
    bad = {"index": (1, taken + 9), "inverse": (2, back.flip(0))}
    samples.append(Sample("edge_permute", (random(6, 3), taken, back), (0,), bad=bad))
    segments = torch.tensor([0, 3, 3, 7], dtype=torch.int32, device=p["d"].device)
    x, grad, direction = (random(9, 3) for _ in range(3))
    beyond, falls = segments + 3, segments.flip(0)
    bad = {"beyond": (1, beyond), "falls": (1, falls)}
    samples.append(Sample("segment_softmax", (x, segments), (0,), bad=bad))
    bad = {"beyond": (2, beyond)}
    samples.append(Sample("segment_softmax_backward", (grad, x, segments), (0, 1), bad=bad))
    of_both = (direction, grad, x, segments)
    samples.append(Sample("segment_softmax_backward_backward", of_both, bad={"falls": (3, falls)}))
    weight, nothing, of_segments = random(9, 1).sigmoid(), random(3).exp(), random(3, 3)
    weight[1] = 0
    weighted: tuple[Any, ...] = x, weight, nothing, segments
    samples.append(Sample("segment_weights", weighted, (0, 2), bad={"beyond": (3, beyond)}))
    weighted = grad, *weighted
    samples.append(Sample("segment_weights_backward", weighted, (0, 1, 3), bad={"falls": (4, falls)}))
    weighted = direction, random(9, 3), of_segments, *weighted
    bad = {"falls": (7, falls)}
    samples.append(Sample("segment_weights_backward_backward", weighted, bad=bad))
    weighted = random(9, 1), random(9, 1).exp(), random(1).exp(), segments
    samples.append(Sample("segment_weights", weighted, (0, 1, 2), bad={"beyond": (3, beyond)}))
    samples.append(Sample("segment_weights_backward", (random(9, 1), *weighted), (0, 1, 2, 3)))
    return samples


def _message_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Rows with seconds in any order, and rows in groups without kept rows; rows without a node after them."""

    def index(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=p["d"].device)

    samples = []
    free = index(0, 0, 2, 2, 2, 3, -1), index(2, -1, 0, 2, 3, 0, -1), None
    grouped = index(0, 0, 1, 1, 2, -1, -1), index(0, 1, 0, 1, 2, -1, -1), index(0, 2, 3)
    for (first, second, groups), inputs, sent, kept, name in (
        (free, 5, 6, 5, "silut:0.4"),
        (grouped, 3, 9, 3, "silu"),
        (grouped, 17, 16, 0, "tanh"),
        (free, 3, 0, 3, "gelu"),
    ):
        columns = sent + kept
        (_, firsts), (order, seconds) = (torch.ops.mdops.edge_order(of, 4) for of in (first, second))
        tensors = random(7, inputs), random(inputs, columns), random(4, columns), random(4, columns)
        indices = first, firsts, second, order, seconds, groups
        twice = (*tensors, random(7), random(kept), *indices, *kernel_code(name))
        given = (*twice, "float32")
        bad: dict[str, tuple[int, Any]] = {"scale": (5, random(inputs + 1)), "code": (12, 9)}
        bad |= {"first": (6, first + 9), "second": (8, second + 9), "matmul": (14, "float8")}
        if sent or not first.is_cuda:  # a GPU does not use offsets if there are no sums
            bad |= {"offsets": (7, firsts.flip(0))}
        if groups is not None and not first.is_cuda:  # a GPU does not use groups for such narrow rows
            bad |= {"groups": (11, index(0, 1, 3)), "ends": (11, index(0, 2))}
        samples.append(Sample("message", given, tuple(range(6 if kept else 5)), bad=bad))
        grads = random(4, sent), random(7, kept)
        places = tuple(k for k in range(8) if (sent or k != 0) and (kept or k not in (1, 7)))
        for of_weights in (False, True):
            bad = {"grad_sent": (0, random(4, sent + 1)), "grad_kept": (1, random(7, kept + 1))}
            samples.append(Sample("message_backward", (*grads, *given, of_weights), places, bad=bad))
        along = random(7, inputs), random(4, columns), random(4, columns), random(7)
        bad = {"along_x": (0, random(7, inputs + 1)), "along_q": (2, random(5, columns))}
        samples.append(Sample("message_backward_backward", (*along, *grads, *twice), bad=bad))
    return [
        *samples,
        *_framed_message_samples(random, index),
        *_outer_message_samples(random, index),
        *_angle_end_samples(random, index),
        *_node_update_samples(random),
        *_angle_product_samples(random, index),
        *_edge_update_samples(random, index),
    ]


def _edge_update_samples(
    random: Callable[..., torch.Tensor], index: Callable[..., torch.Tensor]
) -> list[Sample]:
    """Edges without a row, with one, and with two."""
    samples, of = [], index(1, 2, 2, 4, -1)
    _, ends = torch.ops.mdops.edge_order(of, 6)
    for width, name in ((4, "silut:0.4"), (5, "tanh"), (8, "silu")):
        z, base, scale, bias = random(5, width), random(6, width), random(width), random(width)
        given = z, scale, bias, of, ends, *kernel_code(name)
        bad: dict[str, tuple[int, Any]] = {"scale": (2, random(width + 1)), "code": (6, 9)}
        bad |= {"index": (4, of + 9), "offsets": (5, ends.flip(0))}
        samples.append(Sample("edge_update", (base, *given), (0, 1), bad=bad))
        bad = {"index": (4, of + 9), "grad": (0, random(5, width))}
        samples.append(Sample("edge_update_backward", (base, *given), bad=bad))
    return samples


def _angle_product_samples(
    random: Callable[..., torch.Tensor], index: Callable[..., torch.Tensor]
) -> list[Sample]:
    """Rows of pairs in any order, some without a node."""
    first, second = index(0, 0, 1, 1, 1, 3, -1), index(1, 3, 0, -1, 3, 3, -1)
    (_, firsts), (order, seconds) = (torch.ops.mdops.edge_order(of, 4) for of in (first, second))
    indices = first, firsts, second, order, seconds
    u, v, grads = random(4, 4), random(4, 4), (random(7), random(7))
    bad = {"first": (1, first + 9), "second": (3, second + 9), "u": (0, random(4, 3))}
    along = {"v": (0, random(3, 4)), "first": (2, first + 9)}
    back = {"offsets": (4, firsts.flip(0)), "order": (6, order + 9), "grad": (0, random(8))}
    return [
        Sample("angle_products", (u, *indices), (0,), bad=bad),
        Sample("angle_products_along", (v, u, *indices), (0, 1), bad=along),
        Sample("angle_products_backward", (*grads, u, *indices), (0, 1, 2), bad=back),
    ]


def _framed_message_samples(
    random: Callable[..., torch.Tensor], index: Callable[..., torch.Tensor]
) -> list[Sample]:
    """Rows that are taken zero times, once or twice, in sizes of the tensor cores and others."""
    samples = []
    first, second, taken = (
        index(0, 0, 2, 2, 2, 3, -1),
        index(2, -1, 0, 2, 3, 0, -1),
        index(0, 3, 3, 6, -1),
    )
    (_, firsts), (order, seconds) = (torch.ops.mdops.edge_order(of, 4) for of in (first, second))
    _, ends = torch.ops.mdops.edge_order(taken, 7)
    for inputs, sent, kept, width, name in ((32, 32, 32, 16, "silut:0.4"), (5, 6, 0, 5, "tanh")):
        columns = sent + kept
        tensors = random(7, inputs), random(inputs, columns), random(4, columns), random(4, columns)
        indices = first, firsts, second, order, seconds, taken, ends, width
        given = *tensors, random(7), random(kept), random(7, 3), *indices, *kernel_code(name), "float32"
        bad: dict[str, tuple[int, Any]] = {"frame": (6, random(7, 4)), "width": (14, inputs + 1)}
        bad |= {"first": (7, first + 9), "second": (9, second + 9), "offsets": (8, firsts.flip(0))}
        bad |= {"taken": (12, taken + 9), "matmul": (17, "float8")}
        samples.append(Sample("framed_message", given, (0, 2, 3, 4, 6), bad=bad))
        grads = random(4, sent), random(7, kept), random(4, 3, inputs), random(5, width)
        bad = {"grad_moments": (2, random(4, 3, inputs + 1)), "grad_rows": (3, random(4, width))}
        bad |= {"ends": (17, ends.flip(0))}
        samples.append(Sample("framed_message_backward", (*grads, *given), bad=bad))
    return samples


def _outer_message_samples(
    random: Callable[..., torch.Tensor], index: Callable[..., torch.Tensor]
) -> list[Sample]:
    """Rows that are a number times a vector, for all pairs in groups of two, zero and one, in sizes of the tensor cores
    and others; the last row has no node."""
    samples = []
    first, second, groups = index(0, 0, 1, 1, 3, -1), index(0, 1, 0, 1, 3, -1), index(0, 2, 3, 4)
    (_, firsts), (order, seconds) = (torch.ops.mdops.edge_order(of, 4) for of in (first, second))
    for inputs, sent, kept, name in ((32, 32, 32, "silut:0.4"), (64, 16, 0, "silu"), (5, 6, 5, "tanh")):
        columns = sent + kept
        tensors = random(6, 1), random(1, inputs), random(inputs, columns), random(4, columns)
        indices = first, firsts, second, order, seconds, groups, *kernel_code(name), "float32"
        given = *tensors, random(4, columns), random(6), random(kept), *indices
        bad: dict[str, tuple[int, Any]] = {"number": (0, random(6, 2)), "vector": (1, random(1, inputs + 1))}
        bad |= {"first": (7, first + 9), "second": (9, second + 9), "offsets": (8, firsts.flip(0))}
        bad |= {"matmul": (15, "float8")}
        samples.append(Sample("outer_message", given, (0, 3, 4, 5), bad=bad))
        grads = random(4, sent), random(6, kept)
        bad = {"grad_sent": (0, random(4, sent + 1)), "grad_kept": (1, random(5, kept))}
        samples.append(Sample("outer_message_backward", (*grads, *given), bad=bad))
    return samples


def _node_update_samples(random: Callable[..., torch.Tensor]) -> list[Sample]:
    samples = []
    for rows, width, name in ((5, 4, "silut:0.4"), (6, 7, "tanh")):
        x, z, u, m, weights = *(random(rows, width) for _ in range(4)), random(3, width)
        code = kernel_code(name)
        bad: dict[str, tuple[int, Any]] = {
            "u": (2, random(rows + 1, width)),
            "m": (3, random(rows, width + 1)),
        }
        bad |= {"weights": (4, random(2, width)), "code": (5, 9)}
        samples.append(Sample("node_update", (x, z, u, m, weights, *code), (0, 1, 2, 3), bad=bad))
        bad = {"grad": (0, random(rows + 1, width)), "weights": (3, random(2, width))}
        samples.append(Sample("node_update_backward", (m, z, u, weights, *code), bad=bad))
    return samples


def _angle_end_samples(
    random: Callable[..., torch.Tensor], index: Callable[..., torch.Tensor]
) -> list[Sample]:
    """Atoms with two rows, none, one, and more than a warp processes at once; the last rows have no atom."""
    samples = []
    of = index(0, 0, 2, *[3] * 17, -1, -1)
    _, ends = torch.ops.mdops.edge_order(of, 4)
    for inputs, columns in ((32, 48), (64, 16), (5, 7)):
        given = random(inputs, 2 * columns), of, ends
        bad: dict[str, tuple[int, Any]] = {"index": (3, of + 9), "of_atom": (1, random(4, columns + 1))}
        bad |= {"weight": (2, random(inputs + 1, 2 * columns)), "offsets": (4, ends.flip(0))}
        samples.append(
            Sample("angle_ends", (random(22, inputs), random(4, columns), *given), (0, 1), bad=bad)
        )
        bad = {
            "index": (3, of + 9),
            "grad_p": (0, random(22, columns + 1)),
            "grad_q": (1, random(2, columns)),
        }
        grads = random(22, columns), random(22, columns)
        samples.append(Sample("angle_ends_backward", (*grads, *given), bad=bad))
    return samples


def within_groups(weight: torch.Tensor, channels: int, groups: int) -> torch.Tensor:
    """Weights of rows of channels with zeros between groups of these."""
    of_group = torch.arange(channels, device=weight.device) // (channels // groups)
    same = of_group[:, None] == of_group
    return weight * same.tile(len(weight) // channels, weight.shape[1] // channels)


def _so2_samples(random: Callable[..., Any]) -> list[Sample]:
    """Edges of several degrees and widths, also those that a GPU has its own kernel for, with and without gates."""
    samples = []
    for edges, degrees, channels, gated, groups in (
        (5, 1, 3, True, 1),
        (3, 2, 5, False, 1),
        (19, 2, 32, True, 1),
        (4, 2, 32, False, 1),
        (5, 1, 64, True, 1),
        (3, 3, 64, True, 1),
        (3, 2, 64, False, 1),
        (6, 3, 4, True, 1),
        (4, 3, 64, True, 2),
        (3, 2, 6, True, 3),
    ):
        middle, side = (degrees + 1) * channels, degrees * channels
        weights = [random(middle, middle), random(side, 2 * side)]
        weights += [random(*((channels, side) if gated else (0, 0)))]
        weights = [0.2 * within_groups(one, channels, groups) for one in weights]
        given = random(edges, 3 * degrees + 1, channels), *weights, "float32", groups
        bad: dict[str, tuple[int, Any]] = {
            "rows": (0, random(edges, 3 * degrees + 2, channels)),
            "weight": (1, random(middle, middle + 1)),
            "both": (2, random(side, side)),
            "gate": (3, random(channels, side + 1)),
            "matmul": (4, "high"),
            "groups": (5, channels + 1),
        }
        small = tuple(range(3 + gated)) if channels < 32 else ()
        samples.append(Sample("so2_layer", given, small, bad=bad))
        grad = random(edges, 3 * degrees + 1, channels)
        result = torch.ops.mdops.so2_layer(*given)
        bad = {
            name: (at, random(edges + 1, 3 * degrees + 1, channels))
            for name, at in (("grad", 0), ("result", 7))
        }
        # `result` also depends on all its arguments except the gradient.
        samples.append(Sample("so2_layer_backward", (grad, *given, result), (0,) if small else (), bad=bad))
    return [*samples, *_so2_messages_samples(random)]


def _so2_messages_samples(random: Callable[..., Any]) -> list[Sample]:
    """Messages of several layers: as many as a GPU has one kernel for, and others."""
    samples = []
    for edges, degrees, channels, layers, gated in ((4, 1, 3, 2, 1), (150, 2, 32, 3, 2), (9, 2, 32, 2, 2)):
        middle, side = (degrees + 1) * channels, degrees * channels
        rows, columns = 3 * degrees + 1, (degrees + 1) ** 2
        weights = [0.2 * random(middle, middle) for _ in range(layers)]
        both = [0.2 * random(side, 2 * side) for _ in range(layers)]
        gates = [0.2 * random(channels, side) for _ in range(gated)]
        device = weights[0].device
        # The last edge has no nodes. The others have the neighbours 0, 1, 2, 0, ..., and atoms side by side.
        places = torch.arange(edges, dtype=torch.int32, device=device)
        neighbors, atoms = places % 3, places * 2 // edges
        neighbors[-1] = atoms[-1] = -1
        order = torch.argsort(torch.where(neighbors < 0, 3, neighbors), stable=True).int()

        def offsets(nodes: torch.Tensor, count: int) -> torch.Tensor:
            counts = torch.bincount(torch.where(nodes < 0, count, nodes), minlength=count + 1)[:count]
            return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()

        mixture, weight = random(edges, columns + degrees**2), random(edges, 1)
        x = random(3, columns, channels)
        of = neighbors, order, offsets(neighbors, 3), atoms, None, offsets(atoms, 2)
        given = random(edges, 3), mixture, x, weight, *of, weights, both, gates, "float32"
        bad: dict[str, tuple[int, Any]] = {
            "vectors": (0, random(edges, 4)),
            "mixture": (1, random(edges, columns)),
            "columns": (2, random(3, columns + 1, channels)),
            "weight": (3, random(edges + 1, 1)),
            "index": (4, neighbors + 9),
            "center": (7, atoms + 9),
            "few": (10, weights[1:]),
            "both": (11, [random(side, side), *both[1:]]),
            "gates": (12, gates * 3),
            "matmul": (13, "high"),
        }
        small = channels < 32
        differentiated = tuple(range(4)) if small else ()
        samples.append(Sample("so2_messages", given, differentiated, bad=bad, opaque=(1,)))
        y = torch.ops.mdops.so2_messages(*given)[1]
        bad = {"grad": (0, random(3, columns, channels)), "y": (1, random(edges + 1, rows, channels))}
        samples.append(Sample("so2_messages_backward", (random(2, columns, channels), y, *given), bad=bad))
    return samples


def _grid_samples(random: Callable[..., Any]) -> list[Sample]:
    """Few and odd numbers of coefficients, and a grid of rotations, angle by angle."""
    samples = []
    for atoms, points, first, second, results, channels in (
        (2, 5, 3, 4, 6, 7),
        (3, 10, 27, 27, 27, 8),
        (2, 21, 48, 48, 48, 20),
        (2, 7, 50, 60, 49, 9),
        (2, 5, 65, 3, 4, 5),
        (4, 3, 2, 2, 2, 33),
    ):
        matrices = random(points, first), random(points, second), random(points, results)
        given = *matrices, random(atoms, first, channels), random(atoms, second, channels)
        bad: dict[str, tuple[int, Any]] = {
            "a": (0, random(points, first + 1)),
            "b": (1, random(points + 1, second)),
            "v": (4, random(atoms, second, channels + 1)),
        }
        samples.append(Sample("grid_product", given, (3, 4) if channels < 10 else (), bad=bad))
    for points, columns, channels in (
        (112, 27, 2),
        (112, 27, 21),
        (200, 48, 2),
        (200, 48, 21),
        (364, 75, 2),
        (364, 75, 21),
    ):
        # Only a few rows of the matrices matter.
        rows = [random(points, columns) for _ in range(3)]
        fields = [random(3, columns, channels) for _ in range(2)]
        samples.append(Sample("grid_product", (*rows, *fields, True), (3, 4) if channels < 10 else ()))
    return samples


def _order_samples(random: Callable[..., Any]) -> list[Sample]:
    """Degrees up to 1, 2 and 3, with all |m| and with fewer."""
    samples = []
    for edges, degree, rows, numbers, columns in ((5, 2, 7, 13, 6), (2, 1, 2, 4, 3), (3, 3, 16, 30, 4)):
        x, y = random(edges, rows, columns), random(edges, rows, columns)
        bad: dict[str, tuple[int, Any]] = {"numbers": (0, random(edges, numbers + 1)), "degree": (2, 9)}
        for transposed in (False, True):
            args = random(edges, numbers), x, degree, transposed
            samples.append(Sample("order_mix", args, (0, 1), bad=bad))
        bad = {"y": (1, random(edges, rows, columns + 1)), "degree": (2, 9)}
        samples.append(Sample("order_mix_outer", (x, y, degree), (0, 1), bad=bad))
    return samples


def _order_moment_samples(
    random: Callable[..., Any], index_of: tuple[Any, ...], degree: int, channels: int, groups: int
) -> list[Sample]:
    """Rows of seven edges, of four nodes."""
    rows, columns = 3 * degree + 1, (degree + 1) ** 2
    turn, y, weight = random(7, rows, columns), random(7, rows, channels), random(7, groups)
    bad: dict[str, tuple[int, Any]] = {
        "turn": (0, random(7, rows, columns + 1)),
        "y": (1, random(7, rows + 1, channels)),
        "weight": (2, random(7, channels + 1)),
        "index": (3, index_of[0] + 9),
        "offsets": (5, index_of[2] + 1),
    }
    given = turn, y, weight, *index_of
    grad, wrong = random(4, columns, rows * channels), {"grad": (0, random(3, columns, rows * channels))}
    return [
        Sample("order_moments", given, (0, 1, 2) if channels < 32 else (), bad=bad),
        Sample("order_moments_backward", (grad, *given), bad=wrong),
    ]


def _frame_samples(random: Callable[..., Any]) -> list[Sample]:
    """Edges along the axes among others, and all degrees."""
    samples = []
    sizes = (6, 2, 1), (5, 0, 1), (4, 1, 0), (3, 3, 1), (2, 4, 1), (2, 5, 0), (2, 6, 1), (3, 2, -1)
    for edges, degree, order in sizes:
        vectors = random(edges, 3)
        vectors[0] = vectors.new_tensor([0.0, 0.0, 1.5])
        if edges > 4:
            vectors[1] = vectors.new_tensor([0.0, 0.0, -1.5])
            vectors[2] = vectors.new_tensor([0.0, 2.0, 1e-3])
        columns, rows = (degree + 1) ** 2, 0 if order < 0 else degree + 1 + 2 * degree * order
        bad: dict[str, tuple[int, Any]] = {
            "degree": (1, 7),
            "order": (2, 2),
            "vectors": (0, random(edges, 4)),
        }
        samples.append(Sample("edge_frames", (vectors, degree, order), (0,), bad=bad))
        given = random(edges, columns), random(edges, rows, columns), vectors, degree, order
        bad = {"degree": (3, -1), "by_turn": (1, random(edges, rows + 1, columns))}
        samples.append(Sample("edge_frames_backward", given, (0, 1, 2) if degree < 4 else (2,), bad=bad))
        bad = {"changes": (0, random(edges, 4)), "order": (5, 2)}
        samples.append(Sample("edge_frames_backward_backward", (random(edges, 3), *given), bad=bad))
    return samples


def _edge_environment_samples(random: Callable[..., Any]) -> list[Sample]:
    """Edges of three atoms, one of them virtual, below the switch, within it and beyond it; slots without an edge, and
    room after the last edge."""
    d = random(3, 4, 3)
    d[0, 1] *= 9 / d[0, 1].norm()
    d[0, 2] *= 1.5 / d[0, 2].norm()
    slots = torch.tensor([2, 0, 1, 11, 8, -1], dtype=torch.int32, device=d.device)
    edge_of_slot = slots.new_full((3, 4), -1)
    edge_of_slot.view(-1)[slots[:5].long()] = torch.arange(5, dtype=torch.int32, device=d.device)
    types = slots.new_tensor([1, -1, 0])
    lists, rows = (slots, edge_of_slot, types), (random(2), random(2, 2).exp(), 1.0, 6.0, 0.1, 0.3, 0.7)
    bad: dict[str, tuple[int, Any]] = {
        "slots": (1, slots + 9),
        "types": (3, types + 1),
        "std": (5, random(2, 3)),
        "smooth": (6, 6.0),
        "protection": (8, -1.0),
    }
    grads = [random(6, width) for width in (1, 3, 1, 1, 3)]
    return [
        Sample("edge_environment", (d, *lists, *rows), (0,), bad=bad),
        Sample(
            "edge_environment_backward",
            (*grads, d, *lists, *rows),
            (0, 1, 2, 3, 4, 5),
            bad={
                "by_turning": (4, random(6, 1)),
                "edge_of_slot": (7, edge_of_slot + 3),
                "types": (8, types + 1),
            },
        ),
    ]


def _own_message_samples(random: Callable[..., Any]) -> list[Sample]:
    """Rows that tensor cores support, and others."""
    samples = []
    for rows, width, code in ((19, 32, 1), (5, 7, 1), (4, 32, 2), (3, 40, 1)):
        args = random(rows, width), random(width, width), random(width), random(width), 0.7, code, 0.0
        bad: dict[str, tuple[int, Any]] = {"weight": (1, random(width, width + 1)), "activation": (5, 99)}
        samples.append(Sample("own_message", args, (0,), bad=bad))
        bad = {"grad": (0, random(rows + 1, width))}
        samples.append(Sample("own_message_backward", (random(rows, width), *args), bad=bad))
    return samples


def _edge_function_samples(random: Callable[..., Any]) -> list[Sample]:
    """Splines of lengths, some beyond the cutoff, and weights of seven edges of three atoms, one of them without, to
    four nodes."""
    samples = []
    kinds = torch.tensor([0, 2, -1, 1, 2], dtype=torch.int32, device=random(1).device)
    for intervals, functions in ((9, 5), (1, 8), (3, 1)):
        lengths, table = 6.5 * random(5, 1).sigmoid(), random(3, intervals + 5, functions)
        bad: dict[str, tuple[int, Any]] = {
            "kinds": (1, kinds + 9),
            "table": (2, random(3, 5, functions)),
            "cutoff": (3, 0.0),
        }
        samples.append(Sample("edge_splines", (lengths, kinds, table, 6.0), (0,), bad=bad))
        grad, bad = random(5, functions), {"kinds": (2, kinds - 9), "grad": (0, random(5, functions + 1))}
        samples.append(Sample("edge_splines_backward", (grad, lengths, kinds, table, 6.0), bad=bad))
    atoms = kinds.new_tensor([0, 0, 0, 2, 2, 2, -1]), kinds.new_tensor([0, 3, 3, 6])
    nodes = kinds.new_tensor([1, 3, 0, 3, 1, 3, -1])
    of_node = nodes, *torch.ops.mdops.edge_order(nodes, 4)
    for heads, width in ((1, 5), (2, 6), (3, 36)):
        fades = random(7, 1).sigmoid()
        fades[4] = 0
        fades[6] = 0
        given = random(3, width), random(4, width), random(7, heads), fades, random(heads).exp()
        args = *given, *atoms, *of_node, 0.7
        bad = {"atom_index": (5, atoms[0] + 9), "node_index": (7, nodes + 9), "bias": (2, random(7, 4))}
        bad |= {"atom_offsets": (6, atoms[1] + 9), "nothing": (4, random(heads + 1))}
        samples.append(Sample("edge_softmax", args, (0, 1, 2, 3), bad=bad))
        bad = {"grad": (0, random(7, heads + 1)), "node_offsets": (10, of_node[2] + 9)}
        samples.append(Sample("edge_softmax_backward", (random(7, heads), *args), bad=bad))
    return samples


def _atom_row_samples(random: Callable[..., Any]) -> list[Sample]:
    """Norms of one row and of several, and gates of narrow and wide rows."""
    samples = []
    for atoms, rows, channels, centered in ((5, 4, 3, True), (2, 1, 7, False), (3, 9, 32, True)):
        given = random(atoms, rows, channels), random(rows, channels), random(channels)
        args: tuple[Any, ...] = (*given, random(rows).exp(), 1e-3, centered)
        bad: dict[str, tuple[int, Any]] = {
            "factors": (1, random(rows + 1, channels)),
            "bias": (2, random(channels + 1)),
            "shares": (3, random(rows + 1)),
            "eps": (4, 0.0),
        }
        samples.append(Sample("degree_norm", args, (0, 1, 2) if channels < 32 else (0,), bad=bad))
        grad, bad = random(atoms, rows, channels), {"grad": (0, random(atoms, rows + 1, channels))}
        places = (0, 1, 2) if channels < 32 else (0, 1)
        samples.append(Sample("degree_norm_backward", (grad, *args), places, bad=bad))
        of_terms = grad, args[0], *args[3:]
        samples.append(Sample("degree_norm_terms", of_terms, (0, 1) if channels < 32 else (), bad=bad))
        args = random(atoms, rows, channels), grad, *args[:2], *args[3:]
        bad = {"direction": (0, random(atoms + 1, rows, channels)), "factors": (3, random(rows))}
        samples.append(Sample("degree_norm_backward_backward", args, bad=bad))
    for atoms, rows, channels in ((4, 3, 5), (2, 1, 19), (3, 2, 16)):
        of_gate = random(atoms, rows, channels), random(atoms, channels), random(atoms, 2 * channels)
        bad = {"gate": (1, random(atoms, channels + 1)), "scalars": (2, random(atoms, channels))}
        samples.append(Sample("scalar_gate", of_gate, (0, 1, 2), bad=bad))
        grad, bad = random(atoms, rows, channels), {"grad": (0, random(atoms, rows + 1, channels))}
        samples.append(Sample("scalar_gate_backward", (grad, *of_gate), (0, 1, 2, 3), bad=bad))
        along = random(atoms, rows, channels), random(atoms, channels), random(atoms, 2 * channels)
        bad = {"along_gate": (1, random(atoms, channels + 1)), "along_scalars": (2, random(atoms, channels))}
        args = *along, grad, *of_gate
        samples.append(Sample("scalar_gate_backward_backward", args, bad=bad))
        bad = {"gate": (1, random(atoms, channels + 1))}
        samples.append(Sample("row_gate", of_gate[:2], (0, 1), bad=bad))
        samples.append(Sample("row_gate_backward", (grad, *of_gate[:2]), (0, 1, 2)))
        samples.append(Sample("row_gate_backward_backward", (*along[:2], grad, *of_gate[:2])))
    return samples


def _convolution_samples(
    random: Callable[..., Any], of_a: Any, of_x: Any, inputs: int, turns: int, width: int
) -> list[Sample]:
    """Seven edges between four nodes."""
    a, x, weight = random(4, 1 + turns, width), random(4, width), random(inputs, width)
    b, w, t = random(7, inputs), random(7), random(7, turns)
    indices = *of_a, *of_x
    bad: dict[str, tuple[int, Any]] = {"x_index": (5, of_x[0] + 9), "a_offsets": (10, of_a[2] + 1)}
    given = x, b, w, t, weight, *of_x, *of_a
    samples = [Sample("edge_convolution", given, (0, 1, 2, 3, 4), bad=bad)]
    bad = {"a_index": (5, of_a[0] + 9), "x_offsets": (10, of_x[2] + 1)}
    samples.append(Sample("edge_convolution_nodes", (a, b, w, t, weight, *indices), (0, 1, 2, 3, 4), bad=bad))
    bad = {"a_index": (5, of_a[0] + 9), "x_index": (8, of_x[0] + 9)}
    for rows in (b, b[:, :0].contiguous()) if inputs else ():
        given = a, x, rows, w, weight, *indices
        free = (0, 1, 2, 3, 4) if rows.shape[1] else (0, 1, 3, 4)
        samples.append(Sample("edge_convolution_edges", given, free, bad=bad))
    own, wrong = (
        random(4, turns, inputs),
        random(4, turns, inputs + 1),
    )  # drawn even if no kernel uses them
    if has_kernel("edge_convolution_own", x.device):
        bad = {"a_index": (7, of_a[0] + 9), "own": (1, wrong)}
        given = a, own, x, b, w, t, weight, *indices
        samples.append(Sample("edge_convolution_own", given, bad=bad))
    if inputs:
        bad = {"a_index": (4, of_a[0] + 9), "x_index": (7, of_x[0] + 9)}
        given = a[:, 0].contiguous(), x, b, w, *indices
        samples.append(Sample("edge_convolution_weight", given, (0, 1, 2, 3), bad=bad))
    return samples


def _layer_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Layers of DPA-2 in simulations: for three atoms' edges, followed by one without an atom, and for nodes; with and
    without attention, sums and their own messages. Only on CPUs."""
    device, samples = p["d"].device, list[Sample]()
    if not has_kernel("edge_layer", device):
        return samples
    offsets, none = torch.tensor([0, 3, 3, 6], dtype=torch.int32, device=device), random(0)
    for heads, gated in ((2, True), (0, False)):
        e, r, w, grad = random(7, 5), random(7, 3), random(7).abs(), random(7, 5)
        last = [random(5) if heads else none for _ in range(4)]
        weights = random(5, 5), random(5), random(5), random(heads, 5, 5), random(heads, 5, 5), *last
        args = e, r, w, random(3).abs(), offsets, *weights, 0.9, 20.0, gated, 1e-5, 1, 0.0
        bad: dict[str, tuple[int, Any]] = {"offsets": (4, offsets + 9), "own": (5, random(5, 4))}
        samples.append(Sample("edge_layer", args, (0, 1, 2) if heads else (0,), opaque=(1,), bad=bad))
        saved = torch.ops.mdops.edge_layer(*args)[1]
        bad = {"offsets": (6, offsets + 9)}
        samples.append(Sample("edge_layer_backward", (grad, saved, *args), bad=bad))
    for whole in (True, False):
        n, v, e = random(4, 6), random(4, 4 if whole else 0, 6), random(4, 3, 5)
        own = (random(6, 6), random(6), random(6), random(6)) if whole else (random(0, 0), none, none, none)
        inputs = 5 * 2 + (6 + 6 * 2 if whole else 0)
        args = n, v, e, *own, random(inputs, 6), random(6), random(6), whole, 0.9, 2, 1, 0.0
        bad = {"every": (7, random(inputs - 1, 6)), "axis": (12, -1)}
        free = (0, 1, 2) if whole else (0, 2)
        samples.append(Sample("node_layer", args, free, opaque=(1, 2), bad=bad))
        _, *kept = torch.ops.mdops.node_layer(*args)
        pack = own[0], own[1], args[7], args[8], whole
        samples.append(Sample("node_layer_pack", pack, opaque=(0,), bad={"bias": (3, random(7))}))
        bad = {"every": (10, random(inputs - 1, 6))}
        samples.append(Sample("node_layer_backward", (random(4, 6), *kept, *args), bad=bad))
    return samples


def _edge_attention_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Atoms with some edges, with none, with more than a warp has lanes; rows without an atom after them."""
    samples = []
    for counts, heads, keys, values, gated in (
        ((3, 0, 2), 2, 3, 3, True),
        ((1, 4), 5, 4, 7, False),
        ((35,), 1, 2, 2, True),
    ):
        edges = sum(counts) + 1
        ends = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device=p["d"].device)
        absent = torch.arange(len(counts), device=p["d"].device).to(p["d"].dtype)
        shapes = (edges, heads, keys), (edges, values), (edges, 3), (edges,)
        rows = tuple(0.5 * random(*shape) for shape in shapes)
        given = (*rows, absent, ends, 2.0, gated, max(counts))
        bad: dict[str, tuple[int, Any]] = {"narrow": (1, random(edges, keys - 1)), "r": (2, random(edges, 2))}
        bad |= {"falls": (5, ends.flip(0)), "longest": (8, -1)}
        samples.append(Sample("edge_attention", given, (0, 1, 2, 3), bad=bad))
        back = (random(edges, heads, values), *given)
        bad = {"grad": (0, random(edges, heads, values + 1)), "beyond": (6, ends + 2)}
        samples.append(Sample("edge_attention_backward", back, (0, 1, 2, 3, 4), bad=bad))
        along = tuple(random(*row.shape) for row in rows)
        samples.append(
            Sample(
                "edge_attention_backward_backward", (*along, *back), bad={"along_w": (3, random(edges + 1))}
            )
        )
    return samples


def _linear_samples(random: Callable[..., Any]) -> list[Sample]:
    """Products with a bias and without."""
    samples = []
    for n, inputs, outputs in ((5, 3, 4), (4, 8, 1)):
        x, weight, bias = random(n, inputs), random(inputs, outputs), random(outputs if inputs == 3 else 0)
        grad = random(n, outputs)
        wrong = {"inputs": (1, random(inputs + 1, outputs)), "bias": (2, random(outputs + 1))}
        samples.append(Sample("linear", (x, weight, bias), (0, 1, 2) if inputs == 3 else (0, 1), bad=wrong))
        wrong = {"outputs": (1, random(inputs, outputs + 1))}
        samples.append(Sample("linear_input", (grad, weight), (0, 1), bad=wrong))
        bad = {"rows": (1, random(n + 1, outputs))}
        samples.append(Sample("linear_weight", (x, grad, True), (0, 1), bad=bad))
        samples.append(Sample("linear_weight", (x, grad, False), (0, 1), bad=bad))
    for n, degrees, inputs, outputs in ((5, 2, 4, 6), (3, 1, 3, 2)):
        x, weight = random(n, degrees**2, inputs), random(degrees, inputs, outputs)
        bad = {
            "inputs": (1, random(degrees, inputs + 1, outputs)),
            "degrees": (1, random(degrees + 1, inputs, outputs)),
        }
        samples.append(Sample("degree_linear", (x, weight, False), (0, 1), bad=bad))
        samples.append(Sample("degree_linear", (x, weight.mT.contiguous(), True), (0, 1)))
    return samples


def _layer_output_samples(random: Callable[..., Any]) -> list[Sample]:
    """Layers that are twice as wide as their input, as wide, and that do not add it."""
    samples = []
    for inputs, name in ((5, "tanh"), (10, "silut:0.4"), (0, "gelu")):
        z, x, kind = random(4, 10), random(4, inputs), kernel_code(name)
        bad = {"code": (2, 9), "inputs": (1, random(4, 3))}
        samples.append(Sample("layer_output", (z, x, *kind), (0, 1), bad=bad))
        bad = {"code": (3, -1), "inputs": (2, 3)}
        samples.append(Sample("layer_output_backward", (random(4, 10), z, inputs, *kind), (0, 1), bad=bad))
        bad = {name: (k + 2, value) for name, (k, value) in bad.items()}
        args = (random(4, 10), random(4, inputs), random(4, 10), z, inputs, *kind)
        samples.append(Sample("layer_output_backward_backward", args, (0, 1, 2, 3), bad=bad))
    return samples


def _near_images(p: dict[str, torch.Tensor]) -> torch.Tensor:
    """Images of `_pairs` such that most pairs are within the cutoff."""
    images = p["images"].clone()
    images[:3] = torch.tensor([[0, 0, 1, 1 << 10, 0], [0, 0, 1 << 20, 1023, 0], [0] * 5])
    return images


def _table_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """A table alone, and one blended with other energies; no pair is below its first distance."""
    if not has_kernel("near_weight", p["positions"].device):
        return []
    atoms = (p["positions"], p["cell"], p["batch"], p["types"], p["neighbors"], _near_images(p), p["counts"])
    near = (p["mask"], 2.8, 0.4, 0.6, 1.9)
    table = (p["mask"], random(2, 2, 9, 4, like=torch.float64))
    none = p["positions"].new_empty(0)
    nothing = (none,) * 5
    reach = (0.0, 0.3, CUTOFF)
    alone = (*atoms, *table, *nothing, *near[:1], *reach, *near[1:], False)
    weight = torch.ops.mdops.near_weight(*atoms, *near)[0]
    systems = len(p["cell"])
    other = tuple(random(*shape, like=torch.float64) for shape in ((5,), (5, 3), (systems, 3, 3), (5, 3, 3)))
    blend = (*atoms, p["mask"] & False, table[1], weight, *other, *near[:1], *reach, *near[1:], True)
    bad = {
        "index": (4, p["neighbors"] + 4),
        "counts": (6, p["counts"] + 3),
        "types": (3, p["types"] + 1),
        "batch": (2, p["batch"] + 1),
    }
    bad_table = {
        "rows": (8, table[1][:, :, :0]),
        "step": (16, 0.0),
        "first": (15, -1.0),
        "cutoff": (17, -1.0),
    }
    bad_blend = {"weight": (9, weight[:3]), "other": (10, other[0][:2]), "forces": (11, other[1][:2])}
    bad_blend |= {"virial": (12, other[2][:0]), "atom_virial": (13, other[3][:2])}
    return [
        Sample("near_weight", (*atoms, *near), bad={**bad, "order": (10, 2.0), "decay": (9, 0.0)}),
        Sample("pair_table", alone, bad={**bad, **bad_table, "no weight": (10, other[0])}),
        Sample("pair_table", blend, bad={**bad, **bad_blend}),
    ]


def _hybrid_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """Two descriptors with slots and nets for each type, one of them a plain sum; and three whose types share slots,
    one with a gate and one with counted absent neighbours, with one net and weights of the atoms."""
    intervals, width, axis = (9, 7, 6), (6, 3, 4), (2, 0, 3)
    lists = (p["neighbors"], _near_images(p), p["counts"])
    atoms = (p["positions"], p["cell"], p["batch"], p["types"], *lists)
    none, first = p["sel"][:0], p["types"].clamp(min=0)
    norms = [[p["mean"], p["mean"].flip(0), 0 * p["mean"]], [p["std"], 1.1 * p["std"], p["std"]]]
    ends = (random(2, like=torch.float64), random(2, like=torch.float64))

    def tables(k: int, count: int) -> torch.Tensor:
        rows = 0.2 * random(2, count * (intervals[k] + 5), width[k])
        return torch.nn.functional.pad(rows, (0, 16 - width[k]))

    def scalars(n: int, gated: list[int], **changes: Any) -> tuple[Any, ...]:
        values = {
            "cutoff": [CUTOFF, 2.6, 2.2][:n],
            "cutoff_smooth": [SMOOTH, 0.5, SMOOTH][:n],
            "protection": [PROTECTION, 0.0, 0.0][:n],
            "s_max": [1.2, 1.5, 1.3][:n],
            "grading": [0.0, 0.05, 0.0][:n],
            "width": list(width[:n]),
            "axis": list(axis[:n]),
            "gated": gated,
        }
        return (*{**values, **changes}.values(), [5, 10, 10], [0, 1, 1], 1, 3.0)

    def net(n: int, extra: int) -> tuple[Any, ...]:
        inputs = sum(m * max(k, 1) for m, k in zip(width[:n], axis[:n], strict=True)) + extra
        layers = [(inputs, 5), (5, 10), (10, 10), (10, 1)]
        parts = (
            [0.5 * random(*shape) for shape in layers],
            *([0.5 * random(shape[1]) for shape in layers] for _ in range(2)),
        )
        return *parts, list(width[:n]), list(axis[:n])

    packs = [net(2, 1), net(2, 1), net(3, 0)]
    packed = [torch.ops.mdops.hybrid_potential_pack(*pack) for pack in packs]
    blank = none.new_empty(0, 2)
    near = (p["mask"], 2.8, 0.4, 0.6, 1.9)
    table = (near[0], random(2, 2, 9, 4, like=torch.float64), 0.1, 0.25, CUTOFF)
    no_mask = p["mask"].new_empty(0, 0)
    no_blend = (no_mask, *near[1:], no_mask, ends[0].new_empty(0, 0, 0, 4), *table[2:])
    typed = (
        *atoms,
        *(column[:2] for column in norms),
        [p["mask"], p["mask"]],
        [p["mask"] & False, p["mask"]],
        [p["sel"], p["sel"]],
        [none, none],
        [blank, blank],
        [tables(0, 2), tables(1, 2)],
        torch.stack(packed[:2]),
        random(5, 1),
        p["positions"].new_empty(0),
        *ends,
        *scalars(2, [0, 0]),
        *near,
        *table,
        True,
    )
    absent = torch.tensor([[1, 0], [2, 3], [0, 1], [4, 0], [0, 0]], dtype=torch.int32, device=none.device)
    norms[0][1] = p["mean"]
    mixed = (
        *atoms,
        *norms,
        [p["mask"], ~p["mask"], p["mask"]],
        [~p["mask"], p["mask"] & False, p["mask"] & False],
        [p["sel"][:1], p["sel"], p["sel"][1:]],
        [first, none, first],
        [absent, blank, blank],
        [tables(0, 3), tables(1, 2), tables(2, 2)],
        packed[2][None],
        random(5, 0),
        random(5, like=torch.float64),
        ends[0][:1],
        ends[1],
        *scalars(3, [1, 0, 0]),
        *no_blend,
        False,
    )
    bad = {
        "index": (4, p["neighbors"] + 4),
        "counts": (6, p["counts"] + 3),
        "types": (3, p["types"] + 1),
        "lengths": (7, [p["mean"]]),
        "absent": (13, [absent[:3], blank]),
        "nets": (15, typed[15][:, 1:]),
        "weight": (17, p["positions"].new_ones(4)),
        "axis": (26, [9, 0]),
        "residual": (29, [0, 1, 1, 1]),
        "activation": (30, 99),
        "near_mask": (32, p["mask"][:1]),
        "decay": (34, 0.0),
        "high": (36, CUTOFF + 1),
        "weights of a blend": (17, ends[0].new_ones(5)),
        "no near_mask": (32, no_mask),
        "table_mask": (37, no_mask),
        "coefficients": (38, table[1][:1]),
        "step": (40, 0.0),
    }
    bad_pack = {"parts": (4, [2]), "rows": (3, [60, 3]), "axis": (4, [9, 0])}
    return [
        Sample("hybrid_potential_pack", packs[0], opaque=(0,), bad=bad_pack),
        Sample("hybrid_potential", typed, bad=bad),
        Sample("hybrid_potential", mixed),
        *_fitting_samples(p, random),
    ]


def _fitting_samples(p: dict[str, torch.Tensor], random: Callable[..., Any]) -> list[Sample]:
    """A net for each type, and one for all with weights of the atoms."""
    layers = [(13, 5), (5, 10), (10, 10), (10, 1)]

    def net() -> torch.Tensor:
        weights = [0.5 * random(*shape) for shape in layers]
        vectors = ([0.5 * random(shape[1]) for shape in layers] for _ in range(2))
        packed: torch.Tensor = torch.ops.mdops.hybrid_potential_pack(weights, *vectors, [], [])
        return packed

    scale, shift = random(2, like=torch.float64), random(2, like=torch.float64)
    of_net = ([5, 10, 10], [0, 1, 1], 1, 3.0)
    nets, no_weight = torch.stack([net(), net()]), scale[:0]
    args = (random(5, 13), p["types"], nets, no_weight, scale, shift, *of_net)
    bad = {
        "features": (0, random(5, 0)),
        "types": (1, p["types"] + 1),
        "nets": (2, nets[:, 1:]),
        "weight": (3, scale),
        "scale": (4, scale[:1]),
        "neurons": (6, []),
        "residual": (7, [1, 1, 1]),
        "activation": (8, 99),
    }
    one = (random(5, 13), p["types"], nets[:1], random(5, like=torch.float64), scale[:1], shift, *of_net)
    return [Sample("fitting_energy", args, bad=bad), Sample("fitting_energy", one)]


def _potential_samples(
    p: dict[str, torch.Tensor], random: Callable[..., Any], dtype: torch.dtype
) -> list[Sample]:
    """Small models with one extra input, on the pairs of `_pairs`: with slots and a net for each type, and with shared
    slots, one net and a gate."""
    width, axis, intervals = 6, 2, 9
    layers = [(width * axis + 1, 5), (5, 10), (10, 10), (10, 1)]
    weights = [0.5 * random(*shape) for shape in layers]
    biases, timesteps = ([random(shape[1]) for shape in layers] for _ in range(2))
    pack = (weights, biases, timesteps, width, axis, "float32")
    packed = torch.ops.mdops.spline_potential_pack(*pack)
    tables = torch.nn.functional.pad(0.2 * random(2, 2 * (intervals + 5), width), (0, 16 - width))
    atoms = (p["positions"], p["cell"], p["batch"], p["types"])
    lists = (p["neighbors"], _near_images(p), p["counts"])
    norm = (p["mean"], p["std"], p["mask"], p["mask"] & False, p["sel"], p["sel"][:0])
    output = (random(2, like=torch.float64), random(2, like=torch.float64))
    shape = (CUTOFF, SMOOTH, PROTECTION, 1.2, 0.0, width, axis, [5, 10, 10], [0, 1, 1])
    scalars = (*shape, False, 1, 3.0, "float32", True)
    args = (*atoms, *lists, *norm, tables, torch.stack([packed, packed]), random(5, 1), *output, *scalars)
    bad = {
        "index": (4, p["neighbors"] + 4),
        "counts": (6, p["counts"] + 3),
        "types": (3, p["types"] + 1),
        "batch": (2, p["batch"] + 1),
        "axis": (24, 9),
        "residual": (26, [0, 1, 1, 1]),
        "gated": (27, True),
        "activation": (28, 99),
        "tf32": (30, "tf32"),  # the CPU has none, and `nets` are not packed for it
        "matmul": (30, "high"),
    }
    mixed = (p["mean"], p["std"], p["mask"], ~p["mask"], p["sel"][:1], p["types"].clamp(min=0))
    gates = torch.nn.functional.pad(0.2 * random(2, 3 * (intervals + 5), width), (0, 16 - width))
    ends = (random(5, 1), output[0][:1], output[1])
    graded = (*shape[:4], 0.05, *shape[5:])
    together = (*atoms, *lists, *mixed, gates, packed[None], *ends, *graded, True, 1, 3.0, "float32", False)
    bad_together = {
        "padding": (12, p["types"].clamp(min=0) + 2),
        "sel": (11, p["sel"]),
        "nets": (14, packed[None].expand(3, -1)),
        "scale": (16, output[0]),
    }
    # A plain sum: the net's input is T's first row, not T^T T_<.
    few = [weights[0][:width].contiguous(), *weights[1:]]
    pack_plain = (few, biases, timesteps, width, 0, "float32")
    packed_plain = torch.ops.mdops.spline_potential_pack(*pack_plain)
    zeroed = (p["mean"], p["std"], p["mask"], p["mask"], p["sel"], p["sel"][:0])
    nets_plain = torch.stack([packed_plain, packed_plain])
    plain_shape = (*shape[:6], 0, *shape[7:])
    alone = (
        *atoms,
        *lists,
        *zeroed,
        tables,
        nets_plain,
        random(5, 0),
        *output,
        *plain_shape,
        False,
        1,
        3.0,
        "float32",
        True,
    )
    whole = [
        Sample("spline_potential_pack", pack, opaque=(0,), bad={"matmul": (5, "high")}),
        Sample("spline_potential", args, bad=bad),
        Sample("spline_potential", together, bad=bad_together),
        Sample("spline_potential_pack", pack_plain, opaque=(0,), bad={"axis": (4, -1)}),
        Sample("spline_potential", alone, bad={"axis": (24, -1)}),
    ]
    if not has_kernel("spline_training", packed.device):
        return whole
    layers_of_net = [part for layer in zip(weights, biases, timesteps, strict=True) for part in layer][:-1]
    nets = [*layers_of_net, *(0.9 * part for part in layers_of_net)]
    bad = {name: change for name, change in bad.items() if name not in ("activation", "tf32", "matmul")}
    grads = tuple(random(*shape, like=torch.float64) for shape in ((5,), (5, 3), (2, 3, 3)))
    plain_net = [few[0], *layers_of_net[1:]]
    for values, tensors, wrong in (
        (args, nets, bad),
        (together, layers_of_net, {}),
        (alone, [*plain_net, *plain_net], {}),
    ):
        trained = (*values[:14], tensors, *values[15:-4])
        saved = torch.ops.mdops.spline_training(*trained)[-1]
        shifted = {name: (k + 4, value) for name, (k, value) in wrong.items()}
        whole += [
            Sample("spline_training", trained, (13, 14), opaque=(5,), bad=wrong),
            Sample(
                "spline_training_backward",
                (*grads, saved, *trained),
                bad={**shifted, "saved": (3, saved[:-1])},
            ),
        ]
    return whole
