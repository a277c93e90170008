"""The descriptors se_e2_a_tebd and se_a_ebd_v2: se_e2_a with nets of type embeddings, as in models of DeePMD-kit's
TensorFlow backend with a section type_embedding."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F

from mdops.models import schema
from mdops.models.contract import Tree
from mdops.models.dpa1 import has_pairs
from mdops.models.environment import environment
from mdops.models.moments import TypeChoice, TypedMomentDescriptor
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.models.se_e2_a import SeE2AOptions
from mdops.models.type_embedding import TypeEmbedding, TypeEmbeddingOptions, nets_of_tree, random_nets
from mdops.models.type_pairs import TypePairs
from mdops.nn.net import NetCollection
from mdops.options import key, saved_precision


@dataclass(kw_only=True)
class SeATebdOptions(SeE2AOptions):
    KIND = "se_e2_a_tebd"
    strips_types: ClassVar[bool] = False

    tebd_dim: int = key(
        8, "width of the type embedding; default: that of the model's type embedding, if it has one", low=1
    )
    use_econf_tebd: bool = key(False, "distinguish types by their electron configurations")
    use_tebd_bias: bool = key(False, "a bias in the type embedding")
    concat_output_tebd: bool = key(True, "append the centre's type embedding to the descriptor")

    @classmethod
    def with_types(cls, section: Mapping[str, Any], width: int, place: str, kinds: Mapping[str, type]) -> Any:
        return {**section, "tebd_dim": width}

    def of_tensorflow(self, types: TypeEmbeddingOptions, is_last: bool) -> Self:
        """See `mdops.models.dpa1`."""
        return dataclasses.replace(
            self,
            use_econf_tebd=types.use_econf_tebd,
            use_tebd_bias=types.use_tebd_bias,
            concat_output_tebd=self.concat_output_tebd and is_last,
        )


@dataclass(kw_only=True)
class SeAEbdV2Options(SeATebdOptions):
    KIND = "se_a_ebd_v2"
    NAMES: ClassVar[tuple[str, ...]] = ("se_a_ebd_v2", "se_a_tpe_v2")
    strips_types: ClassVar[bool] = True


@register
class SeATebd(TypedMomentDescriptor):
    """D_i = [T^T T_<, the type embedding of i], from T_i = (1/N_sel) sum_t sum_{j in t} R_j (x) net(s_j, types).

    The types are their embeddings: that of the neighbour and, unless `type_one_side`, that of the centre. Neighbours of
    each type have places of their own. Absent ones count as in se_e2_a, with the type of their place, except those of
    `exclude_types`: their rows are zero.
    """

    OWN = "its nets take types as those of the TensorFlow backend alone (type_embedding)"
    Options: ClassVar[type[SeATebdOptions]] = SeATebdOptions
    NODE = schema.Node(
        {
            **schema.DESCRIPTOR,
            **schema.SPIN,
            "embeddings_strip": (schema.optional(schema.node), None),
            "type_embedding": schema.part,
        },
        schema.STATISTICS,
    )

    has_types = True
    shares_types = True

    @property
    def is_sum(self) -> bool:
        # If types have their own net, terms of absent neighbours do not depend on types.
        return not (self.options.strips_types and self.has_mean())

    def functions(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        x, n = self.scaled(s, types), len(types.numbers)
        every = x[:, None, :, None].expand(n, n, -1, 1)
        seen = ~self.excluded[types.index][:, types.index]
        return self._nets(every, self._pairs(types.index)[:, :, None]) * seen[..., None, None]

    def moments(self, near: Neighborhood) -> torch.Tensor:
        """T (N, 4, M)."""
        rows, kinds = environment(self, near), near.neighbor_types
        kinds = kinds.masked_fill(self.excludes(near), self.ntypes)
        index = torch.arange(self.ntypes, device=kinds.device)
        pairs = F.pad(self._pairs(index), (0, 0, 0, 1))  # for empty places
        g = self._nets(rows[..., :1], pairs[near.centers[:, None], kinds])
        g = g.masked_fill((kinds == self.ntypes)[..., None], 0.0)
        t = rows.transpose(1, 2) @ g
        if self.has_mean():
            absent = torch.tensor(self.sel, device=g.device) - near.count(near.neighbor_types)
            absent = absent.masked_fill(self.excluded[near.centers], 0)
            first = torch.einsum("nt,ntm->nm", absent.to(g.dtype), self._absent()[near.centers])
            t = t + F.pad(first[:, None], (0, 0, 0, 3))
        return t / self.slots

    def _absent(self) -> torch.Tensor:
        """(ntypes, ntypes, M): an absent neighbour's term in the first row of T, for each centre and place."""
        n, index = self.ntypes, torch.arange(self.ntypes, device=self.mean.device)
        s = (-self.mean / self.std[:, 0])[:, None, None].expand(n, n, 1)
        pairs = self._pairs(index)
        if self.options.strips_types:  # an absent neighbour has no type
            pairs = self._pairs(index, absent=True)[:, n:].expand(-1, n, -1)
        return s * self._nets(s, pairs)

    def _pairs(self, index: torch.Tensor, absent: bool = False) -> torch.Tensor:
        """(n, n, W): the net's input, or its factor minus 1, for each centre and neighbour of these types; with
        `absent` there is one more neighbour, without a type."""
        types, n = F.embedding(index, self.type_embedding()), len(index)
        if isinstance(self.type_nets, TypePairs):
            known = F.pad(index, (0, 1), value=self.ntypes) if absent else index
            return self.type_nets.of(known).to(types).unflatten(0, (len(known), len(known)))[:n]
        neighbors = F.pad(types, (0, 0, 0, 1)) if absent else types
        inputs = neighbors[None].expand(n, -1, -1)
        if not self.options.type_one_side:
            inputs = torch.cat([inputs, types[:, None].expand(-1, len(neighbors), -1)], -1)
        return inputs if self.type_nets is None else self.type_nets.net()(inputs)

    def _nets(self, s: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """g (..., M), from the nets' input for s (..., 1) and `_pairs` (..., W)."""
        if self.type_nets is None:
            return self.embeddings.net()(torch.cat([s, pairs.expand(*s.shape[:-1], -1)], -1))
        g: torch.Tensor = self.embeddings.net()(s)
        return g + g * pairs

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        cls.refuse_unsupported(tree)
        options, nets = cls.Options.from_tree(tree), None
        if has_pairs(tree):
            pairs = TypePairs.from_tree(tree["embeddings_strip"], dtype)
            embedding = TypeEmbedding.from_tree(tree["type_embedding"], type_map, dtype)
            nets = NetCollection.from_tree(tree["embeddings"], dtype), pairs, embedding
        own = nets or nets_of_tree(tree, options, type_map, dtype)  # type: ignore[arg-type]
        return cls(options, type_map, *cls.statistics_of_tree(tree, dtype), own)

    def to_tree(self) -> Tree:
        o, precision = self.options, saved_precision(self.options.precision)
        strip = None if self.type_nets is None else self.type_nets.to_tree(precision, o.resnet_dt)
        return {
            **self.head(1),
            "spin": None,
            "embeddings": self.embeddings.to_tree(precision, o.resnet_dt),
            **({} if strip is None else {"embeddings_strip": strip}),
            "type_embedding": self.type_embedding.to_tree(precision),
        }

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        super().check_tree(tree, type_map, place)
        types = tree["type_embedding"]
        TypeEmbedding.check_tree(types, tree["tebd_dim"], len(type_map), f"{place}.type_embedding")

    @classmethod
    def check_nets(cls, tree: Tree, name: str, ntypes: int, place: str) -> None:
        if name == "embeddings_strip" and has_pairs(tree):
            TypePairs.check_tree(tree[name], ntypes, tree["neuron"][-1], f"{place}.{name}")
        else:
            super().check_nets(tree, name, ntypes, place)

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> Self:
        nets = random_nets(options, 1 if options.type_one_side else 2, type_map, seed, dtype)
        return cls(options, type_map, *cls.no_statistics(len(type_map), dtype), nets)

    def summary(self) -> dict[str, str]:
        return self.summary_lines(self.embeddings)


@register
class SeAEbdV2(SeATebd):
    """The same with net(s_j) (1 + types_net(types)). Absent neighbours have no type: zeros are their embedding."""

    Options: ClassVar[type[SeATebdOptions]] = SeAEbdV2Options
    NODE = SeATebd.NODE
