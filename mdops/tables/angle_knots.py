"""Knots for functions of the angle between two neighbours (docs/explanation/mathematics.md)."""

import copy
import dataclasses
import math
from collections.abc import Sequence

import torch

from mdops.models.angles import AngleDescriptor, AngleKnots
from mdops.models.contract import AtomicModel
from mdops.models.standard import DescriptorFitting
from mdops.ops import AngleGrid
from mdops.ops.activation import is_smooth
from mdops.tables.spline import before_layers, beside, value_and_slope

_SAMPLED = 6  # most types whose pairs the knots are chosen for
# Share of the tolerance: an atom has thousands of pairs; their forces cancel more than those of neighbours.
_ROOM = 0.2
_FIRST = (1, 2)  # exponent and fineness that are tried first
# The exponent's bound: pieces are found by the bits of |theta| + 2^exponent; in float32 a small theta must not vanish.
_COARSEST = 2
_FINEST = 12
_MOST_INTERVALS = 2048  # on either side
_ROUNDING = 1e-6  # of angles, in float32
_MOST_AT_ONCE = 2**18  # numbers of the nets' outputs, as for other splines


def angle_descriptors(model: AtomicModel) -> list[AngleDescriptor]:
    """The angle descriptors of a model, and those inside other descriptors."""
    every = [one for d in model.descriptors for one in (d, *d.inner)]
    return [one for one in every if isinstance(one, AngleDescriptor)]


def largest_angle(descriptor: AngleDescriptor, r_min: float) -> float:
    """theta of a neighbour at r_min (A) with itself: no pair at that distance or beyond has a larger one."""
    return float((1.0 / (r_min + descriptor.protection) / descriptor.std[:, 1].min()) ** 2)


@torch.no_grad()
def angle_error(descriptor: AngleDescriptor, grid: AngleGrid, types: Sequence[int] | None = None) -> float:
    """The largest relative error of the splines in d(theta G)/dtheta, from which forces are computed, over all
    functions and both signs of theta; for these types, by default all or some of many.

    An error is relative to the largest such derivative up to that |theta|, or up to the theta of neighbours at half of
    the cutoff: an atom's force sums over all its pairs.
    """
    d = _in_float64(descriptor)
    kinds = torch.tensor(_sampled(d) if types is None else types, device=d.std.device)
    table = d.coefficients(grid, kinds)
    knots, sides = grid.knots().to(d.std), (slice(grid.side - 1), slice(grid.side, -1))
    x = beside(torch.zeros(1, dtype=torch.float64)).to(d.std)
    powers = x.flatten()[:, None] ** torch.arange(table.shape[3]).to(d.std)
    places = knots[:-1, None, None] + x * knots.diff()[:, None, None]  # (pieces, 4, 2)

    def slopes(of: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        """(P,): the largest of d(theta G)/dtheta, of G (F, pairs, 2 P, M) beside theta (P, 2)."""
        _, slope = value_and_slope(theta[..., None] * of.unflatten(2, (-1, 2)), theta)
        return slope.abs_().amax((0, 1, 3))

    errors, sizes = list[torch.Tensor](), list[torch.Tensor]()
    run = max(_MOST_AT_ONCE // (len(powers) * table[:, :, 0, 0].numel()), 1)
    for near, *pieces in zip(places.split(run), *(table[:, :, s].split(run, 2) for s in sides), strict=True):
        found = []
        for sign, own in zip((1, -1), pieces, strict=True):
            theta = sign * near.flatten(0, 1)
            exact = d.functions(theta.flatten(), kinds)
            off = (powers @ own).flatten(2, 3) - exact
            found.append((slopes(off, theta), slopes(exact, theta)))
        for most, both in zip((errors, sizes), zip(*found, strict=True), strict=True):
            most.append(torch.maximum(*both))
    error, size, place = torch.cat(errors), torch.cat(sizes), places.mean(2).flatten()
    half = place <= largest_angle(d, d.cutoff / 2)
    near = size[half].max() if bool(half.any()) else size[0]
    return float((error / size.cummax(0).values.clamp(min=near.clamp(min=1e-30))).max())


def knots_error(descriptor: AngleDescriptor, knots: AngleKnots, types: Sequence[int] | None = None) -> float:
    """The same for a descriptor's knots; infinite if they do not reach the angles at their r_min, with the current
    deviations."""
    reach = float(knots.grid.knots()[-1])
    if largest_angle(descriptor, knots.r_min) > (1 + _ROUNDING) * reach:
        return math.inf
    return angle_error(descriptor, knots.grid, types)


@torch.no_grad()
def choose_angle_knots(
    descriptor: AngleDescriptor, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> AngleKnots:
    """Knots with few pieces and an error within `tolerance` down to the distance r_min (A); if none keep it, the
    finest ones, with an infinite error."""
    most, descriptor = largest_angle(descriptor, r_min), _in_float64(descriptor)

    def knots(exponent: int, fineness: int) -> AngleKnots:
        octaves = max(1, math.ceil(math.log2(most / 2.0**exponent + 1)))
        found = AngleKnots(exponent, octaves, fineness, r_min, math.inf)
        can = found.intervals <= _MOST_INTERVALS and found.grid.is_possible
        error = angle_error(descriptor, found.grid, types) if can else math.inf
        return dataclasses.replace(found, error=error)

    exponent, fineness = _FIRST
    found = knots(exponent, fineness)
    while not found.error <= tolerance:
        if found.intervals > _MOST_INTERVALS:
            return found
        # Either the first octave is too wide, or pieces are too wide in all octaves: then errors fall with their fifth
        # or sixth power.
        tried = knots(exponent - 2, fineness)
        if tried.error < 0.5 * found.error:
            exponent, found = exponent - 2, tried
        else:
            fineness += max(1, int(math.log2(found.error / tolerance) / 6)) if found.error < math.inf else 99
            found = knots(exponent, min(fineness, _FINEST))
    while (tried := knots(exponent + 1, fineness)).error <= tolerance and exponent < _COARSEST:
        exponent, found = exponent + 1, tried
    return found


def use_angle_splines(
    model: AtomicModel, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> str | None:
    """Gives knots to the angle descriptors whose nets splines can follow; returns what is wrong with the others."""
    problem, types = None, sampled_types(model, types)
    own = set(model.descriptors)
    for d in angle_descriptors(model):
        d.knots, wanted = None, _ROOM * (tolerance if d in own else before_layers(tolerance, model.dtype))
        if not all(map(is_smooth, d.activations)):
            problem = "the embedding nets have kinks"
            continue
        found = choose_angle_knots(d, r_min, wanted, types)
        if found.error <= wanted:
            d.knots = found
        elif not found.grid.is_possible:
            problem = f"splines of the embedding nets do not reach down to {r_min:g} A"
        else:
            problem = (
                f"splines of the embedding nets reach an error of {found.error:.1e}, not {tolerance:.1e}"
            )
    return problem


def sampled_types(model: AtomicModel, types: Sequence[int] | None) -> Sequence[int] | None:
    """These types; None if the model's parts may have type maps of their own."""
    return types if isinstance(model, DescriptorFitting) else None


def _in_float64(descriptor: AngleDescriptor) -> AngleDescriptor:
    """A copy, unless it is in float64 already."""
    return descriptor if descriptor.std.dtype == torch.float64 else copy.deepcopy(descriptor).double()


def _sampled(descriptor: AngleDescriptor) -> list[int]:
    n = descriptor.ntypes
    return (
        list(range(n))
        if n <= _SAMPLED
        else sorted({round(k * (n - 1) / (_SAMPLED - 1)) for k in range(_SAMPLED)})
    )
