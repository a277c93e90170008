"""The embedding nets of a descriptor as splines in s (docs/mathematics.md)."""

import dataclasses
from functools import lru_cache

import torch

from mdops.nn.se_e2_a import SeE2A

DEFAULT_R_MIN = 0.5  # A: no two nuclei of a molecule or a solid come closer
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-9}
_FIRST_INTERVALS, _MOST_INTERVALS = 32, 2048


@dataclasses.dataclass(frozen=True)
class SplineGrid:
    """Uniform knots on [0, s_max], s in 1/A.

    Attributes:
        s_max: the last knot, the s of the smallest distance that the spline was made for.
        intervals: pieces; there are intervals + 5 basis functions.
        r_min: that distance, A. Closer pairs go on along the spline's tangent.
        error: the largest error of a net's value, or a tenth of that of its derivative in s if that is more;
            each relative to its largest size.
    """

    s_max: float
    intervals: int
    r_min: float
    error: float


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
def collocation(intervals: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points x (B,) in [0, intervals] and the inverse P (B, B) of the basis there: C = P G(x).

    The points are the knots, and two more at each end between the first and between the last ones.
    """
    x = torch.arange(intervals + 1, dtype=torch.float64)
    quarter = torch.tensor([0.25, 0.5], dtype=torch.float64)
    x = torch.cat([x, quarter, intervals - quarter]).sort().values
    return x, torch.linalg.inv(basis_matrix(x, intervals))


@lru_cache(maxsize=8)
def _collocation_on(
    intervals: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """`collocation` as a model has it; kept, for no step of a training to wait for a copy."""
    x, inverse = collocation(intervals)
    return x.to(device), inverse.to(device, dtype)


def embed(descriptor: SeE2A, s: torch.Tensor, masked: bool = True) -> torch.Tensor:
    """(ntypes, ntypes, P, M): every pair's net [centre, neighbour] at s (P,) in 1/A; if `masked`, zero for the
    pairs of types that are left out."""
    d, kinds = descriptor, range(descriptor.ntypes)
    s = s.to(next(d.nets[0].parameters()))
    x = ((s - d.mean[:, None]) / d.std[:, :1])[..., None]  # of each centre, (ntypes, P, 1)
    if d.type_one_side:
        nets, x = [d.net(0, t) for t in kinds], x.flatten(0, 1)[None]
    else:
        nets, x = [d.net(c, t) for t in kinds for c in kinds], x.repeat(d.ntypes, 1, 1)
    values = nets[0].alike(nets, x).view(d.ntypes, d.ntypes, len(s), -1).transpose(0, 1)
    return values.masked_fill(d.pair_mask[..., None, None], 0.0) if masked and d.has_masked else values


def coefficients(descriptor: SeE2A, grid: SplineGrid, masked: bool = True) -> torch.Tensor:
    """C (ntypes, ntypes, B, M) of every pair [centre, neighbour], `masked` as in `embed`; differentiable in the
    nets' weights."""
    mean = descriptor.mean
    x, inverse = _collocation_on(grid.intervals, mean.device, mean.dtype)
    values = embed(descriptor, x * (grid.s_max / grid.intervals), masked)
    return torch.einsum("bp,ctpm->ctbm", inverse, values)


def evaluate(table: torch.Tensor, fraction: float, derivative: int = 0) -> torch.Tensor:
    """(..., intervals, M): the splines with coefficients (..., B, M), or their derivative by the interval's length,
    at the same fraction of every interval."""
    weights = basis_matrix(torch.tensor([fraction], dtype=torch.float64), 1, derivative)[0]
    intervals = table.shape[-2] - 5
    return sum(w * table[..., m : m + intervals, :] for m, w in enumerate(weights.tolist()))


def _value_and_slope(descriptor: SeE2A, s: torch.Tensor, h: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`embed` and its derivative in s, by the five-point formula with the step h: forward-mode autograd would load
    a second's worth of modules."""
    ahead, behind, far_ahead, far_behind = (embed(descriptor, s + k * h) for k in (1, -1, 2, -2))
    return embed(descriptor, s), (8 * (ahead - behind) - (far_ahead - far_behind)) / (12 * h)


def spline_error(descriptor: SeE2A, s_max: float, intervals: int) -> float:
    """The largest error between knots of the value, or a tenth of that of the slope, each relative to its largest
    size over [0, s_max]."""
    step = s_max / intervals
    table = coefficients(descriptor, SplineGrid(s_max, intervals, 0.0, 0.0)).double()
    worst, size = [0.0, 0.0], [1e-30, 1e-30]
    for fraction in (0.125, 0.375, 0.625, 0.875):
        s = (torch.arange(intervals, dtype=torch.float64) + fraction) * step
        for k, exact in enumerate(_value_and_slope(descriptor, s, step / 64)):
            error = evaluate(table, fraction, k) / step**k - exact
            worst[k] = max(worst[k], float(error.abs().max()))
            size[k] = max(size[k], float(exact.abs().max()))
    return max(worst[0] / size[0], 0.1 * worst[1] / size[1])


@torch.no_grad()
def choose_grid(descriptor: SeE2A, r_min: float, tolerance: float) -> SplineGrid:
    """A grid whose error down to the distance r_min (A) is within `tolerance`.

    The error falls at least with the fifth power of the number of intervals: one trial tells the next. Activations
    with kinks (relu) never reach the tolerance; `error` then is what the finest grid reaches.
    """
    s_max = float(1.0 / (r_min + descriptor.protection))
    intervals = _FIRST_INTERVALS
    while True:
        error = spline_error(descriptor, s_max, intervals)
        if error <= tolerance or intervals >= _MOST_INTERVALS:
            return SplineGrid(s_max, intervals, r_min, error)
        wanted = int(intervals * min((error / tolerance) ** 0.2, 4.0)) + 8
        intervals = min(wanted // 8 * 8, _MOST_INTERVALS)
