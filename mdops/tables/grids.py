"""Knots of all sums over neighbours in a model."""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from mdops.models.contract import AtomicModel, Descriptor
from mdops.models.linear import Blend
from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.standard import DescriptorFitting
from mdops.ops.activation import is_smooth
from mdops.tables.spline import SplineGrid, choose_grid, spline_error

# The most types whose pairs a grid is chosen for.
_SAMPLED = 6

NO_SUMS = "splines are for descriptors of sums over neighbours (se_e2_a, se_e2_r, DPA-1 without attention)"


class Sum(NamedTuple):
    """A descriptor of sums in a model.

    Attributes:
        model: the standard model that has it.
        descriptor: the descriptor.
        names: the part's type for each type of the whole, if a part has its own type map; None: the same.
        absent: pairs of its types that the whole excludes, in addition to those of `model`.
    """

    model: DescriptorFitting
    descriptor: MomentDescriptor
    names: tuple[int, ...] | None = None
    absent: torch.Tensor | None = None


def sums_of(model: AtomicModel) -> list[Sum]:
    """All sums of a model, in the order of its descriptors."""
    return _of_parts(model, lambda d: isinstance(d, MomentDescriptor) and d.is_sum)


def inner_sums_of(model: AtomicModel) -> list[Sum]:
    """The sums inside other descriptors."""
    return _of_parts(model, lambda d: isinstance(d, MomentDescriptor) and d.is_sum, inner=True)


def _of_parts(model: AtomicModel, counts: Callable[[Descriptor], bool], inner: bool = False) -> list[Sum]:
    """The descriptors for which `counts` holds, of the model's own or, if `inner`, of those inside them."""
    if isinstance(model, Blend):
        found = []
        for i, part in enumerate(model.models):
            names = getattr(model, f"names_{i}")
            own = None if names is None else tuple(names.tolist())
            found += [
                Sum(one.model, one.descriptor, own, model.absent_of(i))
                for one in _of_parts(part, counts, inner)
            ]
        return found
    if not isinstance(model, DescriptorFitting):
        return []
    every = [d for part in model.descriptor.parts for d in (part.inner if inner else [part])]
    return [Sum(model, d) for d in every if counts(d)]  # type: ignore[arg-type]


def moment_descriptor(model: AtomicModel) -> MomentDescriptor | None:
    """The model's descriptor, if it is the only one and a sum."""
    d = model.descriptor if isinstance(model, DescriptorFitting) else None
    return d if isinstance(d, MomentDescriptor) and d.is_sum else None


def attentions_of(model: AtomicModel) -> list[Sum]:
    """The descriptors with attention layers, or with sums of higher degrees, which use the same rows."""
    return _of_parts(model, lambda d: isinstance(d, MomentDescriptor) and d.goes_by_rows)


