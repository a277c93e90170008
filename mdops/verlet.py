"""A neighbour list that lasts for several steps of a simulation."""

from collections.abc import Sequence

import torch

from mdops.errors import InputError, NeighborOverflowError
from mdops.ops.neighbor import NeighborList, neighbor_list, one_batch

__all__ = ["VerletList"]

# Above this number of slots, the length of rows is not taken from another system's list.
_MANY_SLOTS = 1 << 22
_TOO_LONG = 4  # times the length needed

# The tensors themselves and their versions: values have changed only if the version has.
_Identity = tuple[tuple[torch.Tensor, int], ...]


class VerletList:
    """The neighbours within `cutoff + skin`, rebuilt only when a pair within `cutoff` could be missing.

    A pair could be missing if an atom has moved by more than skin / 2 since the last build, or if types, pbc, batch or
    the number of atoms have changed. A periodic cell may be strained: with F = h0^-1 h the homogeneous part
    of the motion and v the largest remainder |x - x0 F|, a pair vector d0 became d = d0 F + v_j - v_i: no
    pair is missing while cutoff + 2 v <= (smallest singular value of F) (cutoff + skin).

    The length of rows, with some spare room, is kept from build to build. It changes if a row overflows, or if rows are
    far too long: after a structure with far too many neighbours, such as one in wrong units, they would need gigabytes.

    Attributes:
        cutoff, skin: A.
        builds: the number of times the list was built.
    """

    def __init__(self, cutoff: float, skin: float = 1.0, *, ntypes: int | None = None, sort: bool = False):
        if not (cutoff > 0 and cutoff < float("inf")):
            raise InputError(f"VerletList: argument `cutoff` is {cutoff}, expected a positive length")
        if not (skin >= 0 and skin < float("inf")):
            raise InputError(f"VerletList: argument `skin` is {skin}, expected a length that is not negative")
        self.cutoff, self.skin, self.builds = float(cutoff), float(skin), 0
        self._ntypes, self._sort = ntypes, sort
        self._capacity: int | None = None
        self._list: NeighborList | None = None
        self._built_for: tuple[torch.Tensor, ...] = ()
        self._known: _Identity = ()

    @property
    def built_for(self) -> tuple[torch.Tensor, ...]:
        """The arguments of `update` that the current list was built for; empty before the first."""
        return self._built_for

    def update(
        self,
        positions: torch.Tensor,
        cell: torch.Tensor | None,
        pbc: torch.Tensor | bool | Sequence[bool] | None,
        types: torch.Tensor,
        batch: torch.Tensor | None = None,
    ) -> NeighborList:
        """A list with at least all pairs within the cutoff; arguments as in `mdops.ops.neighbor_list`."""
        cell, pbc, batch = one_batch(positions, cell, pbc, batch)
        inputs = tuple(a.detach() for a in (positions, cell, pbc, types, batch))
        if self._list is None or not self._holds(*inputs):
            self._list = self._build(*inputs)
            self._built_for = tuple(a.clone() for a in inputs)
            self._known = _identity(pbc, types, batch)
            self.builds += 1
        return self._list

    def _holds(
        self,
        positions: torch.Tensor,
        cell: torch.Tensor,
        pbc: torch.Tensor,
        types: torch.Tensor,
        batch: torch.Tensor,
    ) -> bool:
        """Whether the last list still has every pair within the cutoff. On a GPU this waits once, if types,
        pbc and batch are the tensors of the last call and the cell has not changed."""
        old_positions, old_cell, *old = self._built_for
        for now, before in zip((positions, cell, pbc, types, batch), self._built_for, strict=True):
            if now.shape != before.shape or now.dtype != before.dtype or now.device != before.device:
                return False
        constant = (pbc, types, batch)
        if not _same_tensors(_identity(*constant), self._known):
            if not all(torch.equal(a, b) for a, b in zip(constant, old, strict=True)):
                return False
            self._known = _identity(*constant)
        if positions.numel() == 0:
            return True
        moved2 = (positions - old_positions).square_().sum(1).max()
        if positions.is_cuda:  # wait once for both
            same, moved2_now = torch.stack([(cell == old_cell).all().double(), moved2]).tolist()
        else:
            same, moved2_now = torch.equal(cell, old_cell), float(moved2)
        shrunk = 1.0
        if not same:
            if not bool(pbc.all()) or not bool(torch.isfinite(cell).all()):
                return False
            strain = torch.linalg.solve(old_cell, cell)
            shrunk = float(torch.linalg.svdvals(strain).min())
            moved_along = strain[0] if len(strain) == 1 else strain[batch.long()]
            old_positions = (old_positions[:, None, :] @ moved_along)[:, 0]
            moved2_now = float((positions - old_positions).square_().sum(1).max())
        # NaN also gives False; the build then reports the atom.
        return self.cutoff + 2 * moved2_now**0.5 <= shrunk * (self.cutoff + self.skin)

    def _build(self, *inputs: torch.Tensor) -> NeighborList:
        """Arguments as in `_holds`."""
        positions, cell, pbc, types, batch = inputs

        def build(capacity: int) -> NeighborList:
            return neighbor_list(
                positions,
                cell,
                pbc,
                types,
                self.cutoff + self.skin,
                batch=batch,
                ntypes=self._ntypes,
                capacity=capacity,
                sort=self._sort,
            )

        known, before = self._capacity or 0, self._built_for
        if before and len(types) * known > _MANY_SLOTS and not _are_equal(types, before[3]):
            known = 0
        try:
            found = build(known)
        except NeighborOverflowError as overflow:
            return build(self._room(overflow.needed))
        longest = int(found.counts.sum(1).max()) if len(types) else known
        return build(self._room(longest)) if known > _TOO_LONG * (longest + 8) else found

    def _room(self, longest: int) -> int:
        """The new length of rows: a sixteenth more than needed, in whole vectors of eight."""
        self._capacity = -(-(longest + max(8, longest // 16)) // 8) * 8
        return self._capacity


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and torch.equal(a, b)


def _identity(*tensors: torch.Tensor) -> _Identity:
    """Identifies GPU tensors that have not changed, without waiting for them. Empty for other tensors: NumPy may
    write to these unnoticed."""
    if not all(t.is_cuda and not t.is_inference() for t in tensors):
        return ()
    return tuple((t, t._version) for t in tensors)


def _same_tensors(a: _Identity, b: _Identity) -> bool:
    """Whether they are views of the same memory, with no write since."""
    return len(a) == len(b) > 0 and all(
        t.data_ptr() == u.data_ptr() and t.stride() == u.stride() and v == w and t.shape == u.shape
        for (t, v), (u, w) in zip(a, b, strict=True)
    )
