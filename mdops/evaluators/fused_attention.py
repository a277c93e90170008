"""DPA-1 with layers of attention: splines of the embedding nets, layers and sums as one op each."""

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from mdops.evaluators.autograd import Autograd, forces_and_virials
from mdops.evaluators.base import Answers, Evaluator
from mdops.evaluators.coordinates import in_coordinates
from mdops.evaluators.grids import attention_of, finer_grid, grid_types
from mdops.evaluators.spline import TOLERANCE
from mdops.evaluators.splined import SplineSum
from mdops.models.dpa1 import Neighbors
from mdops.models.neighborhood import Neighborhood, NeighborReport
from mdops.nn.net import input_gradient_alone
from mdops.ops import NeighborList, neighbor_rows, ragged_plan, row_moments, spline_rows
from mdops.ops.attention_layer import has_layer
from mdops.ops.neighbor_rows import NeighborRows
from mdops.system import System
from mdops.tracing import is_recorded

if TYPE_CHECKING:
    from mdops.potential import Potential

_MOST_NUMBERS = 2**27  # of tables


class FusedAttention(Evaluator):
    """Rows of the neighbours by splines, each layer of attention, and their sums as one op each way; then the net.

    As its base; atoms may have weights, too: `weight` (N,), float64, for forces and virials of the sum of the weighted
    energies. The energies that are given have none.
    """

    name = "fused attention"
    summary = "splines of the embedding nets, one op a layer of attention, sums over neighbours, then the net"
    cost = "the embedding nets run on every pair of neighbours instead, by PyTorch's operations"
    packs_weights = True

    def __init__(self, potential: "Potential") -> None:
        super().__init__(potential)
        one = attention_of(potential.model)
        grid = next(iter(potential.attention_grids), None)
        assert one is not None and grid is not None
        self._one, self._model = one, one.model
        self._descriptor: Any = one.descriptor
        self.captures = potential.device.type == "cuda" and potential.model.captures
        self._grid, self.r_min = grid, grid.r_min
        self._tables: dict[tuple[int, ...] | None, _Tables | None] = {}

    @classmethod
    def knows(cls, potential: "Potential") -> bool:
        return attention_of(potential.model) is not None

    @classmethod
    def why_not(cls, potential: "Potential") -> str | None:
        one = attention_of(potential.model)
        if one is None:
            return f"it is for models of dpa1 with layers of attention alone, and this is {potential.kind}"
        if potential.why_no_attention_spline is not None:
            return potential.why_no_attention_spline
        d: Any = one.descriptor
        if not has_layer(potential.device, potential.dtype, d.channels, d.options.attn):
            return "a layer is one op on GPUs in float32, and of rows and attention up to 128 wide"
        return None

    @torch.no_grad()
    def __call__(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
        atom_virial: bool = False,
        weight: torch.Tensor | None = None,
    ) -> tuple[Answers, NeighborReport]:
        tables = self._tables_of(self.potential.present(system))
        exact = Autograd(self.potential)
        if tables is None:
            return exact(
                system, neighbors, fparam, aparam, check=check, atom_virial=atom_virial, weight=weight
            )
        near = Neighborhood.of(system, neighbors, self._model.cutoff, self.potential.dtype)
        s = tables.splines
        types, counts = s.types(system), s.counts(near.counts)
        rows = self._rows(near.displacements, counts, types, s)
        report = NeighborReport((rows.within[:, None],), rows.nearest)
        if check and self.potential.check_neighbors(report, system, neighbors, self.r_min):
            # Which drops neighbours.
            return exact(system, neighbors, fparam, aparam, atom_virial=atom_virial, weight=weight)
        padding = s.padding(system)
        parts: list[Answers] = []
        gradients: list[torch.Tensor] = []
        slices = self._runs(near)
        for run in slices:
            part = near if len(slices) == 1 else near.of_atoms(run)
            own = aparam[run] if aparam is not None and aparam.dim() > 1 else aparam
            listed = (counts[run], types[run], padding[run])
            mine = rows if len(slices) == 1 else self._rows(part.displacements, *listed[:2], s)
            with torch.enable_grad(), input_gradient_alone():
                d = part.displacements.detach().requires_grad_()
                t = self._sums(d, mine, *listed, tables)
                features = self._descriptor.contract(t, part)
                energy = self._model.fitting(features.values, part, fparam, own)["energy"]
                counted = torch.where(self._counted(part), energy, 0.0)
                summed = counted if weight is None else counted * weight[run]
                (gradient,) = torch.autograd.grad(summed.sum(), d, materialize_grads=True)
            parts.append(self._model.finish({"energy": energy.detach()}, part.types))
            gradients.append(gradient)
        answers = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        return answers | forces_and_virials(gradient, near, atom_virial=atom_virial), report

    def _runs(self, near: Neighborhood) -> list[slice]:
        """The atoms in runs of one size: a small one at the end would take a GPU nearly as long."""
        most = self._descriptor.atoms_at_once(near)
        if most is None or most >= near.system.atoms:
            return [slice(None)]
        atoms = near.system.atoms
        size = -(-atoms // -(-atoms // most))
        return [slice(first, first + size) for first in range(0, atoms, size)]

    def _counted(self, near: Neighborhood) -> torch.Tensor:
        """(N,) bool: atoms that have an energy."""
        return self._model.has_energy[near.centers] & (near.types >= 0)

    def _rows(
        self, displacements: torch.Tensor, counts: torch.Tensor, types: torch.Tensor, s: SplineSum
    ) -> NeighborRows:
        d = self._descriptor
        return neighbor_rows(displacements, counts, types, cutoff=d.cutoff, pair_mask=s.mask, zeroed=s.zeroed)

    def _sums(
        self,
        displacements: torch.Tensor,
        found: NeighborRows,
        counts: torch.Tensor,
        types: torch.Tensor,
        padding: torch.Tensor,
        tables: "_Tables",
    ) -> torch.Tensor:
        """T (N, 4, M), differentiable in the pair vectors (N, K, 3)."""
        s, d = tables.splines, self._descriptor
        o = d.options
        atoms, slots = displacements.shape[:2]
        total = self._total(found.offsets, atoms * torch.sym_min(slots, d.slots))
        rows = spline_rows(
            displacements,
            found.slots,
            counts,
            types,
            s.mean,
            s.std,
            tables.table,
            cutoff=d.cutoff,
            cutoff_smooth=d.cutoff_smooth,
            protection=d.protection,
            s_max=s.grid.s_max,
            rows=total,
            gated=d.gated,
        )
        empty = (d.slots - found.offsets.diff()).clamp(min=0).to(rows.g.dtype)
        plan = None
        if displacements.is_cuda:
            room = {"max_total": total, "max_batch": atoms, "max_length": slots}
            plan = ragged_plan(found.offsets, **room, longest_first=False)
        switch, directions = rows.switch if o.is_smooth else None, rows.directions if o.attn_dotr else None
        known = Neighbors(found.offsets, plan, switch, directions, empty, fused=True)
        g = rows.g
        for layer, weights in zip(d.layers, tables.layers, strict=True):
            g = layer.as_one_op(g, known, weights)
        t = row_moments(rows.environment, g, found.offsets)
        if s.has_mean:
            places = (d.slots - found.taken).clamp(min=0).to(t.dtype)
            of_pair = types.long().clamp(min=0) * s.ntypes + padding.long()
            added = places[:, None] * F.embedding(of_pair, tables.absent)
            t = t + F.pad(added[:, None], (0, 0, 0, 3))
        return t / d.slots

    @staticmethod
    def _total(offsets: torch.Tensor, most: int) -> int:
        """How many rows there are, or, while a GPU's steps are recorded, places for them."""
        if offsets.is_cuda and is_recorded(offsets):
            return most
        found: Any = offsets[-1].item()  # a number without a value while a program is exported
        return found

    def _tables_of(self, types: tuple[int, ...] | None) -> "_Tables | None":
        """Of systems of these types, all with None; None if there are too many. Made when they first come."""
        if types not in self._tables:
            kinds = range(self._descriptor.ntypes) if types is None else types
            grid, potential = self._grid, self.potential
            if not set(kinds) <= set(grid_types(self._descriptor)):
                tolerance = max(TOLERANCE[potential.dtype], grid.error)
                grid = finer_grid(self._one, grid, tolerance, tuple(kinds))
            numbers = len(kinds) * (len(kinds) + 1) * (grid.intervals + 5) * self._descriptor.channels
            if numbers > _MOST_NUMBERS:
                warnings.warn(
                    f"tables for {len(kinds)} types at once would have {numbers} numbers: {self.cost}",
                    stacklevel=2,
                )
                self._tables[types] = None
            else:
                self._tables[types] = _Tables(SplineSum(self._model, self._descriptor, grid, types))
        return self._tables[types]


class _Tables:
    """What is of the weights.

    Attributes:
        table: of `spline_rows`; layers: weights of each; absent: `SeAttenV2.absent_rows`.
    """

    def __init__(self, splines: SplineSum) -> None:
        d: Any = splines.descriptor
        self.splines = splines
        with torch.no_grad():
            self.table, self.layers = in_coordinates(d, splines.grid, splines.kinds, d.mean.dtype)
            embedded = F.embedding(splines.kinds.index, d.type_embedding())
            self.absent = d.absent_rows(splines.kinds, embedded)
