"""The neighbours of every atom for a part of a model."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from mdops.ops import NeighborList, displacements, neighbor_rows
from mdops.ops.neighbor_rows import NeighborRows
from mdops.system import System
from mdops.tracing import is_exported

# A: nearer atoms are one atom, written twice; an image is off by the cell's rounding.
COINCIDENT = 1e-5


class NeighborSpec(NamedTuple):
    """The capacity of a part of a model for neighbours.

    Attributes:
        cutoff: A.
        sel: places for neighbours of each type, or of all types together if `mixed`; None: any number.
        mixed: whether neighbours of all types share places.
        kinds: then, the places are for neighbours of the first so many types, of atoms of these types: virtual atoms
            take none. None: all count.
    """

    cutoff: float
    sel: tuple[int, ...] | None
    mixed: bool = False
    kinds: int | None = None


class NeighborReport(NamedTuple):
    """The counts that `Potential.check_neighbors` needs.

    Attributes:
        within: for each of the model's specs (N, G) int32, neighbours within its cutoff: G is ntypes, or 1 where all
            types share places.
        nearest: (N,), the distance to the nearest neighbour in A, the cutoff of an atom without neighbours.
    """

    within: tuple[torch.Tensor, ...]
    nearest: torch.Tensor

    @classmethod
    def joined(cls, parts: "Sequence[NeighborReport]") -> "NeighborReport":
        """Joins those of parts."""
        within = zip(*(part.within for part in parts), strict=True)
        return cls(tuple(torch.cat(own) for own in within), torch.cat([part.nearest for part in parts]))


class NeighborSums(NamedTuple):
    """Sums over neighbours; the autograd graph starts here.

    Attributes:
        sums: energies are differentiated by them.
        forces: from the gradients by sums to forces (N, 3) and virials (S, 3, 3), float64.
    """

    sums: tuple[torch.Tensor, ...]
    forces: Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Neighborhood:
    """One row of K slots an atom; rows are sorted by the neighbours' types (ops.md, Conventions).

    Slots may be empty, and neighbours may lie beyond `cutoff` (a list made with a skin): `neighbor_types` tells which
    count.

    Attributes:
        system: the atoms.
        neighbors: (N, K) int32, indices of atoms, -1 where a slot is empty.
        images: (N, K) int32, their packed periodic images (`mdops.ops.unpack_images`).
        counts: (N, ntypes) int32, slots of each type.
        displacements: (N, K, 3), A, the compute dtype; energies are differentiated by these.
        cutoff: A. In a list that a hybrid descriptor hands to a part it may be longer than the part's own.
        absent_pairs: (ntypes, ntypes) bool, pairs of types that are not neighbours of each other; None: no pairs.
        truncates: whether `select` drops the farthest where there are more neighbours than places.
        truncates_by_type: then, for each type alone, and each part of a hybrid by its own cutoff, like DeePMD-kit's
            TensorFlow backend.
        first_derivative_only: whether there is at most one derivative, by the displacements alone: in simulations,
            where weights are constants.
        matmul: the least accuracy of products then (`Potential.use_matmul`).
        max_pairs, graph_room, ghosts: as in `NeighborList`.
        nodes: how many atoms `neighbors` can index, if the rows are those of some of them; None: one each row.
        reports: the neighbour reports of descriptors' ops, by descriptor.
        sums: their sums over neighbours that turn gradients into forces, by descriptor; None: none, and energies are
            differentiated by the displacements.
    """

    system: System
    neighbors: torch.Tensor
    images: torch.Tensor
    counts: torch.Tensor
    displacements: torch.Tensor
    cutoff: float
    absent_pairs: torch.Tensor | None = None
    truncates: bool = False
    truncates_by_type: bool = False
    first_derivative_only: bool = False
    matmul: str = "float32"
    max_pairs: int | None = None
    graph_room: tuple[int, int, int] | None = None
    ghosts: torch.Tensor | None = None
    nodes: int | None = None
    reports: dict[Any, NeighborReport] = dataclasses.field(default_factory=dict, compare=False)
    sums: "dict[Any, NeighborSums] | None" = None

    @classmethod
    def of(cls, system: System, neighbors: NeighborList, cutoff: float, dtype: torch.dtype) -> "Neighborhood":
        """The pair vectors are differentiable in positions and cell."""
        pairs = neighbors.neighbors, neighbors.images
        d = displacements(system.positions, system.cell, system.batch, *pairs, dtype)
        known = {name: getattr(neighbors, name) for name in ("max_pairs", "graph_room", "ghosts")}
        return cls(system, *pairs, neighbors.counts, d, cutoff, **known)

    @property
    def types(self) -> torch.Tensor:
        """(N,) int32, of the centres."""
        return self.system.types

    @property
    def ntypes(self) -> int:
        return self.counts.shape[1]

    @cached_property
    def centers(self) -> torch.Tensor:
        """(N,) int64, the centres' types; 0 for virtual atoms, which have no neighbours."""
        return self.types.long().clamp(min=0)

    @cached_property
    def first_types(self) -> torch.Tensor:
        """(S,) int64: the type of the first atom of each system (`System.first_types`); 0 if it is virtual."""
        return self.system.first_of_systems().long().clamp(min=0)

    @cached_property
    def padding_types(self) -> torch.Tensor:
        """(N,) int64: the type that absent neighbours have in descriptors of mixed types, that of the first atom."""
        return self.first_types[self.system.batch.long()]

    @cached_property
    def squared(self) -> torch.Tensor:
        """(N, K), squared distances without a graph, A^2."""
        return self.displacements.detach().square().sum(-1)

    @cached_property
    def slot_types(self) -> torch.Tensor:
        """(N, K) int64: the neighbour's type in each slot, ntypes if it is empty."""
        return _slot_types(self.counts, self.neighbors.shape[1])

    @cached_property
    def types_in_cutoff(self) -> torch.Tensor:
        """(N, K) int64: the neighbour's type in each slot, ntypes if none is within the cutoff."""
        # A NaN distance counts as near, so that it is not lost.
        seen = ~(self.squared > self.cutoff**2) & (self.types >= 0)[:, None]
        return torch.where(seen, self.slot_types, self.ntypes)

    @cached_property
    def neighbor_types(self) -> torch.Tensor:
        """(N, K) int64: `types_in_cutoff`, also with ntypes for `absent_pairs`."""
        if self.absent_pairs is None:
            return self.types_in_cutoff
        absent = torch.nn.functional.pad(self.absent_pairs, (0, 1))[
            self.centers[:, None], self.types_in_cutoff
        ]
        return self.types_in_cutoff.masked_fill(absent, self.ntypes)

    @cached_property
    def found(self) -> NeighborRows:
        """The slots with a neighbour within the cutoff, of whatever types, as rows."""
        d = self.displacements.detach()
        return neighbor_rows(d, self.counts, self.types, cutoff=self.cutoff)

    def count(self, kinds: torch.Tensor) -> torch.Tensor:
        """(N, ntypes) int32: how many slots hold each type."""
        return torch.stack([(kinds == t).sum(1) for t in range(self.ntypes)], dim=1).int()

    def of_atoms(self, run: slice | torch.Tensor) -> "Neighborhood":
        """Only these atoms, a run or indices. `neighbors` still index all."""
        s, first = self.system, self.first_types.to(self.system.types.dtype)
        own = s.positions[run], s.types[run], s.cell, s.pbc, s.batch[run]
        spins = None if s.spins is None else s.spins[run]
        system = System(*own, first_types=first, charge_spin=s.charge_spin, spins=spins)
        return dataclasses.replace(
            self,
            system=system,
            neighbors=self.neighbors[run],
            images=self.images[run],
            counts=self.counts[run],
            displacements=self.displacements[run],
            nodes=self.nodes or self.system.atoms,
        )

    def with_spins(self, spins: torch.Tensor) -> "Neighborhood":
        """With these magnetic moments (N, 3)."""
        return dataclasses.replace(self, system=dataclasses.replace(self.system, spins=spins))

    def with_pairs(self, displacements: torch.Tensor) -> "Neighborhood":
        """With these pair vectors (N, K, 3), A, for simulation: see `first_derivative_only`."""
        return dataclasses.replace(self, displacements=displacements, first_derivative_only=True)

    def within(self, cutoff: float) -> "Neighborhood":
        """Only the neighbours within this cutoff, A."""
        return self if cutoff == self.cutoff else dataclasses.replace(self, cutoff=cutoff)

    def without(self, absent_pairs: torch.Tensor | None) -> "Neighborhood":
        """With these pairs of types, (ntypes, ntypes) bool, also absent."""
        if absent_pairs is None:
            return self
        both = absent_pairs if self.absent_pairs is None else self.absent_pairs | absent_pairs
        return dataclasses.replace(self, absent_pairs=both)

    def with_type_map(self, names: torch.Tensor, ntypes: int) -> "Neighborhood":
        """For a part with a type map of its own, of `ntypes` elements: type t is its type names[t], (ntypes,) int64."""
        order, counts = _order_of(self.slot_types, names, ntypes), _counts_of(self.counts, names, ntypes)
        absent = self.absent_pairs
        if absent is not None:
            every = absent.new_zeros(ntypes, ntypes)
            every[names[:, None], names] = absent
            absent = every
        types = torch.where(self.types >= 0, names[self.centers].to(self.types.dtype), self.types)
        return dataclasses.replace(
            self,
            system=dataclasses.replace(
                self.system, types=types, first_types=names[self.first_types].to(types.dtype)
            ),
            neighbors=self.neighbors.gather(1, order),
            images=self.images.gather(1, order),
            counts=counts,
            displacements=self.displacements.gather(1, order[..., None].expand(-1, -1, 3)),
            absent_pairs=absent,
        )

    def select(self, sel: Sequence[int] | None, *, mixed: bool) -> "Neighborhood":
        """For a part with this capacity: if `truncates`, keeps the same as DeePMD-kit: of all neighbours the nearest
        sum(sel), then of each type the nearest sel_t (unless types are mixed); if `truncates_by_type`, like its
        TensorFlow backend, of each type the nearest sel_t."""
        if not self.truncates or sel is None:
            return self
        counts = self.count(self.types_in_cutoff)
        if bool((counts.sum(1) <= sum(sel)).all()) and (
            mixed or bool((counts <= torch.tensor(sel, device=counts.device)).all())
        ):
            return self
        squared = self._squared_of(self.types_in_cutoff)
        keep = self.types_in_cutoff < self.ntypes
        if mixed or not self.truncates_by_type:
            keep &= _rank(squared) < sum(sel)
        if not mixed:
            keep &= (
                self._rank_of_type(squared) < torch.tensor([*sel, 0], device=counts.device)[self.slot_types]
            )
        return self.kept(keep)

    def restrict_to_part(self, part: NeighborSpec, *, mixed: bool) -> "Neighborhood":
        """The neighbours that a hybrid, with places for each type or `mixed`, hands to a part.

        The nearest of each type, or of all if the part is mixed, up to its capacity. As in DeePMD-kit its own cutoff
        does not matter: neighbours beyond it take places. Unless `truncates`, none within it is left out.
        """
        if part.sel is None:
            return self
        if self.truncates_by_type:
            return self.within(min(part.cutoff, self.cutoff)).select(part.sel, mixed=part.mixed)
        # For a part of a mixed hybrid that is not mixed, DeePMD-kit sorts by type after it excludes pairs.
        taken = self.neighbor_types if mixed and not part.mixed else self.types_in_cutoff
        counts, sel = self.count(taken), torch.tensor([*part.sel, 0], device=taken.device)
        fit = (counts.sum(1) <= sum(part.sel)).all() if part.mixed else (counts <= sel[:-1]).all()
        if not is_exported() and bool(fit):
            return self
        squared = self._squared_of(taken)
        if part.mixed:
            keep = _rank(squared) < sum(part.sel)
        else:
            keep = self._rank_of_type(squared) < sel[self.slot_types]
        if not self.truncates:
            keep |= ~(self.squared > part.cutoff**2)
        return self.kept(keep & (taken < self.ntypes))

    def _squared_of(self, listed: torch.Tensor) -> torch.Tensor:
        """Squared distances for the ranking: infinite in empty places, NaN first."""
        return self.squared.nan_to_num(nan=-1.0).masked_fill(listed == self.ntypes, torch.inf)

    def _rank_of_type(self, squared: torch.Tensor) -> torch.Tensor:
        """(N, K): the rank of each value among those of its type."""
        rank = torch.zeros_like(self.slot_types)
        for t in range(self.ntypes):
            mine = self.slot_types == t
            rank = torch.where(mine, _rank(squared.masked_fill(~mine, torch.inf)), rank)
        return rank

    def kept(self, keep: torch.Tensor, *, waits: bool = True) -> "Neighborhood":
        """Only these slots, in rows no longer than needed; or, if it must not wait for a GPU, as long as they are."""
        width = longest_row(keep) if waits else keep.shape[1]
        order = torch.argsort((~keep).int(), dim=1, stable=True)[:, :width]
        kept = keep.gather(1, order)
        return dataclasses.replace(
            self,
            neighbors=self.neighbors.gather(1, order).masked_fill(~kept, -1),
            images=self.images.gather(1, order),
            counts=self.count(torch.where(keep, self.slot_types, self.ntypes)),
            displacements=self.displacements.gather(1, order[..., None].expand(-1, -1, 3)) * kept[..., None],
        )

    def report(self, specs: Sequence[NeighborSpec]) -> NeighborReport:
        """The counts within the cutoffs of these specs, from a list."""
        if all(spec.mixed and spec.kinds is None for spec in specs):
            # One op reports all for a cutoff.
            cutoffs = [min(spec.cutoff, self.cutoff) for spec in specs]
            found = {cutoff: self.within(cutoff).found.within[:, None] for cutoff in set(cutoffs)}
            return NeighborReport(tuple(found[cutoff] for cutoff in cutoffs), self.found.nearest)
        within = []
        for spec in specs:
            counts = self.count(self.within(min(spec.cutoff, self.cutoff)).types_in_cutoff)
            if spec.kinds is not None:
                counts = counts[:, : spec.kinds] * (self.centers < spec.kinds)[:, None]
            within.append(counts.sum(1, keepdim=True).int() if spec.mixed else counts)
        beyond = self.squared.new_full(
            (self.squared.shape[0], 1), self.cutoff**2
        )  # a row may have no slots at all
        near = self.squared.masked_fill(self.types_in_cutoff == self.ntypes, self.cutoff**2)
        return NeighborReport(tuple(within), torch.cat([near, beyond], dim=1).amin(1).sqrt())


