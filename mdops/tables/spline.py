"""Embedding nets, functions of s, as splines (docs/explanation/mathematics.md)."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.nn.bsplines import Collocation

DEFAULT_R_MIN = 0.5  # A: no two nuclei of a molecule or a solid come closer
# Bounds of `spline_error`. The relative error of forces on atoms is then a tenth of it: with more knots float32 would
# lose more by rounding, which grows with their number, than it gains.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-8}
_BEFORE_LAYERS = 0.1  # share of a tolerance before layers, which may make errors larger
Functions = Callable[[torch.Tensor], torch.Tensor]  # (n, F, P, M) of s (P,) in 1/A
_FIRST_INTERVALS = 32
_SAMPLED = 4  # most types for whose pairs `fewest_intervals` chooses
_SKETCH = 256  # intervals of the splines that show which types need the most knots
GRADING = 1e-6  # 1/A, if uniform knots do not suffice: trained nets vary within this of s = 0, the cutoff
# For a tolerance like that of float32, which would lose more by rounding than it gains; and for finer ones.
_MOST_INTERVALS, _MOST_FINE_INTERVALS, _FINE = 4096, 8192, 1e-6
_FAR_POINTS = 128
_DISTANCES = 2**14  # in the table for finding a distance
# The places in an interval where errors and sizes are checked, and the distance to points on either side: slopes are
# differences of their values. An error oscillates once in an interval, so these are 0.6% less than its slopes.
_BETWEEN, _ASIDE = (0.125, 0.375, 0.625, 0.875), 1 / 32
# Of more intervals, every other one or fewer are checked, and for the worst pair of types those where splines bend
# most. An error in one interval makes the spline oscillate in the next ones, each time by a factor of 0.43: it is not
# missed.
_LOOKED_AT = 1024
# Share of the tolerance for more intervals: they are needed if nets bend at many distances.
_ROOM = 0.9
# Intervals to check while their number is searched; the result is checked in full. Half of them are spread over all,
# the others are those where the splines bend most.
GLANCED_AT = 64
# The power with which the error of a pair falls with the number of intervals. From _FROM on it is taken from two
# trials, if _LEAST or more.
_ORDER, _FROM, _LEAST = 6.0, 512, 3.0
# Intervals are multiples of the first number and grow at most by the second as a factor; if about the third number
# could be saved, fewer are tried.
_STEP, _GROWTH, _SPARE = 8, 4.0, 48
# Numbers of the nets' outputs, and points, per run. New memory takes longer than the nets.
_MOST_AT_ONCE, _POINTS_AT_ONCE = 2**18, 128


@dataclasses.dataclass(frozen=True)
class SplineGrid:
    """Knots on [0, s_max], s in 1/A: uniform, or graded towards s = 0.

    Attributes:
        s_max: the last knot, the s of the smallest distance.
        intervals: pieces; there are intervals + 5 basis functions.
        r_min: that distance, A. Closer pairs follow the spline's tangent.
        error: the largest relative error in the force of a pair (`spline_error`).
        grading: 0 if knots are uniform in s; else they are uniform in sqrt(s + grading), 1/A.
    """

    s_max: float
    intervals: int
    r_min: float
    error: float
    grading: float = 0.0

    @property
    def _step(self) -> float:
        """The step between knots, in s or in sqrt(s + grading)."""
        range_ = (
            math.sqrt(self.s_max + self.grading) - math.sqrt(self.grading) if self.grading else self.s_max
        )
        return range_ / self.intervals

    def places(self, s: torch.Tensor) -> torch.Tensor:
        """x of s (P,), the index of the knot below it plus its place in the interval: 0 to `intervals`."""
        if not self.grading:
            return s / self._step
        return s / ((s.clamp(min=0) + self.grading).sqrt() + math.sqrt(self.grading)) / self._step

    def at(self, x: torch.Tensor) -> torch.Tensor:
        """s of x, (P,)."""
        y = x * self._step
        return y * (y + 2 * math.sqrt(self.grading)) if self.grading else y

    def steps(self, s: torch.Tensor) -> torch.Tensor:
        """ds/dx, (P,), the width of an interval around s."""
        if not self.grading:
            return torch.full_like(s, self._step)
        return 2 * self._step * (s.clamp(min=0) + self.grading).sqrt()


def before_layers(tolerance: float, dtype: torch.dtype) -> float:
    """The tolerance of splines before layers, if this is that of others; not below what float32 can use."""
    least = TOLERANCE[dtype] if dtype == torch.float32 else 0.0
    return min(tolerance, max(_BEFORE_LAYERS * tolerance, least))


def basis_matrix(x: torch.Tensor, intervals: int, derivative: int = 0) -> torch.Tensor:
    """(P, intervals + 5): the quintic B-splines on integer knots, or their first derivative, at x in [0, intervals].

    By the recursion of Cox and de Boor, written for uniform knots.
    """
    knots = torch.arange(-5, intervals + 6, dtype=torch.float64)
    cell = x.floor().clamp(0, intervals - 1)
    value = (cell[:, None] == knots[:-1]).to(torch.float64)
    for degree in range(1, 6):
        left = x[:, None] - knots[: -degree - 1]
        right = knots[degree + 1 :] - x[:, None]
        if degree == 5 and derivative:
            return value[:, :-1] - value[:, 1:]
        value = (left * value[:, :-1] + right * value[:, 1:]) / degree
    return value


@lru_cache(maxsize=8)
def collocation(intervals: int) -> tuple[torch.Tensor, Collocation]:
    """Points x (B,) in [0, intervals], and the solver from values there to coefficients.

    The points are the knots, and two more in the first and in the last interval each.
    """
    x = torch.arange(intervals + 1, dtype=torch.float64)
    quarter = torch.tensor([0.25, 0.5], dtype=torch.float64)
    x = torch.cat([x, quarter, intervals - quarter]).sort().values
    knots = torch.arange(-5, intervals + 6, dtype=torch.float64)
    return x, Collocation(x, x.long().clamp(max=intervals - 1), knots)


@lru_cache(maxsize=8)
def collocation_on(
    intervals: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of `collocation` and the inverse P (B, B) of the basis there, C = P G(x), on this device; cached, so
    that no training step waits for a copy.

    Who captures a CUDA graph with it must hold it as long: other grids replace it in the cache."""
    x, matrix = collocation(intervals)
    return x.to(device), matrix.solve(torch.eye(len(x), dtype=torch.float64)).to(device, dtype)


