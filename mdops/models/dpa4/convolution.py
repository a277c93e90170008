"""The messages of DPA-4: rotate neighbours' rows into the edge's frame, apply layers by |m|, and rotate back."""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from mdops.models.dpa4.cartesian import EdgeMatrices, NodeMatrices
from mdops.models.dpa4.degree_mix import DegreeMix
from mdops.models.dpa4.edges import Edges
from mdops.models.dpa4.layers import GridLayer, Layer, layer_of, plus_first, through
from mdops.models.dpa4.mixing import DepthMix, drawn, focus_shares, null_mass
from mdops.models.dpa4.once import GridOnce, MessagesOnce, NormOnce
from mdops.models.dpa4.options import DPA4Options
from mdops.models.graph import runs_again
from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.grid import GridNet
from mdops.nn.equivariant.indices import by_order, coefficients, degree_index, runs, spread
from mdops.nn.equivariant.linear import (
    ChannelLinear,
    DegreeLinear,
    GroupLinear,
    OrderLinear,
    plus_scalar,
    zeros,
)
from mdops.nn.equivariant.norm import OrderNorm, ScalarNorm
from mdops.nn.net import is_input_gradient_alone
from mdops.nn.watch import NamedOfWeights
from mdops.ops import (
    EdgeIndex,
    edge_frames,
    edge_gather,
    edge_product,
    edge_rotate,
    edge_rotate_back,
    edge_rotate_sum,
    edge_scatter,
    edge_softmax,
    linear,
    order_mix,
    order_moments,
    row_gate,
    segment_weights,
    so2_messages,
)
from mdops.ops.edge_frames import MOST_FRAME_DEGREE
from mdops.ops.order_moments import has_order_moments
from mdops.ops.so2_layer import fused_width, goes_by_products, has_fused_messages, kernel_width
from mdops.tracing import is_exported

_FIRST_SCALE = 1e-3  # the initial layer scale
_NULL = 0.5413  # softplus of this is 1
_LayerWeights = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


class _SumOfRun(torch.autograd.Function):
    """A sum over a run of edges, (turn, y, weight, of) to (N, D, channels). It is skipped when the run is recomputed:
    nothing saved depends on it."""

    @staticmethod
    def forward(
        name: str, channels: int, turn: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, of: EdgeIndex
    ) -> torch.Tensor:
        if runs_again():
            return y.new_empty(of.offsets.shape[0] - 1, turn.shape[2], channels)
        found: torch.Tensor = getattr(torch.ops.mdops, name)(turn, y, weight, *of)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[2:5])
        ctx.name, ctx.of = inputs[0], inputs[5]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        by_arguments = getattr(torch.ops.mdops, f"{ctx.name}_backward")(
            grad.contiguous(), *ctx.saved_tensors, *ctx.of
        )
        return None, None, *by_arguments, None


