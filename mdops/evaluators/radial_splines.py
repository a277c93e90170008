"""DPA-4 with splines in the place of its radial nets."""

import warnings
from typing import Any

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Found, Step
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.kept import OfTypes, Types
from mdops.models.dpa4.descriptor import DPA4
from mdops.models.dpa4.radial import RadialSplines
from mdops.models.standard import DescriptorFitting
from mdops.models.ways import Way, numbers_by
from mdops.tables.radial_tables import radial_splines
from mdops.tables.spline import DEFAULT_R_MIN
from mdops.tracing import is_exported

_MOST_NUMBERS = 2**27  # of tables


class RadialSplineSteps(Autograd):
    name = "radial splines"
    summary = "splines of the lengths of edges for each pair of types, then PyTorch"
    cost = "the radial nets run on every edge instead"
    chooses_knots = packs_weights = True

    def __init__(self, potential: EvaluationContext) -> None:
        super().__init__(potential)
        self.r_min = DEFAULT_R_MIN
        self._splines = OfTypes(self._made, _numbers)

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        model = potential.model
        return isinstance(model, DescriptorFitting) and isinstance(model.descriptor, DPA4)

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of dpa4 alone, and this is {potential.kind}"
        if potential.spline_tolerance is None:
            return "the radial nets are evaluated exactly (spline=False)"
        model: Any = potential.model
        reason: str | None = model.descriptor.why_no_splines
        return reason

    def _made(self, types: Types) -> RadialSplines | None:
        """For systems of these types; None where the nets have to run."""
        model: Any = self.potential.model
        kinds = tuple(range(len(model.type_map))) if types is None else types
        tolerance = self.potential.spline_tolerance
        assert tolerance is not None
        found = radial_splines(model.descriptor, kinds, tolerance, _MOST_NUMBERS)
        if found is None:
            warnings.warn(
                f"there are no splines for {len(kinds)} types within {tolerance:.1e}: the radial nets run on every "
                "edge instead",
                stacklevel=2,
            )
        return found

    def answer(self, step: Step) -> Found:
        if not self.is_simple(step) or is_exported():
            return super().answer(step)
        model: Any = self.potential.model
        splines = self._splines(self.potential.present(step.system))
        with numbers_by({} if splines is None else {model.descriptor: Way(lambda _: splines, True)}):
            return super().answer(step)


def _numbers(splines: RadialSplines | None) -> int:
    return 0 if splines is None else sum(table.numel() for table in splines.tables.values())
