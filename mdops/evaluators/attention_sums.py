"""Descriptors with attention layers, or with sums to higher degrees: splines of the embedding nets, and one op for each
layer and for the sums, in simulations."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F

from mdops.evaluators.context import EvaluationContext, Types
from mdops.evaluators.kept import OfTypes
from mdops.models.dpa1 import Neighbors
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.models.rows import rows_in
from mdops.models.ways import Way
from mdops.ops import neighbor_rows, ragged_plan, row_moments, spline_rows
from mdops.ops.attention_layer import has_layer
from mdops.ops.attention_moments import attention_moments
from mdops.ops.neighbor_rows import NeighborRows, SplineRows
from mdops.tables.attention_tables import AttentionTables
from mdops.tables.grids import Sum, finer_grid, grid_types
from mdops.tables.spline import TOLERANCE, SplineGrid
from mdops.tables.sum_tables import SumTables

_MOST_NUMBERS = 2**27  # of tables


class AttentionSums:
    """T of a descriptor, from the neighbours within its cutoff. This must be the model's cutoff: in a hybrid,
    neighbours beyond the cutoff of a part count as its rows (docs/reference/models.md)."""

    def __init__(self, one: Sum, grid: SplineGrid, dtype: torch.dtype) -> None:
        self._one, self._grid, self._dtype = one, grid, dtype
        self._descriptor: Any = one.descriptor
        self._tables_of = OfTypes(self._tables, lambda tables: 0 if tables is None else tables.table.numel())

    def way(self, types: Types) -> Way | None:
        """The way for systems of these types; None if the nets have to run."""
        tables = self._tables_of(types)
        return None if tables is None else Way(lambda near: self._t(near, tables), self.captures)

    @property
    def captures(self) -> bool:
        """Whether there are tables for all types."""
        return self._numbers(self._descriptor.ntypes, self._grid) <= _MOST_NUMBERS

    @staticmethod
    def why_not(potential: EvaluationContext, one: Sum) -> str | None:
        """Why a descriptor cannot have them."""
        d: Any = one.descriptor
        if d.layers and not has_layer(potential.device, potential.dtype, d.channels, d.options.attn):
            return "a layer is one op on GPUs in float32, and of rows and attention up to 128 wide"
        if d.options.is_smooth and d.options.cubic_switch:
            return "its attention fades as in DeePMD-kit's TensorFlow backend (cubic_switch)"
        if d.cutoff < one.model.descriptor.cutoff:
            return f"neighbours beyond its cutoff, {d.cutoff:g} A, are rows of its own in this hybrid"
        return None

    def _tables(self, types: Types) -> AttentionTables | None:
        """The tables for systems of these types; None if they are too large."""
        kinds = range(self._descriptor.ntypes) if types is None else types
        grid = self._grid
        if not set(kinds) <= set(grid_types(self._descriptor)):
            grid = finer_grid(self._one, grid, max(TOLERANCE[self._dtype], grid.error), tuple(kinds))
        numbers = self._numbers(len(kinds), grid)
        if numbers > _MOST_NUMBERS:
            warnings.warn(
                f"tables for {len(kinds)} types at once would have {numbers} numbers: the embedding nets run on "
                "every pair of neighbours instead, by PyTorch's operations",
                stacklevel=2,
            )
            return None
        return AttentionTables(
            SumTables(self._one.model, self._descriptor, grid, types, absent=self._one.absent)
        )

    def _numbers(self, ntypes: int, grid: SplineGrid) -> int:
        return ntypes * (ntypes + 1) * (grid.intervals + 5) * self._descriptor.channels

    def _t(self, near: Neighborhood, tables: AttentionTables) -> torch.Tensor:
        """T (N, (lmax + 1)^2, M), differentiable in the pair vectors."""
        s, d, displacements = tables.splines, self._descriptor, near.displacements
        counts, types = s.counts(near.counts), s.types(near.system)
        pairs = displacements.detach()
        found = neighbor_rows(pairs, counts, types, cutoff=d.cutoff, pair_mask=s.mask, zeroed=s.zeroed)
        near.reports[d] = NeighborReport((found.within[:, None],), found.nearest)
        atoms, slots = displacements.shape[:2]
        total = rows_in(found.offsets, atoms * torch.sym_min(slots, d.slots))
        listed = displacements, found.slots, counts, types, s.mean, s.std
        settings = {**d.row_settings, "s_max": s.grid.s_max, "grading": s.grid.grading}
        rows = spline_rows(*listed, tables.table, **settings, rows=total, gated=d.gated)
        rows = rows._replace(environment=d.all_rows(rows.environment, *listed))
        if d.layers:
            directions = d.directions(rows, displacements, found.slots, types, s.std)
            t = self._behind_layers(rows, self._neighbors(rows, directions, found, atoms, slots), tables)
        else:
            t = row_moments(rows.environment, rows.g, found.offsets, leaves_rest=True) / d.slots
        if s.has_mean:
            places = (d.slots - found.taken).clamp(min=0).to(t.dtype)
            of_pair = types.long().clamp(min=0) * s.ntypes + s.padding(near.system).long()
            added = places[:, None] / d.slots * F.embedding(of_pair, tables.absent)
            t = t + F.pad(added[:, None], (0, 0, 0, t.shape[1] - 1))
        return t

    def _neighbors(
        self, rows: SplineRows, directions: torch.Tensor | None, found: NeighborRows, atoms: int, slots: int
    ) -> Neighbors:
        """The layers' inputs besides the rows."""
        d, total = self._descriptor, rows.g.shape[0]
        empty, plan = (d.slots - found.offsets.diff()).clamp(min=0).to(rows.g.dtype), None
        if rows.g.is_cuda:
            room = {"max_total": total, "max_batch": atoms, "max_length": slots}
            plan = ragged_plan(found.offsets, **room, longest_first=False)
        switch = rows.switch if d.options.is_smooth else None
        return Neighbors(found.offsets, plan, switch, directions, empty, fused=True)

    def _behind_layers(self, rows: SplineRows, near: Neighbors, tables: AttentionTables) -> torch.Tensor:
        """(N, (lmax + 1)^2, M), from the rows after the layers, over the number of slots."""
        form, d = tables.joined, self._descriptor
        if form is None:
            g = rows.g
            for layer, own in zip(d.layers, tables.layers, strict=True):
                g = layer.as_one_op(g, near, *own)
            # Neither the layers nor `spline_rows` read gradients by rows without an atom.
            return row_moments(rows.environment, g, near.offsets, leaves_rest=True) / d.slots
        sums = rows.g, rows.environment, near.offsets, form.layers, form.norm
        return attention_moments(
            *sums,
            directions=near.directions,
            switch=near.switch,
            empty=near.empty,
            eps=form.eps,
            normalize=form.normalize,
            plan=near.plan,
        )
