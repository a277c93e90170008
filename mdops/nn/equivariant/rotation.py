"""Real spherical harmonics, and rotations of their coefficients.

Y_lm is real and scaled so that the squares of a degree have sum 1; the phase is that of Condon and Shortley. So Y_1 of
a unit vector (x, y, z) is (-y, z, -x) for m = -1, 0, 1. D^l of a rotation R is the matrix of Y_l(R r) = D^l Y_l(r).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from mdops.nn.equivariant.checks import check_coefficients, check_degrees, check_vectors
from mdops.nn.equivariant.indices import coefficients
from mdops.tracing import outside_inference_mode


def spherical_harmonics(vectors: torch.Tensor, lmax: int) -> torch.Tensor:
    """Y_lm of the directions of vectors, (..., 3) to (..., (lmax + 1)^2) in packed order.

    They are polynomials of the unit vector, so that no direction is special. They come from the recursion of the
    associated Legendre functions without their powers of sin(theta).

    Args:
        vectors: float32 or float64, of any lengths whose squares are normal numbers; zeros give NaN.

    Raises:
        InputError: a shape, dtype or degree that does not fit.
    """
    check_vectors("spherical_harmonics: vectors", vectors, 3, rows=False)
    check_degrees("spherical_harmonics", lmax)
    x, y, z = (vectors / vectors.norm(dim=-1, keepdim=True)).unbind(-1)
    real, imaginary = [torch.ones_like(x)], [torch.zeros_like(x)]
    for m in range(lmax):
        real, imaginary = (
            [*real, real[m] * x - imaginary[m] * y],
            [*imaginary, real[m] * y + imaginary[m] * x],
        )
    found: dict[tuple[int, int], torch.Tensor] = {}
    for m in range(lmax + 1):
        before, last = torch.zeros_like(z), torch.full_like(z, (-1) ** m * math.prod(range(1, 2 * m, 2)))
        for ell in range(m, lmax + 1):
            if ell > m:
                before, last = last, ((2 * ell - 1) * z * last - (ell + m - 1) * before) / (ell - m)
            scale = math.sqrt((2 if m else 1) * math.factorial(ell - m) / math.factorial(ell + m))
            found[ell, m] = scale * last * real[m]
            if m:
                found[ell, -m] = scale * last * imaginary[m]
    return torch.stack([found[one] for one in coefficients(lmax)], -1)


def frame_quaternions(vectors: torch.Tensor) -> torch.Tensor:
    """Unit quaternions (w, x, y, z) of rotations that take the directions of vectors to +z, (E, 3) to (E, 4).

    The rotation about z is arbitrary: here it is smooth in each half-space and jumps where z = 0. Results must not
    depend on it. Those of linear layers by blocks of equal |m| do not.

    Args:
        vectors: float32 or float64, of any lengths whose squares are normal numbers; zeros give NaN.

    Raises:
        InputError: a shape or dtype that does not fit.
    """
    check_vectors("frame_quaternions: vectors", vectors, 3, rows=True)
    x, y, z = (vectors / vectors.norm(dim=-1, keepdim=True)).unbind(-1)
    none, up = torch.zeros_like(x), z >= 0
    # Of two axes of rotation, take the one that is far from zero.
    parts = ((1 + z, -x), (y, none), (-x, 1 - z), (none, y))
    quaternion = torch.stack([torch.where(up, first, second) for first, second in parts], -1)
    return quaternion / (2 * (1 + torch.where(up, z, -z))).sqrt()[:, None]  # |z| has no derivative at 0


@lru_cache(maxsize=64)
def _monomials(degree: int) -> np.ndarray:
    """(M, 4), the powers of w, x, y, z in each monomial of that degree."""
    found = [
        (w, x, y, degree - w - x - y)
        for w in range(degree + 1)
        for x in range(degree + 1 - w)
        for y in range(degree + 1 - w - x)
    ]
    return np.array(found)


def _to_real(ell: int) -> np.ndarray:
    """(2l + 1, 2l + 1), maps complex to real harmonics."""
    found = np.zeros((2 * ell + 1, 2 * ell + 1), complex)
    found[ell, ell] = 1
    for m in range(1, ell + 1):
        found[ell + m, [ell + m, ell - m]] = np.array([1, (-1) ** m]) / math.sqrt(2)
        found[ell - m, [ell + m, ell - m]] = np.array([-1j, (-1) ** m * 1j]) / math.sqrt(2)
    return found


def _powers(a: complex, b: complex, p: int, q: int) -> np.ndarray:
    """(p + q + 1,), the coefficients of (a s + b t)^p (a* s + b* t)^q by rising powers of t."""
    found = np.ones(1, complex)
    for first, second, times in ((a, b, p), (a.conjugate(), b.conjugate(), q)):
        for _ in range(times):
            found = np.convolve(found, [first, second])
    return found


@lru_cache(maxsize=64)
def _degree_polynomials(ell: int, degree: int) -> np.ndarray:
    """(M, 2l + 1, 2l + 1), D^l by monomials of a unit quaternion, of an even degree of at least 2l.

    The complex matrix of a = w + iz, b = -y + ix turns u^(l + m) v^(l - m) with u -> a u + b v, v -> -b* u + a* v
    (Wigner 1931). Squares of the norm, which is 1, raise it to the degree.
    """
    place = {tuple(one): k for k, one in enumerate(_monomials(2 * ell))}
    values, f = np.zeros((len(place), 2 * ell + 1, 2 * ell + 1), complex), math.factorial
    for m in range(-ell, ell + 1):
        for i in range(ell + m + 1):
            for j in range(ell - m + 1):
                k = ell + m - i + ell - m - j  # the power of u
                weight = math.comb(ell + m, i) * math.comb(ell - m, j) * (-1) ** (ell - m - j)
                weight *= math.sqrt(f(k) * f(2 * ell - k) / (f(ell + m) * f(ell - m)))
                of_wz, of_yx = _powers(1, 1j, ell + m - i, j), _powers(-1, 1j, i, ell - m - j)
                for z, first in enumerate(of_wz):
                    for x, second in enumerate(of_yx):
                        one = len(of_wz) - 1 - z, x, len(of_yx) - 1 - x, z
                        values[place[one], m + ell, k] += weight * first * second
    change = _to_real(ell)
    found = np.einsum("am,kmn,bn->kab", change, values, change.conj()).real
    for step in range(2 * ell, degree, 2):
        higher = {tuple(one): k for k, one in enumerate(_monomials(step + 2))}
        raised = np.zeros((len(higher), *found.shape[1:]))
        for k, one in enumerate(_monomials(step)):
            for axis in np.eye(4, dtype=int):
                raised[higher[tuple(one + 2 * axis)]] += found[k]
        found = raised
    return found


@lru_cache(maxsize=64)
def _row_polynomials(lmax: int, rows: tuple[tuple[int, int], ...]) -> np.ndarray:
    """(M, R (lmax + 1)^2) float64: rows (l, m) of the matrices of all degrees side by side."""
    found = np.zeros((len(_monomials(2 * lmax)), len(rows), (lmax + 1) ** 2))
    for r, (ell, m) in enumerate(rows):
        found[:, r, ell * ell : (ell + 1) ** 2] = _degree_polynomials(ell, 2 * lmax)[:, ell + m]
    return found.reshape(len(found), -1)


def _tables(
    lmax: int, rows: tuple[tuple[int, int], ...], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_row_polynomials`, and (4, 2 lmax + 1, M): 1 where a monomial has that power of w, x, y or z, else 0."""
    powers = torch.from_numpy(_monomials(2 * lmax)).T
    chosen = powers[:, None] == torch.arange(2 * lmax + 1)[:, None]
    polynomials = torch.from_numpy(_row_polynomials(lmax, rows))
    return polynomials.to(device, dtype), chosen.to(device, dtype)


