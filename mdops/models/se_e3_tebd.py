"""The descriptor se_e3_tebd (an embedding of the angle between two neighbours, and of their types)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from mdops.models import schema
from mdops.models.angles import AngleDescriptor
from mdops.models.contract import Tree
from mdops.models.environment import Directions, directions, in_chunks
from mdops.models.keys import input_mode_key
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.models.type_embedding import (
    MixedTypesOptions,
    Nets,
    TypedNets,
    TypeEmbedding,
    check_type_nets,
    nets_of_tree,
    random_nets,
)
from mdops.ops.switch_curve import switch_curve
from mdops.options import key, saved_precision


@dataclass(kw_only=True)
class SeE3TebdOptions(MixedTypesOptions):
    KIND = "se_e3_tebd"

    neuron: list[int] = key(
        [10, 20, 40], "widths of the embedding net's layers", low=1, implied=[2, 4, 8], absent=...
    )
    tebd_input_mode: str = input_mode_key(absent=...)
    smooth: bool = key(True, 'multiply the types\' net ("strip") by the switch')
    use_tebd_bias: bool = key(True, "a bias in the type embedding", implied=False, absent=None)
    set_davg_zero: bool = key(True, "use zero as the mean of the environment matrix", absent=False)

    @property
    def strips_types(self) -> bool:
        return self.tebd_input_mode == "strip"


@register
class SeE3Tebd(TypedNets, AngleDescriptor):
    """D_i = 1/N_sel^2 sum_jl theta_jl G_jl, (M,), and the centre's type embedding beside it if `concat_output_tebd`.

    theta_jl = R_j . R_l, of only x, y and z of the normalised rows of the neighbours j and l (also j = l).
    G_jl = G(theta_jl, e_j, e_l), e being type embeddings; or, with stripped types, G(theta_jl) (1 + H(e_j, e_l)),
    with H w_j w_l in place of H if `smooth`, with the switch w. Places without a neighbour and pairs in
    `exclude_types` have rows of zeros, and add nothing.

    Attributes:
        embeddings: G; type_nets: H, or None.
        type_embedding: e of each type.
    """

    Options = SeE3TebdOptions
    NODE = schema.Node(
        {
            **schema.DESCRIPTOR,
            "type_embedding": schema.part,
            "embeddings_strip": (schema.optional(schema.node), None),
        },
        schema.STATISTICS,
    )
    NODES: ClassVar[dict[str, schema.Node]] = {"TypeEmbedNet": TypeEmbedding.NODE}
    mixed: ClassVar[bool] = True

    def __init__(
        self,
        options: SeE3TebdOptions,
        type_map: Sequence[str],
        mean: torch.Tensor,
        std: torch.Tensor,
        nets: Nets,
    ) -> None:
        super().__init__(options, type_map, mean, std)
        self.embeddings, self.type_nets, self.type_embedding = nets

    @property
    def gated(self) -> bool:
        return self.options.strips_types and self.options.smooth

    def functions(self, theta: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Each pair of two types counts once there, and in both orders here."""
        n, e = len(types), self.type_embedding()[types]
        u, t = torch.tril_indices(n, n, device=types.device)
        orders = [(e[t], e[u]), (e[u], e[t])]
        once = (0.5 * (1 + (t != u)).to(theta))[:, None, None]  # twice the mean of both orders
        if self.type_nets is None:
            places = theta[None, :, None].expand(len(t), -1, -1)

            def net(*sides: torch.Tensor) -> torch.Tensor:
                wide = [side[:, None].expand(-1, len(theta), -1) for side in sides]
                return self.embeddings.net()(torch.cat([places, *wide], dim=-1))

            found = [once * (net(*orders[0]) + net(*orders[1]))]
        else:
            g = self.embeddings.net()(theta[:, None])
            first, second = (self.type_nets.net()(torch.cat(sides, dim=-1))[:, None] for sides in orders)
            h = once * (first + second)
            found = [2 * once * g, h * g] if self.gated else [(2 * once + h) * g]
        return torch.stack(found) / self.slots**2

    def exact(self, near: Neighborhood) -> torch.Tensor:
        types, found = self.type_embedding(), directions(self, near)
        widest = max(self.embeddings.net().widths)
        numbers = found.kinds.shape[1] ** 2 * max(widest, self.embeddings.net().inputs)

        def of_atoms(run: slice) -> torch.Tensor:
            return self._of_atoms(Directions(*(part[run] for part in found)), types)

        return in_chunks(of_atoms, near.types.shape[0], numbers)

    def _of_atoms(self, found: Directions, types: torch.Tensor) -> torch.Tensor:
        """D (n, M), without the centre's type, from the neighbours and the type embedding."""
        theta, kinds = found.rows @ found.rows.mT, found.kinds
        n, count, _ = theta.shape
        padded = F.pad(types, (0, 0, 0, 1))
        if self.type_nets is None:
            e = F.embedding(kinds, padded)
            first, second = (part.expand(n, count, count, -1) for part in (e[:, :, None], e[:, None]))
            g = self.embeddings.net()(torch.cat([theta[..., None], first, second], dim=-1))
        else:
            size = len(padded)
            sides = padded[:, None].expand(size, size, -1), padded.expand(size, size, -1)
            of_pairs = self.type_nets.net()(torch.cat(sides, dim=-1)).flatten(0, 1)
            h = F.embedding(kinds[:, :, None] * size + kinds[:, None], of_pairs)
            if self.options.smooth:
                w = switch_curve(found.squared.sqrt(), self.cutoff_smooth, self.cutoff)
                h = h * (w[:, :, None] * w[:, None])[..., None]
            g = self.embeddings.net()(theta[..., None]) * (1 + h)
        return torch.einsum("njl,njlm->nm", theta, g) / self.slots**2

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "SeE3Tebd":
        cls.refuse_unsupported(tree)
        bias = bool(tree["type_embedding"]["use_tebd_bias"])  # only there
        options = SeE3TebdOptions.from_tree(tree, use_tebd_bias=bias)
        nets = nets_of_tree(tree, options, type_map, dtype)
        return cls(options, type_map, *cls.statistics_of_tree(tree, dtype), nets)

    def to_tree(self) -> Tree:
        o = self.options
        precision, head = saved_precision(o.precision), self.head(1)
        del head["use_tebd_bias"]
        strip = {}
        if self.type_nets is not None:
            strip["embeddings_strip"] = self.type_nets.to_tree(precision, o.resnet_dt)
        return {
            **head,
            "sel": self.sel,
            "ntypes": self.ntypes,
            "embeddings": self.embeddings.to_tree(precision, o.resnet_dt),
            **strip,
            "type_embedding": self.type_embedding.to_tree(precision),
        }

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        super().check_tree(tree, type_map, place)
        TypeEmbedding.check_tree(
            tree["type_embedding"], tree["tebd_dim"], len(type_map), f"{place}.type_embedding"
        )
        check_type_nets(tree, cls.Options.from_tree(tree), 2, place)

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        embedding = TypeEmbedding.tree_of_types(tree["type_embedding"], types, type_map)
        return {**super().tree_of_types(tree, types, type_map), "type_embedding": embedding}

    @classmethod
    def random(
        cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype
    ) -> "SeE3Tebd":
        nets = random_nets(options, 2, type_map, seed, dtype)
        return cls(options, type_map, *cls.no_statistics(len(type_map), dtype), nets)

    def summary(self) -> dict[str, str]:
        o = self.options
        place = "stripped" if o.strips_types else "beside the angle"
        return {**self.summary_lines(self.embeddings), "type embedding": f"of width {o.tebd_dim}, {place}"}
