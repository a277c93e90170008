"""The base of descriptors that sum over pairs of neighbours, and their sums by splines of the angle."""

import copy
import dataclasses
from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F

from mdops.models.contract import EnvironmentDescriptor, Features
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.nn import angle_splines
from mdops.nn.watch import NamedOfWeights
from mdops.ops import AngleGrid, angle_features, angle_moment
from mdops.ops.angle_moment import POWERS, ROW
from mdops.tracing import is_exported, is_recorded

_FEW = 8  # up to so many types, all have tables
_MOST_NUMBERS = 2**27  # in moments or tables; beyond this, the nets run
_KEPT = 16  # sets of types with kept tables


@dataclasses.dataclass(frozen=True)
class AngleKnots:
    """The splines in place of a descriptor's nets.

    Attributes:
        exponent, octaves, fineness: of the `AngleGrid`.
        r_min: the smallest distance that they cover, A; angles of nearer neighbours may be on the tangents.
        error: the largest relative error in the force of a pair of neighbours (`mdops.tables.angle_knots`).
    """

    exponent: int
    octaves: int
    fineness: int
    r_min: float
    error: float

    @property
    def grid(self) -> AngleGrid:
        return AngleGrid(self.exponent, self.octaves, self.fineness)

    @property
    def intervals(self) -> int:
        """On either side of zero."""
        return self.octaves << self.fineness


class AngleDescriptor(EnvironmentDescriptor):
    """Base of descriptors of sums over pairs of neighbours, of functions of one angle each:

        D = sum_{t <= u} sum_{j in t, l in u} theta_jl G_tu(theta_jl),     theta_jl = R_j . R_l

    of x, y and z of the normalised rows; or, with a gate, of G_tu + w_j w_l H_tu, with the switch w. Features of the
    centre's type may follow.

    Attributes:
        knots: with them the sums go by `mdops.ops.angle_moment` and functions that are splines; None: the nets run on
            every pair.
    """

    knots: AngleKnots | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tables: NamedOfWeights[Any] = NamedOfWeights(most=_KEPT)

    @property
    @abstractmethod
    def channels(self) -> int:
        """M, the width of the embedding."""

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return False

    is_local = True
    ends_at_cutoff = True

    @property
    def captures(self) -> bool:
        """Only with knots; models of many types must read which types are present."""
        return self.knots is not None and self.ntypes <= _FEW and self.std.is_cuda

    @property
    @abstractmethod
    def activations(self) -> list[str]:
        """Of the nets of theta."""

    @abstractmethod
    def functions(self, theta: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """(F, pairs, P, M): G at theta (P,) of all t <= u among these types, (n,) int64, at u (u + 1) / 2 + t, and with
        a gate H after it. Differentiable in the weights."""

    @abstractmethod
    def exact(self, near: Neighborhood) -> torch.Tensor:
        """D (N, M), without the type's features, by the nets on every pair."""

    def constants(self) -> torch.Tensor | None:
        """(ntypes, E), the features beside D, or None."""
        return None

    @property
    def width(self) -> int:
        constants = self.constants()
        return self.channels + (0 if constants is None else constants.shape[1])

    def forward(self, near: Neighborhood) -> Features:
        d = None if self.knots is None else self._summed(near, self.knots)
        d = self.exact(near) if d is None else d
        # Without gradients, nets of types give the same at every step.
        is_kept = near.first_derivative_only and self.mixed
        constants = self._tables(self, "types", self.constants, self.std) if is_kept else self.constants()
        if constants is not None:
            d = torch.cat([d, F.embedding(near.centers, constants)], dim=1)
        return Features(d)

    def _summed(self, near: Neighborhood, knots: AngleKnots) -> torch.Tensor | None:
        """D (N, M) by splines; None where tables or moments would be too large."""
        kinds = self._kinds(near)
        counts, types, std, mask = near.counts, near.types, self.std, self.excluded
        if near.absent_pairs is not None:
            mask = mask | near.absent_pairs
        if kinds is not None:
            counts, std, mask = counts[:, kinds].contiguous(), std[kinds], mask[kinds][:, kinds]
            names = torch.full((self.ntypes + 1,), -1, dtype=torch.int32, device=std.device)
            names[kinds] = torch.arange(len(kinds), dtype=torch.int32, device=std.device)
            types = names[types.long()]
        n, grid = counts.shape[1], knots.grid
        atoms = 1 if is_exported() else len(types)  # a program is for any number
        width = self.channels * ROW if near.first_derivative_only else atoms * POWERS
        numbers = n * (n + 1) // 2 * grid.pieces * width
        # The nets themselves ask for values.
        if numbers > _MOST_NUMBERS and not is_recorded(near.displacements):
            return None
        lists = (near.displacements, counts, types, std)
        options: dict[str, Any] = {
            "cutoff": self.cutoff,
            "cutoff_smooth": self.cutoff_smooth,
            "protection": self.protection,
            "pair_mask": mask,
        }
        if near.first_derivative_only:
            tables = self._fixed(grid, kinds)
            gates = tables[1] if self.gated else None
            d, within, nearest = angle_features(*lists, tables[0], grid, gates=gates, **options)
            near.reports[self] = self._report(within, nearest, kinds)
            return d
        parts = []
        for gated, table in enumerate(self.coefficients(grid, kinds)):
            moments, within, nearest = angle_moment(*lists, grid, gated=bool(gated), **options)
            parts.append(moments.flatten(1) @ table.flatten(0, 2))
        near.reports[self] = self._report(within, nearest, kinds)
        return sum(parts[1:], parts[0])

    def _report(
        self, within: torch.Tensor, nearest: torch.Tensor, kinds: torch.Tensor | None
    ) -> NeighborReport:
        """Of neighbours of these types, (N, n)."""
        if self.mixed:
            within = within.sum(1, keepdim=True, dtype=torch.int32)
        elif kinds is not None:
            within = within.new_zeros(len(within), self.ntypes).index_copy(1, kinds, within)
        return NeighborReport((within,), nearest)

    def _kinds(self, near: Neighborhood) -> torch.Tensor | None:
        """The types present, (n,) int64, ascending, if the model knows many more; None: all."""
        if self.ntypes <= _FEW:
            return None
        there = near.counts.any(0)
        there[near.centers] = True
        found = torch.nonzero(there)[:, 0]
        return None if len(found) == self.ntypes else found

    def _fixed(self, grid: AngleGrid, kinds: torch.Tensor | None) -> torch.Tensor:
        """The argument `tables` of `angle_features`, (F, pairs, pieces, M, 8), formed in float64; kept until
        the weights change."""

        def made() -> torch.Tensor:
            table = copy.deepcopy(self).double().coefficients(grid, kinds)
            padded = F.pad(table.transpose(-1, -2), (0, ROW - POWERS))
            return padded.to(self.std.dtype).contiguous()

        name = grid, None if kinds is None else tuple(kinds.tolist())
        found: torch.Tensor = self._tables(self, name, made, self.std)
        return found

    def coefficients(self, grid: AngleGrid, types: torch.Tensor | None = None) -> torch.Tensor:
        """(F, pairs, pieces, 6, M), of these types or all; differentiable in the weights."""
        kinds = torch.arange(self.ntypes, device=self.std.device) if types is None else types
        return angle_splines.polynomials(self.functions(angle_splines.points(grid, self.std), kinds), grid)
