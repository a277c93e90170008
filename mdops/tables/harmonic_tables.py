"""Splines of the functions of distance that DPA-4C sums with harmonics (docs/explanation/mathematics.md)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from mdops.models.dpa4c import DPA4C, envelope
from mdops.ops.harmonic_moment import knot_slopes, largest_functions, padded_basis, spline_pieces
from mdops.tables.spline import (
    DEFAULT_R_MIN,
    GLANCED_AT,
    bends,
    beside,
    collocation,
    fewest_intervals,
    glanced_at,
    in_cache,
    sampled,
    splines_beside,
    value_and_slope,
)

_FIRST, _MOST = 32, 2048  # intervals
_MOST_PIECES = 16  # functions; of more, only those summed with harmonics get polynomials
# Share of the tolerance, which is for single pairs: atoms have many.
_ROOM = {torch.float32: 0.25, torch.float64: 0.05}


class HarmonicTables(NamedTuple):
    """Splines F on [0, cutoff] of each pair of some types, n in all; B as of `harmonic_sums`.

    Attributes:
        intervals: pieces; error: as of `spline_error`.
        coefficients: (n, n B, channels), for each centre; rows: (n, channels, n B), transposed.
        slopes: as `rows`, for the slopes (`knot_slopes`), 1/A; pieces: (n, n, intervals, 6, channels or C_1), the
            polynomials of the intervals. Both are computed before rounding.
        most: (2, channels), `largest_functions`.
    """

    intervals: int
    error: float
    coefficients: torch.Tensor
    rows: torch.Tensor
    slopes: torch.Tensor
    pieces: torch.Tensor
    most: torch.Tensor

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """As `mdops.ops.harmonic_sums` takes them."""
        return self[2:6]


def harmonic_tables(
    descriptor: DPA4C, types: Sequence[int], tolerance: float, most_numbers: int
) -> HarmonicTables | None:
    """For systems of these types; None if splines do not reach the tolerance or exceed `most_numbers`."""
    found = choose_intervals(descriptor, types, _ROOM[descriptor.mean.dtype] * tolerance)
    numbers = len(types) ** 2 * descriptor.options.channels
    if found is None or numbers * padded_basis(found[0]) > most_numbers:
        return None
    intervals, error = found
    exact, dtype, device = descriptor.double_copy(), descriptor.mean.dtype, descriptor.mean.device
    points, matrix = collocation(intervals)
    points = points * (descriptor.cutoff / intervals)
    kinds, beside = torch.tensor(types), padded_basis(intervals) - (intervals + 5)
    width = descriptor.options.channels
    known = width if width <= _MOST_PIECES else descriptor.invariants.channels[1]
    parts: list[tuple[torch.Tensor, ...]] = []
    for center in types:  # one after the other: many types at once would fill the memory
        values = functions(exact, points, torch.tensor([center]), kinds)[0]
        rows = F.pad(matrix.solve(values), (0, 0, 0, beside)).mT  # (n, channels, B)
        steep = knot_slopes(rows, descriptor.cutoff, intervals)
        pieces = spline_pieces(rows[:, :known], intervals)
        made = *(part.transpose(0, 1).flatten(1) for part in (rows, steep)), pieces
        parts.append(tuple(part.to(device, dtype) for part in made))
    rows, slopes, pieces = (torch.stack(own) for own in zip(*parts, strict=True))
    most = largest_functions(rows, slopes)
    return HarmonicTables(intervals, error, rows.mT.contiguous(), rows, slopes, pieces, most)


@torch.no_grad()
def functions(
    descriptor: DPA4C, r: torch.Tensor, centers: torch.Tensor, neighbors: torch.Tensor
) -> torch.Tensor:
    """F (a, b, P, channels) at r (P,) in A; sums are over F times chi, and times its square."""
    return descriptor.amplitudes(r.clamp(min=1e-6 * descriptor.cutoff), centers, neighbors)


@torch.no_grad()
def spline_error(descriptor: DPA4C, types: Sequence[int], intervals: int, looks: int | None = None) -> float:
    """The largest error of splines in the slope of chi F, over the largest slope, beyond 0.5 A; in all intervals, or
    in so many (`glanced_at`). `descriptor` is in float64."""
    cutoff, kinds = descriptor.cutoff, torch.tensor(types)
    points, matrix = collocation(intervals)
    step = cutoff / intervals
    first = math.ceil(DEFAULT_R_MIN / step)
    table = matrix.solve(functions(descriptor, points * step, kinds, kinds))[..., first:, :]
    looked = torch.arange(intervals - first)
    if looks is not None:
        chi = envelope((first + 0.5 + looked) * step, cutoff)
        looked = glanced_at(bends(table).amax((0, 1, 3)) * chi, looks)
    off, size = table.new_zeros(()), table.new_full((), 1e-30)
    for some in in_cache(looked, table):
        r = (first + beside(some)) * step
        chi, exact = (
            envelope(r, cutoff),
            functions(descriptor, r.flatten(), kinds, kinds).unflatten(2, (-1, 2)),
        )
        error, whole = (
            value_and_slope(chi[..., None] * f, r)[1] for f in (splines_beside(table, some) - exact, exact)
        )
        # These keep a NaN.
        off, size = torch.maximum(off, error.abs().max()), torch.maximum(size, whole.abs().max())
    return float(off / size)


def choose_intervals(descriptor: DPA4C, types: Sequence[int], tolerance: float) -> tuple[int, float] | None:
    """`fewest_intervals` of these types, or of some of many, and their error; None if none keep the tolerance."""
    exact, kinds = descriptor.double_copy(), sampled(types)
    found = fewest_intervals(
        lambda intervals: spline_error(exact, kinds, intervals, GLANCED_AT),
        lambda intervals: spline_error(exact, kinds, intervals),
        range(_FIRST, _MOST + 1, 8),
        6,
        tolerance,
    )
    return found if found[1] <= tolerance else None
