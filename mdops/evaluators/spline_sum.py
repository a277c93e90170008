"""One sum over neighbours by splines: first the sum, then a product with a table; and the backward pass."""

from functools import cached_property
from typing import Any

import torch

from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.nn.net import is_input_gradient_alone
from mdops.ops.moment_product import moment_product
from mdops.ops.spline_moment import spline_moment
from mdops.tables.spline import basis_matrix
from mdops.tables.sum_tables import SumTables
from mdops.tracing import is_recorded

# As minus the mean and as the deviation of s it makes R_0 = (s - mean)/std exactly 1, with a slope of 1e-30: then
# `spline_moment` computes a plain sum. A power of two, within float32's range.
_ONE = 2.0**100


class SplineSum:
    """Moments A of the neighbours, T from these, and the gradient by the pair vectors.

    Attributes:
        tables, descriptor.
    """

    def __init__(self, tables: SumTables) -> None:
        self.tables, self.descriptor = tables, tables.descriptor

    # Made once: a step that is captured in a CUDA graph cannot ask the device for the mean.

    @cached_property
    def _at_zero(self) -> torch.Tensor:
        """(n, B): phi_b at s = 0."""
        return self._basis(torch.zeros_like(self.tables.mean))

    @cached_property
    def _at_mean(self) -> torch.Tensor:
        """(n, B): phi_b at the means."""
        return self._basis(self.tables.mean)

    def _basis(self, s: torch.Tensor) -> torch.Tensor:
        """(n, B): phi_b at s (n,) in 1/A."""
        grid = self.tables.grid
        return basis_matrix(grid.places(s.double().cpu()), grid.intervals).to(s)

    @property
    def _norm(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and deviations of R."""
        mean, std = self.tables.mean, self.tables.std
        if not self.descriptor.plain:
            return mean, std
        return torch.full_like(mean, -_ONE), torch.full_like(std, _ONE)

    def moments(self, near: Neighborhood) -> torch.Tensor:
        """A (N, F * B, 4), for a plain sum (N, n * B, 1) (`mdops.ops.spline_moment`), over all neighbours of the
        model's descriptor."""
        d, s, types, absent = self.descriptor, self.tables, self.tables.types(near.system), self.absent(near)
        arguments = (near.displacements, s.counts(near.counts), types, *self._norm, s.sel)
        options: dict[str, Any] = {
            "cutoff": d.cutoff,
            "cutoff_smooth": d.cutoff_smooth,
            "protection": d.protection,
            "s_max": s.grid.s_max,
            "grading": s.grid.grading,
            "intervals": s.grid.intervals,
            "pair_mask": s.mask,
            "zeroed": s.zeroed,
            "padding": s.padding(near.system) if d.mixed else None,
        }
        moments, within, nearest = spline_moment(*arguments, **options, radial=d.plain)
        excludes = d.plain and s.excludes
        kinds = types.long().clamp(min=0) if excludes or absent is not None else types
        if absent is not None:
            # R_0 of an absent neighbour.
            shift = torch.ones_like(s.mean) if d.plain else -s.mean / s.std[:, 0]
            more = (absent - self._counted(within, kinds, near)) * shift[kinds, None]
            is_first = torch.arange(moments.shape[-1], device=moments.device) == 0
            moments = moments + (more[..., None] * self._at_zero[kinds, None])[..., None] * is_first
        if excludes:
            counts = within if absent is None else s.sel - absent
            zeros = (counts * s.zeroed[kinds]).to(moments.dtype)
            moments = moments + (zeros[..., None] * self._at_mean[kinds, None])[..., None]
        if d.gated:
            gates, _, _ = spline_moment(*arguments, **options, gated=True)
            moments = torch.cat([moments.sum(1, keepdim=True), gates], 1)
        near.reports[d] = NeighborReport((s.occupied_slots(within),), nearest)
        return moments.flatten(1, 2)

    def absent(self, near: Neighborhood) -> torch.Tensor | None:
        """(N, n) int32: the number of neighbours of each type that count as absent. None if that follows from the
        neighbours within its own cutoff."""
        d = self.descriptor
        if not self.tables.may_differ:
            return None
        # Neighbours beyond its own cutoff take slots of their type, with the R of absent ones.
        shared = near.restrict_to_part(d.spec, mixed=self.tables.whole.mixed)
        kinds, ntypes = shared.neighbor_types, shared.ntypes
        within = ~(shared.squared > d.cutoff**2)
        beyond = shared.count(torch.where(within | d.excludes(shared), ntypes, kinds))
        if d.mixed:
            empty = (d.slots - (kinds < ntypes).sum(1)).clamp(min=0).int()
            found = beyond.scatter_add(1, near.padding_types[:, None], empty[:, None])
        else:
            found = torch.tensor(d.sel, device=kinds.device) - shared.count(kinds) + beyond
        return self.tables.counts(found.int())

    def _counted(self, within: torch.Tensor, kinds: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """(N, n): the absent neighbours that the op counts, if so many are within the cutoff."""
        s = self.tables
        taken = within * (~s.mask | s.zeroed)[kinds]
        if not self.descriptor.mixed:
            return s.sel - taken
        empty = (s.sel - taken.sum(1, keepdim=True)).clamp(min=0).to(taken.dtype)
        return torch.zeros_like(taken).scatter(1, s.padding(near.system).long()[:, None], empty)

    def gradient(self, gradient: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """dE/dd (N, K, 3) from dE/dA, as `moments` gives A."""
        d, s = self.descriptor, self.tables
        gradient = gradient.unflatten(1, (-1, s.grid.intervals + 5))

        def of_pairs(part: torch.Tensor, gated: bool) -> torch.Tensor:
            return torch.ops.mdops.spline_moment_backward(
                part,
                near.displacements,
                s.counts(near.counts),
                s.types(near.system),
                *self._norm,
                s.mask,
                *s.scalars[:5],
                d.plain,
                gated,
            )

        if not d.gated:
            return of_pairs(gradient, False)
        plain = gradient[:, :1].expand(-1, s.ntypes, -1, -1)
        return of_pairs(plain, False) + of_pairs(gradient[:, 1:], True)

    def summed(self, table: torch.Tensor, near: Neighborhood) -> torch.Tensor:
        """T = A^T C / N_sel, (N, 4, M), for a plain sum (N, 1, M), with this table C."""
        d, s, system, moments = self.descriptor, self.tables, near.system, self.moments(near)
        types, known = s.types(system), system.known_atoms_by_type()

        def zeros() -> torch.Tensor:
            return moments.new_zeros(moments.shape[0], moments.shape[2], d.channels)

        if known is None and is_recorded(types):
            # The host may not ask which atoms are of a type.
            t = zeros()
            for c in range(s.ntypes):
                of_type = moments.transpose(1, 2) @ table[c].flatten(0, 1)
                t = torch.where((types == c)[:, None, None], of_type, t)
            return t / d.slots
        if is_input_gradient_alone():
            if types.is_cuda:
                of_types = known or system.atoms_of_types(d.ntypes)
                atoms = torch.cat([of_types[n] for n in s.kinds.numbers])
            else:
                atoms = torch.nonzero(types >= 0)[:, 0]
            rows = moment_product(moments, s.product_table(table), atoms.int(), types)
            every = not types.is_cuda and len(rows) == len(types)
            return rows if every else zeros().index_copy(0, atoms, rows)
        columns, t = moments.transpose(1, 2), zeros()
        for c in range(s.ntypes):
            index = torch.nonzero(types == c)[:, 0] if known is None else known[s.kinds.numbers[c]]
            # One matrix product for all atoms.
            of_type = columns.index_select(0, index).flatten(0, 1) @ table[c].flatten(0, 1)
            t = t.index_copy(0, index, of_type.unflatten(0, (-1, columns.shape[1])))
        return t / d.slots
