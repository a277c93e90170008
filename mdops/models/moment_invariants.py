"""Rotation invariants of sums over neighbours of spherical harmonics: their Gram matrices, products of three of them,
and of a vector and a tensor (DPA4C)."""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from mdops.ops import harmonic_rows

_POLAR, _AZIMUTHAL = 8, 16  # points of a quadrature exact up to degree 15
_ZERO = 1e-14
_ALIGNED = (1, 2)  # degrees with mixed channels


def degree_channels(channels: int, lmax: int) -> list[int]:
    """C_l for l = 0 to lmax."""
    vectors = max(4, 2 ** (channels.bit_length() // 2))
    return [channels, vectors, max(4, vectors // 2), *(1 for _ in range(3, lmax + 1))]


def probe_ranks(channels: Sequence[int]) -> list[int]:
    """K_l for l = 1 to lmax, from C_l for l = 0 to lmax: the channels in products of three."""
    return [channels[2], 2, *(1 for _ in channels[3:])]


def degree_triples(lmax: int) -> list[tuple[int, int, int]]:
    """l1 <= l2 <= l3 from 1 to lmax whose product has a part invariant under rotations and mirrors."""
    every = itertools.combinations_with_replacement(range(1, lmax + 1), 3)
    return [t for t in every if t[2] <= t[0] + t[1] and sum(t) % 2 == 0]


def invariants_width(channels: int, lmax: int) -> int:
    """How many invariants there are."""
    c = degree_channels(channels, lmax)
    ranks = probe_ranks(c)
    triples = sum(len(independent_products(triple, ranks)[0]) for triple in degree_triples(lmax))
    return channels + sum(n * (n + 1) // 2 for n in c[1:]) + triples + ranks[0] * ranks[1]


def independent_products(
    triple: tuple[int, int, int], ranks: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct ones of the K_l1 K_l2 K_l3 products, and their factors."""
    index, scale = [], []
    for place, channels in enumerate(itertools.product(*(range(ranks[degree - 1]) for degree in triple))):
        named = list(zip(triple, channels, strict=True))
        if named != sorted(named):
            continue
        alike = [channels[i] for i in range(3) if triple.count(triple[i]) > 1]
        index.append(place)
        scale.append(math.sqrt(len(set(itertools.permutations(alike)))))
    return torch.tensor(index), torch.tensor(scale, dtype=torch.float64)


@lru_cache
def gaunt_tensors(lmax: int) -> dict[tuple[int, int, int], np.ndarray]:
    """G (2 l1 + 1, 2 l2 + 1, 2 l3 + 1) of each triple: the mean over the sphere of products of three harmonics, of unit
    norm, with a positive first entry."""
    z, weights = np.polynomial.legendre.leggauss(_POLAR)
    angle = 2 * np.pi * np.arange(_AZIMUTHAL) / _AZIMUTHAL
    ring = np.sqrt(1 - z**2)[:, None]
    points = np.stack(
        [ring * np.cos(angle), ring * np.sin(angle), np.broadcast_to(z[:, None], (_POLAR, _AZIMUTHAL))], -1
    ).reshape(1, -1, 3)
    values = unit_harmonics(torch.from_numpy(points), lmax).numpy()
    weights = np.repeat(weights / (2 * _AZIMUTHAL), _AZIMUTHAL)
    found = {}
    for triple in degree_triples(lmax):
        parts = (values[:, degree**2 : (degree + 1) ** 2] for degree in triple)
        g = np.einsum("p,pi,pj,pk->ijk", weights, *parts)
        g[np.abs(g) < _ZERO] = 0.0
        found[triple] = g * (np.sign(g[g != 0][0]) / np.linalg.norm(g))
    return found


def unit_harmonics(points: torch.Tensor, lmax: int) -> torch.Tensor:
    """(P, (lmax + 1)^2) of unit vectors (1, P, 3)."""
    count = points.shape[1]
    slots, counts = torch.arange(count, dtype=torch.int32), torch.tensor([[count]], dtype=torch.int32)
    none = (
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1, dtype=points.dtype),
        torch.ones(1, 2, dtype=points.dtype),
    )
    # Within the switch, a factor of them.
    return harmonic_rows(points, slots, counts, *none, cutoff=4.0, cutoff_smooth=2.0, rows=count, degree=lmax)


class MomentInvariants(nn.Module):
    """Invariants of moments X_l (N, 2 l + 1, C_l) of l = 0 to lmax, in this order, of every atom:

    X_0; with Y_l = X_l + X_l A_l for l = 1 and 2, else X_l, the upper triangles of Y_l^T Y_l; with Z_l = Y_l Q_l
    the sums over i, j, k of G_ijk Z_l1,ia Z_l2,jb Z_l3,kc of each triple; and |T_b v_a|^2 of the vectors v_a of Z_1
    and the tensors T_b of Z_2. Equal entries of a symmetric product are there once, times the root of their
    number. Products of an odd sum of degrees are left out: mirrors change their sign.

    Attributes:
        alignment: A_1 (C_1, C_1) and A_2; probes: Q_l (C_l, K_l), None where K_l = C_l.
    """

    def __init__(
        self,
        channels: int,
        lmax: int,
        alignment: Sequence[torch.Tensor],
        probes: Sequence[torch.Tensor | None],
    ) -> None:
        super().__init__()
        self.lmax, self.channels = lmax, degree_channels(channels, lmax)
        self.ranks = probe_ranks(self.channels)
        self.alignment = nn.ParameterList(alignment)
        for degree, probe in enumerate(probes, 1):
            self.register_parameter(f"probe_{degree}", None if probe is None else nn.Parameter(probe))
        dtype = alignment[0].dtype
        for degree, width in enumerate(self.channels[1:], 1):
            rows, columns = np.triu_indices(width)
            self._keep(f"pairs_{degree}", torch.from_numpy(rows * width + columns))
            factors = np.where(rows == columns, 1.0, math.sqrt(2))
            self._keep(f"pair_scale_{degree}", torch.from_numpy(factors).to(dtype))
        self.triples = degree_triples(lmax)
        for triple in self.triples:
            name = "".join(map(str, triple))
            index, scale = independent_products(triple, self.ranks)
            self._keep(f"triples_{name}", index)
            self._keep(f"triple_scale_{name}", scale.to(dtype))
            self._keep(f"gaunt_{name}", torch.from_numpy(gaunt_tensors(lmax)[triple]).to(dtype))
        self._keep("tensors", torch.from_numpy(tensor_basis()).to(dtype))

    def _keep(self, name: str, value: torch.Tensor) -> None:
        """The state lacks what follows from the options."""
        self.register_buffer(name, value, persistent=False)

    @property
    def width(self) -> int:
        """For all of them."""
        return invariants_width(self.channels[0], self.lmax)

    @property
    def probes(self) -> list[torch.Tensor | None]:
        return [getattr(self, f"probe_{degree}") for degree in range(1, self.lmax + 1)]

    def forward(self, moments: Sequence[torch.Tensor]) -> torch.Tensor:
        """(N, width), of X_l for l = 0 to lmax."""
        y = list(moments)
        for degree, weight in zip(_ALIGNED, self.alignment, strict=True):
            y[degree] = y[degree] + y[degree] @ weight
        found = [moments[0][:, 0]]
        for degree in range(1, self.lmax + 1):
            gram = (y[degree].transpose(1, 2) @ y[degree]).flatten(1)
            own = gram.index_select(1, self.get_buffer(f"pairs_{degree}"))
            found.append(own * self.get_buffer(f"pair_scale_{degree}"))
        z = [y[0]] + [one if q is None else one @ q for one, q in zip(y[1:], self.probes, strict=True)]
        turned = self._turned(z[1], z[2])
        for triple in self.triples:
            name = "".join(map(str, triple))
            full = self._product(triple, z, turned).flatten(1)
            own = full.index_select(1, self.get_buffer(f"triples_{name}"))
            found.append(own * self.get_buffer(f"triple_scale_{name}"))
        found.append(turned.square().sum(2).flatten(1))
        return torch.cat(found, dim=1)

    def _turned(self, vectors: torch.Tensor, tensors: torch.Tensor) -> torch.Tensor:
        """(N, K_2, 3, K_1): T_b v_a of vectors (N, 3, K_1) and tensors (N, 5, K_2)."""
        made = (tensors.transpose(1, 2) @ self.get_buffer("tensors")).unflatten(2, (3, 3))
        return made @ vectors[:, None]

    def _product(
        self, triple: tuple[int, int, int], z: Sequence[torch.Tensor], turned: torch.Tensor
    ) -> torch.Tensor:
        """(N, K_l1, K_l2, K_l3)."""
        first, second, third = (z[degree] for degree in triple)
        if triple == (1, 1, 2):  # equals v_a T_c v_b up to a factor
            found = first.transpose(1, 2)[:, None] @ turned
            return found.permute(0, 2, 3, 1) * (-1 / math.sqrt(5))
        g = self.get_buffer(f"gaunt_{''.join(map(str, triple))}")
        i, j, k = g.shape
        atoms, a, b = first.shape[0], first.shape[2], second.shape[2]
        found = first.transpose(1, 2) @ g.reshape(i, j * k)  # N, a, (j, k)
        found = second.transpose(1, 2)[:, None] @ found.view(atoms, a, j, k)  # N, a, b, k
        return (found.reshape(atoms, a * b, k) @ third).view(atoms, a, b, third.shape[2])


def tensor_basis() -> np.ndarray:
    """(5, 9): the symmetric traceless unit matrices whose coefficients are the harmonics of degree 2."""
    basis = np.zeros((5, 3, 3))
    half, sixth = 1 / math.sqrt(2), 1 / math.sqrt(6)
    for m, (x, y) in ((0, (0, 1)), (1, (1, 2)), (3, (0, 2))):
        basis[m, x, y] = basis[m, y, x] = half
    basis[2] = np.diag([-sixth, -sixth, 2 * sixth])
    basis[4] = np.diag([half, -half, 0.0])
    return basis.reshape(5, 9)
