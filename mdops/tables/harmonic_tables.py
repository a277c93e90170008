"""Splines of the functions of distance that DPA-4C sums with harmonics (docs/explanation/mathematics.md)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from mdops.models.dpa4c import DPA4C, envelope
from mdops.ops.harmonic_moment import knot_slopes, padded_basis
from mdops.tables.spline import DEFAULT_R_MIN, collocation, evaluate, fewest_intervals, value_and_slope

_BETWEEN = (0.125, 0.375, 0.625, 0.875)  # of an interval, where errors are looked at
_FIRST, _MOST = 32, 2048  # intervals
# Of the tolerance, which is that of single pairs: atoms have many.
_ROOM = {torch.float32: 0.25, torch.float64: 0.05}


class HarmonicTables(NamedTuple):
    """Coefficients of splines on [0, cutoff] for some types, n in all; B as of `harmonic_moment`.

    Attributes:
        intervals: pieces; error: as of `spline_error`.
        scalars: (n, n B, channels + 2), of each centre, for sums with degree 0: F, and chi and chi^3 behind it.
        others: (n, n B, C_1), of chi F, for the others.
        transposed: both with the functions before the splines, and so their slopes (`knot_slopes`), 1/A, made before
            they are rounded.
    """

    intervals: int
    error: float
    scalars: torch.Tensor
    others: torch.Tensor
    transposed: tuple[torch.Tensor, ...]

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """As `mdops.ops.harmonic_sums` takes them."""
        return self.scalars, self.others, *self.transposed


def harmonic_tables(
    descriptor: DPA4C, types: Sequence[int], tolerance: float, most_numbers: int
) -> HarmonicTables | None:
    """For systems of these types; None where splines reach no such accuracy, or there would be more numbers."""
    found = choose_intervals(descriptor, types, _ROOM[descriptor.mean.dtype] * tolerance)
    numbers = len(types) ** 2 * (descriptor.options.channels + 2 + descriptor.invariants.channels[1])
    if found is None or numbers * padded_basis(found[0]) > most_numbers:
        return None
    intervals, error = found
    exact, dtype, device = descriptor.double_copy(), descriptor.mean.dtype, descriptor.mean.device
    points, matrix = collocation(intervals)
    points = points * (descriptor.cutoff / intervals)
    width, kinds = descriptor.options.channels, torch.tensor(types)
    beside = padded_basis(intervals) - (intervals + 5)
    tables: list[torch.Tensor] = []
    slopes: list[torch.Tensor] = []
    for center in types:  # one after the other: of many types all would fill the memory
        values = functions(exact, points, torch.tensor([center]), kinds)[0]
        table = F.pad(matrix.solve(values), (0, 0, 0, beside))
        steep = knot_slopes(table.mT, descriptor.cutoff, intervals).mT
        for found_of, own in ((tables, table), (slopes, steep)):
            found_of.append(own.flatten(0, 1).to(device, dtype))
    parts = []
    for whole in (torch.stack(tables), torch.stack(slopes)):
        parts += [torch.cat([whole[..., :width], whole[..., -2:]], -1), whole[..., width:-2].contiguous()]
    scalars, others, *_ = parts
    return HarmonicTables(intervals, error, scalars, others, tuple(part.mT.contiguous() for part in parts))


@torch.no_grad()
def functions(
    descriptor: DPA4C, r: torch.Tensor, centers: torch.Tensor, neighbors: torch.Tensor
) -> torch.Tensor:
    """(a, b, P, channels + C_1 + 2) at r (P,) in A: F, chi F of the first C_1, chi and chi^3; times chi they are what
    sums are of."""
    tiny = 1e-6 * descriptor.cutoff
    f = descriptor.amplitudes(r.clamp(min=tiny), centers, neighbors)
    chi = envelope(r, descriptor.cutoff)[:, None]
    masses = torch.cat([chi, chi**3], 1).expand(*f.shape[:3], 2)
    return torch.cat([f, chi * f[..., : descriptor.invariants.channels[1]], masses], -1)


@torch.no_grad()
def spline_error(descriptor: DPA4C, types: Sequence[int], intervals: int) -> float:
    """The largest error of splines in the slope of a function that is summed, over the largest slope there is, beyond
    0.5 A. `descriptor` is in float64."""
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
