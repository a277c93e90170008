"""Edge features of several layers that depend on one number alone: products of a few splines of it, which all layers
share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.ops import edge_splines


class LengthBasis(NamedTuple):
    """Edges in layer k have the features P(x) products[k].

    Attributes:
        table: (1, B, R), the coefficients of P between `first` and `first + width`; P is extended along its tangent.
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
        """(E, 1), the gradient by x from that by P (E, R), without a graph."""
        found: torch.Tensor = torch.ops.mdops.edge_splines_backward(grad, *self._given(x))
        return found

    def _given(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        kinds = torch.zeros(len(x), dtype=torch.int32, device=x.device)
        return x - self.first if self.first else x, kinds, self.table, self.width


class EdgesByLength:
    """A descriptor whose edge features in all layers may depend on the lengths alone; `mdops.tables.length_tables`
    makes a basis of them, and evaluators give its steps (`mdops.models.ways`)."""

    mean: torch.Tensor
    type_map: list[str]

    @property
    def edges_go_by_length(self) -> bool:
        """Whether simulations read edge features by length alone, in all layers."""
        raise NotImplementedError

    def edge_range(self, r_min: float, types: Sequence[int] | None) -> tuple[float, float]:
        """The range of the edges' input x from r_min (A) on, for centres of these types."""
        raise NotImplementedError

    def edge_functions(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The features (P, K) of each layer from the edges' input x (P, 1), in its dtype."""
        raise NotImplementedError

    def steps(self, basis: LengthBasis) -> Any:
        """The layers of edges with these functions in place of features."""
        raise NotImplementedError
