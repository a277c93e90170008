"""The descriptor se_e2_a (DeepPot-SE with radial and angular information, two-body embedding)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mdops.models import schema
from mdops.models.contract import Tree, TypedDescriptor
from mdops.models.environment import EnvironmentOptions, axis_key, check_axis, embed, environment
from mdops.models.moments import MomentDescriptor, TypeChoice, of_pairs
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.nn.net import Net
from mdops.options import key

# Stands for no cutoff, A: larger than any distance, with more periodic images than a neighbour list has.
NO_CUTOFF = 1e6


@dataclass(kw_only=True)
class SeE2AOptions(EnvironmentOptions):
    KIND = "se_e2_a"
    NAMES: ClassVar[tuple[str, ...]] = ("se_e2_a", "se_a")

    axis_neuron: int = axis_key()
    type_one_side: bool = key(
        False, "embedding nets for each neighbour type, not for each pair of types", implied=True, absent=...
    )

    @classmethod
    def with_types(cls, section: Mapping[str, Any], width: int, place: str, kinds: Mapping[str, type]) -> Any:
        """With types as inputs of its nets it is another kind (mdops/models/se_a_tebd.py)."""
        return {**section, "type": "se_e2_a_tebd", "tebd_dim": width}

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        check_axis(self.axis_neuron, self.neuron, place)


@register
class SeE2A(TypedDescriptor, MomentDescriptor):
    """D_i = T^T T_<, (M, M2) flattened, from T_i = (1/N_sel) sum_t sum_{j in t} R_j (x) G_{c t}(s_j).

    R_j is the normalised row of the environment matrix of neighbour j, s_j its first entry, c the type of
    the centre and t that of the neighbour; T_< are the first M2 columns of T (4, M). DeePMD-kit pads the
    neighbours of each type to sel_t with absent ones (row ((0 - mean)/std, 0, 0, 0)); they count, and are
    added analytically.
    Source: Zhang et al., NeurIPS 2018 (arXiv:1805.09003).

    Attributes:
        embeddings: one net a neighbour type, or (not `type_one_side`) one a (centre, neighbour).
    """

    Options: ClassVar[type[SeE2AOptions]] = SeE2AOptions
    NODE = schema.Node({**schema.DESCRIPTOR, **schema.SPIN}, schema.STATISTICS)

    @property
    def channels(self) -> int:
        """M, the width of the embedding."""
        return self.net(0, 0).outputs

    @property
    def width(self) -> int:
        return self.channels * self.axis_neuron

    def net(self, center: int, neighbor: int) -> Net:
        """The embedding net of a pair of types; its input is (w/(r + p) - mean)/std of the centre's type."""
        return self.embeddings.net(center, neighbor)

    @property
    def activations(self) -> list[str]:
        return [name for net in self.embeddings.nets for name in net.activations]

    def functions(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        return of_pairs(self.embeddings, self.scaled(s, types), types)

    def moments(self, near: Neighborhood) -> torch.Tensor:
        """T (N, 4, M)."""
        rows = environment(self, near)
        # Rows of `excluded` pairs are zero; their factor does not matter.
        excluded = self.excludes(near)
        kinds = near.neighbor_types.masked_fill(excluded, self.ntypes)
        g = embed(self.embeddings, rows[..., 0], kinds, near.centers)
        absent = torch.tensor(self.sel, device=g.device) - near.count(near.neighbor_types)
        return rows.transpose(1, 2) @ g / self.slots + self.padding(absent, near.types)

    def padding(self, absent: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """(N, 4, M): the terms of (N, ntypes) absent neighbours in T of centres of `types` (N,)."""
        s = -self.mean / self.std[:, 0]
        kinds = range(self.ntypes)
        one = torch.stack(
            [torch.stack([s[c] * self.net(c, t)(s[c : c + 1]) for t in kinds]) for c in kinds]
        )  # (ntypes, ntypes, M): of one, for each centre and neighbour
        first = torch.einsum("nt,ntm->nm", absent.to(one.dtype), one[types.long().clamp(min=0)])
        return torch.nn.functional.pad(first[:, None], (0, 0, 0, 3)) / self.slots

    def to_tree(self) -> Tree:
        return {**super().to_tree(), "spin": None}

    @classmethod
    def tree_of_file(cls, tree: Tree) -> Tree:
        """Without a cutoff it is another kind (mdops/models/se_a_mask.py)."""
        return {**tree, "type": "se_a_mask"} if tree.get("rcut") == NO_CUTOFF else tree

    def summary(self) -> dict[str, str]:
        lines = self.summary_lines(self.embeddings)
        return {**lines, "embedding nets": f"{lines['embedding nets']}, axis {self.axis_neuron}"}
