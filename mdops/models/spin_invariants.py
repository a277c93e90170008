"""DPA-4C's features of magnetic moments: sums over neighbours, and their invariants."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mdops.models.rows import table_rows

_ANCHOR = 0.5  # in tables of pairs of types of a new model, with either sign
LINES = 13  # of `neighbor_lines`, and so of the sums over them
_TRIANGLE_OF_TWO = 2  # entries of the tensors' Gram matrix to keep


class MomentTables(NamedTuple):
    """How a pair of types changes the radial functions in sums with moments: rows as in `PairTables`.

    Attributes:
        scale, shift: (ntypes^2, C_2).
    """

    scale: torch.Tensor
    shift: torch.Tensor


def tensor_of(vectors: torch.Tensor) -> torch.Tensor:
    """(N, 5): B_2 of vectors (N, 3) of any length, with B_2 . B_2 = |v|^4."""
    x, y, z = vectors.unbind(1)
    root = math.sqrt(3)
    diagonal = 0.5 * (2 * z * z - x * x - y * y)
    return torch.stack([root * x * y, root * y * z, diagonal, root * x * z, 0.5 * root * (x * x - y * y)], 1)


def neighbor_lines(moments: torch.Tensor, magnetic: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """(E, 13): |s|^2, whether the neighbour's type has moments, s, (s . u) u and B_2(s), by the neighbours' moments s
    (E, 3), these truth values (E, 1) and the unit vectors u (E, 3)."""
    squared = moments.square().sum(1, keepdim=True)
    along = (moments * directions).sum(1, keepdim=True) * directions
    return torch.cat([squared, magnetic, moments, along, tensor_of(moments)], 1)


class SpinInvariants(nn.Module):
    """Invariants of an atom's moment s, which is divided by `reference`, and of sums S (13, C_2) over its neighbours of
    the numbers of `neighbor_lines` times functions of the distance, of which B_2(s) has the first alone:

    with V = (lambda_a s, S of s, S of (s . u) u), vectors, and Q = (mu_a B_2(s), S of B_2(s)), tensors: the upper
    triangles of V^T V and of Q^T Q, but for |mu_a B_2(s)|^2, then Q^T X_2, then S of |s|^2 and of the truth values.
    Equal entries of a symmetric product are there once, times the root of 2. All are even in the moments. Source:
    DeePMD-kit 3.2.0, "SpinChannels".

    Attributes:
        reference: (ntypes,), moments that are usual for each type, in units of the data; lambda, mu: `vector_weight`
            and `tensor_weight`, (ntypes,); gate: (1,), a factor of all invariants after the statistics.
        scale_anchor, shift_anchor: (C_2,), added to the net of pairs of types before its tanh.
        magnetic: (ntypes,), 1 for types with moments and 0 for others.
    """

    reference: torch.Tensor
    magnetic: torch.Tensor
    pairs: torch.Tensor
    pair_scale: torch.Tensor

    ARRAYS = ("reference", "vector_weight", "tensor_weight", "gate", "scale_anchor", "shift_anchor")

    def __init__(self, use_spin: list[bool], arrays: dict[str, torch.Tensor]) -> None:
        """Takes `ARRAYS` by name."""
        super().__init__()
        dtype, width = arrays["gate"].dtype, 1 + 2 * len(arrays["scale_anchor"])
        self.register_buffer("reference", arrays["reference"])
        self.vector_weight = nn.Parameter(arrays["vector_weight"])
        self.tensor_weight = nn.Parameter(arrays["tensor_weight"])
        self.gate = nn.Parameter(arrays["gate"])
        self.scale_anchor = nn.Parameter(arrays["scale_anchor"])
        self.shift_anchor = nn.Parameter(arrays["shift_anchor"])
        rows, columns = np.triu_indices(width)
        factors = np.where(rows == columns, 1.0, math.sqrt(2))
        for name, value in (
            ("magnetic", torch.tensor(use_spin, dtype=dtype)),
            ("pairs", torch.from_numpy(rows * width + columns)),
            ("pair_scale", torch.from_numpy(factors).to(dtype)),
        ):
            self.register_buffer(name, value, persistent=False)

    @staticmethod
    def random(
        use_spin: list[bool], channels: int, random: np.random.Generator, precision: str, dtype: torch.dtype
    ) -> "SpinInvariants":
        """For a new model, with C_2 `channels`. Its gate is closed; training opens it."""
        n = len(use_spin)
        signs = random.integers(0, 2, (2, channels)) * 2 - 1
        found = {
            "reference": np.ones(n),
            "vector_weight": random.normal(size=n),
            "tensor_weight": random.normal(size=n),
            "gate": np.zeros(1),
            "scale_anchor": signs[0] * math.atanh(_ANCHOR),
            "shift_anchor": signs[1] * math.atanh(_ANCHOR),
        }
        arrays = {name: torch.from_numpy(value.astype(precision)).to(dtype) for name, value in found.items()}
        return SpinInvariants(use_spin, arrays)

    @property
    def width(self) -> int:
        return spin_width(len(self.scale_anchor))

    def moments(self, spins: torch.Tensor | None, types: torch.Tensor) -> torch.Tensor:
        """(N, 3), of spins (N, 3) in units of the data and types (N,): those that count, over the reference."""
        assert spins is not None  # `Potential` takes no system without
        return spins.to(self.gate.dtype) * table_rows((self.magnetic / self.reference)[:, None], types)

    def tables(self, scale: torch.Tensor, shift: torch.Tensor) -> MomentTables:
        """From the net of pairs' output."""
        return MomentTables(torch.tanh(scale + self.scale_anchor), torch.tanh(shift + self.shift_anchor))

    def forward(
        self, sums: torch.Tensor, moments: torch.Tensor, types: torch.Tensor, tensors: torch.Tensor
    ) -> torch.Tensor:
        """(N, width), from S (N, 13, C_2), s (N, 3), types (N,), X_2 (N, 5, C_2)."""
        own = moments * table_rows(self.vector_weight[:, None], types)
        own_tensor = tensor_of(moments) * table_rows(self.tensor_weight[:, None], types)
        v = torch.cat([own[:, :, None], sums[:, 2:5], sums[:, 5:8]], 2)
        q = torch.cat([own_tensor[:, :, None], sums[:, 8:, :1]], 2)
        of_vectors = (v.transpose(1, 2) @ v).flatten(1).index_select(1, self.pairs) * self.pair_scale
        both = (q[:, :, :1] * q[:, :, 1:]).sum(1) * math.sqrt(2)
        crossed = (q.transpose(1, 2) @ tensors).flatten(1)
        return torch.cat([of_vectors, both, q[:, :, 1:].square().sum(1), crossed, sums[:, 0], sums[:, 1]], 1)


def spin_width(channels: int) -> int:
    """The number of invariants, with C_2 channels."""
    vectors = 1 + 2 * channels
    return vectors * (vectors + 1) // 2 + _TRIANGLE_OF_TWO + 4 * channels
