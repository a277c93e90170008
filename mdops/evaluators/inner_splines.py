"""Descriptors that begin with sums over neighbours, with the embedding nets of these sums as splines."""

from collections.abc import Callable

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.of_types import OfTypes, Types
from mdops.evaluators.splined import SplineSum
from mdops.models.moments import moments_by
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.ops import NeighborList
from mdops.tables.grids import Sum, inner_sums_of


class InnerSplines(Autograd):
    """The sums are spline moments; all that comes after them is the model's own."""

    name = "splines before layers"
    summary = "spline moments for the sums that layers begin with, then PyTorch"
    cost = "the embedding nets run on every pair instead"

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.r_min = potential.r_min or 0.0
        self._of: OfTypes[list[SplineSum]] = OfTypes(self._of_types)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        return bool(inner_sums_of(potential.model))

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return (
                f"it is for models whose layers begin with sums over neighbours, and this is {potential.kind}"
            )
        return potential.why_no_inner_spline

    def _of_types(self, types: Types) -> list[SplineSum]:
        potential, found = self.potential, []
        for one, grid in zip(inner_sums_of(potential.model), potential.inner_grids, strict=True):
            if grid is not None:
                own = potential.grid_for(one, grid, types)
                found.append(
                    SplineSum(one.model, one.descriptor, own, _names(one, types), potential.smoothing)
                )
        return found

    def atomic_answers(
        self,
        near: Neighborhood,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        trains: bool,
    ) -> tuple[Answers, NeighborReport]:
        types = self.potential.present(near.system)
        sums = self._of(types)
        if trains:
            tables = [part.table() for part in sums]
        else:
            tables = self.potential.cached_for_weights(
                "inner table", lambda: [part.fixed_table() for part in sums], types
            )
        ways = {part.descriptor: _moments(part, table) for part, table in zip(sums, tables, strict=True)}
        with moments_by(ways):
            return super().atomic_answers(near, neighbors, fparam, aparam, check, trains)


def _names(one: Sum, types: Types) -> Types:
    """These types of the whole, as the sum has them."""
    return types if types is None or one.names is None else tuple(one.names[t] for t in types)


def _moments(part: SplineSum, table: torch.Tensor) -> Callable[[Neighborhood], torch.Tensor]:
    return lambda near: part.t(part.moments(near)[0], table, near.system)
