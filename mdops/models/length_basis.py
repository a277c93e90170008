"""Numbers that edges have in several layers, where these follow from one number alone: as products of a few functions
of it, the same for all layers, which are splines."""

from typing import NamedTuple

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
