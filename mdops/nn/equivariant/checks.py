"""Checks of the arguments of equivariant functions and modules."""

from collections.abc import Sequence

import torch

from mdops.errors import InputError


def check_vectors(what: str, value: torch.Tensor, columns: int, rows: bool) -> None:
    """Expects (..., columns) float32 or float64; with `rows`, (E, columns)."""
    shape, dims = tuple(value.shape), len(value.shape)
    if not dims or shape[-1] != columns or (rows and dims != 2):
        raise InputError(f"{what} have shape {shape}, expected ({'E' if rows else '...'}, {columns})")
    if value.dtype not in (torch.float32, torch.float64):
        raise InputError(f"{what} have dtype {value.dtype}, expected float32 or float64")


def check_degrees(what: str, lmax: int, mmax: int | None = None, name: str = "mmax") -> None:
    """Checks a largest degree, and a largest order."""
    if not isinstance(lmax, int) or lmax < 0:
        raise InputError(f"{what}: lmax is {lmax}, expected a whole number from 0 on")
    if mmax is not None and (not isinstance(mmax, int) or not 0 <= mmax <= lmax):
        raise InputError(f"{what}: {name} is {mmax}, expected a whole number from 0 to lmax, {lmax}")


def check_coefficients(what: str, chosen: Sequence[tuple[int, int]], lmax: int | None = None) -> None:
    """Expects (l, m) of existing coefficients."""
    for ell, m in chosen:
        if abs(m) > ell or (lmax is not None and ell > lmax):
            most = "" if lmax is None else f" of degrees up to {lmax}"
            raise InputError(f"{what}: there is no coefficient (l, m) = {(ell, m)}{most}")


def check_all_degrees(what: str, chosen: Sequence[tuple[int, int]]) -> None:
    """Expects (0, 0) first and no degree missing."""
    check_coefficients(what, chosen)
    degrees = {ell for ell, _ in chosen}
    if not chosen or tuple(chosen[0]) != (0, 0) or degrees != set(range(len(degrees))):
        raise InputError(
            f"{what}: the coefficients are {list(chosen)}, expected (0, 0) first, and all degrees"
        )


def check_rows(module: str, x: torch.Tensor, shape: Sequence[int], like: torch.Tensor, dims: int = 1) -> None:
    """Expects (N, *shape) in the weights' dtype, with `dims` dimensions before the shape; 0: any number."""
    given, expected = tuple(x.shape), tuple(shape)
    fits = len(given) >= len(expected) and given[len(given) - len(expected) :] == expected
    if not fits or (dims and len(given) != dims + len(expected)):
        front = "N" if dims else "..."
        raise InputError(
            f"{module}: x has shape {given}, expected ({', '.join(map(str, (front, *expected)))})"
        )
    if x.dtype != like.dtype:
        raise InputError(
            f"{module}: x has dtype {x.dtype}, and its weights have {like.dtype}; convert one, as by `.to(x.dtype)`"
        )
