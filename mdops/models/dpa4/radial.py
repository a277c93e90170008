"""Splines that replace DPA-4's functions of an edge's length and the types at its ends, for simulations with constant
weights."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from mdops.ops import EdgeIndex, edge_splines


class RadialSplines(NamedTuple):
    """Splines for systems of n types.

    Attributes:
        types: n.
        place: (ntypes + 1,) int32, the index of the model's types among these; -1: not among them.
        cutoff: A, where the splines end.
        tables: by the names of `DPA4.radial_functions`, (n n, B, functions), neighbours fastest.
    """

    types: int
    place: torch.Tensor
    cutoff: float
    tables: Mapping[str, torch.Tensor]

    def kinds(self, types: torch.Tensor, of_center: EdgeIndex, of_neighbor: EdgeIndex) -> torch.Tensor:
        """(E,) int32: the table of each edge, of atoms with types (N,); -1 without an edge."""
        known = self.place[types]
        first, second = (known.index_select(0, of.nodes.clamp(min=0)) for of in (of_center, of_neighbor))
        return torch.where(of_center.nodes >= 0, first * self.types + second, -1)

    def numbers(self, name: str, lengths: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """(E, functions), for edges of lengths (E, 1)."""
        return edge_splines(lengths, kinds, self.tables[name], self.cutoff)