def list_with_type_map(
    neighbors: NeighborList, names: torch.Tensor, ntypes: int, *, reorders: bool
) -> NeighborList:
    """As `Neighborhood.with_type_map`; `reorders`: whether `names` ever decrease."""
    near, images, counts, *_ = neighbors
    if reorders:  # rows are grouped by type
        order = _order_of(_slot_types(counts, near.shape[1]), names, ntypes)
        near, images = near.gather(1, order), images.gather(1, order)
    return neighbors._replace(neighbors=near, images=images, counts=_counts_of(counts, names, ntypes))


def _slot_types(counts: torch.Tensor, slots: int) -> torch.Tensor:
    """(N, K) int64, of the slots of a list: the number of types where they are empty."""
    slot = torch.arange(slots, device=counts.device)
    return (slot[None, :, None] >= counts.cumsum(1)[:, None, :]).sum(-1)


def _counts_of(counts: torch.Tensor, names: torch.Tensor, ntypes: int) -> torch.Tensor:
    """(N, ntypes), of other types."""
    return counts.new_zeros(counts.shape[0], ntypes).index_copy(1, names, counts)


def _order_of(slot_types: torch.Tensor, names: torch.Tensor, ntypes: int) -> torch.Tensor:
    """(N, K) int64: the slots sorted by other types."""
    types = torch.nn.functional.pad(names, (0, 1), value=ntypes)[slot_types]
    return torch.argsort(types, dim=1, stable=True)


def _rank(values: torch.Tensor) -> torch.Tensor:
    """(N, K): the place of each value in its row, sorted."""
    return torch.argsort(torch.argsort(values, dim=1, stable=True), dim=1, stable=True)


def longest_row(chosen: torch.Tensor) -> int:
    """The most places chosen (N, K) in a row; K in a program, which cannot read."""
    if is_exported():
        return chosen.shape[1]
    return int(chosen.sum(1).max()) if len(chosen) else 0


def pair_matrix(pairs: Sequence[Sequence[int]], ntypes: int) -> torch.Tensor:
    """(ntypes, ntypes) bool, True at each pair and its mirror image."""
    mask = torch.zeros(ntypes, ntypes, dtype=torch.bool)
    for a, b in pairs:
        mask[a, b] = mask[b, a] = True
    return mask
