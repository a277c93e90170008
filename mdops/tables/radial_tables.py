"""Splines of DPA-4's functions of the length of an edge and the types at its ends."""

import copy
import math
from collections.abc import Sequence

import torch

from mdops.models.dpa4.descriptor import DPA4
from mdops.models.dpa4.edges import clamped
from mdops.models.dpa4.radial import RadialSplines
from mdops.tables import spline

_FIRST, _MOST = 64, 2048  # intervals
# Share of the tolerance, which is for forces: layers may make errors larger.
_ROOM = {torch.float32: 0.25, torch.float64: 0.01}
# A: lengths below the second approach the first, where functions are finite. No simulation has so short edges.
_NEAREST = 0.15, 0.35


def radial_splines(
    descriptor: DPA4, types: Sequence[int], tolerance: float, most_numbers: int
) -> RadialSplines | None:
    """For systems of these types; None if splines do not reach the tolerance or exceed `most_numbers`."""
    like = descriptor.type_embedding.adam_type_embedding
    exact = copy.deepcopy(descriptor).to("cpu", torch.float64)
    most_points = most_numbers // (len(types) ** 2 * sum(_widths(exact, types)))
    if most_points < _FIRST:
        return None
    found = choose_intervals(exact, types, _ROOM[like.dtype] * tolerance)
    if found is None:
        return None
    points, matrix = spline.collocation(found[0])
    if len(points) > most_points:
        return None
    values = _functions(exact, points * (exact.options.rcut / found[0]), types)
    tables = {
        name: matrix.solve(one).flatten(0, 1).contiguous().to(like.device, like.dtype)
        for name, one in values.items()
    }
    place = torch.full((len(exact.type_map) + 1,), -1, dtype=torch.int32)
    place[torch.tensor(types)] = torch.arange(len(types), dtype=torch.int32)
    return RadialSplines(len(types), place.to(like.device), exact.options.rcut, tables)


@torch.no_grad()
def _functions(descriptor: DPA4, r: torch.Tensor, types: Sequence[int]) -> dict[str, torch.Tensor]:
    return descriptor.radial_functions(clamped(r, *_NEAREST), torch.tensor(types))


def _widths(descriptor: DPA4, types: Sequence[int]) -> list[int]:
    """The number of functions of each name."""
    found = _functions(descriptor, torch.full((1,), spline.DEFAULT_R_MIN, dtype=torch.float64), types[:1])
    return [one.shape[-1] for one in found.values()]


def spline_error(descriptor: DPA4, types: Sequence[int], intervals: int, looks: int | None = None) -> float:
    """The largest error of splines beyond 0.5 A, in the values and in the slopes of each name's functions, over the
    largest of these; in all intervals, or in so many (`glanced_at`). `descriptor` is in float64."""
    points, matrix = spline.collocation(intervals)
    step = descriptor.options.rcut / intervals
    first = math.ceil(spline.DEFAULT_R_MIN / step)
    widths = _widths(descriptor, types)

    def function(r: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(_functions(descriptor, r, types).values()), -1)

    def largest(x: torch.Tensor) -> torch.Tensor:
        """The largest of each name."""
        return torch.stack([part.abs().max() for part in x.split(widths, -1)])

    table = matrix.solve(function(points * step))[..., first:, :]
    looked = torch.arange(intervals - first)
    if looks is not None:
        own = torch.repeat_interleave(largest(table), torch.tensor(widths))
        looked = spline.glanced_at((spline.bends(table) / own.clamp(min=1e-30)).amax((0, 1, 3)), looks)
    off, size = torch.zeros(2, len(widths)), torch.full((2, len(widths)), 1e-30)
    for some in spline.in_cache(looked, table):
        r = (first + spline.beside(some)) * step
        exact = function(r.flatten()).unflatten(2, (-1, 2))
        for found, most in ((spline.splines_beside(table, some) - exact, off), (exact, size)):
            for own, x in zip(most, spline.value_and_slope(found, r), strict=True):
                torch.maximum(own, largest(x), out=own)
    return float((off / size).max())


def choose_intervals(descriptor: DPA4, types: Sequence[int], tolerance: float) -> tuple[int, float] | None:
    """`fewest_intervals` of these types, or of some of many, and their error; None if none keep the tolerance."""
    kinds = spline.sampled(types)
    found = spline.fewest_intervals(
        lambda intervals: spline_error(descriptor, kinds, intervals, spline.GLANCED_AT),
        lambda intervals: spline_error(descriptor, kinds, intervals),
        range(_FIRST, _MOST + 1, 8),
        5,  # of slopes, once steps are fine enough
        tolerance,
    )
    return found if found[1] <= tolerance else None
