"""se_e2_a with its embedding nets as splines: the sum over neighbours comes first, and autograd does the rest."""

import copy
import dataclasses
from typing import TYPE_CHECKING

import torch

from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Answers
from mdops.evaluators.spline import SplineGrid, choose_grid, coefficients, spline_error
from mdops.models.contract import AtomicModel
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.se_e2_a import SeE2A
from mdops.models.standard import DescriptorFitting
from mdops.nn.activation import is_smooth
from mdops.ops import NeighborList
from mdops.ops.spline_moment import spline_moment

if TYPE_CHECKING:
    from mdops.potential import Potential


class SplineModel:
    """A standard model of se_e2_a with a grid: what the evaluators on splines share.

    Attributes:
        model, descriptor, fitting, grid.
        smoothing: weight of the nets' bending beside the loss of a training.
        sel: (ntypes,) int32.
        mask: (ntypes, ntypes) bool, pairs of types that do not see each other, by the descriptor's `exclude_types` or
            the model's `pair_exclude_types`; has_masked: whether there are any.
        zeroed: the former alone: such neighbours take places.
    """

    def __init__(self, potential: "Potential") -> None:
        model = potential.model
        assert isinstance(model, DescriptorFitting) and isinstance(model.descriptor, SeE2A)
        assert potential.grid is not None
        self.model, self.descriptor, self.fitting = model, model.descriptor, model.fitting
        self.grid: SplineGrid = potential.grid
        self.smoothing = potential.smoothing
        self.sel = torch.tensor(self.descriptor.sel, dtype=torch.int32, device=potential.device)
        self.mask, self.zeroed = pair_masks(model)
        self.has_masked = bool(self.mask.any())

    @staticmethod
    def why_not(potential: "Potential") -> str | None:
        """Why there is none for a potential."""
        if not SplineModel.knows(potential):
            return f"only models of se_e2_a have splines, and this is {potential.kind}"
        return potential.why_no_spline

    @staticmethod
    def knows(potential: "Potential") -> bool:
        model = potential.model
        return isinstance(model, DescriptorFitting) and isinstance(model.descriptor, SeE2A)

    def moments(self, near: Neighborhood) -> tuple[torch.Tensor, NeighborReport]:
        """A (N, ntypes * B, 4), and what the op says of the neighbours (`mdops.ops.spline_moment`)."""
        d = self.descriptor
        moments, within, nearest = spline_moment(
            near.displacements,
            near.counts,
            near.types,
            d.mean,
            d.std,
            self.sel,
            cutoff=d.cutoff,
            cutoff_smooth=d.cutoff_smooth,
            protection=d.protection,
            s_max=self.grid.s_max,
            intervals=self.grid.intervals,
            pair_mask=self.mask,
        )
        return moments.flatten(1, 2), NeighborReport((within,), nearest)

    def gradient(self, gradient: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """dE/dd (N, K, 3) from dE/dA (N, ntypes * B, 4)."""
        d = self.descriptor
        return torch.ops.mdops.spline_moment_backward(
            gradient.unflatten(1, (d.ntypes, -1)),
            near.displacements,
            near.counts,
            near.types,
            d.mean,
            d.std,
            self.mask,
            d.cutoff,
            d.cutoff_smooth,
            d.protection,
            self.grid.s_max,
            False,
        )

    def table(self) -> torch.Tensor:
        """The splines' coefficients C (ntypes, ntypes, B, M) of [centre, neighbour], differentiable in the weights."""
        mask = self.mask if self.has_masked else None
        return coefficients(self.descriptor, self.grid, mask, self.smoothing)

    def t(
        self, moments: torch.Tensor, within: torch.Tensor, table: torch.Tensor, types: torch.Tensor
    ) -> torch.Tensor:
        """T = A^T C / N_sel, (N, 4, M), from A."""
        d = self.descriptor
        t = moments.new_zeros(moments.shape[0], 4, d.channels)
        for c in range(d.ntypes):
            index = torch.nonzero(types == c)[:, 0]
            t = t.index_copy(0, index, moments[index].transpose(1, 2) @ table[c].flatten(0, 1))
        t = t / d.slots
        if self.has_masked:
            # The op pads with what the splines have at s = 0, which is zero for masked pairs: these come here.
            centers = types.long().clamp(min=0)
            absent = self.sel - within * ~(self.mask & ~self.zeroed)[centers]
            t = t + d.padding(absent * self.mask[centers], types)
        return t


def pair_masks(model: DescriptorFitting) -> tuple[torch.Tensor, torch.Tensor]:
    """`mask` and `zeroed` of a `SplineModel`."""
    excluded: torch.Tensor = model.descriptor.excluded  # type: ignore[assignment]
    absent = torch.zeros_like(excluded) if model.absent_pairs is None else model.absent_pairs
    return excluded | absent, excluded & ~absent


class Splined(Autograd):
    name = "splines"
    summary = "spline moments, then PyTorch"
    cost = "the embedding nets run on every pair instead, which takes about three times as long"

    def __init__(self, potential: "Potential") -> None:
        super().__init__(potential)
        self.splines = SplineModel(potential)
        self.r_min = self.splines.grid.r_min

    @classmethod
    def knows(cls, potential: "Potential") -> bool:
        return SplineModel.knows(potential)

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
        return SplineModel.why_not(potential)

    def respond(
        self,
        near: Neighborhood,
        neighbors: NeighborList,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        check: bool,
        trains: bool,
    ) -> tuple[Answers, NeighborReport]:
        s = self.splines
        table = s.table() if trains else self.potential.kept("table", self.fixed_table)
        moments, report = s.moments(near)
        if check and self.potential.check_neighbors(report, near.system, neighbors, self.r_min):
            near = dataclasses.replace(near, truncates=True).select(s.descriptor.sel, mixed=False)
            moments, (within, _) = s.moments(near)
        else:
            within = report.within
        features = s.descriptor.contract(s.t(moments, within[0], table, near.types))
        return s.model.finish(s.fitting(features.values, near, fparam, aparam), near.types), report

    def fixed_table(self) -> torch.Tensor:
        """The coefficients without a graph, formed in float64."""
        s = self.splines
        with torch.no_grad():
            double = copy.deepcopy(s.descriptor).double()
            table = coefficients(double, s.grid, s.mask if s.has_masked else None)
            return table.to(self.potential.dtype)


def new_grid(
    model: AtomicModel, r_min: float, tolerance: float
) -> tuple[SplineGrid | None, str | None, bool]:
    """A grid for a model that keeps the tolerance down to r_min (A), or why there is none, and whether that needs to be
    told: a net that was expected to have one."""
    if not isinstance(model, DescriptorFitting) or not isinstance(model.descriptor, SeE2A):
        return None, "only models of se_e2_a have splines", False
    if not _is_smooth(model.descriptor):
        return None, "the embedding nets have kinks", True
    grid = choose_grid(_double(model.descriptor), r_min, tolerance, _mask(model))
    if grid.error <= tolerance:
        return grid, None, False
    problem = f"splines of the embedding nets reach an error of {grid.error:.1e}, not {tolerance:.1e}"
    return None, problem, True


def grid_error(model: AtomicModel, grid: SplineGrid) -> float:
    """The error of a grid for the weights of now (`spline_error`)."""
    assert isinstance(model, DescriptorFitting) and isinstance(model.descriptor, SeE2A)
    with torch.no_grad():
        return spline_error(_double(model.descriptor), grid.s_max, grid.intervals, _mask(model))


def _double(descriptor: SeE2A) -> SeE2A:
    return copy.deepcopy(descriptor).double()


def _mask(model: DescriptorFitting) -> torch.Tensor | None:
    mask, _ = pair_masks(model)
    return mask if bool(mask.any()) else None


def _is_smooth(descriptor: SeE2A) -> bool:
    """Whether no embedding net has kinks."""
    return all(is_smooth(layer.activation_name) for net in descriptor.embeddings.nets for layer in net.layers)
