"""Embedding nets, functions of s, as splines (docs/explanation/mathematics.md)."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.nn.bsplines import Collocation

DEFAULT_R_MIN = 0.5  # A: no two nuclei of a molecule or a solid come closer
# Of `spline_error`. Forces on atoms then are off by a tenth of it, in parts of the largest: with more knots float32
# would lose more by rounding, which grows with their number, than it gains.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-8}
_BEFORE_LAYERS = 0.1  # of a tolerance, in front of layers, which may make errors larger
Functions = Callable[[torch.Tensor], torch.Tensor]  # (n, F, P, M) of s (P,) in 1/A
_FIRST_INTERVALS = 32
_SAMPLED = 4  # types by whose pairs `fewest_intervals` chooses, of more
GRADING = 1e-6  # 1/A, where uniform knots do not do: trained nets vary within this of s = 0, the cutoff
# Under a tolerance like that of float32, which would lose more by rounding than more intervals gain; and under others.
_MOST_INTERVALS, _MOST_FINE_INTERVALS, _FINE = 4096, 8192, 1e-6
_BETWEEN, _FAR_POINTS = (0.125, 0.375, 0.625, 0.875), 128  # where errors and sizes are looked at
# Of more intervals than these, every other one or fewer are looked at. What a spline cannot follow in one interval
# makes it swing beside, by 0.43 of that in each next one: it does not go unseen. The largest error may be a few percent
# larger than what is seen, for which some of the tolerance is left.
_LOOKED_AT, _ROOM = 1024, 0.9
_GLANCED_AT = 128  # while the number of intervals is searched; the one that is found is looked at in full
# Errors fall with the sixth power of the number of intervals, or faster, while these are few, so as not to end with
# many more than needed. From _FROM intervals on it is the power that two trials show, of _LEAST or more.
_ORDER, _LEAST, _FROM = 6.0, 3.0, 512
_MOST_AT_ONCE = 2**18  # numbers, of the nets' answers at a fifth of the places


@dataclasses.dataclass(frozen=True)
class SplineGrid:
    """Knots on [0, s_max], s in 1/A: uniform, or graded towards s = 0.

    Attributes:
        s_max: the last knot, the s of the smallest distance that the spline was made for.
        intervals: pieces; there are intervals + 5 basis functions.
        r_min: that distance, A. Closer pairs go on along the spline's tangent.
        error: the largest relative error in the force of a pair (`spline_error`).
        grading: 0 where knots are uniform in s; else they are in sqrt(s + grading), 1/A.
    """

    s_max: float
    intervals: int
    r_min: float
    error: float
    grading: float = 0.0

    @property
    def _step(self) -> float:
        """Between knots, in s or in sqrt(s + grading)."""
        range_ = (
            math.sqrt(self.s_max + self.grading) - math.sqrt(self.grading) if self.grading else self.s_max
        )
        return range_ / self.intervals

    def places(self, s: torch.Tensor) -> torch.Tensor:
        """x of s (P,), the number of knots below it and where it is between them: 0 to `intervals`."""
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
    """The bound of splines in front of layers, where others have this one; not below what float32 can use."""
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
    """Points x (B,) in [0, intervals], and what takes values there to coefficients.

    The points are the knots, and two more at each end between the first and between the last ones.
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
    """The points of `collocation` and the inverse P (B, B) of the basis there, C = P G(x), as a model has them; kept,
    for no step of a training to wait for a copy.

    Whoever captures a CUDA graph with it has to hold it as long: other grids take its place here."""
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
    """(n, F, P, M): the `functions` of these types, (n,) or all, at s (P,) in 1/A; zero for the pairs of types that
    `mask` (n, n) leaves out."""
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
    """C (n, F, B, M) of every function; arguments as of `embed`; differentiable in the nets' weights, whose gradients
    get those of the nets' bending, too, with the weight `smoothing`."""
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
        return matrix.solve(function(grid.at(x)).double()).to(like.dtype)
    x, inverse = collocation_on(grid.intervals, like.device, like.dtype)
    return torch.einsum("bp,ctpm->ctbm", inverse, function(grid.at(x)))


