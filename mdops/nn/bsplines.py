"""Quintic B-splines on any knots, in float64: their values, and the solver from values at points to coefficients."""

import itertools

import numpy as np
import torch

DEGREE = 5
AROUND = 6  # B-splines that are not zero on an interval, and powers of a polynomial
_BLOCK = 32


def basis(x: torch.Tensor, interval: torch.Tensor, knots: torch.Tensor) -> torch.Tensor:
    """(P, 6): the B-splines on these knots (I + 11,) that are not zero on the interval of each x, by the recursion of
    Cox and de Boor; interval k is that between the knots k + 5 and k + 6."""
    near = knots[interval[:, None] + torch.arange(2 * DEGREE + 2)]
    values = [torch.ones_like(x)]
    for degree in range(1, DEGREE + 1):
        saved, new = torch.zeros_like(x), []
        for r in range(degree):
            right, left = near[:, DEGREE + r + 1] - x, x - near[:, DEGREE + 1 + r - degree]
            part = values[r] / (right + left)
            new.append(saved + right * part)
            saved = left * part
        values = [*new, saved]
    return torch.stack(values, 1)


class Collocation:
    """The matrix (B, B) of all B-splines at as many points. It is banded within a block's width, so it is factorized
    block by block, without pivoting, which a matrix of B-splines does not need."""

    def __init__(self, x: torch.Tensor, interval: torch.Tensor, knots: torch.Tensor) -> None:
        """Arguments are those of `basis`, for B points and B + 6 knots."""
        self.size = len(x)
        row, column = torch.arange(self.size)[:, None], interval[:, None] + torch.arange(AROUND)
        count = -(-self.size // _BLOCK)
        blocks = torch.zeros(
            count, 3, _BLOCK, _BLOCK, dtype=torch.float64
        )  # before, on and after the diagonal
        beside = column // _BLOCK - row // _BLOCK + 1
        blocks[row // _BLOCK, beside, row % _BLOCK, column % _BLOCK] = basis(x, interval, knots)
        beyond = torch.arange(self.size - (count - 1) * _BLOCK, _BLOCK)
        blocks[-1, 1, beyond, beyond] = 1.0
        # NumPy: its small products stay fast when other work fills the cores.
        parts = blocks.numpy()
        self._pivots = [np.linalg.inv(parts[0, 1])]
        self._lefts: list[np.ndarray] = []
        self._rights: list[np.ndarray] = []
        for before, here in itertools.pairwise(parts):
            self._lefts.append(here[0] @ self._pivots[-1])
            self._rights.append(self._pivots[-1] @ before[2])
            self._pivots.append(np.linalg.inv(here[1] - self._lefts[-1] @ before[2]))

    def solve(self, values: torch.Tensor) -> torch.Tensor:
        """(..., B, M), float64, without a graph: the coefficients of the splines with these values (..., B, M) at the
        points."""
        rows = values.detach().movedim(-2, 0).reshape(self.size, -1).numpy()
        parts = [rows[k : k + _BLOCK] for k in range(0, self.size, _BLOCK)]
        parts[-1] = np.pad(parts[-1], ((0, _BLOCK - len(parts[-1])), (0, 0)))
        for k, left in enumerate(self._lefts):
            parts[k + 1] = parts[k + 1] - left @ parts[k]
        parts[-1] = self._pivots[-1] @ parts[-1]
        for k in range(len(parts) - 2, -1, -1):
            parts[k] = self._pivots[k] @ parts[k] - self._rights[k] @ parts[k + 1]
        found = torch.from_numpy(np.concatenate(parts)[: self.size])
        return found.view(self.size, *values.shape[:-2], values.shape[-1]).movedim(0, -2).contiguous()
