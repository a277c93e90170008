"""The descriptors dpa1 (se_atten) and se_atten_v2: DPA-1, with neighbours that attend to each other."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.models import schema
from mdops.models.contract import Tree
from mdops.models.environment import axis_key, check_axis, in_chunks
from mdops.models.keys import input_mode_key
from mdops.models.moments import MomentNets, TypeChoice, TypedMomentDescriptor
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.models.rows import rows_in, table_rows
from mdops.models.shapes import check_layer, require_same
from mdops.models.type_embedding import (
    MixedTypesOptions,
    TypeEmbedding,
    TypeEmbeddingOptions,
    check_type_nets,
    nets_of_tree,
    random_nets,
)
from mdops.models.type_pairs import TypePairs
from mdops.nn.net import Layer, NetCollection, array, tensor
from mdops.ops import (
    RaggedPlan,
    environment_rows,
    harmonic_rows,
    neighbor_attention,
    neighbor_rows,
    ragged_plan,
    row_moments,
)
from mdops.ops.add_norm import add_norm
from mdops.ops.attention_layer import AttentionWeights, attention_layer, has_layer
from mdops.ops.linear import linear
from mdops.ops.neighbor_attention import attention_scale, unit_three
from mdops.ops.neighbor_rows import EnvironmentRows, NeighborRows, SplineRows
from mdops.options import key, saved_precision
from mdops.tracing import is_exported

LN_EPS = 1e-5
SHORTEST_ROW = 1e-6  # as in TensorFlow: the root of the least square in tf.nn.l2_normalize
MOST_DEGREES = 4
_GAIN_DEVIATION = 0.1  # DeePMD-kit's, of new weights of degrees
# The size of a run of atoms in simulations with attention: its rows stay in a CPU's cache; on a GPU, the numbers of its
# largest tensor, enough to keep it busy; its memory holds many of them.
_ATOMS_IN_CACHE, _NUMBERS_ON_GPU = 64, 7 * 2**25


@dataclass(kw_only=True)
class SeAttenV2Options(MixedTypesOptions):
    KIND = "se_atten_v2"
    NEUTRAL: ClassVar[dict[str, Any]] = {"attn_mask": False}

    axis_neuron: int = axis_key()
    type_one_side: bool = key(False, "the net gets only the neighbour's type, not the centre's", absent=...)
    attn_layer: int = key(2, "number of attention layers", low=0, absent=...)
    attn: int = key(128, "width of the vectors in attention", low=1, absent=...)
    attn_dotr: bool = key(
        True, "multiply attention weights by the cosine of the angle between two neighbours"
    )
    normalize: bool = key(True, "normalise the vectors in attention")
    temperature: float | None = key(None, "factor of the logits instead of (attn x scaling_factor)^-1/2")
    scaling_factor: float = key(1.0, "see temperature", above=0)
    trainable_ln: bool = key(True, "whether the layer norms are trained", of="training")
    ln_eps: float | None = key(
        None, "added to variances in layer norms; default 1e-5", above=0, absent=LN_EPS
    )
    set_davg_zero: bool = key(False, "use zero as the mean of the environment matrix", implied=True)
    lmax: int = key(
        1,
        "highest degree of the directions in moments, 1 to 4",
        choices=range(1, MOST_DEGREES + 1),
    )

    cubic_switch: float = key(
        0.0,
        "if not 0, attention and types fade by 1 - (1 - cubic_switch s)^3, as in TensorFlow, not by the switch of s",
        unit="A",
        low=0,
        where="file",
    )

    zero_padding: bool = key(
        False,
        "absent neighbours have a type embedding of zeros, as in TensorFlow, not that of the first atom",
        where="file",
    )

    shortest_row: float = key(
        0.0,
        "attn_dotr: rows of the environment matrix that are shorter count by their length over this, as in TensorFlow",
        low=0,
        where="file",
    )

    def __post_init__(self) -> None:
        self.ln_eps = LN_EPS if self.ln_eps is None else self.ln_eps

    @property
    def strips_types(self) -> bool:
        """Whether the type embedding has a net of its own, which multiplies that of the distances."""
        return True

    @property
    def is_smooth(self) -> bool:
        """Whether attention and that net get the switch function."""
        return True

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        check_axis(self.axis_neuron, self.neuron, place)

    @classmethod
    def with_types(cls, section: Mapping[str, Any], width: int, place: str, kinds: Mapping[str, type]) -> Any:
        return {**section, "tebd_dim": width}

    def of_tensorflow(self, types: TypeEmbeddingOptions, is_last: bool) -> Self:
        """With their meaning in DeePMD-kit's TensorFlow backend, for graphs (mdops.io.tensorflow): the switch of types
        differs, and absent neighbours have no type. The types follow the last of several descriptors."""
        if self.exclude_types and not self.set_davg_zero:
            raise ConfigError(
                f"{self.KIND}: set_davg_zero has to be true beside exclude_types: DeePMD-kit's TensorFlow backend has "
                "other rows for excluded pairs"
            )
        fades = self.is_smooth and (self.strips_types or self.attn_layer > 0)
        return dataclasses.replace(
            self,
            use_econf_tebd=types.use_econf_tebd,
            use_tebd_bias=types.use_tebd_bias,
            concat_output_tebd=self.concat_output_tebd and is_last,
            cubic_switch=self.rcut_smth if fades else 0.0,
            zero_padding=not self.set_davg_zero and not (self.strips_types and self.is_smooth),
            shortest_row=SHORTEST_ROW if self.attn_layer and self.attn_dotr else 0.0,
        )


@dataclass(kw_only=True)
class DPA1Options(SeAttenV2Options):
    KIND = "dpa1"
    NAMES: ClassVar[tuple[str, ...]] = ("se_atten", "dpa1")

    tebd_input_mode: str = input_mode_key(absent=...)
    stripped_type_embedding: bool | None = key(
        None, 'the old name of tebd_input_mode: true is "strip"', where="input", of="training"
    )
    smooth_type_embedding: bool = key(
        False,
        "multiply attention and the types' net by the switch",
        alias=["smooth_type_embdding"],
        implied=True,
        absent=True,
    )
    set_davg_zero: bool = key(True, "use zero as the mean of the environment matrix", absent=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stripped_type_embedding is not None:
            self.tebd_input_mode = "strip" if self.stripped_type_embedding else "concat"
            self.stripped_type_embedding = None

    @property
    def strips_types(self) -> bool:
        return self.tebd_input_mode == "strip"

    @property
    def is_smooth(self) -> bool:
        return self.smooth_type_embedding


class Neighbors(NamedTuple):
    """The inputs of attention for the E neighbours of n atoms, ordered by atom.

    Attributes:
        offsets: (n + 1,) int32, the start of each atom's neighbours.
        plan: of the work on them, unless a layer is one op on a CPU.
        switch: (E,), sw, if attention is smooth.
        directions: (E, 3), unit vectors, if it uses angles.
        empty: (n,), places without a neighbour.
        fused: whether a layer is one op, with one derivative and constant weights.
    """

    offsets: torch.Tensor
    plan: RaggedPlan | None
    switch: torch.Tensor | None
    directions: torch.Tensor | None
    empty: torch.Tensor
    fused: bool


def _bias(layer: Layer) -> torch.Tensor:
    """Zeros if there is none."""
    return layer.weight.new_zeros(layer.weight.shape[1]) if layer.bias is None else layer.bias


class AttentionLayer(nn.Module):
    """g_j <- norm(g_j + W_o o_j + b_o) with o of `mdops.ops.neighbor_attention`, q, k, v = g W_in + b_in."""

    def __init__(
        self, options: SeAttenV2Options, project: Layer, out: Layer, norm: Sequence[torch.Tensor], eps: float
    ) -> None:
        """Takes the layers of W_in (M, 3 attn) and W_o (attn, M), and the norm's weight and bias (M,)."""
        super().__init__()
        self.project, self.out, self.eps = project, out, eps
        self.norm_weight, self.norm_bias = (nn.Parameter(value) for value in norm)
        self.normalize = options.normalize
        self.scale = attention_scale(options.attn, options.temperature, options.scaling_factor)

    def forward(self, g: torch.Tensor, near: Neighbors) -> torch.Tensor:
        """(E, M), of rows of the neighbours."""
        if near.fused:
            return self.as_one_op(g, near, self.weights(), self.normalize)
        x = linear(g, self.project.weight, self.project.bias)
        q, k, v = unit_three(x) if self.normalize else (part.contiguous() for part in x.chunk(3, dim=1))
        o = neighbor_attention(
            q[:, None],
            k[:, None],
            v[:, None],
            near.offsets,
            directions=near.directions,
            switch=near.switch,
            empty=near.empty,
            normalize=False,
            temperature=self.scale,
            plan=near.plan,
        )
        x = linear(o.flatten(1), self.out.weight, self.out.bias)
        return add_norm(x, g, self.norm_weight, self.norm_bias, self.eps)

    def as_one_op(
        self, g: torch.Tensor, near: Neighbors, weights: AttentionWeights, normalize: bool
    ) -> torch.Tensor:
        """The same, with `weights` of the layer or of coordinates behind g; `normalize`: whether to scale q, k and v to
        length 1."""
        return attention_layer(
            g,
            near.offsets,
            weights,
            directions=near.directions,
            switch=near.switch,
            empty=near.empty,
            scale=self.scale,
            eps=self.eps,
            normalize=normalize,
            plan=near.plan,
        )

    def weights(self) -> AttentionWeights:
        """The layer's weights; zeros for missing biases."""
        out = self.out
        return AttentionWeights(*self._projection(), out.weight, _bias(out), self.norm_weight, self.norm_bias)

    def _projection(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.project.weight, _bias(self.project)

    def of_padding(self, g: torch.Tensor) -> torch.Tensor:
        """(..., M), of the rows of empty places, whose p are zero."""
        return self._normed(g if self.out.bias is None else g + self.out.bias)

    def _normed(self, g: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(g, g.shape[-1:], self.norm_weight, self.norm_bias, self.eps)

    @classmethod
    def from_tree(cls, tree: Tree, options: SeAttenV2Options, dtype: torch.dtype) -> "AttentionLayer":
        """Raises UnsupportedModelError for several heads, or a layer that does not match the options."""
        inner, norm = tree["attention_layer"], tree["attn_layer_norm"]
        if inner.get("num_heads", 1) != 1 or inner.get("do_mask"):
            raise UnsupportedModelError("attention with several heads, or with a mask, is not supported")
        if bool(inner.get("smooth", True)) != options.is_smooth:
            raise UnsupportedModelError(
                "attention that is smooth where the descriptor is not is not supported"
            )
        project, out = (Layer.from_tree(inner[name], dtype) for name in ("in_proj", "out_proj"))
        arrays = [tensor(norm["@variables"][name], dtype) for name in ("w", "b")]
        return cls(options, project, out, arrays, float(norm["eps"]))

    @classmethod
    def random(cls, options: SeAttenV2Options, seed: Sequence[int], dtype: torch.dtype) -> "AttentionLayer":
        random, width = np.random.default_rng(seed), options.neuron[-1]
        project, out = (
            Layer.random(
                inputs,
                outputs,
                "none",
                random=random,
                precision=saved_precision(options.precision),
                dtype=dtype,
                residual=False,
            )
            for inputs, outputs in ((width, 3 * options.attn), (options.attn, width))
        )
        norm = torch.ones(width, dtype=dtype), torch.zeros(width, dtype=dtype)
        return cls(options, project, out, norm, options.ln_eps or LN_EPS)

    def to_tree(self, shared: Tree, options: SeAttenV2Options, precision: str) -> Tree:
        """The node; `shared` are the options that each level repeats."""
        norm = {"trainable_ln": options.trainable_ln, "ln_eps": self.eps, "precision": precision}
        return {
            **shared,
            **norm,
            "attention_layer": {
                **shared,
                "num_heads": 1,
                "bias": self.project.bias is not None,
                "smooth": options.is_smooth,
                "precision": precision,
                "in_proj": self.project.to_tree(precision),
                "out_proj": self.out.to_tree(precision),
            },
            "attn_layer_norm": {
                "@class": "LayerNorm",
                "@version": 1,
                "eps": self.eps,
                "trainable": options.trainable_ln,
                "precision": precision,
                "@variables": {
                    "w": array(self.norm_weight, precision),
                    "b": array(self.norm_bias, precision),
                },
            },
        }


_ATTENTION_LAYER: schema.Keys = {
    "nnei": (schema.count, schema.REQUIRED),
    "embed_dim": (schema.count, schema.REQUIRED),
    "hidden_dim": (schema.count, schema.REQUIRED),
    "dotr": (schema.boolean, False),
    "do_mask": (schema.boolean, False),
    "scaling_factor": (schema.number, 1.0),
    "normalize": (schema.boolean, True),
    "temperature": (schema.optional(schema.number), None),
    "precision": schema.precision,
    "trainable_ln": (schema.boolean, True),
    "ln_eps": (schema.optional(schema.positive), 1e-5),
}
_NODE_KEYS: schema.Keys = {
    **schema.DESCRIPTOR,
    **schema.SPIN,
    "attn_mask": (schema.boolean, False),
    "attention_layers": schema.part,
    "type_embedding": schema.part,
}
_NODE_ARRAYS = {**schema.STATISTICS, "degree_gain_raw": False}


@register
class SeAttenV2(TypedMomentDescriptor):
    """D_i = [T^T T_<, (M, M2) flattened, the type embedding of i], from T_i = (1/N_sel) sum_j R_j (x) g_j.

    R_j is the normalised row of the environment matrix of neighbour j, of any type, s_j its first entry, and g_j is
    net(s_j, types), or net(s_j) (1 + sw_j types_net(types)), after `attn_layer` layers of attention among the
    neighbours. The types are their embeddings: that of the neighbour and, unless `type_one_side`, that of the centre.

    DeePMD-kit pads the neighbours to N_sel with absent ones (row ((0 - mean)/std, 0, 0, 0)) of the type that the
    first atom of the system has; they count, and are added in closed form. Slots beyond the cutoff of this descriptor,
    which a hybrid's list may have, have that row with their own type.
    """

    _nets_capture = True
    Options = SeAttenV2Options
    NODE = schema.Node({**_NODE_KEYS, "embeddings_strip": schema.part}, _NODE_ARRAYS)
    NODES: ClassVar[dict[str, schema.Node]] = {
        "TypeEmbedNet": TypeEmbedding.NODE,
        TypePairs.CLASS: TypePairs.NODE,
        "NeighborGatedAttention": schema.Node(
            {
                **_ATTENTION_LAYER,
                "layer_num": (schema.count, schema.REQUIRED),
                "attention_layers": (schema.list_of(schema.node), schema.REQUIRED),
            },
        ),
        "attention_layers[]": schema.Node(
            {
                **_ATTENTION_LAYER,
                "attention_layer": schema.part,
                "attn_layer_norm": schema.part,
            },
        ),
        "attention_layer": schema.Node(
            {
                **{k: v for k, v in _ATTENTION_LAYER.items() if k not in ("trainable_ln", "ln_eps")},
                "num_heads": (schema.count, 1),
                "bias": (schema.boolean, True),
                "smooth": (schema.boolean, True),
                "in_proj": schema.part,
                "out_proj": schema.part,
            },
        ),
    }
    mixed = True

    def __init__(
        self,
        options: SeAttenV2Options,
        type_map: Sequence[str],
        mean: torch.Tensor,
        std: torch.Tensor,
        nets: MomentNets,
        attention: Sequence[AttentionLayer],
        degree_gain: torch.Tensor | None = None,
    ) -> None:
        """For `lmax` above 1 also the roots of the weights of the degrees from 2 on, (lmax - 1,)."""
        super().__init__(options, type_map, mean, std, nets)
        self.degree_gain = None if degree_gain is None else nn.Parameter(degree_gain)
        self.attention = nn.ModuleList(attention)

    @property
    def layers(self) -> list[AttentionLayer]:
        return [layer for layer in self.attention if isinstance(layer, AttentionLayer)]

    def atoms_at_once(self, near: Neighborhood) -> int | None:
        if not self.goes_by_rows or is_exported():
            return None
        if near.displacements.device.type == "cpu":
            return _ATOMS_IN_CACHE
        rows = min(near.neighbors.shape[1], self.slots)
        return max(1, _NUMBERS_ON_GPU // max(1, self._numbers(rows)))

    @property
    def shares_types(self) -> bool:
        o = self.options
        return bool(o.cubic_switch or o.zero_padding or o.shortest_row)

    @property
    def is_sum(self) -> bool:
        # Terms of absent neighbours without a type do not depend on types.
        by_types = not (self.options.zero_padding and self.has_mean())
        return len(self.attention) == 0 and self.options.lmax == 1 and by_types

    @property
    def goes_by_rows(self) -> bool:
        return not self.is_sum

    @property
    def degrees(self) -> int:
        """The number of summed degrees, from 1 on."""
        return self.options.lmax

    def row_weights(self) -> torch.Tensor | None:
        if self.degree_gain is None:
            return None
        degrees = enumerate(self.degree_gain.square(), 2)
        return torch.cat([self.degree_gain.new_ones(4), *(w.expand(2 * degree + 1) for degree, w in degrees)])

    @property
    def gated(self) -> bool:
        return self.options.strips_types and self.options.is_smooth and not self.options.cubic_switch

    def functions(self, s: torch.Tensor, types: TypeChoice) -> torch.Tensor:
        """Without attention. Uses only these types' embeddings; the model may have many."""
        n, x = len(types.numbers), self.scaled(s, types)
        embedded = F.embedding(types.index, self.type_embedding())
        products = self._type_products(embedded, types.index)
        kinds, centers = torch.arange(n, device=s.device), torch.arange(n, device=s.device)[:, None]
        if self.gated:
            assert products is not None
            g = self.embeddings.net()(x[..., None])[:, None]
            of_pairs = products if self.options.type_one_side else products.view(n, n, -1)
            return torch.cat([g, g * of_pairs.expand(n, n, -1)[:, :, None]], dim=1)
        every = (n, n, len(s))
        fades = self.options.strips_types and self.options.is_smooth and self.options.cubic_switch
        return self._embedding(
            x[:, None, :, None].expand(*every, 1),
            kinds[None, :, None].expand(every),
            centers[..., None].expand(every),
            embedded,
            products,
            self._cubic_switch(s).expand(every) if fades else None,
        )

    def _cubic_switch(self, s: torch.Tensor) -> torch.Tensor:
        """DeePMD-kit's TensorFlow backend's switch, a function of s, 1/A."""
        return (1 - (1 - self.options.cubic_switch * s) ** 3).clamp(0, 1)

    def moments(self, near: Neighborhood) -> torch.Tensor:
        """T (N, (lmax + 1)^2, M)."""
        types = self.type_embedding()
        products = self._type_products(types, torch.arange(self.ntypes, device=types.device))

        def of_atoms(chunk: slice) -> torch.Tensor:
            # The nets and attention see the neighbours without the empty slots.
            found = self._listed(near, chunk)
            d = near.displacements[chunk]
            atoms, slots = d.shape[:2]
            room = atoms * torch.sym_min(slots, self.slots)
            count = rows_in(
                found.offsets, room if near.max_pairs is None else torch.sym_min(room, near.max_pairs)
            )
            listed = d, found.slots, near.counts[chunk], near.types[chunk], self.mean, self.std
            rows = environment_rows(*listed, **self.row_settings, rows=count)
            centers, kinds = rows.kinds.unbind(1)
            sw = rows.switch if self.options.is_smooth else None
            if sw is not None and self.options.cubic_switch:
                first = rows.environment[:, 0]
                sw = self._cubic_switch(first * self.std[centers, 0] + self.mean[centers])
            g = self._embedding(rows.environment[:, :1], kinds, centers, types, products, sw)
            if len(self.attention):
                fused = near.first_derivative_only and has_layer(
                    g.device, g.dtype, g.shape[1], self.options.attn
                )
                directions = self.directions(rows, d, found.slots, near.types[chunk], self.std)
                known = self._neighbors(found.offsets, count, slots, sw, directions, fused)
                for layer in self.layers:
                    g = layer(g, known)
            return row_moments(self.all_rows(rows.environment, *listed), g, found.offsets)

        atoms, slots = near.neighbors.shape
        run = self.atoms_at_once(near) if near.first_derivative_only else None
        if run is not None and atoms <= run:
            t = of_atoms(slice(None))
        else:
            t = in_chunks(of_atoms, atoms, self._numbers(slots))
        if not self.has_mean():
            return t / self.slots  # rows of empty places are zero
        taken = self._listed(near, slice(None)).taken
        return (t + F.pad(self._padding(near, taken, types)[:, None], (0, 0, 0, t.shape[1] - 1))) / self.slots

    @property
    def row_settings(self) -> dict[str, Any]:
        """For ops that make rows."""
        lengths = {"cutoff": self.cutoff, "cutoff_smooth": self.cutoff_smooth}
        return {**lengths, "protection": self.protection}

    def directions(
        self,
        rows: EnvironmentRows | SplineRows,
        displacements: torch.Tensor,
        slots: torch.Tensor,
        types: torch.Tensor,
        std: torch.Tensor,
    ) -> torch.Tensor | None:
        """(E, 3), directions for attention's cosines, if used; from the pair vectors (N, K, 3), the rows' slots, the
        types (N,) and the deviations (ntypes, 2)."""
        shortest = self.options.shortest_row
        if not self.options.attn_dotr:
            return None
        if not shortest:
            return rows.directions
        slot = slots[: rows.switch.shape[0]]
        at = slot.clamp(min=0)
        pairs = displacements.reshape(-1, 3).index_select(0, at)
        r = torch.where(slot >= 0, pairs.square().sum(1), 1.0).sqrt()
        centers = types.long().clamp(min=0)[at // displacements.shape[1]]
        # Rows of the matrix lose these digits near the cutoff; the switch does not.
        length = rows.switch * r / ((r + self.protection).square() * std[centers, 1])
        return rows.directions * (length / shortest).clamp(max=1)[:, None]

    def all_rows(self, environment: torch.Tensor, *listed: torch.Tensor) -> torch.Tensor:
        """(E, (lmax + 1)^2), the factors of g in the sum, from the rows of the environment matrix (E, 4) and from their
        inputs: pair vectors, slots, counts, types, mean and std."""
        degree = self.options.lmax
        if degree == 1:
            return environment
        return harmonic_rows(*listed, **self.row_settings, rows=environment.shape[0], degree=degree)

    def _listed(self, near: Neighborhood, atoms: slice) -> NeighborRows:
        """The slots of these atoms with rows, and the places that neighbours take."""
        absent = near.absent_pairs
        if atoms == slice(None) and absent is None and not self.options.exclude_types:
            return near.found
        return neighbor_rows(
            near.displacements[atoms].detach(),
            near.counts[atoms],
            near.types[atoms],
            cutoff=near.cutoff,
            pair_mask=self.excluded if absent is None else self.excluded | absent,
            zeroed=self.excluded if absent is None else self.excluded & ~absent,
        )

    def _numbers(self, slots: int) -> int:
        """Per atom in the largest tensor."""
        widest = 3 * self.options.attn if len(self.attention) else 0
        return slots * max(widest, *self.embeddings.net().widths)

    def _neighbors(
        self,
        offsets: torch.Tensor,
        count: int,
        slots: int,
        switch: torch.Tensor | None,
        directions: torch.Tensor | None,
        fused: bool,
    ) -> Neighbors:
        """With room for so many rows, and for so many of an atom."""
        plan = None
        if not (fused and offsets.device.type == "cpu"):
            room = {"max_total": count, "max_batch": offsets.shape[0] - 1, "max_length": slots}
            plan = ragged_plan(offsets, **room, longest_first=False)
        empty = (self.slots - offsets.diff()).clamp(min=0).to(self.mean.dtype)
        return Neighbors(offsets, plan, switch, directions, empty, fused)

    def _type_products(self, types: torch.Tensor, index: torch.Tensor) -> torch.Tensor | None:
        """(n * n, M): what the net of types gives for each centre and neighbour of the types with these embeddings,
        (n, tebd_dim), and numbers; (n, M) for each neighbour where types are one-sided; None where there is no such
        net. The number of absent atoms is ntypes."""
        if self.type_nets is None:
            return None
        if isinstance(self.type_nets, TypePairs):
            return self.type_nets.of(index).to(types)
        inputs = types
        if not self.options.type_one_side:
            n = len(types)
            inputs = torch.cat([types.repeat(n, 1), types.repeat_interleave(n, 0)], dim=1)
        return self.type_nets.net()(inputs)

    def _embedding(
        self,
        s: torch.Tensor,
        kinds: torch.Tensor,
        centers: torch.Tensor,
        types: torch.Tensor,
        products: torch.Tensor | None,
        switch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """g (..., M) before attention, of s (..., 1), types of neighbours (...) and centres, and sw (...) or None."""
        if products is None:
            inputs = [s, table_rows(types, kinds)]
            if not self.options.type_one_side:
                inputs.append(table_rows(types, centers).expand(*kinds.shape, -1))
            return self.embeddings.net()(torch.cat(inputs, dim=-1))
        t = table_rows(products, kinds if self.options.type_one_side else centers * len(types) + kinds)
        g = self.embeddings.net()(s)
        return g + g * (t if switch is None else t * switch[..., None])

    def absent_rows(self, kinds: TypeChoice, types: torch.Tensor) -> torch.Tensor:
        """(n * n, M): what an empty place adds to the first row of T, times N_sel, for each centre of these n types and
        the type that the place has; from the embedding of the types (n, tebd_dim)."""
        n, device, index = len(kinds.numbers), types.device, kinds.index
        s = (-self.mean[index] / self.std[index, 0])[:, None, None].expand(n, n, 1)
        centers, neighbors = torch.arange(n, device=device)[:, None], torch.arange(n, device=device)
        if self.options.zero_padding:
            types, neighbors = F.pad(types, (0, 0, 0, 1)), torch.full_like(neighbors, n)
            index = F.pad(index, (0, 1), value=self.ntypes)
        faded = torch.zeros_like(s[..., 0]) if self.options.is_smooth else None
        products = self._type_products(types, index)
        g = self._embedding(s, neighbors.expand(n, n), centers, types, products, faded)
        for layer in self.layers:
            g = layer.of_padding(g)
        return (s * g).flatten(0, 1)

    def _padding(self, near: Neighborhood, taken: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """(N, M): what the places without a neighbour add to the first row of T, times N_sel."""
        every = TypeChoice(tuple(range(self.ntypes)), torch.arange(self.ntypes, device=types.device))
        empty = (self.slots - taken).clamp(min=0).to(types.dtype)
        of_pair = near.centers * self.ntypes + near.padding_types
        return empty[:, None] * table_rows(self.absent_rows(every, types), of_pair)

    def set_trained(self) -> None:
        super().set_trained()
        if not self.options.trainable_ln:
            for layer in self.layers:
                layer.norm_weight.requires_grad_(False)
                layer.norm_bias.requires_grad_(False)

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        cls.refuse_unsupported(tree)
        if tree.get("attn_mask"):
            raise UnsupportedModelError(f"{tree['type']} with attn_mask is not supported")
        options = cls.Options.from_tree(tree)
        layers = tree["attention_layers"]["attention_layers"]
        attention = [AttentionLayer.from_tree(layer, options, dtype) for layer in layers]
        nets: MomentNets
        if has_pairs(tree):
            pairs = TypePairs.from_tree(tree["embeddings_strip"], dtype)
            embedding = TypeEmbedding.from_tree(tree["type_embedding"], type_map, dtype)
            nets = NetCollection.from_tree(tree["embeddings"], dtype), pairs, embedding
        else:
            nets = nets_of_tree(tree, options, type_map, dtype)
        statistics, gain = cls.statistics_of_tree(tree, dtype), _degree_gain(tree, options.lmax, dtype)
        return cls(options, type_map, *statistics, nets, attention, gain)

    def to_tree(self) -> Tree:
        o = self.options
        precision = saved_precision(o.precision)
        shared = attention_node(dataclasses.asdict(o), self.slots)
        norm = {"trainable_ln": o.trainable_ln, "ln_eps": o.ln_eps, "precision": precision}
        tree = {
            **self.head(2 if self.degree_gain is None else 4),
            "sel": self.sel,
            "ntypes": self.ntypes,
            "attn_mask": False,
            "spin": None,
            "embeddings": self.embeddings.to_tree(precision, o.resnet_dt),
            "attention_layers": {
                "@class": "NeighborGatedAttention",
                "@version": 1,
                "layer_num": len(self.attention),
                **shared,
                **norm,
                "attention_layers": [layer.to_tree(shared, o, precision) for layer in self.layers],
            },
            "type_embedding": self.type_embedding.to_tree(precision),
        }
        if self.type_nets is not None:
            tree["embeddings_strip"] = self.type_nets.to_tree(precision, o.resnet_dt)
        for own in ("cubic_switch", "zero_padding", "shortest_row"):  # not in DeePMD-kit's files
            if not tree[own]:
                del tree[own]
        if self.degree_gain is None:
            del tree["lmax"]  # unknown to DeePMD-kit before 3.2
        else:
            tree["@variables"]["degree_gain_raw"] = array(self.degree_gain, precision)
        return tree

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        super().check_tree(tree, type_map, place)
        TypeEmbedding.check_tree(
            tree["type_embedding"], tree["tebd_dim"], len(type_map), f"{place}.type_embedding"
        )
        options = cls.Options.from_tree(tree)
        check_type_nets(tree, options, 1 if options.type_one_side else 2, place)
        _check_attention(tree, place)

    @classmethod
    def check_nets(cls, tree: Tree, name: str, ntypes: int, place: str) -> None:
        if name == "embeddings_strip" and has_pairs(tree):
            if tree.get("type_one_side"):
                raise ModelFileError(f"{place}.{name} has numbers for both types, and type_one_side is true")
            TypePairs.check_tree(tree[name], ntypes, tree["neuron"][-1], f"{place}.{name}")
        else:
            super().check_nets(tree, name, ntypes, place)

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        found = super().tree_of_types(tree, types, type_map)
        found["type_embedding"] = TypeEmbedding.tree_of_types(tree["type_embedding"], types, type_map)
        if has_pairs(tree):
            found["embeddings_strip"] = TypePairs.tree_of_types(tree["embeddings_strip"], types)
        return found

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> Self:
        nets = random_nets(options, 1 if options.type_one_side else 2, type_map, seed, dtype)
        attention = [AttentionLayer.random(options, [*seed, 3, i], dtype) for i in range(options.attn_layer)]
        gain = None
        if options.lmax > 1:
            drawn = np.random.default_rng([*seed, 4]).normal(scale=_GAIN_DEVIATION, size=options.lmax - 1)
            gain = torch.as_tensor(drawn, dtype=dtype)
        return cls(options, type_map, *cls.no_statistics(len(type_map), dtype), nets, attention, gain)

    def summary(self) -> dict[str, str]:
        o = self.options
        widths = self.embeddings.net().described
        kinds = "smooth, " if o.is_smooth else ""
        layers = (
            f"{len(self.attention)} layers of width {o.attn}, {kinds}{'by angles' if o.attn_dotr else ''}"
        )
        return {
            "sel": f"{self.slots} of all types",
            "switch": f"from {self.cutoff_smooth:g} A",
            "embedding nets": f"{widths}, axis {o.axis_neuron}",
            "type embedding": f"of width {o.tebd_dim}, {'stripped' if o.strips_types else 'beside the distance'}",
            "attention": layers.rstrip(", ") if len(self.attention) else "none",
            **({} if o.lmax == 1 else {"moments": f"to degree {o.lmax}"}),
        }


@register
class DPA1(SeAttenV2):
    """As se_atten_v2, which is DPA-1 with stripped types and smooth; here both are options."""

    Options = DPA1Options
    NODE = schema.Node({**_NODE_KEYS, "embeddings_strip": (schema.optional(schema.node), None)}, _NODE_ARRAYS)


def has_pairs(tree: Tree) -> bool:
    """Whether a descriptor's node has a table for pairs of types in place of the net of types."""
    return bool((tree.get("embeddings_strip") or {}).get("@class") == TypePairs.CLASS)


def _check_attention(tree: Tree, place: str) -> None:
    """Raises ModelFileError for attention layers in a descriptor's node that do not match its options."""
    attention, layers = tree["attention_layers"], tree["attention_layers"]["attention_layers"]
    require_same(len(layers), tree["attn_layer"], f"the number of attention layers of {place}")
    width, hidden = tree["neuron"][-1], tree["attn"]
    wanted = {
        "layer_num": tree["attn_layer"],
        "nnei": sum(tree["sel"]) if isinstance(tree["sel"], list) else tree["sel"],
        "embed_dim": width,
        "hidden_dim": hidden,
        "dotr": tree["attn_dotr"],
        **{name: tree[name] for name in ("scaling_factor", "normalize", "temperature", "trainable_ln")},
    }
    for name, value in wanted.items():
        require_same(attention[name], value, f"{place}.attention_layers.{name}")
    for i, layer in enumerate(layers):
        at = f"{place}.attention_layers[{i}]"
        inner = layer["attention_layer"]
        check_layer(inner["in_proj"], width, 3 * hidden, f"{at}.in_proj")
        check_layer(inner["out_proj"], hidden, width, f"{at}.out_proj")
        norm = layer["attn_layer_norm"]["@variables"]
        require_same(
            (norm["w"].shape, norm["b"].shape), ((width,), (width,)), f"the shapes of {at}.attn_layer_norm"
        )


def attention_node(options: Mapping[str, Any], slots: int) -> Tree:
    """The options at each level of the attention."""
    return {
        "nnei": slots,
        "embed_dim": options["neuron"][-1],
        "hidden_dim": options["attn"],
        "dotr": options["attn_dotr"],
        "do_mask": False,
        "scaling_factor": options["scaling_factor"],
        "normalize": options["normalize"],
        "temperature": options["temperature"],
    }


def _degree_gain(tree: Tree, lmax: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Raises UnsupportedModelError for other degrees, ModelFileError for weights that do not fit."""
    if not 1 <= lmax <= MOST_DEGREES:
        raise UnsupportedModelError(
            f"{tree['type']} with lmax = {lmax} is not supported; 1 to {MOST_DEGREES} are"
        )
    if lmax == 1:
        return None
    if "degree_gain_raw" not in tree["@variables"]:
        raise ModelFileError(f"{tree['type']} with lmax = {lmax} lacks 'degree_gain_raw'")
    gain = tensor(tree["@variables"]["degree_gain_raw"], dtype)
    if gain.shape != (lmax - 1,):
        raise ModelFileError(f"'degree_gain_raw' has the shape {tuple(gain.shape)}, expected ({lmax - 1},)")
    return gain