def bending_weights(
    descriptor: MomentDescriptor,
    step: float,
    types: TypeChoice | None = None,
    functions: int | None = None,
) -> torch.Tensor:
    """(n, 1, 1, 1): what the squared second differences of C are multiplied with for their sum to be the bending

        mean over all functions and k of the integral of (d^2 G_k / dx^2)^2 over x = (s - m)/d0,

    x being the nets' input and the integral one over the knots' range. In units of x knots are h = step/d0 apart;
    second differences over h^2 are d^2G/dx^2 as a cubic spline: the weights are h / h^4 over the number of functions,
    of which each centre has so many (by default one a type).
    """
    std = descriptor.std[:, 0] if types is None else descriptor.std[types.index, 0]
    count = len(std) * (functions or len(std)) * descriptor.channels
    return ((std / step) ** 3 / count)[:, None, None, None]


def bending_gradient(table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The gradient of sum(weights * (second differences)^2) by C: the same differences of the differences."""
    bends = 2 * weights * table.diff(n=2, dim=2)
    return torch.nn.functional.pad(bends, (0, 0, 2, 2)).diff(n=2, dim=2)


class _Bent(torch.autograd.Function):
    """Coefficients as they are; backwards, the gradient of sum(weights * (second differences)^2) is added. So a
    training bends the nets less at the cost of a few operations on a small table, and its loss stays its loss."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(table, weights)
        return table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad + bending_gradient(*ctx.saved_tensors), None


def evaluate(table: torch.Tensor, fraction: float, derivative: int = 0, stride: int = 1) -> torch.Tensor:
    """(..., intervals, M): the splines with coefficients (..., B, M), or their derivative by the interval's length,
    at the same fraction of every interval, or of each so many."""
    intervals = table.shape[-2] - 5
    weights = _weights(fraction, derivative)
    return reduce(torch.add, (w * table[..., m : m + intervals : stride, :] for m, w in enumerate(weights)))


@lru_cache
def _weights(fraction: float, derivative: int) -> list[float]:
    """Of the six B-splines that are not zero on an interval."""
    found: list[float] = basis_matrix(torch.tensor([fraction], dtype=torch.float64), 1, derivative)[
        0
    ].tolist()
    return found


def value_and_slope(
    function: Functions, s: torch.Tensor, h: float | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of functions as of `interpolate`, and their derivative in s, by the five-point formula with the step h, of each
    s (P,) or of all: forward-mode autograd would load a second's worth of modules."""
    near = torch.cat([s + k * h for k in (0, 1, -1, 2, -2)])
    there, ahead, behind, far_ahead, far_behind = function(near).chunk(5, dim=2)
    width = 12 * (h[:, None] if isinstance(h, torch.Tensor) else h)
    return there, (8 * (ahead - behind) - (far_ahead - far_behind)) / width


def fewest_intervals(
    error_of: Callable[[list[int], int], float],
    types: Sequence[int],
    tolerance: float,
    tried: range,
    order: int,
) -> tuple[int, float] | None:
    """How few intervals keep the tolerance for pairs of these types, or of some of many, and their error; None if none
    do. `error_of` some types and intervals falls with that power of the step, once it is fine enough."""
    kinds = list(types)
    if len(kinds) > _SAMPLED:
        kinds = [kinds[round(k * (len(kinds) - 1) / (_SAMPLED - 1))] for k in range(_SAMPLED)]
    intervals = tried.start
    while intervals < tried.stop:
        error = error_of(kinds, intervals)
        if error <= tolerance:
            return intervals, error
        if not error < math.inf:
            return None
        growth = min(max((error / tolerance) ** (1 / order), 1.1), 2.0)
        intervals = 8 * math.ceil(intervals * growth / 8)
    return None


def looked_at(intervals: int, looks: int | None = None) -> int:
    """1 where errors are looked at in all intervals, 2 where in every other one, and so on: at so many or fewer."""
    return -(-intervals // (looks or _LOOKED_AT))


def between_knots(grid: SplineGrid, every: int, device: torch.device) -> list[tuple[float, torch.Tensor]]:
    """Where errors are looked at: fractions of an interval, and the s (P,) in each so many intervals."""
    interval = torch.arange(0, grid.intervals, every, dtype=torch.float64, device=device)
    return [(fraction, grid.at(interval + fraction)) for fraction in _BETWEEN]


def _fall(descriptor: MomentDescriptor, s: torch.Tensor) -> torch.Tensor:
    """-ds/dr where s (P,) > 0 in 1/A is reached; s = w(r)/(r + p) falls all the way to the cutoff."""
    low, high = torch.zeros_like(s), torch.full_like(s, descriptor.cutoff)
    for _ in range(32):  # to 1e-9 of the cutoff
        r = 0.5 * (low + high)
        above = _switch(descriptor, r)[1] / (r + descriptor.protection) > s
        low, high = torch.where(above, r, low), torch.where(above, high, r)
    return -_s(descriptor, r)[1]


def _s(descriptor: MomentDescriptor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """s of r, and ds/dr."""
    u, w = _switch(descriptor, r)
    slope = -30 * (u * (1 - u)) ** 2 / (descriptor.cutoff - descriptor.cutoff_smooth)
    far = r + descriptor.protection
    return w / far, (slope - w / far) / far


def _switch(descriptor: MomentDescriptor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far r is between the switch's ends, 0 to 1, and the switch w, as in `source/op/env_mat/env_mat.h`."""
    u = ((r - descriptor.cutoff_smooth) / (descriptor.cutoff - descriptor.cutoff_smooth)).clamp(0, 1)
    return u, u**3 * (u * (15 - 6 * u) - 10) + 1


def _pair_forces(
    descriptor: MomentDescriptor,
    types: TypeChoice,
    s: torch.Tensor,
    fall: torch.Tensor,
    value: torch.Tensor,
    slope: torch.Tensor,
    plain: bool,
) -> torch.Tensor:
    """(P,): the largest derivative by a neighbour's position of what it adds to T, over all functions and k.

    That is R_a G_k(s). R_0 = (s - m)/d0 and the others, s/d1 along the pair, change with r by -`fall` = ds/dr
    each; across the pair these turn, by s/(r d1), for which s^2/d1 stands (they are equal before the switch). In a
    `plain` sum there is G_k alone. Takes G and its derivative in s, (n, F, P, M).
    """
    if plain:
        return (fall[:, None] * slope).abs().amax((0, 1, 3))
    mean, std = (
        descriptor.mean[types.index, None, None, None],
        descriptor.std[types.index][:, :, None, None, None],
    )
    s, fall = s[:, None], fall[:, None]
    first = fall * (value + (s - mean) * slope) / std[:, 0]
    along, across = fall * (value + s * slope) / std[:, 1], s * s * value / std[:, 1]
    return torch.stack([part.abs().amax((0, 1, 3)) for part in (first, along, across)]).amax(0)


def spline_error(
    descriptor: MomentDescriptor,
    grid: SplineGrid,
    mask: torch.Tensor | None = None,
    types: TypeChoice | None = None,
    looks: int | None = None,
) -> float:
    """The largest relative error in the forces that single pairs make (`_pair_forces`), but those that `mask` leaves
    out; of these types alone, (n,), with a mask (n, n) of theirs, or of all; `looks`: of `looked_at`.

    An error at some distance is relative to the largest such force at that distance or farther out. Beyond half of the
    cutoff all are relative to the largest there: towards the cutoff forces go to zero, and so do their errors,
    whatever the nets do. Where the functions go through layers of attention, what counts are they alone, too.
    """
    forms = [descriptor.plain] if descriptor.is_sum else [False, True]
    device = descriptor.mean.device
    types = all_types(descriptor) if types is None else types

    def function(s: torch.Tensor) -> torch.Tensor:
        return embed(descriptor, s, mask, types)

    table = interpolate(function, grid, descriptor.mean).double()
    every = looked_at(grid.intervals, looks)
    places = between_knots(grid, every, device)
    falls = _fall(descriptor, torch.cat([s for _, s in places])).chunk(len(places))
    errors: list[torch.Tensor] = []  # (forms, P) each
    sizes: list[torch.Tensor] = []
    # As many intervals at once as a processor's cache may hold: memory that is new takes longer than the nets.
    run = max(_MOST_AT_ONCE // table[..., 0, :].numel(), 1)
    for (fraction, where), falling in zip(places, falls, strict=True):
        of_runs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for first, (s, fall) in enumerate(zip(where.split(run), falling.split(run), strict=True)):
            step = grid.steps(s)
            value, slope = value_and_slope(function, s, step / 64)
            begin = first * run * every
            around = table[..., begin : begin + (len(s) - 1) * every + 6, :]
            found_value, found_slope = (evaluate(around, fraction, order, every) for order in (0, 1))
            off = found_value - value, found_slope / step[:, None] - slope
            size, error = (
                torch.stack([_pair_forces(descriptor, types, s, fall, *parts, plain) for plain in forms])
                for parts in ((value, slope), off)
            )
            of_runs.append((size, error))
        for found, of in zip((sizes, errors), zip(*of_runs, strict=True), strict=True):
            found.append(torch.cat(of, 1))
    r = torch.linspace(0.5, 1.0, _FAR_POINTS, dtype=torch.float64, device=device) * descriptor.cutoff
    s, rise = _s(descriptor, r)
    value, slope = value_and_slope(function, s, grid.steps(s) / 64)
    far = torch.stack([_pair_forces(descriptor, types, s, -rise, value, slope, p).max() for p in forms])
    size = torch.stack(sizes, 2).flatten(1).cummax(1).values.clamp(min=far.clamp(min=1e-30)[:, None])
    return float((torch.stack(errors, 2).flatten(1) / size).max())


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
    """A grid whose error down to the distance r_min (A) is within `tolerance`, of so many intervals or more; graded
    where uniform knots do not do, or `grading` asks for it.

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
    intervals: int,
    grading: float,
) -> SplineGrid:
    """By pairs of a few types at a few places first; what is found is looked at in full."""
    s_max = float(1.0 / (r_min + descriptor.protection))
    most = _MOST_INTERVALS if tolerance > _FINE else _MOST_FINE_INTERVALS
    every = all_types(descriptor) if types is None else types
    few, of_few = _few_types(every, mask, descriptor.mean.device)
    order = _ORDER

    def grid(error: float = 0.0) -> SplineGrid:
        return SplineGrid(s_max, intervals, r_min, error, grading)

    def enough() -> float:
        return tolerance if intervals <= _LOOKED_AT else _ROOM * tolerance

    def more(error: float) -> int:
        wanted = int(intervals * min((error / enough()) ** (1 / order), 4.0)) + 8
        return min(wanted // 8 * 8, most)

    before: tuple[int, float] | None = None
    while (error := spline_error(descriptor, grid(), of_few, few, _GLANCED_AT)) > enough():
        if intervals >= most:
            break
        if before is not None and before[0] > _FROM and error < math.inf:
            order = min(max(math.log(before[1] / error) / math.log(intervals / before[0]), _LEAST), _ORDER)
        before, intervals = (intervals, error), more(error)
    while True:
        error = spline_error(descriptor, grid(), mask, every)
        if error <= enough() or intervals >= most:
            return grid(error)
        intervals = more(error)


def _few_types(
    types: TypeChoice, mask: torch.Tensor | None, device: torch.device
) -> tuple[TypeChoice, torch.Tensor | None]:
    """The first and the last of types, and the mask of their pairs; all where these are all excluded."""
    ends = torch.tensor([0, len(types.numbers) - 1], device=device)
    if len(types.numbers) <= 2:
        return types, mask
    of_ends = None if mask is None else mask[ends][:, ends]
    if of_ends is not None and bool(of_ends.all()):
        return types, mask
    return TypeChoice.of([types.numbers[0], types.numbers[-1]], device), of_ends
