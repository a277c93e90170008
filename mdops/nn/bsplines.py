"""Quintic B-splines on any knots, in float64: their values, and what takes values at points to coefficients."""

import itertools

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


def inverse_basis(x: torch.Tensor, interval: torch.Tensor, knots: torch.Tensor) -> torch.Tensor:
    """(B, B): the inverse of the matrix of all B-splines at as many points; arguments as of `basis`. Points and knots
    are the same from both ends."""
    matrix = torch.zeros(len(x), len(knots) - DEGREE - 1, dtype=torch.float64)
    matrix.scatter_(1, interval[:, None] + torch.arange(AROUND), basis(x, interval, knots))
    return _inverse(matrix)


def _inverse(matrix: torch.Tensor) -> torch.Tensor:
    """Of a matrix that is the same turned by half a turn: it takes vectors that are the same from both ends to such
    ones, and those that change their sign to such ones. Each kind has half as many numbers."""
    n, half = len(matrix), len(matrix) // 2
    near, far = matrix[: n - half, : n - half].clone(), matrix[: n - half, n - half :].flip(1)
    odd = _inverse_of_band(near[:half, :half] - far[:half])
    near[:, :half] += far
    even = _inverse_of_band(near)
    both = even[:half, :half]
    # The row and the column in the middle, if there are any, are of the first kind alone.
    left = torch.cat([0.5 * (both + odd), 0.5 * even[half:, :half], 0.5 * (both - odd).flip(0)])
    middle = torch.cat([even[:, half:], even[:half, half:].flip(0)])
    return torch.cat([left, middle, left.flip(0, 1)], 1)


def _inverse_of_band(matrix: torch.Tensor) -> torch.Tensor:
    """Of a matrix with nothing farther from its diagonal than a block is wide: block by block, without exchanging rows,
    which a matrix of B-splines does not need."""
    blocks = [slice(k, k + _BLOCK) for k in range(0, len(matrix), _BLOCK)]
    rows = torch.eye(len(matrix), dtype=matrix.dtype)
    pivots = [torch.linalg.inv(matrix[blocks[0], blocks[0]])]
    for before, here in itertools.pairwise(blocks):
        left = matrix[here, before] @ pivots[-1]
        pivots.append(torch.linalg.inv(matrix[here, here] - left @ matrix[before, here]))
        rows[here] -= left @ rows[before]
    rows[blocks[-1]] = pivots[-1] @ rows[blocks[-1]]
    for here, after, pivot in zip(blocks[-2::-1], blocks[:0:-1], pivots[-2::-1], strict=True):
        rows[here] = pivot @ (rows[here] - matrix[here, after] @ rows[after])
    return rows
