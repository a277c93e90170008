"""The first features of DPA-4's atoms: types, charge and multiplicity, and sums over their surroundings."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.models.charge_spin import charge_spin_rows
from mdops.models.dpa4.edges import Edges
from mdops.nn.equivariant.linear import Dense, draw, zeros
from mdops.ops import axis_product, edge_gather, row_moments
from mdops.system import CHARGES, MULTIPLICITIES, System


class TypeTable(nn.Module):
    """A row for each of `count` types, followed by a row of zeros if `padded`."""

    def __init__(self, count: int, width: int, padded: bool = True) -> None:
        super().__init__()
        self.count = count
        self.adam_type_embedding = zeros(count + padded, width)

    def forward(self, kinds: torch.Tensor) -> torch.Tensor:
        return F.embedding(kinds, self.adam_type_embedding)

    def reset(self, random: np.random.Generator) -> None:
        rows = self.adam_type_embedding.detach()[: self.count]
        draw(rows, random, 1 / math.sqrt(self.count + rows.shape[1]))


class ChargeSpin(nn.Module):
    """(S, C), from charges and multiplicities; (1, C) from the default."""

    def __init__(self, channels: int, function: str) -> None:
        super().__init__()
        self.charge_embedding = TypeTable(len(CHARGES), channels, padded=False)
        self.spin_embedding = TypeTable(len(MULTIPLICITIES), channels, padded=False)
        self.mix_layer = Dense(2 * channels, channels, function, bias=True)

    def forward(self, system: System, default: Sequence[float] | None) -> torch.Tensor:
        tables = self.charge_embedding.adam_type_embedding, self.spin_embedding.adam_type_embedding
        found: torch.Tensor = self.mix_layer(charge_spin_rows(*tables, system, default))
        return found


class Moments(nn.Module):
    """Magnetic moments s of atoms. f(|s|^2) is added to the scalars; s, times a factor of each channel, to the
    coefficients of degree 1, and to those of neighbours."""

    def __init__(self, ntypes: int, channels: int, function: str) -> None:
        super().__init__()
        self.mag_layer1 = Dense(1, channels, function)
        self.mag_layer2 = Dense(channels, channels)
        self.adam_spin_vec_weight = zeros(ntypes, channels)
        self.adam_spin_nbr_weight = zeros(ntypes, channels)

    def scalars(self, moments: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """(N, C), from moments (N, 3), where they are `present` (N, 1)."""
        found: torch.Tensor = self.mag_layer2(self.mag_layer1(moments.square().sum(1, keepdim=True)))
        return found * present

    @staticmethod
    def coefficients(moments: torch.Tensor) -> torch.Tensor:
        """(N, 3), of degree 1: sqrt(2) |s| times the harmonics of the direction of s."""
        x, y, z = moments.unbind(1)
        return math.sqrt(2) * torch.stack([-y, z, -x], 1)

    def reset(self, random: np.random.Generator) -> None:
        with torch.no_grad():
            self.mag_layer2.matrix.zero_()  # after its own reset: a new model ignores moments


class Surroundings(nn.Module):
    """(N, 2 C), from the invariants E^T E of the sums E = sum_j w_ij (1, unit vector) g(length, types) / sqrt(..). With
    `moments`, E^T E of the sums of neighbours' moments is added, times a trained factor."""

    def __init__(
        self, ntypes: int, n_radial: int, channels: int, function: str, bias: bool, moments: bool = False
    ) -> None:
        super().__init__()
        width, types = min(channels, 128), min(32, max(8, channels // 4))
        self.axes = min(4 if width < 64 else 8, max(1, width - 1))
        radial = max(32, width - 2 * types)
        hidden = min(256, max(2 * width, radial + 2 * types))
        self.rbf_proj_layer1 = Dense(n_radial, radial, function, bias)
        self.rbf_proj_layer2 = Dense(radial, radial, bias=bias)
        self.env_type_embed = TypeTable(ntypes, types)
        self.g_layer1 = Dense(radial + 2 * types, hidden, function, bias)
        self.g_layer2 = Dense(hidden, width, bias=bias)
        self.output_proj = Dense(width * self.axes, 2 * channels)
        if moments:
            self.spin_scale = zeros(1)

    def forward(self, edges: Edges) -> torch.Tensor:
        sums = edges.without_ghosts(edges.sums(self._sums) * edges.degree[:, :, None])
        products = axis_product(sums[:, :4], self.axes)
        if edges.moments is not None:
            products = products + self.spin_scale * axis_product(sums[:, 4:], self.axes)
        found: torch.Tensor = self.output_proj(products)
        return found

    def _sums(self, edges: Edges) -> torch.Tensor:
        """(N, 4, C), or with moments (N, 7, C)."""
        g = edges.by_splines("surroundings")
        r, frame = edges.lengths, edges.harmonics[:, :4]
        if frame.shape[1] < 4:
            frame = torch.cat([torch.ones_like(r), edges.vectors / r], 1)
        # Harmonics order the axes differently and flip some; E^T E does not depend on that.
        if g is None:
            types = self.env_type_embed(edges.types)
            ends = (edge_gather(types, of) for of in (edges.of_neighbor, edges.of_center))
            g, frame = self.numbers(edges.basis, *ends), frame * (edges.envelope / r)
        if edges.moments is not None:
            others = edge_gather(edges.moments, edges.of_neighbor) * edges.envelope
            frame = torch.cat([frame, others], 1)
        if edges.sent is not None:
            frame = frame * edge_gather(edges.sent, edges.of_neighbor)
        return row_moments(frame, g, edges.of_center.offsets)

    def numbers(
        self, basis: torch.Tensor, of_neighbor: torch.Tensor, of_center: torch.Tensor
    ) -> torch.Tensor:
        """g (E, C), from radial functions (E, n_radial) and rows of the types at both ends."""
        radial = self.rbf_proj_layer2(self.rbf_proj_layer1(basis))
        found: torch.Tensor = self.g_layer2(self.g_layer1(torch.cat([radial, of_neighbor, of_center], 1)))
        return found

    def reset(self, random: np.random.Generator) -> None:
        with torch.no_grad():
            self.output_proj.matrix.zero_()  # after its own reset