def grids_of(
    sums: Sequence[Sum], r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> tuple[tuple[SplineGrid | None, ...], str | None]:
    """For each of them a grid, as in `new_grids`, or None; and what is wrong."""
    found = [grid_of(one, r_min, tolerance, types) for one in sums]
    return tuple(grid for grid, _ in found), next((why for _, why in found if why is not None), None)


def grid_of(
    one: Sum, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> tuple[SplineGrid | None, str | None]:
    """The same for one descriptor, for pairs of these types, by default `grid_types`."""
    if not all(map(is_smooth, one.descriptor.activations)):
        return None, "the embedding nets have kinks"
    pairs = _pairs(one, _kinds(one, types))
    grid = choose_grid(_double(one.descriptor), r_min, tolerance, *pairs)
    if not grid.error <= tolerance:
        return None, f"splines of the embedding nets reach an error of {grid.error:.1e}, not {tolerance:.1e}"
    return grid, None


def pair_masks(
    model: DescriptorFitting,
    descriptor: MomentDescriptor | None = None,
    more: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`mask` and `zeroed` of a `SumTables` of all types; by default for the model's only descriptor. Pairs of `more`
    are absent, too."""
    d: MomentDescriptor = model.descriptor if descriptor is None else descriptor  # type: ignore[assignment]
    absent = model.absent_matrix if more is None else model.absent_matrix | more
    return d.excluded | absent, d.excluded & ~absent


def new_grids(
    model: AtomicModel, r_min: float, tolerance: float, types: Sequence[int] | None = None
) -> tuple[tuple[SplineGrid | None, ...], str | None, bool]:
    """A grid for each sum that keeps the tolerance down to r_min (A) for pairs of these types, by default `grid_types`;
    why one of them, or all, have none; and whether to warn of that: if the nets were expected to have grids."""
    sums = sums_of(model)
    if not sums:
        return (), NO_SUMS, False
    found = [_grid_or_why(one, r_min, tolerance, types) for one in sums]
    grids = tuple(grid for grid, _ in found)
    problem = next((why for _, why in found if why is not None), None)
    return (grids if any(grids) else ()), problem, problem is not None


def _grid_or_why(
    one: Sum, r_min: float, tolerance: float, types: Sequence[int] | None
) -> tuple[SplineGrid | None, str | None]:
    """As `grid_of`, but also checks plain sums."""
    if has_value_before_knots(one):
        return None, "the means of s of excluded pairs are below 0, where splines have no knots"
    return grid_of(one, r_min, tolerance, types)


def has_value_before_knots(one: Sum) -> bool:
    """Whether a plain sum counts an excluded neighbour with its value at s < 0. Means of data are never below 0."""
    d = one.descriptor
    return d.plain and bool((pair_masks(one.model, d)[1].any(1) & (d.mean < 0)).any())


def merge_grids(grids: Sequence[SplineGrid]) -> SplineGrid:
    """One grid that describes several: the most intervals, the largest error and smallest distance."""
    return SplineGrid(
        max(grid.s_max for grid in grids),
        max(grid.intervals for grid in grids),
        max(grid.r_min for grid in grids),
        max(grid.error for grid in grids),
    )


def grid_types(descriptor: MomentDescriptor) -> list[int]:
    """The types for whose pairs a grid is chosen by default: all, or some of many that share nets."""
    n = descriptor.ntypes
    if not descriptor.mixed or n <= _SAMPLED:
        return list(range(n))
    return sorted({round(k * (n - 1) / (_SAMPLED - 1)) for k in range(_SAMPLED)})


def finer_grid(one: Sum, grid: SplineGrid, tolerance: float, types: Sequence[int]) -> SplineGrid:
    """The grid, if it keeps the tolerance for pairs of these types of the whole, too; else one that does."""
    if grid_error(one, grid, types) <= tolerance:
        return grid
    kinds = _kinds(one, types)
    pairs = _pairs(one, kinds)
    found = choose_grid(
        _double(one.descriptor), grid.r_min, tolerance, *pairs, intervals=grid.intervals, grading=grid.grading
    )
    if found.error > tolerance:
        warnings.warn(
            f"splines of the embedding nets of {', '.join(one.model.type_map[t] for t in kinds)} reach an error of "
            f"{found.error:.1e}, not {tolerance:.1e}: spline=False evaluates the nets exactly",
            stacklevel=2,
        )
    return found


def grid_error(one: Sum, grid: SplineGrid, types: Sequence[int] | None = None) -> float:
    """The error of a sum's grid with the current weights (`spline_error`); infinite if no grid can be used."""
    if has_value_before_knots(one):
        return math.inf
    kinds = _kinds(one, types)
    with torch.no_grad():
        return spline_error(_double(one.descriptor), grid, *_pairs(one, kinds))


def _kinds(one: Sum, types: Sequence[int] | None) -> Sequence[int]:
    """These types of the whole as the sum's types; by default those that represent all."""
    if types is None:
        return grid_types(one.descriptor)
    return types if one.names is None else [one.names[t] for t in types]


def _double(descriptor: MomentDescriptor) -> MomentDescriptor:
    return copy.deepcopy(descriptor).double()


def _pairs(one: Sum, types: Sequence[int]) -> tuple[torch.Tensor | None, TypeChoice]:
    """The mask of pairs, or None, and the types."""
    kinds = TypeChoice.of(types, one.model.out_bias.device)
    mask = pair_masks(one.model, one.descriptor)[0][kinds.index][:, kinds.index]
    # Of a plain sum, neighbours that are excluded count.
    masks = bool(mask.any()) and not one.descriptor.plain
    return (mask if masks else None), kinds
