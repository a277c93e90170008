"""One sum over neighbours with its embedding nets as splines: the sum comes first, then a product with a table."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.standard import DescriptorFitting
from mdops.nn.net import is_input_gradient_alone
from mdops.ops import NeighborList
from mdops.ops.moment_product import moment_product
from mdops.ops.spline_moment import spline_moment
from mdops.system import System
from mdops.tables.grids import pair_masks
from mdops.tables.spline import SplineGrid, all_types, basis_matrix, coefficients

# As minus the mean, and as the deviation of s it makes R_0 = (s - mean)/std = 1, exactly, with a slope of 1e-30: what
# `spline_moment` sums then is a plain sum. A power of two, with room in float32.
_ONE = 2.0**100
_TABLE_PAD = 16


class SplineSum:
    """A descriptor of sums with a grid, for some of its types: what evaluators on splines share.

    Descriptors whose neighbours of all types share places often know many more types than a system has. Atoms are
    renamed to the n types that are there, and nothing here costs more for the others.

    Attributes:
        descriptor, grid.
        smoothing: weight of the nets' bending beside the loss of a training.
        kinds: the descriptor's types that count here, n of them; has_all: whether these are all.
        mean (n,), std (n, 2): the descriptor's.
        sel: (n,) int32, or (1,) where types share places.
        mask: (n, n) bool, pairs of types that do not see each other, by the descriptor's `exclude_types` or the model's
            `pair_exclude_types`.
        zeroed: the former alone: such neighbours take places.
        has_mean: whether any mean is not zero; excludes: whether any pair is in `zeroed`.
        may_differ: whether neighbours beyond its cutoff matter, as in hybrids: where absent ones are not all alike.
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
        """Takes the model that the descriptor is of, the types, all by default, and pairs that are absent, too."""
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
        self._whole = model.descriptor.spec if d in model.descriptor.parts else d.spec
        self.may_differ = not alike and d.cutoff < self._whole.cutoff
        self._names = self.kinds.places(d.ntypes)

    @property
    def ntypes(self) -> int:
        """n."""
        return len(self.kinds.numbers)

    @property
    def knots(self) -> int:
        """At how many places nets are asked for a table."""
        return self.ntypes**2 * (self.grid.intervals + 5)

    @property
    def features(self) -> int:
        """How many numbers T^T T_< has."""
        return self.descriptor.channels * max(self.descriptor.axis_neuron, 1)

    @property
    def scalars(self) -> tuple[Any, ...]:
        """Cutoff, where the switch begins, protection, s_max, grading, M and M2, as ops of whole steps take them."""
        d = self.descriptor
        grid = self.grid.s_max, self.grid.grading
        return d.cutoff, d.cutoff_smooth, d.protection, *grid, d.channels, d.axis_neuron

    def listed(self, system: System, neighbors: NeighborList) -> tuple[torch.Tensor, ...]:
        """Their arguments positions to counts."""
        near = neighbors.neighbors, neighbors.images, self.counts(neighbors.counts)
        return system.positions, system.cell, system.batch, self.types(system), *near

    @property
    def norms(self) -> tuple[torch.Tensor, ...]:
        """Their arguments mean to sel."""
        return self.mean, self.std, self.mask, self.zeroed, self.sel

    def op_table(self, table: torch.Tensor) -> torch.Tensor:
        """Their argument tables, from the coefficients, in whose weights it is differentiable."""
        d = self.descriptor
        return torch.nn.functional.pad(table / d.slots, (0, -d.channels % _TABLE_PAD)).flatten(1, 2)

    def covers(self, types: tuple[int, ...] | None) -> bool:
        """Whether all of these types, of the model with None, count here."""
        return self.has_all or (types is not None and set(types) <= set(self.kinds.numbers))

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
        if not self.has_mean:  # then it does not matter
            return system.types.new_zeros(system.atoms)
        first = system.first_of_systems().long().clamp(min=0)
        return (first.int() if self.has_all else self._names[first].clamp(min=0))[system.batch.long()]

    def occupied_slots(self, within: torch.Tensor) -> torch.Tensor:
        """What `NeighborReport.within` is, from the neighbours (N, n) of each type."""
        return within.sum(1, keepdim=True, dtype=torch.int32) if self.descriptor.mixed else within

    # -- Moments

    def absent(self, near: Neighborhood) -> torch.Tensor | None:
        """(N, n) int32: how many neighbours of each type count as absent ones. None where that follows from the
        neighbours within its own cutoff."""
        d = self.descriptor
        if not self.may_differ:
            return None
        # Those beyond its own cutoff take places, as neighbours of their own type whose R is that of absent ones.
        shared = near.restrict_to_part(d.spec, mixed=self._whole.mixed)
        kinds, ntypes = shared.neighbor_types, shared.ntypes
        within = ~(shared.squared >= d.cutoff**2)
        beyond = shared.count(torch.where(within | d.excludes(shared), ntypes, kinds))
        if d.mixed:
            empty = (d.slots - (kinds < ntypes).sum(1)).clamp(min=0).int()
            found = beyond.scatter_add(1, near.padding_types[:, None], empty[:, None])
        else:
            found = torch.tensor(d.sel, device=kinds.device) - shared.count(kinds) + beyond
        return self.counts(found.int())

    def moments(self, near: Neighborhood) -> torch.Tensor:
        """A (N, F * B, 4), of a plain sum (N, n * B, 1) (`mdops.ops.spline_moment`), of all neighbours that the model's
        descriptor has."""
        d, types, absent = self.descriptor, self.types(near.system), self.absent(near)
        arguments = (near.displacements, self.counts(near.counts), types, *self._norm, self.sel)
        options: dict[str, Any] = {
            "cutoff": d.cutoff,
            "cutoff_smooth": d.cutoff_smooth,
            "protection": d.protection,
            "s_max": self.grid.s_max,
            "grading": self.grid.grading,
            "intervals": self.grid.intervals,
            "pair_mask": self.mask,
            "zeroed": self.zeroed,
            "padding": self.padding(near.system) if d.mixed else None,
        }
        moments, within, nearest = spline_moment(*arguments, **options, radial=d.plain)
        excludes = d.plain and self.excludes
        kinds = types.long().clamp(min=0) if excludes or absent is not None else types
        if absent is not None:
            more = (absent - self._absent(within, kinds, near)) * self._shift[kinds, None]
            moments = moments + (more[..., None] * self._at_zero[kinds, None])[..., None] * (
                torch.arange(moments.shape[-1], device=moments.device) == 0
            )
        if excludes:
            counts = within if absent is None else self.sel - absent
            zeros = (counts * self.zeroed[kinds]).to(moments.dtype)
            moments = moments + (zeros[..., None] * self._at_mean[kinds, None])[..., None]
        if d.gated:
            gates, _, _ = spline_moment(*arguments, **options, gated=True)
            moments = torch.cat([moments.sum(1, keepdim=True), gates], 1)
        near.reports[d] = NeighborReport((self.occupied_slots(within),), nearest)
        return moments.flatten(1, 2)

    @property
    def _norm(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and deviations of R."""
        if not self.descriptor.plain:
            return self.mean, self.std
        return torch.full_like(self.mean, -_ONE), torch.full_like(self.std, _ONE)

    @property
    def _shift(self) -> torch.Tensor:
        """(n,): R_0 of an absent neighbour."""
        return torch.ones_like(self.mean) if self.descriptor.plain else -self.mean / self.std[:, 0]

    # Made once: a step that is captured in a CUDA graph cannot ask the device for the mean.

    @cached_property
    def _at_zero(self) -> torch.Tensor:
        """(n, B): phi_b at s = 0."""
        return self._basis(torch.zeros_like(self.mean))

    @cached_property
    def _at_mean(self) -> torch.Tensor:
        """(n, B): phi_b at the means."""
        return self._basis(self.mean)

    def _basis(self, s: torch.Tensor) -> torch.Tensor:
        """(n, B): phi_b at s (n,) in 1/A."""
        return basis_matrix(self.grid.places(s.double().cpu()), self.grid.intervals).to(self.mean)

    def _absent(self, within: torch.Tensor, kinds: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """(N, n): the absent neighbours that the op counts, where so many are within the cutoff."""
        taken = within * (~self.mask | self.zeroed)[kinds]
        if not self.descriptor.mixed:
            return self.sel - taken
        empty = (self.sel - taken.sum(1, keepdim=True)).clamp(min=0)
        return torch.zeros_like(taken).scatter(
            1, self.padding(near.system).long()[:, None], empty.to(taken.dtype)
        )

    def gradient(self, gradient: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """dE/dd (N, K, 3) from dE/dA, as `moments` gives A."""
        d, gradient = self.descriptor, gradient.unflatten(1, (-1, self.grid.intervals + 5))

        def of_pairs(part: torch.Tensor, gated: bool) -> torch.Tensor:
            return torch.ops.mdops.spline_moment_backward(
                part,
                near.displacements,
                self.counts(near.counts),
                self.types(near.system),
                *self._norm,
                self.mask,
                d.cutoff,
                d.cutoff_smooth,
                d.protection,
                self.grid.s_max,
                self.grid.grading,
                d.plain,
                gated,
            )

        if not d.gated:
            return of_pairs(gradient, False)
        plain = gradient[:, :1].expand(-1, self.ntypes, -1, -1)
        return of_pairs(plain, False) + of_pairs(gradient[:, 1:], True)

    def table(self) -> torch.Tensor:
        """The splines' coefficients C (n, F, B, M) of each centre's functions, differentiable in the weights."""
        return coefficients(self.descriptor, self.grid, None, self.smoothing, self.kinds)

    def fixed_table(self) -> torch.Tensor:
        """The same without a graph, formed in float64."""
        with torch.no_grad():
            double = copy.deepcopy(self.descriptor).double()
            return coefficients(double, self.grid, types=self.kinds).to(self.mean.dtype)

    def summed(self, table: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """T, from this table."""
        return self.t(self.moments(near), table, near.system)

    def t(self, moments: torch.Tensor, table: torch.Tensor, system: System) -> torch.Tensor:
        """T = A^T C / N_sel, (N, 4, M), of a plain sum (N, 1, M), from A."""
        d, types, known = self.descriptor, self.types(system), system.known_atoms_by_type()
        if is_input_gradient_alone() and not types.is_cuda:
            atoms = torch.nonzero(types >= 0)[:, 0]
            rows = moment_product(moments, table.flatten(1, 2) / d.slots, atoms.int(), types)
            if len(rows) == len(types):
                return rows
            return rows.new_zeros(len(types), *rows.shape[1:]).index_copy(0, atoms, rows)
        t = moments.new_zeros(moments.shape[0], moments.shape[2], d.channels)
        if known is None and types.is_cuda and torch.cuda.is_current_stream_capturing():
            # Nobody may ask which atoms are of a type.
            for c in range(self.ntypes):
                of_type = moments.transpose(1, 2) @ table[c].flatten(0, 1)
                t = torch.where((types == c)[:, None, None], of_type, t)
            return t / d.slots
        if moments.is_cuda and is_input_gradient_alone():
            atoms = torch.cat([(known or system.atoms_of_types(d.ntypes))[n] for n in self.kinds.numbers])
            rows = moment_product(moments, table.flatten(1, 2), atoms.int(), types)
            return t.index_copy(0, atoms, rows) / d.slots
        columns = moments.transpose(1, 2)
        for c in range(self.ntypes):
            if known is None:
                index = torch.nonzero(types == c)[:, 0]
            else:
                index = known[self.kinds.numbers[c]]
            # One product of matrices, not one an atom.
            of_type = columns.index_select(0, index).flatten(0, 1) @ table[c].flatten(0, 1)
            t = t.index_copy(0, index, of_type.unflatten(0, (-1, columns.shape[1])))
        return t / d.slots