# As torch.compiler.assume_constant_result, which would import the compiler: a second in every process.
_tables._dynamo_marked_constant = True  # type: ignore[attr-defined]

# Cached, so that no step waits for a copy, and a replayed CUDA graph can read them.
_kept_tables = lru_cache(maxsize=None)(outside_inference_mode(_tables))


def wigner_rows(
    quaternions: torch.Tensor, lmax: int, rows: Sequence[tuple[int, int]] | None = None
) -> torch.Tensor:
    """Rows of the matrices that rotate coefficients up to degree lmax, for unit quaternions (E, 4).

    They are polynomials of the quaternion: all derivatives exist, and no rotation is special.

    Args:
        quaternions: (w, x, y, z), float32 or float64, of length 1, which is not checked.
        rows: the (l, m) of each; None: all, in packed order.

    Returns:
        (E, R, (lmax + 1)^2): Y(R r)[(l, m)] = row . Y(r). The transpose turns back.

    Raises:
        InputError: a shape, dtype, degree or row that does not fit.
    """
    check_vectors("wigner_rows: quaternions", quaternions, 4, rows=True)
    check_degrees("wigner_rows", lmax)
    rows = tuple(coefficients(lmax)) if rows is None else tuple((ell, m) for ell, m in rows)
    check_coefficients("wigner_rows", rows, lmax)
    find = _tables if torch.compiler.is_compiling() else _kept_tables
    table, chosen = find(lmax, rows, quaternions.device, quaternions.dtype)
    powers = [torch.ones_like(quaternions)]
    for _ in range(2 * lmax):
        powers.append(powers[-1] * quaternions)
    # Matrix products select powers: the gradient of indexing is a slow sum on a GPU.
    of_each = torch.stack(powers, -1).unbind(1)
    first, second, third, fourth = (own @ which for own, which in zip(of_each, chosen, strict=True))
    found: torch.Tensor = (first * second * (third * fourth)) @ table
    return found.unflatten(1, (len(rows), (lmax + 1) ** 2))