def all_types(descriptor: MomentDescriptor) -> TypeChoice:
    return TypeChoice.of(range(descriptor.ntypes), descriptor.mean.device)


def embed(
    descriptor: MomentDescriptor,
    s: torch.Tensor,
    mask: torch.Tensor | None = None,
    types: TypeChoice | None = None,
) -> torch.Tensor:
    """(n, F, P, M): the `functions` of these types, (n,) or all, at s (P,) in 1/A; zero for the pairs of types in
    `mask` (n, n)."""
    kinds = all_types(descriptor) if types is None else types
    values = descriptor.functions(s.to(descriptor.mean), kinds)
    if mask is None:
        return values
    mask = torch.nn.functional.pad(mask, (values.shape[1] - mask.shape[1], 0))
    return values.masked_fill(mask[..., None, None], 0.0)


def coefficients(
    descriptor: MomentDescriptor,
    grid: SplineGrid,
    mask: torch.Tensor | None = None,
    smoothing: float = 0.0,
    types: TypeChoice | None = None,
) -> torch.Tensor:
    """C (n, F, B, M) of every function; arguments as of `embed`; differentiable in the nets' weights, with the gradient
    of the nets' bending added, times `smoothing`."""
    table = interpolate(lambda s: embed(descriptor, s, mask, types), grid, descriptor.mean)
    if smoothing and table.requires_grad:
        weights = bending_weights(descriptor, grid.s_max / grid.intervals, types, table.shape[1])
        bent: torch.Tensor = _Bent.apply(table, weights * smoothing)
        return bent
    return table


def interpolate(function: Functions, grid: SplineGrid, like: torch.Tensor) -> torch.Tensor:
    """C (n, F, B, M) of functions of s, (n, F, P, M) at s (P,); of the device and dtype of `like`."""
    if like.device.type == "cpu" and not torch.is_grad_enabled():
        x, matrix = collocation(grid.intervals)
        rows = torch.cat([function(s).double().movedim(2, 0) for s in grid.at(x).split(_POINTS_AT_ONCE)])
        return matrix.solve(rows.movedim(0, 2)).to(like.dtype)
    x, inverse = collocation_on(grid.intervals, like.device, like.dtype)
    return torch.einsum("bp,ctpm->ctbm", inverse, function(grid.at(x)))