def _widened(rows: torch.Tensor, width: int, groups: range) -> torch.Tensor:
    """Rows (.., C), padded to `width` channels with zeros after each group."""
    if width == rows.shape[-1]:
        return rows
    each = rows.unflatten(-1, (len(groups), -1))
    return nn.functional.pad(each, (0, width // len(groups) - each.shape[-1])).flatten(-2)


def _narrowed(rows: torch.Tensor, channels: int, groups: range) -> torch.Tensor:
    """Undoes `_widened`: rows of `channels` channels."""
    if channels == rows.shape[-1]:
        return rows
    return rows.unflatten(-1, (len(groups), -1))[..., : channels // len(groups)].flatten(-2)


def _weighted(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Rows (E, D, C) times weights (E, H), one for each of H equal parts of the channels."""
    if weights.shape[1] > 1:
        weights = weights[:, :, None].expand(-1, -1, x.shape[2] // weights.shape[1]).flatten(1)
    return x * weights[:, None]


class Convolution(nn.Module):
    """Sums the neighbours' messages over each atom's edges, weighted by attention or by envelopes.

    Args:
        options: of the descriptor. index: which block it is of. lmax, mmax, kmax: of this block.
    """

    def __init__(self, options: DPA4Options, index: int, lmax: int, mmax: int, kmax: int) -> None:
        super().__init__()
        o, self.options, self.lmax, self.mmax = options, options, lmax, mmax
        # Names of splines.
        self.mixture, self.bias_of_logits, self.first_bias = (
            f"{name} {index}" for name in ("mixture", "logits", "bias")
        )
        channels, groups, width = o.channels, o.n_focus, o.focus_width
        hidden, layers, function, bias = groups * width, o.mixing_layers, o.so2_function, o.mlp_bias
        self.groups, self.width, self.hidden = groups, width, hidden
        self.by_matrices = o.edge_cartesian and lmax in (1, 2)
        order = by_order(lmax, mmax)
        self.in_frames = not self.by_matrices and (
            layers > 0 or o.radial_so2_mode != "none" or o.node_wise_s2 or o.node_wise_so3
        )
        if self.by_matrices:
            self.edge_cartesian_tp = EdgeMatrices(lmax, width, groups, layers, function, bias)
        else:
            self._make_layers(order)
        both, count = o.node_matrices
        self.node_cartesian_tp = None
        if count and lmax in (1, 2):
            self.node_cartesian_tp = NodeMatrices(lmax, width, groups, count, function, bias, both)
        if o.n_atten_head:
            self._make_attention()
        self.focus_compete_norm = self.adamw_focus_compete_w = self.focus_compete_bias = None
        if groups > 1:
            self.focus_compete_norm = ScalarNorm(width, groups, o.eps) if o.edge_norm else None
            self.adamw_focus_compete_w = zeros(width, groups)
            self.focus_compete_bias = zeros(groups) if bias else None
        self.has_first_bias = not self.by_matrices and bias and layers > 0
        self.has_fused_layers, self.has_plain_layers = self._kinds_of_layers()
        self.mixes_first = self._mixes_first()
        self.radial_hidden_proj = ChannelLinear(channels, hidden) if hidden != channels else None
        self.radial_degree_mixer = None
        if not self.by_matrices and o.radial_so2_mode != "none":
            by_channel = o.radial_so2_mode == "degree_channel"
            self.radial_degree_mixer = DegreeMix(lmax, mmax, hidden, by_channel, o.radial_so2_rank)

        def crossed(chosen: list[tuple[int, int]], spin: bool, place: int, most: int) -> GridNet:
            kind, branches = o.grid_kind(place)
            of = {"kmax": kmax} if spin else {"mmax": most}
            return GridNet(
                chosen, width, groups=groups, kind=kind, branches=branches, crossed=True, bias=bias, **of
            )

        self.node_wise_grid_product = self.message_node_grid_product = None
        if o.node_wise_s2 or o.node_wise_so3:
            self.node_wise_grid_product = crossed(order, o.node_wise_so3, 0, mmax)
        if o.message_node_s2 or o.message_node_so3:
            self.message_node_grid_product = crossed(coefficients(lmax), o.message_node_so3, 1, lmax)
        self.pre_focus_mix = DegreeLinear(lmax, channels, hidden, bias=bias)
        self.post_focus_mix = DegreeLinear(lmax, hidden, channels, bias=bias, zero=True)
        degrees = degree_index(coefficients(lmax))
        # Makes up for the orders beyond mmax, which are missing in the square.
        more = torch.where(degrees > mmax, (2 * degrees.double() + 1) / (2 * mmax + 1), 1.0).sqrt()
        self.register_buffer(
            "_rescale", (more if self.in_frames else torch.ones_like(more))[:, None], persistent=False
        )
        self._runs = runs([degree for degree, _ in coefficients(lmax)])
        self._runs_by_order = runs([degree for degree, _ in order])
        self._kept: NamedOfWeights[Any] = NamedOfWeights()

    _rescale: torch.Tensor

    def _kinds_of_layers(self) -> tuple[bool, bool]:
        """Whether the fused layers support these layers; whether they are linear maps and silu gates alone."""
        o = self.options
        there = self.in_frames and o.mixing_layers > 0 and o.so2_attn_res == "none"
        whole = o.so2_norm or o.s2_activation[0]  # couples rows of all orders
        more = whole or o.layer_scale or o.mlp_bias or o.so2_function != "silu"
        return there and self.mmax > 0 and not (whole and self.mmax > 1), there and not more

    def _mixes_first(self) -> bool:
        """Whether the radial mixture is the same for all channels, and only layers and sums follow it, in each group of
        channels separately."""
        o = self.options
        alone = not (o.node_wise_s2 or o.node_wise_so3 or o.atten_f_mix or o.atten_v_proj)
        mixes = o.radial_so2_mode == "degree" or (
            o.radial_so2_mode == "degree_channel" and o.radial_so2_rank == 1
        )
        return self.in_frames and alone and mixes

    @property
    def goes_once(self) -> bool:
        """Whether `constants` describe all of it."""
        grid, o = self.message_node_grid_product, self.options
        is_usual = (
            self.has_plain_layers
            and self.mixes_first
            and self.groups == 1
            and self.mmax == 1
            and self.lmax <= MOST_FRAME_DEGREE
            and o.n_atten_head == 1
            and self.node_cartesian_tp is None
        )
        return is_usual and (grid is None or (grid.is_one_product and grid.frame_expand is not None))

    def numbers_of_edges(self, edges: Edges) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Vectors, coefficients of mixtures, and biases of logits."""
        return edges.vectors, self._mixtures(edges), self._bias_of_logits(edges)

    def constants(self, before: NormOnce | None, after: NormOnce | None) -> MessagesOnce:
        """The weights for a `BlockOnce`, between two norms."""
        assert self.radial_degree_mixer is not None
        queries, keys = self.attn_q_proj.weight, self.attn_k_proj.weight
        of_scalars, of_gates = (
            norm.adam_scale.view(-1, 1) for norm in (self.attn_qk_norm, self.attn_output_gate_norm)
        )
        grid, on_grid = self.message_node_grid_product, None
        if grid is not None:
            left, right, back = grid.crossed_weights()
            on_grid = GridOnce(left, right, *grid.constants, back)
        return MessagesOnce(
            before,
            after,
            self.pre_focus_mix.of_each(),
            self.post_focus_mix.of_each(),
            NormOnce(*self.attn_qk_norm.constants),
            torch.cat([queries, keys], 1) * of_scalars,
            (self.adamw_attn_gate_w[:, 0] * of_gates).expand(-1, self.width).contiguous(),
            null_mass(self.adamw_attn_z_bias_raw, self.options.eps).flatten(),
            self.attention_width**-0.5,
            self.radial_degree_mixer.channel_basis,
            self._weights_of_layers(range(1), queries),
            self._rescale,
            None if self.attn_o_proj is None else self.attn_o_proj.of_each(),
            on_grid,
        )

    def _make_layers(self, order: list[tuple[int, int]]) -> None:
        o, lmax, mmax, width, groups = self.options, self.lmax, self.mmax, self.width, self.groups
        count = o.mixing_layers
        on_sphere = [o.s2_activation[0] and k < count - 1 for k in range(count)]
        self.so2_linears = nn.ModuleList(
            OrderLinear(lmax, mmax, width, width * (1 + double), groups, o.mlp_bias) for double in on_sphere
        )
        self.so2_inter_norms = nn.ModuleList(
            OrderNorm(lmax, mmax, width, groups) if o.so2_norm and k < count - 1 else nn.Identity()
            for k in range(count)
        )

        def function(k: int) -> nn.Module:
            if k == count - 1:
                return nn.Identity()
            if on_sphere[k]:
                return GridNet(order, width, groups=groups, mmax=mmax, bias=o.mlp_bias)
            return Gate(order, width, groups, o.so2_function, o.mlp_bias)

        self.non_linearities = nn.ModuleList(map(function, range(count)))
        self.so2_layer_attn_res: nn.ModuleList | None = None
        if o.so2_attn_res != "none":
            dependent = o.so2_attn_res == "dependent"
            self.so2_layer_attn_res = nn.ModuleList(
                DepthMix(self.hidden, dependent, o.mlp_bias, o.eps) for _ in range(count)
            )
        self.adam_so2_layer_scales = None
        if o.layer_scale:
            self.adam_so2_layer_scales = nn.ParameterList(
                nn.Parameter(torch.full((groups, width), _FIRST_SCALE, dtype=torch.float64))
                for _ in range(count)
            )

    def _make_attention(self) -> None:
        o, lmax = self.options, self.lmax
        groups, width = (1, self.hidden) if o.atten_f_mix else (self.groups, self.width)
        self.attention_groups, self.attention_width = groups, width
        self.attn_qk_norm = ScalarNorm(width, groups, o.eps)
        self.attn_q_proj = GroupLinear(width, width, groups)
        self.attn_k_proj = GroupLinear(width, width, groups)
        self.attn_focus_mix = DegreeLinear(lmax, self.hidden, self.hidden) if o.atten_f_mix else None
        self.attn_v_proj = DegreeLinear(lmax, width, width, groups) if o.atten_v_proj else None
        self.attn_o_proj = DegreeLinear(lmax, width, width, groups) if o.atten_o_proj else None
        self.adamw_attn_logit_w = zeros(width, groups, o.n_atten_head)
        self.adamw_attn_z_bias_raw = nn.Parameter(
            torch.full((groups, o.n_atten_head), _NULL, dtype=torch.float64)
        )
        self.attn_output_gate_norm = ScalarNorm(width, groups, o.eps)
        self.adamw_attn_gate_w = zeros(width, groups, o.n_atten_head)

    def forward(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Maps rows (N, D, C) to rows of that shape, without ghosts."""
        x = self.pre_focus_mix(x[:, :, None]).squeeze(2)
        if self.options.n_atten_head:
            found = self._attended(x, edges)
        else:
            found = edges.sums(functools.partial(self._sums, x)) * edges.degree[:, :, None]
            found = edges.without_ghosts(found)
        return edges.of_atoms(self._within, edges.without_ghosts(x), found)

    def _within(self, x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """(N, D, C), from each atom's rows and the sum of its messages."""
        grid, groups = self.message_node_grid_product, self.groups
        is_once = is_input_gradient_alone() and not is_exported()
        if grid is not None and groups > 1 and grid.has_one_product and is_once:
            grid, groups = self._kept(self, "grid in one group", grid.in_one_group, at=x), 1
        nodes, rows = (one.unflatten(2, (groups, -1)) for one in (x, found))
        if grid is not None:
            rows = rows + grid(rows, nodes)
        if self.node_cartesian_tp is not None:
            nodes, rows = (one.flatten(2).unflatten(2, (self.groups, -1)) for one in (nodes, rows))
            rows = self.node_cartesian_tp(rows, nodes)
        mixed: torch.Tensor = self.post_focus_mix(rows.flatten(2)[:, :, None]).squeeze(2)
        return mixed

    def _sums(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(N, D, C), without attention."""
        return self._message_sums(x, edges, edges.envelope * self._sent(edges))

    def _sent(self, edges: Edges) -> torch.Tensor | float:
        """(E, 1), `Edges.sent` of the neighbour: 0 if it is too near another atom."""
        return 1.0 if edges.sent is None else edge_gather(edges.sent, edges.of_neighbor)

    def _attended(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        o, groups, width = self.options, self.attention_groups, self.attention_width
        size = width // o.n_atten_head
        scalars = x[:, 0].view(-1, groups, width)
        normed = self.attn_qk_norm(scalars)
        ends = self.attn_q_proj(normed).flatten(1), self.attn_k_proj(normed).flatten(1)
        nothing = null_mass(self.adamw_attn_z_bias_raw, o.eps).flatten()
        if edges.once and edges.sent is None:
            weights = edge_softmax(
                *ends,
                torch.cat(edges.of_each(self._bias_of_logits)),
                edges.envelope,
                nothing,
                edges.of_center,
                edges.of_neighbor,
                scale=1 / math.sqrt(size),
            )
        else:
            weights = segment_weights(
                torch.cat(edges.of_each(functools.partial(self._logits, *ends))),
                edges.envelope**2 * self._sent(edges),
                nothing,
                edges.of_center.offsets,
            )
        normed = self.attn_output_gate_norm(edges.without_ghosts(scalars))
        gates = torch.einsum("nfi,ifh->nfh", normed, self.adamw_attn_gate_w)
        found = edges.without_ghosts(edges.sums(functools.partial(self._attended_sums, x), weights))
        found = row_gate(found, gates.flatten(1)[:, :, None].expand(-1, -1, size).flatten(1))
        if self.attn_o_proj is not None:
            found = self.attn_o_proj(found.unflatten(2, (groups, width))).flatten(2)
        return found

    def _logits(self, queries: torch.Tensor, keys: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(E, H), from queries and keys (N, C) and radial features of l = 0, as in `edge_softmax`."""
        groups, heads, width = self.attention_groups, self.options.n_atten_head, self.attention_width
        size = width // heads
        products = edge_product(queries, edges.of_center, keys, edges.of_neighbor)
        logits = products.view(-1, groups * heads, size).sum(2) / math.sqrt(size)
        return logits + self._bias_of_logits(edges)

    def _bias_of_logits(self, edges: Edges) -> torch.Tensor:
        """(E, H)."""
        radial = edges.by_splines(self.bias_of_logits)
        return self._radial_logits(self._radial(edges.scalars)) if radial is None else radial

    def _radial_logits(self, scalars: torch.Tensor) -> torch.Tensor:
        """(E, H), from radial features (E, F C) of l = 0."""
        rows = scalars.view(-1, self.attention_groups, self.attention_width)
        return torch.einsum("efi,ifh->efh", rows, self.adamw_attn_logit_w).flatten(1)

    def radial_functions(self, radial: torch.Tensor) -> dict[str, torch.Tensor]:
        """All that depends on radial features (E, l, C) alone: (E, functions) by the names of the splines."""
        own = self._radial(radial[:, : self.lmax + 1])
        mixer = self.radial_degree_mixer
        found = {self.mixture: own.flatten(1) if mixer is None else mixer.numbers(own)}
        if self.has_first_bias:
            found[self.first_bias] = self._of_first_bias(own[:, 0])
        if self.options.n_atten_head:
            found[self.bias_of_logits] = self._radial_logits(own[:, 0])
        return found

    def _attended_sums(self, x: torch.Tensor, edges: Edges, weights: torch.Tensor) -> torch.Tensor:
        """(N, D, C), with weights (E, H)."""
        groups, width = self.attention_groups, self.attention_width
        # A head's weight multiplies its channels, in any frame.
        if self.attn_focus_mix is None and self.attn_v_proj is None:
            return self._message_sums(x, edges, weights)
        (rows,) = self._messages(x, edges)
        local = self._turned_back(rows, edges)
        if self.attn_focus_mix is not None:
            local = self.attn_focus_mix(local[:, :, None]).squeeze(2)
        if self.attn_v_proj is not None:
            local = self.attn_v_proj(local.unflatten(2, (groups, width))).flatten(2)
        return self._summed(_weighted(local, weights), edges)

    def _radial(self, radial: torch.Tensor) -> torch.Tensor:
        """(..., F C), from radial features (..., C)."""
        return radial if self.radial_hidden_proj is None else self.radial_hidden_proj(radial)

    def _mixtures(self, edges: Edges) -> torch.Tensor:
        """(E, coefficients of all mixtures), or without mixing (E, (L + 1) F C)."""
        numbers, mixer = edges.by_splines(self.mixture), self.radial_degree_mixer
        if numbers is not None:
            return numbers
        degrees, of_edge = self.lmax + 1, edges.of_edge
        radial = self._radial(of_edge if of_edge.shape[1] == degrees else of_edge[:, :degrees])
        return radial.flatten(1) if mixer is None else mixer.numbers(radial)

    def _radial_by_degrees(self, edges: Edges) -> torch.Tensor:
        """(E, L + 1, F C), without mixing of degrees."""
        return self._mixtures(edges).unflatten(1, (self.lmax + 1, self.hidden))

    def _first_bias(self, edges: Edges) -> torch.Tensor:
        """(E, F, outputs), the bias of the first layer's scalars. It is multiplied by the radial features of l = 0 and
        the envelope, so that it vanishes with the message."""
        found = edges.by_splines(self.first_bias)
        found = self._of_first_bias(self._radial(edges.scalars)) if found is None else found
        return (found * edges.envelope).unflatten(1, (self.groups, -1))

    def _of_first_bias(self, scalars: torch.Tensor) -> torch.Tensor:
        """(E, F outputs), from radial features (E, F C) of l = 0."""
        first: Any = self.so2_linears[0]
        bias = first.bias0.view(self.groups, -1, self.width)
        return (scalars.view(-1, self.groups, 1, self.width) * bias).flatten(1)

    def _message_sums(self, x: torch.Tensor, edges: Edges, weights: torch.Tensor) -> torch.Tensor:
        """(N, D, C), sums of messages with weights (E, H), one for each of H equal parts of the channels."""
        mixer, numbers = self.radial_degree_mixer, None
        fused = self._goes_by_fused_layers(x, edges)
        if not (fused or (self.has_plain_layers and self.mixes_first)):
            return self._received(self._messages(x, edges), weights, edges)
        weights = weights.unflatten(1, (-1, max(1, self.options.n_atten_head)))
        if not fused:
            return self._sums_by_blocks(x, edges, weights)
        if self.mixes_first and (self.groups == 1 or self.lmax <= MOST_FRAME_DEGREE):
            assert mixer is not None
            x, numbers = mixer.scaled(x), self._mixtures(edges)
            if self.groups > 1:
                of_groups = self._competition(x.unflatten(2, (self.groups, self.width)), numbers, edges)
                weights = weights * of_groups[:, :, None]
        else:
            x = self._first_rows(x, edges)
            if self.groups > 1:
                of_groups = self._focus_weights(x[:, 0].unflatten(1, (self.groups, self.width)))
                weights = weights * of_groups[:, :, None]
        count, _ = self._row_layout(x)
        given = zip(
            x.split(count * self.width, 2), weights.split(count, 1), self._in_rows(count), strict=True
        )
        found = [self._sums_of_groups(own, numbers, edges, *of) for own, *of in given]
        return found[0] if len(found) == 1 else torch.cat(found, 2)

    def _sums_by_blocks(self, x: torch.Tensor, edges: Edges, weights: torch.Tensor) -> torch.Tensor:
        """(N, D, C), by plain layers and blocks of equal |m|; weights (E, F, H), or (E, 1, H) for all groups."""
        assert self.radial_degree_mixer is not None
        given = edges.rotations[self.lmax, self.mmax], x, self._mixtures(edges)
        turn, x = self.radial_degree_mixer.folded(*given)
        if self.groups > 1:
            scalars = edge_rotate(turn[:, :1], x, edges.of_neighbor).view(-1, self.groups, self.width)
            weights = weights * self._focus_weights(scalars)[:, :, None]
        parts = zip(x.split(self.width, 2), weights.unbind(1), strict=True)
        found = [
            self._received(self._blocks(turn, own, edges, group), of, edges)
            for group, (own, of) in enumerate(parts)
        ]
        return found[0] if len(found) == 1 else torch.cat(found, 2)

    def _competition(self, x: torch.Tensor, numbers: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(E, F), the weights of groups. Rotates and mixes the scalars of rows x (N, D, F, C) for them."""
        assert self.adamw_focus_compete_w is not None
        size = self.lmax + 1
        harmonics, _ = edge_frames(edges.vectors, self.lmax, -1)  # all rows of m = 0
        first = (harmonics[:, :, None] * spread(numbers[:, : size**2 : size, None], self._runs)).mT
        if self.focus_compete_norm is None:
            # Logits are linear in the scalars, and there are fewer nodes than edges.
            logits = edge_rotate(first, (x * self.adamw_focus_compete_w.T).sum(3), edges.of_neighbor)[:, 0]
            return focus_shares(logits, self.focus_compete_bias)
        scalars = edge_rotate(first, x.flatten(2), edges.of_neighbor).view(-1, self.groups, self.width)
        return self._focus_weights(scalars)

    def _sums_of_groups(
        self,
        x: torch.Tensor,
        numbers: torch.Tensor | None,
        edges: Edges,
        weights: torch.Tensor,
        groups: range,
    ) -> torch.Tensor:
        """(N, D, G C), sums of messages of G groups of channels, with weights (E, G, H). With `numbers` of
        mixtures, x are the scaled rows of nodes, else the first rows of edges. Zeros fill up missing channels."""
        channels = x.shape[2]
        x = _widened(x, self._row_layout(x)[1], groups)
        if numbers is None:
            rows = self._by_orders(x)
        elif self.goes_by_one_kernel(x):
            given = edges.vectors, numbers, x, weights[:, 0], edges.of_neighbor, edges.of_center
            weights_of = self._weights_of_layers(groups, x)
            return so2_messages(*given, *weights_of, edges.matmul)[:, :, :channels] * self._rescale
        else:
            turn = order_mix(numbers, edges.rotations[self.lmax, self.mmax], self.lmax)
            rows = [edge_rotate(own, x, edges.of_neighbor) for own in self._by_orders(turn)]
        layers, biases = self._layers_once(groups, x), self._biases(edges, groups, x.shape[2])
        turns, last, sums = self._by_orders(edges.rotations[self.lmax, self.mmax]), layers[-1], []
        if self._goes_by_moments(x, weights):
            rows = through(layers[:-1], rows, biases, edges.matmul)
            sums.append(self._sums_by_moments(rows[0], edges, weights, groups))
            turns, rows = turns[1:], last.of_others(rows[1:])
        else:
            rows = through(layers, rows, biases, edges.matmul)
        weights, bias = weights.flatten(1), last.bias_of(biases)
        for turn, own in zip(turns, rows, strict=True):
            own = _narrowed(own, channels, groups)
            sums.append(self._sums_turned_back(turn, own, weights, edges) * self._rescale)
        if bias is not None:
            bias = _narrowed(bias, channels, groups)
            own = _weighted(bias[..., None, :].expand(weights.shape[0], -1, -1), weights)
            added = edge_scatter(own.flatten(1), edges.of_center)[:, None]
            sums.append(nn.functional.pad(added, (0, 0, 0, len(self._rescale) - 1)))
        return functools.reduce(torch.add, sums)

    def _by_orders(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Splits rows (E, R, ...) into those of m = 0 and |m| = 1, and those of each larger |m|."""
        if self.mmax <= 1:
            return [x]
        more = [2 * (self.lmax + 1 - m) for m in range(2, self.mmax + 1)]
        return [own.contiguous() for own in x.split([3 * self.lmax + 1, *more], 1)]

    def _messages(self, x: torch.Tensor, edges: Edges) -> list[torch.Tensor]:
        """(E, R, C) in the edge's frame, or (E, D, C) without frames."""
        if self.in_frames:
            return [self._in_frame(x, edges)]
        radial = self._radial_by_degrees(edges)
        sources = edge_gather(x.flatten(1), edges.of_neighbor).view(-1, *x.shape[1:])
        first = sources[:, 0] * radial[:, 0]
        if self.by_matrices:
            rows, of_degrees = (one.unflatten(2, (self.groups, self.width)) for one in (sources, radial))
            found = self.edge_cartesian_tp(rows, edges.vectors, of_degrees).flatten(2)
        else:
            found = sources * spread(radial, self._runs)
        return [self._competing(found, first)]

    def _competing(self, x: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
        """Messages (E, D, C) times the weights of their groups, computed from scalars (E, C)."""
        if self.adamw_focus_compete_w is None:
            return x
        weights = self._focus_weights(scalars.unflatten(1, (self.groups, self.width)))
        return (x.unflatten(2, (self.groups, self.width)) * weights[:, None, :, None]).flatten(2)

    def _focus_weights(self, scalars: torch.Tensor) -> torch.Tensor:
        """(E, F), from scalars (E, F, C)."""
        norm, weight = self.focus_compete_norm, self.adamw_focus_compete_w
        assert weight is not None
        factors = weight.T
        if norm is not None:
            scalars, factors = norm.unscaled(scalars), factors * norm.adam_scale
        of_each = torch.block_diag(*factors[:, :, None])  # (F C, F)
        return focus_shares(linear(scalars.flatten(1), of_each), self.focus_compete_bias)

    def takes_matmul(self, device: torch.device) -> bool:
        """Whether `matmul` changes the accuracy of float32 simulations on that GPU."""
        fuses = self.has_plain_layers and self.mmax == 1
        return fuses and kernel_width(device, self.lmax, self.width) is not None

    def _fused_width(self, x: torch.Tensor) -> int | None:
        """How many channels fused layers take for nodes like x; None: there are no such layers."""
        width = fused_width(x, self.lmax, self.width, self.groups) if self.has_fused_layers else None
        return None if self.options.so2_norm and width != self.width else width  # a norm would count zeros

    def _row_layout(self, x: torch.Tensor) -> tuple[int, int]:
        """How many groups a row holds in simulations with nodes like x, and its channels. `so2_messages` takes one
        weight per edge."""
        width = self._fused_width(x) or self.width
        return 1 if self.goes_by_one_kernel(x) else min(width // self.width, 2), width

    def _in_rows(self, count: int) -> list[range]:
        """The groups, `count` at a time."""
        return [range(k, min(k + count, self.groups)) for k in range(0, self.groups, count)]

    def kept_of_edge(self, x: torch.Tensor) -> int:
        """How many numbers per edge simulations with nodes like x save for the gradient, at most."""
        count, width = self._row_layout(x)
        layers, columns = self.options.mixing_layers, (self.lmax + 1) ** 2
        rows = len(by_order(self.lmax, self.mmax)) if self.in_frames else columns
        if self.goes_by_one_kernel(x):
            arrays = 2 if x.is_cuda else layers
        elif self._fused_width(x) is None:
            arrays = 5 * layers + 4
        else:
            arrays = layers + 5 if self.has_plain_layers else 4 * layers + 3
            arrays += 3 * goes_by_products(x, self.lmax, self.width, self.groups)  # not saved by a layer
        return rows * (arrays * -(-self.groups // count) * width + 2 * columns)

    def _goes_by_fused_layers(self, x: torch.Tensor, edges: Edges) -> bool:
        """Whether one op per layer is faster than its products, gates and sums. The op has no second derivative."""
        return edges.once and self._fused_width(x) is not None

    def _goes_by_moments(self, x: torch.Tensor, weights: torch.Tensor) -> bool:
        """Whether the last layer is applied after the sum over edges, once per atom. That is possible without a gate
        and with one weight for all channels."""
        return weights.shape[2] == 1 and has_order_moments(x, self.lmax, x.shape[2])

    def _sums_by_moments(
        self, rows: torch.Tensor, edges: Edges, weights: torch.Tensor, groups: range
    ) -> torch.Tensor:
        """(N, D, G C), from rows of m = 0 and |m| = 1 before the last layer."""
        width, turn = rows.shape[2], self._by_orders(edges.rotations[self.lmax, self.mmax])[0]
        given = turn, rows, weights.flatten(1), edges.of_center
        if edges.is_run:
            moments = _SumOfRun.apply("order_moments", rows.shape[1] * width, *given)
        else:
            moments = order_moments(*given)
        make = functools.partial(self._weight_of_moments, groups, rows)
        weight = make() if is_exported() else self._kept(self, f"moments {groups} {width}", make, at=rows)
        return self.post_focus_mix.product(moments, weight)

    def _weight_of_moments(self, groups: range, rows: torch.Tensor) -> torch.Tensor:
        """(L + 1, (3 L + 1) width, G C), the matrices that multiply the moments, by degree, for all groups in a row:
        the last layer's weights plus the identity of its residual, times `_rescale`."""
        *_, (middle, both, *_) = self._layers_once(groups, rows)
        channels = len(groups) * self.width
        degrees, own, c = self.lmax + 1, self.lmax, rows.shape[2]
        middle = (middle + torch.eye(degrees * c).to(middle)).view(degrees, c, degrees, c)
        u, v = both.chunk(2, 1)
        u, v = (one.reshape(own, c, own, c) for one in (u + torch.eye(own * c).to(u), v))
        of_groups = (_narrowed(one, channels, groups) for one in (middle, u, v))
        by_degree = [one.permute(2, 0, 1, 3).flatten(1, 2) for one in of_groups]
        signs = nn.functional.pad(torch.cat(by_degree[1:], 1), (0, 0, 0, 0, 1, 0))  # l = 0 has none
        scales = self._rescale[[degree * degree for degree in range(degrees)]]
        return torch.cat([by_degree[0], signs], 1) * scales[:, :, None]

    def goes_by_one_kernel(self, x: torch.Tensor) -> bool:
        """Whether simulations with nodes like x compute messages and their sums by one op, faster than its parts. It
        saves the output of one layer per edge, on a CPU of all layers but the last."""
        plain = self.has_plain_layers and self.mixes_first
        if not plain or self.mmax != 1 or self.options.n_atten_head > 1:
            return False
        gates = sum(isinstance(one, Gate) for one in self.non_linearities)
        width = self._fused_width(x) or self.width
        return has_fused_messages(x, self.lmax, width, len(self.so2_linears), gates)

    def _weights_of_layers(self, groups: range, x: torch.Tensor) -> _LayerWeights:
        """W and [U V] of plain layers, and the gates of those that have one."""
        layers = self._layers_once(groups, x)
        gates = [one.gate for one in layers if one.gate is not None]
        return [one.middle for one in layers], [one.both for one in layers], gates

    def _layers_once(self, groups: range, x: torch.Tensor) -> Any:
        """The layers for rows x that hold the channels of these groups side by side, padded with zeros."""
        width = x.shape[-1]

        def make() -> list[Layer | GridLayer]:
            scales: Any = self.adam_so2_layer_scales or [None] * len(self.so2_linears)
            adds = [self.has_first_bias] + [False] * (len(scales) - 1)
            place = groups, width, self.options.so2_function
            parts: Any = (self.so2_linears, self.non_linearities, self.so2_inter_norms, scales, adds)
            return [layer_of(a, b, c, d, e, *place) for a, b, c, d, e in zip(*parts, strict=True)]

        return make() if is_exported() else self._kept(self, f"layers {groups} {width}", make, at=x)

    def _biases(self, edges: Edges, groups: range, width: int) -> torch.Tensor | None:
        """The biases of the first layer's scalars in these groups, (E, C), or (E, 2 C) for a `GridLayer`."""
        if not self.has_first_bias:
            return None
        parts = self._first_bias(edges)[:, groups.start : groups.stop].unflatten(2, (-1, self.width))
        return _widened(parts.transpose(1, 2).flatten(2), width, groups).flatten(1)

    def _blocks(self, turn: torch.Tensor, x: torch.Tensor, edges: Edges, group: int) -> list[torch.Tensor]:
        """(E, R_m, C) for each |m|: messages of one group of channels after plain layers."""
        layers: Any = self.so2_linears
        rows = [edge_rotate(own, x, edges.of_neighbor) for own in turn.split(layers[0].sizes, 1)]
        gate: Any
        for layer, gate in zip(layers[:-1], self.non_linearities[:-1], strict=True):
            rows = gate.added(rows, layer.by_blocks(rows, group), group)
        found = layers[-1].by_blocks(rows, group)
        return [own + new for own, new in zip(rows, found, strict=True)]

    def _in_frame(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        first = self._first_rows(x, edges)
        rows = first.unflatten(2, (self.groups, self.width))
        return self._competing(self._layers(rows, edges).flatten(2), first[:, 0])

    def _first_rows(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(E, R, F C), before the layers."""
        turn, mixer = edges.rotations[self.lmax, self.mmax], self.radial_degree_mixer
        if mixer is None:
            radial = spread(self._radial_by_degrees(edges), self._runs_by_order)
            local = edge_rotate(turn, x, edges.of_neighbor) * radial
        else:
            local = mixer(turn, x, self._mixtures(edges), edges.of_neighbor, edges.once)
        if self.node_wise_grid_product is None:
            return local
        own = edge_rotate(turn, x, edges.of_center)
        rows, own = (one.unflatten(2, (self.groups, self.width)) for one in (local, own))
        return (rows + self.node_wise_grid_product(rows, own)).flatten(2)

    def _layers(self, rows: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Rows (E, R, F, C) after the layers."""
        width = self._fused_width(rows) if edges.once else None
        if width is not None:
            count, parts = width // self.width, []
            for own, groups in zip(rows.split(count, 2), self._in_rows(count), strict=True):
                x = _widened(own.flatten(2), width, groups)
                layers, biases = self._layers_once(groups, x), self._biases(edges, groups, width)
                found = torch.cat(through(layers, self._by_orders(x), biases, edges.matmul), 1)
                bias = layers[-1].bias_of(biases)
                found = found if bias is None else plus_first(found, bias)
                found = _narrowed(found, len(groups) * self.width, groups)
                parts.append(found.unflatten(2, (-1, self.width)))
            return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        before = [rows]
        layer: Any
        for k, (layer, norm, function) in enumerate(
            zip(self.so2_linears, self.so2_inter_norms, self.non_linearities, strict=True)
        ):
            if self.so2_layer_attn_res is not None:
                mix: Any = self.so2_layer_attn_res[k]
                rows = mix(before, rows, lambda one: one[:, 0].flatten(1))
            found = layer(norm(rows))
            if k == 0 and self.has_first_bias:
                added = self._first_bias(edges) - layer.bias0.view(self.groups, -1)
                found = plus_scalar(found, added[:, None])
            found = function(found)
            if self.adam_so2_layer_scales is not None:
                found = found * self.adam_so2_layer_scales[k]
            before.append(found)
            rows = rows + found
        return rows

    def _received(self, blocks: list[torch.Tensor], weights: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(N, D, C), sums of messages (E, R, C), rotated back, with weights (E, H) of H equal parts of channels."""
        if not self.in_frames:
            (rows,) = blocks
            return self._summed(_weighted(rows, weights), edges)
        turns = edges.rotations[self.lmax, self.mmax].split([rows.shape[1] for rows in blocks], 1)
        pairs = zip(turns, blocks, strict=True)
        sums = [self._sums_turned_back(turn, rows, weights, edges) for turn, rows in pairs]
        return functools.reduce(torch.add, sums) * self._rescale

    def _sums_turned_back(
        self, turn: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, edges: Edges
    ) -> torch.Tensor:
        """(N, D, C), from messages (E, R, C) of some orders; not rescaled."""
        of = edges.of_center
        if weights.shape[1] > 1:
            return edge_rotate_sum(turn, _weighted(rows, weights), of)
        if not edges.once:
            weighted = turn * weights[:, :, None]  # cheaper: it has fewer columns than channels
            return edge_rotate_sum(weighted, rows, of)
        if edges.is_run:
            found: torch.Tensor = _SumOfRun.apply("edge_rotate_back", rows.shape[2], turn, rows, weights, of)
            return found
        return edge_rotate_back(turn, rows, weights, of)

    def _turned_back(self, local: torch.Tensor, edges: Edges) -> torch.Tensor:
        if not self.in_frames:
            return local
        return torch.bmm(edges.rotations[self.lmax, self.mmax].mT, local) * self._rescale

    def _summed(self, messages: torch.Tensor, edges: Edges) -> torch.Tensor:
        found = edge_scatter(messages.flatten(1), edges.of_center)
        return found.view(-1, *messages.shape[1:])

    def reset(self, random: np.random.Generator) -> None:
        for name in ("adamw_attn_logit_w", "adamw_attn_gate_w", "adamw_focus_compete_w"):
            weight = getattr(self, name, None)
            if weight is not None:
                drawn(weight, random)
