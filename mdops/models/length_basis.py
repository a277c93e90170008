"""Numbers that edges have in several layers, where these follow from one number alone: as products of a few functions
of it, the same for all layers, which are splines."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.ops import edge_splines


class LengthBasis(NamedTuple):
    """Edges in layer k have the numbers P(x) products[k].

    Attributes:
        table: (1, B, R), the coefficients of P between `first` and `first + width`; beyond, it goes on along its
            tangent.
        products: (R, K) of each layer.
    """

    table: torch.Tensor
    first: float
    width: float
    products: tuple[torch.Tensor, ...]

    def functions(self, x: torch.Tensor) -> torch.Tensor:
        """P (E, R) of x (E, 1)."""
        return edge_splines(*self._given(x))

    def gradient(self, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """(E, 1), by x, of that (E, R) by the functions; not differentiable."""
        found: torch.Tensor = torch.ops.mdops.edge_splines_backward(grad, *self._given(x))
        return found

    def _given(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        kinds = torch.zeros(len(x), dtype=torch.int32, device=x.device)
        return x - self.first if self.first else x, kinds, self.table, self.width


class EdgesByLength:
    """A descriptor whose edges may have numbers in all layers that follow from their lengths alone;
    `mdops.tables.length_tables` makes a basis of them, and evaluators give its steps (`mdops.models.ways`)."""

    mean: torch.Tensor
    type_map: list[str]

    @property
    def edges_go_by_length(self) -> bool:
        """Whether simulations read of edges what follows from their lengths, in all layers."""
        raise NotImplementedError

    def edge_range(self, r_min: float, types: Sequence[int] | None) -> tuple[float, float]:
        """What edges of r_min (A) or more begin with, at least and at most, of centres of these types."""
        raise NotImplementedError

    def edge_functions(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The numbers (P, K) in each layer of edges that begin with x (P, 1), in its dtype."""
        raise NotImplementedError

    def steps(self, basis: LengthBasis) -> Any:
        """The layers of edges that have these functions in the place of numbers."""
        raise NotImplementedError
