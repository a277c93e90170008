"""Descriptors of pairs of neighbours, with their embedding nets as splines of the angle."""

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers
from mdops.evaluators.context import EvaluationContext
from mdops.models.angles import AngleDescriptor
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.ops import NeighborList


class AngleMoments(Autograd):
    """The descriptors themselves take the way by splines where they have knots, in models of several parts, too
    (`mdops.models.angles`); this is its name where there is nothing else."""

    name = "angle moments"
    summary = "sums over pairs of neighbours by splines of the angle, then PyTorch"
    cost = "the embedding nets run on every pair of neighbours instead, which takes ten to twenty-five times as long"

    @classmethod
    def knows(cls, potential: EvaluationContext) -> bool:
        descriptors = potential.model.descriptors
        return bool(descriptors) and all(isinstance(d, AngleDescriptor) for d in descriptors)

    @classmethod
    def kernels(cls, potential: EvaluationContext) -> str | None:
        return None  # the summary says it

    @classmethod
    def why_not(cls, potential: EvaluationContext) -> str | None:
        if not cls.knows(potential):
            return f"it is for models of se_e3 or se_e3_tebd alone, and this is {potential.kind}"
        return potential.why_no_angle_spline

    def atomic_answers(
        self,
        near: Neighborhood,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        trains: bool,
    ) -> tuple[Answers, NeighborReport]:
        model = self.potential.model
        if isinstance(model, DescriptorFitting) and isinstance(model.descriptor, AngleDescriptor):
            d, own = model.descriptor, near.without(model.absent_pairs)
            features, report = d.with_report(own)
            if report is not None:
                if check and self.potential.check_neighbors(report, near.system, neighbors, self.r_min):
                    own = self.potential.truncated(own).select(d.sel, mixed=d.mixed)
                    features = d(own)
                return model.finish(model.fitted(features, own, fparam, aparam), near.types), report
        return super().atomic_answers(near, neighbors, fparam, aparam, check, trains)