def bending_weights(
    descriptor: MomentDescriptor,
    step: float,
    types: TypeChoice | None = None,
    functions: int | None = None,
) -> torch.Tensor:
    """(n, 1, 1, 1): the weights with which the squared second differences of C sum to the bending

        mean over all functions and k of the integral of (d^2 G_k / dx^2)^2 over x = (s - m)/d0,

    where x is the nets' input and the integral is over the knots' range. In units of x knots are h = step/d0 apart;
    second differences over h^2 are d^2G/dx^2 as a cubic spline: the weights are h / h^4 over the number of functions.
    Each centre has `functions` of them (by default one a type).
    """
    std = descriptor.std[:, 0] if types is None else descriptor.std[types.index, 0]
    count = len(std) * (functions or len(std)) * descriptor.channels
    return ((std / step) ** 3 / count)[:, None, None, None]


def bending_gradient(table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The gradient of sum(weights * (second differences)^2) by C: the same differences of the differences."""
    bends = 2 * weights * table.diff(n=2, dim=2)
    return torch.nn.functional.pad(bends, (0, 0, 2, 2)).diff(n=2, dim=2)


class _Bent(torch.autograd.Function):
    """Returns the coefficients unchanged; the backward pass adds the gradient of sum(weights * (second differences)^2).
    So training bends the nets less for a few operations on a small table, and the loss is not changed."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(table, weights)
        return table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad + bending_gradient(*ctx.saved_tensors), None


def beside(intervals: torch.Tensor) -> torch.Tensor:
    """x (P, 2), P = 4 I: for these intervals (I,), the two points beside each place where errors are checked."""
    where = torch.tensor([[at - _ASIDE, at + _ASIDE] for at in _BETWEEN], dtype=torch.float64)
    return (intervals[:, None, None] + where.to(intervals.device)).flatten(0, 1)


def splines_beside(table: torch.Tensor, intervals: torch.Tensor) -> torch.Tensor:
    """(..., P, 2, M): the splines with coefficients (..., B, M) at `beside` of these intervals."""
    around = (intervals[:, None] + torch.arange(6, device=intervals.device)).flatten()
    near = table.index_select(-2, around).unflatten(-2, (-1, 6))
    return (_weights_beside().to(table) @ near).unflatten(-2, (-1, 2)).flatten(-4, -3)


@lru_cache
def _weights_beside() -> torch.Tensor:
    """(8, 6): the six B-splines that are not zero on an interval, at its points."""
    return basis_matrix(beside(torch.zeros(1, dtype=torch.float64)).flatten(), 1)


def value_and_slope(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The value and slope between two points x (P, 2), from y (..., P, 2, M) there."""
    low, high = y.unbind(-2)
    return 0.5 * (low + high), (high - low) / (x[:, 1:] - x[:, :1])


def bends(table: torch.Tensor) -> torch.Tensor:
    """(..., I, M): the jumps of the fifth derivative of splines with these coefficients (..., B, M) at the ends of each
    interval: proportional to their error."""
    jumps = torch.nn.functional.pad(table.diff(n=6, dim=-2).abs(), (0, 0, 1, 1))
    return torch.maximum(jumps[..., 1:, :], jumps[..., :-1, :])


def glanced_at(rank: torch.Tensor, looks: int) -> torch.Tensor:
    """(I,) int64, rising: at most `looks` of the intervals with these ranks, half of them the highest."""
    if len(rank) <= looks:
        return torch.arange(len(rank), device=rank.device)
    spread = torch.arange(0, len(rank), -(-2 * len(rank) // looks), device=rank.device)
    return torch.cat([rank.topk(looks // 2).indices, spread]).unique()


def fewest_intervals(
    glance: Callable[[int], float],
    look: Callable[[int], float],
    tried: range,
    order: float,
    tolerance: float,
) -> tuple[int, float]:
    """The fewest intervals that keep the tolerance, and their error; if none do, the most that are tried, or fewer if
    an error is not finite.

    Args:
        glance: the approximate error of so many intervals, for the search; it falls with the power `order` of their
            number, or faster for few.
        look: the exact error, for the decision.
        tried: from the first number to the most; in between multiples of the step.
    """
    most, step, power = tried[-1], tried.step, order
    intervals, below, above = tried[0], (0, math.inf), (most + step, math.inf)

    def more(error: float) -> int:
        growth = min((error / tolerance) ** (1 / power), _GROWTH)
        return min(max(step * math.ceil(intervals * growth / step), intervals + step), most)

    def between() -> int:
        shown = _power(below, above)
        return step * math.ceil(below[0] * (below[1] / tolerance) ** (1 / shown) / step)

    while (error := glance(intervals)) < math.inf:
        if error <= tolerance or intervals == most:
            above = intervals, error
        else:
            if below[0] >= _FROM:
                power = min(max(_power(below, (intervals, error)), _LEAST), order)
            below = intervals, error
        if above[0] > most:
            intervals = more(error)
        # More than needed, if the first errors fell fast.
        elif 0 < above[1] < tolerance and 0 < below[0] < (fewer := between()) <= above[0] - _SPARE:
            intervals = fewer
        else:
            intervals = above[0]
            error = look(intervals)
            if not tolerance < error < math.inf or intervals == most:
                break
            below, above = (intervals, error), (most + step, math.inf)
            intervals = more(error)
    return intervals, error


def _power(few: tuple[int, float], many: tuple[int, float]) -> float:
    """The power with which errors fall, from two of them."""
    return math.log(few[1] / many[1]) / math.log(many[0] / few[0])


def sampled(types: Sequence[int]) -> list[int]:
    """These types, or some of many."""
    kinds = list(types)
    if len(kinds) > _SAMPLED:
        kinds = [kinds[round(k * (len(kinds) - 1) / (_SAMPLED - 1))] for k in range(_SAMPLED)]
    return kinds


def looked_at(intervals: int, device: torch.device) -> torch.Tensor:
    """(I,) int64: the intervals where errors are checked: all, every other one and so on."""
    return torch.arange(0, intervals, -(-intervals // _LOOKED_AT), device=device)


def in_cache(intervals: torch.Tensor, table: torch.Tensor) -> Sequence[torch.Tensor]:
    """Intervals in runs that fit into a processor's cache, for splines with these coefficients (..., B, M)."""
    return intervals.split(max(_MOST_AT_ONCE // (2 * len(_BETWEEN) * table[..., 0, :].numel()), 1))


def _fall(descriptor: MomentDescriptor, s: torch.Tensor) -> torch.Tensor:
    """-ds/dr at s (P,) > 0 in 1/A; s = w(r)/(r + p) falls all the way to the cutoff."""
    r = torch.linspace(1.0, 0.0, _DISTANCES + 1, dtype=s.dtype, device=s.device)[:-1] * descriptor.cutoff
    known, slopes = _s(descriptor, r)
    far = torch.searchsorted(known, s.contiguous()).clamp(1, _DISTANCES - 1) - 1
    part = (s - known[far]) / (known[far + 1] - known[far])
    return -torch.lerp(slopes[far], slopes[far + 1], part)


def _s(descriptor: MomentDescriptor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """s of r, and ds/dr."""
    u, w = _switch(descriptor, r)
    slope = -30 * (u * (1 - u)) ** 2 / (descriptor.cutoff - descriptor.cutoff_smooth)
    far = r + descriptor.protection
    return w / far, (slope - w / far) / far


def _switch(descriptor: MomentDescriptor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of r between the switch's ends, 0 to 1, and the switch w, as in `source/op/env_mat/env_mat.h`."""
    u = ((r - descriptor.cutoff_smooth) / (descriptor.cutoff - descriptor.cutoff_smooth)).clamp(0, 1)
    return u, u**3 * (u * (15 - 6 * u) - 10) + 1


def _pair_forces(
    descriptor: MomentDescriptor,
    types: TypeChoice,
    s: torch.Tensor,
    fall: torch.Tensor,
    values: torch.Tensor,
    plain: bool,
) -> torch.Tensor:
    """(n, F, P): the largest derivative of a neighbour's term in T by its position, over all k.

    The term is R_a G_k(s). R_0 = (s - m)/d0 and the others, s/d1 along the pair, change with r by -`fall` = ds/dr
    each. Across the pair these rotate, by s/(r d1), replaced by s^2/d1 here (equal before the switch). A `plain` sum
    has G_k alone. Takes s (P, 2), fall between the two (P,), and G there, `values` (n, F, P, 2, M): G + s G' and the
    like are on the line through the two.
    """
    low, high = values.unbind(-2)
    width = s[:, 1] - s[:, 0]
    if plain:
        return (high - low).abs_().amax(-1) * (fall / width)
    s = s.mean(1)

    def on_line(far: torch.Tensor) -> torch.Tensor:
        """|G + far G'|."""
        return torch.lerp(low, high, 0.5 + (far / width)[..., None]).abs_().amax(-1)

    std = descriptor.std[types.index][:, :, None, None]
    along, across = on_line(s), on_line(torch.zeros_like(s))
    mean = descriptor.mean[types.index, None, None]
    first = on_line(s - mean) if descriptor.has_mean() else along
    forces = torch.maximum(first * fall / std[:, 0], along * fall / std[:, 1])
    return torch.maximum(forces, across * s * s / std[:, 1])


def spline_error(
    descriptor: MomentDescriptor,
    grid: SplineGrid,
    mask: torch.Tensor | None = None,
    types: TypeChoice | None = None,
    looks: int | None = None,
) -> float:
    """The largest relative error in the forces of single pairs (`_pair_forces`), except those in `mask`; for these
    types, (n,), with their mask (n, n), or for all; in so many intervals (`glanced_at`), or in those of `looked_at`.

    An error at some distance is relative to the largest such force at that distance or farther out. Beyond half of the
    cutoff all are relative to the largest there: towards the cutoff forces go to zero, and so do their errors, for any
    nets. Before attention layers, errors of the functions alone count, too.
    """
    return float(_errors(descriptor, grid, mask, types or all_types(descriptor), looks).max())


def _errors(
    descriptor: MomentDescriptor,
    grid: SplineGrid,
    mask: torch.Tensor | None,
    types: TypeChoice,
    looks: int | None = None,
) -> torch.Tensor:
    """(n, F): the same for each function."""
    forms, device = _forms(descriptor), descriptor.mean.device

    def function(s: torch.Tensor) -> torch.Tensor:
        """(n, F, P, 2, M) of s (P, 2)."""
        return embed(descriptor, s.flatten(), mask, types).unflatten(2, (-1, 2))

    table = interpolate(lambda s: embed(descriptor, s, mask, types), grid, descriptor.mean).double()
    if looks is None:
        intervals = looked_at(grid.intervals, device)
    else:
        intervals = glanced_at(_ranks(descriptor, grid, types, table).amax((0, 1)), looks)
    places = grid.at(beside(intervals))
    falls = _fall(descriptor, places.mean(1))
    errors: list[torch.Tensor] = []  # (forms, n, F, P) each
    sizes: list[torch.Tensor] = []  # (forms, P) each
    runs = in_cache(intervals, table)
    pieces = (whole.split(len(_BETWEEN) * len(runs[0])) for whole in (places, falls))
    for some, s, fall in zip(runs, *pieces, strict=True):
        exact = function(s)
        off = splines_beside(table, some) - exact
        size, error = (
            torch.stack([_pair_forces(descriptor, types, s, fall, of, plain) for plain in forms])
            for of in (exact, off)
        )
        sizes.append(size.amax((1, 2)))
        errors.append(error)
    r = torch.linspace(0.5, 1.0, _FAR_POINTS, dtype=torch.float64, device=device) * descriptor.cutoff
    s, rise = _s(descriptor, r)
    aside = _ASIDE * grid.steps(s)
    s = torch.stack([s - aside, s + aside], 1)
    exact = function(s)
    far = torch.stack([_pair_forces(descriptor, types, s, -rise, exact, p).max() for p in forms])
    size = torch.cat(sizes, 1).cummax(1).values.clamp(min=far.clamp(min=1e-30)[:, None])
    found = (torch.cat(errors, 3) / size[:, None, None]).amax((0, 3))
    if looks is None and len(intervals) < grid.intervals:
        few, of_few = _worst(found, mask, types)
        closer = _errors(descriptor, grid, of_few, few, GLANCED_AT).max()
        found.view(-1)[found.argmax()] = torch.maximum(found.max(), closer)
    return found


def _forms(descriptor: MomentDescriptor) -> list[bool]:
    """The values of `plain` for which errors count."""
    return [descriptor.plain] if descriptor.is_sum else [False, True]


def _ranks(
    descriptor: MomentDescriptor, grid: SplineGrid, types: TypeChoice, table: torch.Tensor
) -> torch.Tensor:
    """(n, F, I): about the error in each interval up to a factor, from the splines alone: their `bends` in place of the
    slopes' errors."""
    x = torch.arange(grid.intervals, dtype=torch.float64, device=table.device)
    s = grid.at(torch.stack([x, x + 1], 1))
    fall = _fall(descriptor, s.mean(1))
    near = s[:, 0] <= _s(descriptor, s.new_tensor([0.5 * descriptor.cutoff]))[0]
    bent = bends(table)
    slopes = torch.stack([-0.5 * bent, 0.5 * bent], -2)
    # Coefficients are about the functions' values at knots.
    values = torch.stack([table[..., 2:-3, :], table[..., 3:-2, :]], -2)
    found = []
    for plain in _forms(descriptor):
        size = _pair_forces(descriptor, types, s, fall, values, plain).amax((0, 1))
        size = size.cummax(0).values.clamp(min=size[near].max().clamp(min=1e-30))
        found.append(_pair_forces(descriptor, types, s, fall, slopes, plain) / size)
    return torch.stack(found).amax(0)


@torch.no_grad()
def choose_grid(
    descriptor: MomentDescriptor,
    r_min: float,
    tolerance: float,
    mask: torch.Tensor | None = None,
    types: TypeChoice | None = None,
    intervals: int = _FIRST_INTERVALS,
    grading: float = 0.0,
) -> SplineGrid:
    """A grid with an error within `tolerance` down to the distance r_min (A), of at least so many intervals; graded if
    uniform knots do not suffice, or with `grading`.

    Activations with kinks (relu) never reach the tolerance; `error` then is the least that was reached.
    """

    def find(grading: float, intervals: int) -> SplineGrid:
        return _search(descriptor, r_min, tolerance, mask, types, intervals, grading)

    found = find(grading, intervals)
    if found.error <= tolerance or grading:
        return found
    graded = find(GRADING, _FIRST_INTERVALS)
    return graded if graded.error <= found.error else found


def _search(
    descriptor: MomentDescriptor,
    r_min: float,
    tolerance: float,
    mask: torch.Tensor | None,
    types: TypeChoice | None,
    first: int,
    grading: float,
) -> SplineGrid:
    """Searches with the pair of types that needs the most knots, at a few places; checks the result in full."""
    most = _MOST_INTERVALS if tolerance > _FINE else _MOST_FINE_INTERVALS
    every = all_types(descriptor) if types is None else types
    few, of_few = every, mask

    def grid(intervals: int, error: float = 0.0) -> SplineGrid:
        s_max = float(1.0 / (r_min + descriptor.protection))
        return SplineGrid(s_max, intervals, r_min, error, grading)

    def choose_few(found: torch.Tensor) -> None:
        nonlocal few, of_few
        few, of_few = _worst(found, mask, every)

    def room(intervals: int) -> float:
        return _ROOM if intervals > _LOOKED_AT else 1.0

    def glance(intervals: int) -> float:
        return spline_error(descriptor, grid(intervals), of_few, few, GLANCED_AT) / room(intervals)

    def look(intervals: int) -> float:
        errors = _errors(descriptor, grid(intervals), mask, every)
        choose_few(errors)
        return float(errors.max()) / room(intervals)

    if len(every.numbers) > 2:
        sketch = grid(_SKETCH)
        table = interpolate(lambda s: embed(descriptor, s, mask, every), sketch, descriptor.mean).double()
        choose_few(_ranks(descriptor, sketch, every, table).amax(2))
    found, error = fewest_intervals(glance, look, range(first, most + 1, _STEP), _ORDER, tolerance)
    return grid(found, error * room(found))


def _worst(
    found: torch.Tensor, mask: torch.Tensor | None, types: TypeChoice
) -> tuple[TypeChoice, torch.Tensor | None]:
    """The types of the function with the largest number in (n, F), and the mask of their pairs."""
    center, function = divmod(int(found.argmax()), found.shape[1])
    # With a gate a function of the centre's type alone comes first.
    neighbor = function - (found.shape[1] - len(types.numbers))
    few = torch.tensor(sorted({center, max(neighbor, 0)}), device=found.device)
    of_few = None if mask is None else mask[few][:, few]
    return TypeChoice.of([types.numbers[k] for k in few.tolist()], found.device), of_few
