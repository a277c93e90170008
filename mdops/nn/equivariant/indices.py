"""Orders of the coefficients of real spherical harmonics: packed, degree after degree, or order after order."""

from collections.abc import Sequence

import torch


def coefficients(lmax: int, mmax: int | None = None) -> list[tuple[int, int]]:
    """(l, m) of each coefficient up to degree lmax in packed order: l rises, and m from -l to l in each degree.

    With an mmax those of |m| <= mmax alone.
    """
    most = lmax if mmax is None else mmax
    return [(ell, m) for ell in range(lmax + 1) for m in range(-min(ell, most), min(ell, most) + 1)]


def by_order(lmax: int, mmax: int) -> list[tuple[int, int]]:
    """The same coefficients in blocks of equal |m|: all l of m = 0, then those of m = -1, of m = 1, of m = -2, ..."""
    signed = [0, *(sign * m for m in range(1, mmax + 1) for sign in (-1, 1))]
    return [(ell, m) for m in signed for ell in range(abs(m), lmax + 1)]


def places(chosen: Sequence[tuple[int, int]]) -> list[int]:
    """The packed places of coefficients (l, m)."""
    return [ell * ell + ell + m for ell, m in chosen]


def degree_index(chosen: Sequence[tuple[int, int]]) -> torch.Tensor:
    """(D,) int64, the degree of each coefficient."""
    return torch.tensor([ell for ell, _ in chosen], dtype=torch.int64)
