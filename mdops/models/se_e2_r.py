"""The descriptor se_e2_r (DeepPot-SE of distances alone)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mdops.errors import UnsupportedModelError
from mdops.models import schema
from mdops.models.contract import Features, Tree, TypedDescriptor
from mdops.models.environment import EnvironmentOptions, embed, environment
from mdops.models.moments import MomentDescriptor, TypeChoice
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.nn.net import NetCollection
from mdops.options import saved_precision


@dataclass(kw_only=True)
class SeE2ROptions(EnvironmentOptions):
    KIND = "se_r"
    NAMES = ("se_e2_r", "se_r")
    # DeePMD-kit has nets by the neighbour's type alone, whatever is said.
    IGNORED: ClassVar[tuple[str, ...]] = ("type_one_side",)


@register
class SeE2R(TypedDescriptor, MomentDescriptor):
    """D_i = 1/(5 N_sel) sum_t sum_{j in t} G_t(s_j), (M,).

    s_j is the first entry of the normalised row of neighbour j, t its type. Of DeePMD-kit's N_sel places those without
    a neighbour have s = (0 - mean)/std, and neighbours of pairs in `exclude_types` s = 0: all are in the sum.
    Source: Zhang et al., NeurIPS 2018 (arXiv:1805.09003), without the angles.

    Attributes:
        embeddings: one net a neighbour type.
    """

    Options = SeE2ROptions
    NODE = schema.Node(
        {**schema.DESCRIPTOR, **schema.SPIN, "type_one_side": (schema.boolean, schema.REQUIRED)},
        schema.STATISTICS,
    )
    columns: ClassVar[int] = 1

    @property
    def axis_neuron(self) -> int:
        return 0

    @property
    def channels(self) -> int:
        return self.embeddings.net(0).outputs

    @property
    def width(self) -> int:
        return self.channels

    @property
    def activations(self) -> list[str]:
        return [layer.activation_name for net in self.embeddings.nets for layer in net.layers]

    def functions(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        n, nets = len(types.numbers), [self.embeddings.net(t) for t in types.numbers]
        values = nets[0].alike(nets, self.scaled(s, types).reshape(1, -1, 1))
        return values.view(n, n, len(s), -1).transpose(0, 1) / 5

    def forward(self, near: Neighborhood) -> Features:
        s = environment(self, near, radial=True)[..., 0].masked_fill(self.excludes(near), 0.0)
        g = embed(self.embeddings, s, near.kinds, near.centers).sum(1)
        absent = torch.tensor(self.sel, device=g.device) - near.count(near.kinds)
        return Features((g + self.padding(absent, near.centers)) / (5 * self.slots))

    def padding(self, absent: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
        """(N, M): the sum over the places without a neighbour, (N, ntypes) of them, of `centers` (N,)."""
        s = (-self.mean / self.std[:, 0])[:, None]
        one = torch.stack([self.embeddings.net(t)(s) for t in range(self.ntypes)], dim=1)
        return torch.einsum("nt,ntm->nm", absent.to(one.dtype), one[centers])

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "SeE2R":
        cls.refuse_unsupported(tree)
        options, nets = SeE2ROptions.from_tree(tree), NetCollection.from_tree(tree["embeddings"], dtype)
        if nets.ndim != 1:
            raise UnsupportedModelError(
                "se_e2_r with nets by pairs of types (type_one_side false) is not supported"
            )
        return cls(options, type_map, *cls.statistics_of_tree(tree, dtype), nets)

    def to_tree(self) -> Tree:
        precision = saved_precision(self.options.precision)
        nets = self.embeddings.to_tree(precision, self.options.resnet_dt)
        return {**self.head(2), "type_one_side": True, "spin": None, "embeddings": nets}

    @classmethod
    def net_types(cls, options: Any) -> int:
        return 1

    def summary(self) -> dict[str, str]:
        return self.sketch(self.embeddings)
