"""A model with splines in place of its nets of distances and angles, and their knots."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mdops.flags import require_numbers
from mdops.models.angles import AngleKnots
from mdops.models.contract import AtomicModel
from mdops.tables.angle_knots import angle_descriptors, knots_error, sampled_types, use_angle_splines
from mdops.tables.grids import (
    Sum,
    attentions_of,
    finer_grid,
    grid_error,
    grid_types,
    grids_of,
    inner_sums_of,
    merge_grids,
    new_grids,
    sums_of,
)
from mdops.tables.spline import DEFAULT_R_MIN, TOLERANCE, SplineGrid, before_layers

_EXACT = "the embedding nets are evaluated exactly (spline=False)"


class SplinedModel(nn.Module):
    """Chooses knots and reports them.

    Attributes:
        model: the model itself.
        grids: for each descriptor of sums, the knots of the splines that replace its embedding nets; empty if the nets
            are evaluated exactly.
        attention_grids: for each descriptor with attention layers, the knots of splines for the embedding nets before
            them; None if these are evaluated exactly; empty in training.
        inner_grids: the same for each descriptor of sums inside another one, also in training.
        spline_types: the types for whose pairs the grid was chosen, if not for all or for some that represent all:
            those of the training data.
        spline_tolerance: the bound on the error of splines, None if nets are evaluated exactly; for evaluators that
            choose knots when they make their tables.
        smoothing: in training with splines, the weight of the embedding nets' bending in addition to the loss.
    """

    def __init__(self, model: AtomicModel) -> None:
        super().__init__()
        self.model = model
        self.grids: tuple[SplineGrid | None, ...] = ()
        self.attention_grids: tuple[SplineGrid | None, ...] = ()
        self.inner_grids: tuple[SplineGrid | None, ...] = ()
        self.spline_types: tuple[int, ...] | None = None
        self.spline_tolerance: float | None = None
        self.smoothing = 0.0
        self._reasons: dict[
            str, str | None
        ] = {}  # why there are no splines of sums, angles, attention, inner sums

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype."""
        return self.model.dtype

    @property
    def grid(self) -> SplineGrid | None:
        """The knots; for several grids, the most intervals and the largest error (`merge_grids`). The setter sets those
        of all descriptors of sums."""
        there = [grid for grid in self.grids if grid is not None]
        return merge_grids(there) if len(there) > 1 else there[0] if there else None

    @grid.setter
    def grid(self, grid: SplineGrid | None) -> None:
        self.grids = () if grid is None else (grid,) * len(sums_of(self.model))

    def use_spline(
        self,
        r_min: float | None = None,
        tolerance: float | None = None,
        types: Sequence[int] | None = None,
        *,
        attention: bool = True,
        inner: bool = True,
    ) -> None:
        """Evaluate the embedding nets as splines, with knots that keep the error bound down to r_min (A), by default
        0.5 A, or half of the distance of a virtual atom of a spin of one.

        The bound (`mdops.tables.spline.spline_error`) is `tolerance`, or that of simulation: 2e-5 in float32 and
        1e-8 in float64. Nets that no spline follows (relu has kinks) go on to be evaluated exactly, with a warning;
        so do models of kinds that have no splines. `types` are those that there will be, of a model of many; others are
        looked at when they come. Without `attention` the nets in front of layers of attention stay exact, silently, and
        without `inner` those of sums that other descriptors begin with.
        """
        tolerance = TOLERANCE[self.dtype] if tolerance is None else tolerance
        spin = self.model.spin
        nearest = DEFAULT_R_MIN if spin is None else min(DEFAULT_R_MIN, 0.5 * spin.nearest)
        r_min = nearest if r_min is None else r_min
        require_numbers(r_min=r_min, tolerance=tolerance)
        self.spline_tolerance = tolerance
        self.spline_types = None if types is None else tuple(types)
        self.grids, no_sums, is_unexpected = new_grids(self.model, r_min, tolerance, types)
        found = {"angles": use_angle_splines(self.model, r_min, tolerance, types)}
        self.attention_grids, self.inner_grids = (), ()
        if attention:
            self.attention_grids, found["attention"] = grids_of(attentions_of(self.model), r_min, tolerance)
        if inner:
            finer = before_layers(tolerance, self.dtype)
            self.inner_grids, found["inner"] = grids_of(inner_sums_of(self.model), r_min, finer, types)
        self._reasons = {"sums": no_sums, **found}
        for problem in (no_sums if is_unexpected else None, *found.values()):
            if problem is not None:
                warnings.warn(f"{problem}: they are evaluated exactly, not as splines", stacklevel=2)

    @property
    def why_no_spline(self) -> str | None:
        """Why there is no grid; None if a part of the model has one."""
        return None if self.grids else self._reasons.get("sums") or _EXACT

    @property
    def angle_knots(self) -> tuple[AngleKnots | None, ...]:
        """The knots of each descriptor of angles between neighbours (`AngleDescriptor.knots`); they can be set."""
        return tuple(d.knots for d in angle_descriptors(self.model))

    @angle_knots.setter
    def angle_knots(self, knots: Sequence[AngleKnots | None]) -> None:
        for d, own in zip(angle_descriptors(self.model), knots, strict=True):
            d.knots = own

    @property
    def why_no_angle_spline(self) -> str | None:
        """Why a descriptor of angles has no knots; None if all have some."""
        return None if None not in self.angle_knots else self._reasons.get("angles") or _EXACT

    @property
    def why_no_attention_spline(self) -> str | None:
        """Why a descriptor with attention has no grid; None if all have one."""
        missing = not self.attention_grids or None in self.attention_grids
        return self._reasons.get("attention") or _EXACT if missing else None

    @property
    def why_no_inner_spline(self) -> str | None:
        """Why no sum inside another descriptor has a grid; None if one has."""
        return None if any(self.inner_grids) else self._reasons.get("inner") or _EXACT

    @property
    def knots(self) -> list[SplineGrid | AngleKnots]:
        """The knots of all splines."""
        every = (self.grid, *self.attention_grids, *self.inner_grids, *self.angle_knots)
        return [k for k in every if k is not None]

    @property
    def r_min(self) -> float | None:
        """The smallest distance of the splines, A; None without splines."""
        return max((knots.r_min for knots in self.knots), default=None)

    def spline_error(self) -> float:
        """The error of the splines with the current weights; 0 without splines."""
        own, inner = self._errors()
        return max(own + inner, default=0.0)

    def _errors(self) -> tuple[list[float], list[float]]:
        """The errors of all splines, and separately those of descriptors inside others."""
        model, types = self.model, self.spline_types
        own, inner = list[float](), list[float]()
        for d in angle_descriptors(model):
            if d.knots is not None:
                errors = own if d in model.descriptors else inner
                errors.append(knots_error(d, d.knots, sampled_types(model, types)))
        for sums, grids, errors, of in (  # there may be no grids
            (sums_of(model), self.grids, own, types),
            (attentions_of(model), self.attention_grids, own, None),
            (inner_sums_of(model), self.inner_grids, inner, types),
        ):
            pairs = zip(sums, grids, strict=False)
            errors += [grid_error(one, grid, of) for one, grid in pairs if grid is not None]
        return own, inner

    def keep_spline(self, tolerance: float, room: float = 1.0) -> bool:
        """Choose new knots, with an error of at most `room` times the tolerance, if the error of the present ones
        exceeds it with the current weights; returns whether it did."""
        if self.r_min is None:
            return False
        own, inner = self._errors()  # NaN if the weights are; no knots help then
        bounds = tolerance, before_layers(tolerance, self.dtype)
        if not any(max(of, default=0.0) > most for of, most in zip((own, inner), bounds, strict=True)):
            return False
        self.use_spline(
            self.r_min,
            room * tolerance,
            self.spline_types,
            attention=bool(self.attention_grids),
            inner=bool(self.inner_grids),
        )
        return True

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As PyTorch's. Splines get new knots if theirs do not suit the new weights."""
        problems = super().load_state_dict(*args, **kwargs)
        if self.knots:
            self.keep_spline(max(TOLERANCE[self.dtype], *(knots.error for knots in self.knots)))
        return problems

    def grids_for(self, types: Sequence[int] | None) -> tuple[SplineGrid | None, ...]:
        """`grids`, or finer ones if these types, all with None, need them. In training `grids` are kept up to date, for
        the types of the data."""
        pairs = zip(sums_of(self.model), self.grids, strict=True)
        return tuple(grid and self.grid_for(one, grid, types) for one, grid in pairs)

    def grid_for(self, one: Sum, grid: SplineGrid, types: Sequence[int] | None) -> SplineGrid:
        """The same for one sum."""
        kinds = range(len(self.model.type_map)) if types is None else types
        known = self.spline_types
        if known is None and one.names is None:
            known = tuple(grid_types(one.descriptor))
        if self.training or (known is not None and set(kinds) <= set(known)):
            return grid
        return finer_grid(one, grid, max(TOLERANCE[self.dtype], grid.error), tuple(kinds))
