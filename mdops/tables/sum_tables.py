"""One sum over neighbours with its embedding nets as splines: tables and other arguments of ops of whole steps."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.standard import DescriptorFitting
from mdops.ops import NeighborList
from mdops.system import System
from mdops.tables.grids import pair_masks
from mdops.tables.spline import SplineGrid, all_types, coefficients

_TABLE_PAD = 16


class SumTables:
    """A descriptor of sums with a grid, for some of its types, as evaluators with splines use it.

    Descriptors whose neighbours of all types share slots often know many more types than a system has. Atoms are
    renamed to the n types that are present, so the others cost nothing here.

    Attributes:
        descriptor, grid.
        smoothing: weight of the nets' bending in addition to the training loss.
        kinds: the descriptor's types that count here, n of them; has_all: whether these are all.
        mean (n,), std (n, 2): the descriptor's.
        sel: (n,) int32, or (1,) if types share slots.
        mask: (n, n) bool, pairs of types that do not see each other, by the descriptor's `exclude_types` or the model's
            `pair_exclude_types`.
        zeroed: only those of `exclude_types`: such neighbours take slots.
        has_mean: whether any mean is not zero; excludes: whether any pair is in `zeroed`.
        whole: the spec of the descriptor that it is a part of, or its own.
        may_differ: whether neighbours beyond its cutoff matter, as in hybrids: if absent ones are not all alike.
    """

    def __init__(
        self,
        model: DescriptorFitting,
        descriptor: MomentDescriptor,
        grid: SplineGrid,
        types: Sequence[int] | None = None,
        smoothing: float = 0.0,
        absent: torch.Tensor | None = None,
    ) -> None:
        """Takes the descriptor's model, the types, all by default, and further absent pairs."""
        d = self.descriptor = descriptor
        self.grid, self.smoothing = grid, smoothing
        self.has_all = types is None or list(types) == list(range(d.ntypes))
        self.kinds = all_types(d) if types is None else TypeChoice.of(types, d.mean.device)
        index = self.kinds.index
        self.mean, self.std = (d.mean, d.std) if self.has_all else (d.mean[index], d.std[index])
        self.sel = torch.tensor([d.slots] if d.mixed else d.sel, dtype=torch.int32, device=d.mean.device)
        self.mask, self.zeroed = (self._of_pairs(x) for x in pair_masks(model, d, absent))
        self.has_mean, self.excludes = bool((self.mean != 0).any()), bool(self.zeroed.any())
        alike = (
            not self.has_mean
            if d.mixed and not d.gated
            else not (self.excludes and (self.has_mean or d.plain))
        )
        self.whole = model.descriptor.spec if d in model.descriptor.parts else d.spec
        self.may_differ = not alike and d.cutoff < self.whole.cutoff
        self._names = self.kinds.places(d.ntypes)

    @property
    def ntypes(self) -> int:
        """n."""
        return len(self.kinds.numbers)

    @property
    def knots(self) -> int:
        """The number of points where nets are evaluated for a table."""
        return self.ntypes**2 * (self.grid.intervals + 5)

    @property
    def features(self) -> int:
        """The width of T^T T_<."""
        return self.descriptor.channels * max(self.descriptor.axis_neuron, 1)

    @property
    def scalars(self) -> tuple[Any, ...]:
        """Cutoff, begin of the switch, protection, s_max, grading, M and M2, as ops of whole steps take them."""
        d = self.descriptor
        grid = self.grid.s_max, self.grid.grading
        return d.cutoff, d.cutoff_smooth, d.protection, *grid, d.channels, d.axis_neuron

    def listed(self, system: System, neighbors: NeighborList) -> tuple[torch.Tensor, ...]:
        """The ops' arguments positions to counts."""
        near = neighbors.neighbors, neighbors.images, self.counts(neighbors.counts)
        return system.positions, system.cell, system.batch, self.types(system), *near

    @property
    def norms(self) -> tuple[torch.Tensor, ...]:
        """The ops' arguments mean to sel."""
        return self.mean, self.std, self.mask, self.zeroed, self.sel

    def _of_pairs(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix if self.has_all else matrix[self.kinds.index][:, self.kinds.index]

    # -- The atoms, with the types that count here

    def types(self, system: System) -> torch.Tensor:
        """(N,) int32."""
        return system.types if self.has_all else self._names[system.types.long()]

    def counts(self, counts: torch.Tensor) -> torch.Tensor:
        """(N, n) int32, of `NeighborList.counts`."""
        return counts if self.has_all else counts.index_select(1, self.kinds.index)

    def padding(self, system: System) -> torch.Tensor:
        """The argument `padding` of the ops."""
        if not self.descriptor.mixed:
            return self.sel[:0]
        if not self.has_mean:  # then padding does not matter
            return system.types.new_zeros(system.atoms)
        first = system.first_of_systems().long().clamp(min=0)
        return (first.int() if self.has_all else self._names[first].clamp(min=0))[system.batch.long()]

    def occupied_slots(self, within: torch.Tensor) -> torch.Tensor:
        """`NeighborReport.within`, from the neighbours (N, n) of each type."""
        return within.sum(1, keepdim=True, dtype=torch.int32) if self.descriptor.mixed else within

    # -- Tables

    def table(self) -> torch.Tensor:
        """The splines' coefficients C (n, F, B, M) of each centre's functions, differentiable in the weights."""
        return coefficients(self.descriptor, self.grid, None, self.smoothing, self.kinds)

    def fixed_table(self) -> torch.Tensor:
        """The same without a graph, computed in float64."""
        with torch.no_grad():
            double = copy.deepcopy(self.descriptor).double()
            return coefficients(double, self.grid, types=self.kinds).to(self.mean.dtype)

    def product_table(self, table: torch.Tensor) -> torch.Tensor:
        """(n, F * B, M): C / N_sel for T = A^T C, from these coefficients and differentiable in them."""
        return (table / self.descriptor.slots).flatten(1, 2)

    def op_table(self, table: torch.Tensor) -> torch.Tensor:
        """The same as the argument `tables` of ops of whole steps."""
        return torch.nn.functional.pad(self.product_table(table), (0, -self.descriptor.channels % _TABLE_PAD))
