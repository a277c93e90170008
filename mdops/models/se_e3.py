"""The descriptor se_e3 (DeepPot-SE with an embedding of the angle between two neighbours)."""

from dataclasses import dataclass
from typing import Any

import torch

from mdops.models import schema
from mdops.models.angles import AngleDescriptor
from mdops.models.contract import TypedDescriptor
from mdops.models.environment import EnvironmentOptions, directions, in_chunks
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.options import key


@dataclass(kw_only=True)
class SeE3Options(EnvironmentOptions):
    KIND = "se_e3"
    NAMES = ("se_e3", "se_at", "se_a_3be", "se_t")

    neuron: list[int] = key(
        [10, 20, 40], "widths of the embedding net's layers", low=1, implied=[24, 48, 96], absent=...
    )


@register
class SeE3(AngleDescriptor, TypedDescriptor):
    """D_i = sum_{t <= u} 1/(sel_t sel_u) sum_{j in t} sum_{l in u} theta_jl G_tu(theta_jl), (M,).

    theta_jl = R_j . R_l, of only x, y and z of the normalised rows of the neighbours j and l (also j = l); t and u are
    types. Places without a neighbour and pairs in `exclude_types` have rows of zeros, and add nothing.
    Source: Wang et al., Nucl. Fusion 62, 126013 (2022).

    Attributes:
        embeddings: one net a pair of types, of which those with t <= u are used.
    """

    Options = SeE3Options
    NODE = schema.Node(schema.DESCRIPTOR, schema.STATISTICS)

    @property
    def channels(self) -> int:
        return self.embeddings.net(0, 0).outputs

    @property
    def activations(self) -> list[str]:
        return [name for net in self.embeddings.nets for name in net.activations]

    def functions(self, theta: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        # If all are there, no read from a GPU.
        kinds = range(self.ntypes) if len(types) == self.ntypes else types.tolist()
        of_pairs = [
            self.embeddings.net(t, u)(theta[:, None]) / max(self.sel[t] * self.sel[u], 1)
            for k, u in enumerate(kinds)
            for t in kinds[: k + 1]
        ]
        return torch.stack(of_pairs)[None]

    def exact(self, near: Neighborhood) -> torch.Tensor:
        rows = [directions(self, near, (t,)).rows for t in range(self.ntypes)]
        widest = max(self.embeddings.net(0, 0).widths)
        pairs = max(row.shape[1] for row in rows) ** 2
        return in_chunks(
            lambda run: self._of_atoms([row[run] for row in rows]), near.types.shape[0], pairs * widest
        )

    def _of_atoms(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """D (n, M), from x, y and z of each type's neighbours, (n, L, 3)."""
        total = self.mean.new_zeros(len(rows[0]), self.channels)
        for u, right in enumerate(rows):
            for t, left in enumerate(rows[: u + 1]):
                theta = (left @ right.mT).flatten(1)
                weight = theta.new_full((), 1 / max(self.sel[t] * self.sel[u], 1))  # no places, no neighbours
                if t == u:
                    # theta is symmetric: pairs off the diagonal occur twice.
                    j, m = torch.triu_indices(left.shape[1], left.shape[1], device=theta.device)
                    theta, weight = theta[:, j * left.shape[1] + m], weight * (2 - (j == m).to(theta.dtype))
                g = self.embeddings.net(t, u)(theta[..., None])
                total = total + torch.einsum("np,npm->nm", theta * weight, g)
        return total

    @classmethod
    def net_types(cls, options: Any) -> int:
        return 2

    def summary(self) -> dict[str, str]:
        return self.summary_lines(self.embeddings)
