"""Splines of the functions of distance that DPA-4C sums with harmonics (docs/explanation/mathematics.md)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from mdops.models.dpa4c import DPA4C, envelope
from mdops.ops.harmonic_moment import knot_slopes, largest_functions, padded_basis, spline_pieces
from mdops.tables.spline import DEFAULT_R_MIN, collocation, evaluate, fewest_intervals, value_and_slope

_BETWEEN = (0.125, 0.375, 0.625, 0.875)  # of an interval, where errors are looked at
_FIRST, _MOST = 32, 2048  # intervals
_MOST_PIECES = 16  # functions: of more only those that go with harmonics have their polynomials
# Of the tolerance, which is that of single pairs: atoms have many.
_ROOM = {torch.float32: 0.25, torch.float64: 0.05}


class HarmonicTables(NamedTuple):
    """Splines F on [0, cutoff] of each pair of some types, n in all; B as of `harmonic_sums`.

    Attributes:
        intervals: pieces; error: as of `spline_error`.
        coefficients: (n, n B, channels), of each centre; rows: (n, channels, n B), transposed.
        slopes: as `rows`, of the slopes (`knot_slopes`), 1/A; pieces: (n, n, intervals, 6, channels or C_1), the
            polynomials of the intervals. Both are made before they are rounded.
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
    """For systems of these types; None where splines reach no such accuracy, or there would be more numbers."""
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
    for center in types:  # one after the other: of many types all would fill the memory
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
    """F (a, b, P, channels) at r (P,) in A; times chi, and its square, they are what sums are of."""
    return descriptor.amplitudes(r.clamp(min=1e-6 * descriptor.cutoff), centers, neighbors)


@torch.no_grad()
def spline_error(descriptor: DPA4C, types: Sequence[int], intervals: int) -> float:
    """The largest error of splines in the slope of chi F, over the largest slope there is, beyond 0.5 A. `descriptor`
    is in float64."""
    cutoff, kinds = descriptor.cutoff, torch.tensor(types)
    points, matrix = collocation(intervals)
    step = cutoff / intervals

    def function(r: torch.Tensor) -> torch.Tensor:
        return functions(descriptor, r, kinds, kinds)

    def of_chi(r: torch.Tensor) -> torch.Tensor:
        return envelope(r, cutoff)[None, None, :, None]

    table = matrix.solve(function(points * step))
    first = math.ceil(DEFAULT_R_MIN / step)
    off, size = 0.0, 0.0
    for fraction in _BETWEEN:
        r = (torch.arange(first, intervals, dtype=torch.float64) + fraction) * step
        value, slope = value_and_slope(function, r, step / 64)
        chi, fall = value_and_slope(of_chi, r, step / 64)
        near = table[..., first:, :]
        error = (evaluate(near, fraction) - value) * fall
        error += (evaluate(near, fraction, 1) / step - slope) * chi
        off = max(off, float(error.abs().max()))
        size = max(size, float((value * fall + slope * chi).abs().max()))
    return off / max(size, 1e-30)


def choose_intervals(descriptor: DPA4C, types: Sequence[int], tolerance: float) -> tuple[int, float] | None:
    """`fewest_intervals` of these types."""
    exact = descriptor.double_copy()
    # Errors fall with the sixth power of the step, once it is fine enough.
    return fewest_intervals(
        lambda *of: spline_error(exact, *of), types, tolerance, range(_FIRST, _MOST + 1), 6
    )
