"""Orders of the coefficients of real spherical harmonics: packed, degree after degree, or order after order."""

from collections.abc import Sequence

import torch

from mdops.nn.equivariant.checks import check_coefficients, check_degrees


def coefficients(lmax: int, mmax: int | None = None) -> list[tuple[int, int]]:
    """(l, m) of each coefficient up to degree lmax in packed order: l rises, and m from -l to l in each degree.

    With an mmax (at most lmax), only those of |m| <= mmax. Raises InputError for other numbers.
    """
    check_degrees("coefficients", lmax, mmax)
    most = lmax if mmax is None else mmax
    return [(ell, m) for ell in range(lmax + 1) for m in range(-min(ell, most), min(ell, most) + 1)]


def by_order(lmax: int, mmax: int) -> list[tuple[int, int]]:
    """The same coefficients in blocks of equal |m|: all l of m = 0, then those of m = -1, of m = 1, of m = -2, ..."""
    check_degrees("by_order", lmax, mmax)
    signed = [0, *(sign * m for m in range(1, mmax + 1) for sign in (-1, 1))]
    return [(ell, m) for m in signed for ell in range(abs(m), lmax + 1)]


def places(chosen: Sequence[tuple[int, int]]) -> list[int]:
    """The packed places of coefficients (l, m). Raises InputError for others."""
    check_coefficients("places", chosen)
    return [ell * ell + ell + m for ell, m in chosen]


def degree_index(chosen: Sequence[tuple[int, int]]) -> torch.Tensor:
    """(D,) int64, the degree of each coefficient."""
    return torch.tensor([ell for ell, _ in chosen], dtype=torch.int64)


def degree_table(chosen: Sequence[tuple[int, int]]) -> torch.Tensor:
    """(D, L + 1) float64: 1 where a coefficient has the degree, else 0."""
    degrees = degree_index(chosen)
    return (degrees[:, None] == torch.arange(int(degrees.max()) + 1)).double()


def of_each(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Expands values (L + 1, ...) of degrees to coefficients, (D, ...), by a `degree_table`. That is a matrix product:
    the gradient of indexing takes several operations."""
    return (table @ values.flatten(1)).view(len(table), *values.shape[1:])


def runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """Splits places into runs of equal or rising ones: (length, first place, number of different places)."""
    found: list[tuple[int, int, int]] = []
    for place in places:
        count, first, size = found[-1] if found else (0, 0, 0)
        if count and place == first and size == 1:
            found[-1] = (count + 1, first, 1)
        elif count and place == first + count and size == count:
            found[-1] = (count + 1, first, size + 1)
        else:
            found.append((1, place, 1))
    return found


def spread(x: torch.Tensor, found: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    """Rows of (E, L, C) at the places of `runs`, (E, D, C). Gradients are summed in a fixed order."""
    return torch.cat([x[:, at : at + size].expand(-1, count, -1) for count, at, size in found], 1)
