"""The descriptor se_e2_r (DeepPot-SE of distances alone)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from mdops.models import schema
from mdops.models.contract import Tree, TypedDescriptor
from mdops.models.environment import EnvironmentOptions, embed, environment
from mdops.models.moments import MomentDescriptor, TypeChoice, of_pairs
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.options import key


@dataclass(kw_only=True)
class SeE2ROptions(EnvironmentOptions):
    KIND = "se_r"
    NAMES = ("se_e2_r", "se_r")
    # DeePMD-kit always trains nets by the neighbour's type alone; only its TensorFlow backend has others.
    IGNORED: ClassVar[tuple[str, ...]] = ("type_one_side",)

    type_one_side: bool = key(
        True,
        "nets by the neighbour's type only, not by pairs of types",
        where="file",
        implied=True,
        absent=...,
    )


@register
class SeE2R(TypedDescriptor, MomentDescriptor):
    """D_i = 1/(5 N_sel) sum_t sum_{j in t} G_ct(s_j), (M,).

    s_j is the first entry of the normalised row of neighbour j, t its type, c that of the centre. Of DeePMD-kit's N_sel
    places, those without a neighbour have s = (0 - mean)/std, and excluded pairs (`exclude_types`) s = 0: all are in
    the sum.
    Source: Zhang et al., NeurIPS 2018 (arXiv:1805.09003), without the angles.

    Attributes:
        embeddings: one net a neighbour type, or (not `type_one_side`) one a (centre, neighbour).
    """

    Options = SeE2ROptions
    NODE = schema.Node(
        {**schema.DESCRIPTOR, **schema.SPIN},
        schema.STATISTICS,
    )
    columns: ClassVar[int] = 1

    axis_neuron = 0

    @property
    def channels(self) -> int:
        return self.embeddings.net(0, 0).outputs

    @property
    def width(self) -> int:
        return self.channels

    @property
    def activations(self) -> list[str]:
        return [name for net in self.embeddings.nets for name in net.activations]

    def functions(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        return of_pairs(self.embeddings, self.scaled(s, types), types) / 5

    def moments(self, near: Neighborhood) -> torch.Tensor:
        """(N, 1, M)."""
        s = environment(self, near, radial=True)[..., 0].masked_fill(self.excludes(near), 0.0)
        g = embed(self.embeddings, s, near.neighbor_types, near.centers).sum(1)
        absent = torch.tensor(self.sel, device=g.device) - near.count(near.neighbor_types)
        return ((g + self.padding(absent, near.centers)) / (5 * self.slots))[:, None]

    def padding(self, absent: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
        """(N, M): the sum over the places without a neighbour, (N, ntypes) of them, of `centers` (N,)."""
        s, kinds = (-self.mean / self.std[:, 0])[:, None], range(self.ntypes)
        one = torch.stack(
            [torch.stack([self.embeddings.net(c, t)(s[c]) for t in kinds]) for c in kinds]
        )  # (ntypes, ntypes, M)
        return torch.einsum("nt,ntm->nm", absent.to(one.dtype), one[centers])

    def to_tree(self) -> Tree:
        return {**super().to_tree(), "spin": None}

    def summary(self) -> dict[str, str]:
        return self.summary_lines(self.embeddings)
