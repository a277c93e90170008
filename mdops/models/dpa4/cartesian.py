"""DPA-4's other way to mix degrees: coefficients up to degree 2 are multiplied as 3 x 3 matrices."""

import math
from collections.abc import Callable

import torch
from torch import nn

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.indices import coefficients
from mdops.nn.equivariant.linear import DegreeLinear

# The entries (row, column, value) of each coefficient's matrix, by degree.
_A, _B, _C = 1 / math.sqrt(2), 1 / math.sqrt(3), 1 / math.sqrt(6)
_ENTRIES: list[list[tuple[int, int, float]]] = [
    [(0, 0, _B), (1, 1, _B), (2, 2, _B)],
    [(0, 2, -_A), (2, 0, _A)],
    [(0, 1, _A), (1, 0, -_A)],
    [(1, 2, -_A), (2, 1, _A)],
    [(0, 1, -_A), (1, 0, -_A)],
    [(1, 2, _A), (2, 1, _A)],
    [(0, 0, -_C), (1, 1, -_C), (2, 2, 2 * _C)],
    [(0, 2, -_A), (2, 0, -_A)],
    [(0, 0, _A), (1, 1, -_A)],
]


def matrix_basis(lmax: int) -> torch.Tensor:
    """(D, 3, 3) float64, orthonormal: the trace, the antisymmetric and the symmetric traceless matrices."""
    basis = torch.zeros((lmax + 1) ** 2, 3, 3, dtype=torch.float64)
    for matrix, entries in zip(basis, _ENTRIES, strict=False):
        for row, column, value in entries:
            matrix[row, column] = value
    return basis


class _MatrixLayers(nn.Module):
    """Residual layers x + f(product(x_l W_l)) of rows (N, D, F, C)."""

    def __init__(self, lmax: int, channels: int, groups: int, layers: int, function: str, bias: bool) -> None:
        super().__init__()
        self.linears = nn.ModuleList(
            DegreeLinear(lmax, channels, channels, groups, bias) for _ in range(layers)
        )
        chosen = coefficients(lmax)
        self.activations = nn.ModuleList(
            Gate(chosen, channels, groups, function, bias) if k < layers - 1 else nn.Identity()
            for k in range(layers)
        )
        self.register_buffer("_basis", matrix_basis(lmax), persistent=False)

    _basis: torch.Tensor

    def layers(self, x: torch.Tensor, product: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        for linear, activation in zip(self.linears, self.activations, strict=True):
            x = x + activation(product(linear(x)))
        return x


class EdgeMatrices(_MatrixLayers):
    """Messages without a frame: an edge's rows as matrices, times 1, [u] and u u^T - 1/3 of its unit vector u."""

    def __init__(self, lmax: int, channels: int, groups: int, layers: int, function: str, bias: bool) -> None:
        super().__init__(lmax, channels, groups, layers, function, bias)
        self.lmax = lmax

    def forward(self, x: torch.Tensor, vectors: torch.Tensor, radial: torch.Tensor) -> torch.Tensor:
        """Takes rows (E, D, F, C), vectors (E, 3) and radial features (E, L + 1, F, C)."""
        # The matrices belong to harmonics of (-x, y, -z), and DeePMD-kit's vectors point to the neighbour.
        unit = torch.stack([vectors[:, 0], -vectors[:, 1], vectors[:, 2]], 1) / vectors.norm(
            dim=1, keepdim=True
        )
        x0, y0, z0 = unit.unbind(1)
        none = torch.zeros_like(x0)
        skew = torch.stack([none, -z0, y0, z0, none, -x0, -y0, x0, none], 1).view(-1, 3, 3)
        square = unit[:, :, None] * unit[:, None, :] - torch.eye(3, dtype=unit.dtype, device=unit.device) / 3
        # Multiplication by a matrix on the right, as a matrix that acts on coefficients.
        table = torch.einsum("pij,dik->pdkj", self._basis, self._basis)
        operators = [torch.einsum("pdkj,ekj->epd", table, skew / math.sqrt(2))]
        if self.lmax == 2:
            operators.append(torch.einsum("pdkj,ekj->epd", table, square / math.sqrt(2 / 3)))

        def product(y: torch.Tensor) -> torch.Tensor:
            found = radial[:, :1] / math.sqrt(3) * y
            for ell, operator in enumerate(operators, 1):
                found = found + radial[:, ell : ell + 1] * torch.matmul(operator, y.flatten(2)).view_as(y)
            return found

        return self.layers(x, product) if len(self.linears) else product(x)


class NodeMatrices(_MatrixLayers):
    """Messages (N, D, F, C) as matrices, times the atom's own matrices on the right, and on the left if `both`."""

    def __init__(
        self, lmax: int, channels: int, groups: int, layers: int, function: str, bias: bool, both: bool
    ) -> None:
        super().__init__(lmax, channels, groups, layers, function, bias)
        self.both = both

    def forward(self, messages: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        own = torch.einsum("ndfc,dij->nfcij", nodes, self._basis)

        def product(y: torch.Tensor) -> torch.Tensor:
            matrices = torch.einsum("ndfc,dij->nfcij", y, self._basis)
            found = matrices @ own + own @ matrices if self.both else matrices @ own
            return torch.einsum("nfcij,dij->ndfc", found, self._basis)

        return self.layers(messages, product)
