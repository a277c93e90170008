"""A block of DPA-4: messages, then layers of each atom alone. Both are residual, or are mixed in depth."""

from functools import partial
from typing import Any

import torch
from torch import nn

from mdops.models.dpa4.convolution import Convolution
from mdops.models.dpa4.edges import Edges
from mdops.models.dpa4.mixing import DepthMix
from mdops.models.dpa4.once import BlockOnce, ForwardOnce, GridOnce, NormOnce
from mdops.models.dpa4.options import DPA4Options
from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.grid import GridNet, ProductWeights
from mdops.nn.equivariant.indices import coefficients
from mdops.nn.equivariant.linear import DegreeLinear
from mdops.nn.equivariant.norm import DegreeNorm
from mdops.nn.net import is_input_gradient_alone
from mdops.nn.watch import NamedOfWeights
from mdops.ops import linear
from mdops.ops._once import traced
from mdops.ops._register import is_by_pytorch
from mdops.tracing import is_exported

_FIRST_SCALE = 1e-3
_FEW_ATOMS = 100  # up to which a block is one node of autograd; with more atoms, recording ops costs little


class FeedForward(nn.Module):
    """Two linear layers by degree, (N, (lmax + 1)^2, 1, C), with a gate or a product on a grid between them."""

    def __init__(
        self,
        lmax: int,
        channels: int,
        hidden: int,
        *,
        grid: str | None,
        branches: int = 1,
        kmax: int | None = None,
        function: str = "silu",
        doubled: bool = True,
        bias: bool = False,
    ) -> None:
        """Args:
        grid: the kind of a `GridNet`, on the rotations if there is a kmax; None: a gate.
        doubled: whether the gate has its own half of the inputs.
        """
        super().__init__()
        chosen, frames = coefficients(lmax), 1
        if grid is not None:
            net = GridNet(chosen, hidden, kmax=kmax, kind=grid, branches=branches, bias=bias)
            frames = net.frames
        self.doubled = doubled and grid is None
        wide = hidden * frames * (2 if grid is not None or doubled else 1)
        self.so3_linear_1 = DegreeLinear(lmax, channels, wide, bias=bias)
        self.act: nn.Module = net if grid is not None else Gate(chosen, hidden, 1, function, bias)
        self.so3_linear_2 = DegreeLinear(lmax, frames * hidden, channels, bias=bias, zero=True)
        self._kept: NamedOfWeights[ProductWeights] = NamedOfWeights()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.act, GridNet) and self.so3_linear_1.bias is None:
            x = self.act.of_product(x, self.so3_linear_1, self._weights(self.act, x))
        elif isinstance(self.act, GridNet):
            x = self.act(self.so3_linear_1(x))
        else:
            x = self.so3_linear_1(x)
            x = self.act(*x.chunk(2, -1)) if self.doubled else self.act(x)
        found: torch.Tensor = self.so3_linear_2(x)
        return found

    def scalars(self, x: torch.Tensor) -> torch.Tensor:
        """The output of l = 0 alone, (N, C), from rows (N, (lmax + 1)^2, 1, C)."""
        first, last, net = self.so3_linear_1, self.so3_linear_2, self.act
        if not isinstance(net, GridNet) or net.needs_points or first.bias is not None:
            return self(x)[:, 0, 0]
        found = net.scalars_of_product(x, first, self._weights(net, x, counted=True))
        y = linear(found, last.weight[0, : found.shape[1]].contiguous())
        return y if last.bias is None else y + last.bias

    @property
    def goes_once(self) -> bool:
        """Whether `constants` are all of it."""
        net = self.act
        return isinstance(net, GridNet) and not net.needs_points and self.so3_linear_1.bias is None

    def constants(self, before: NormOnce | None, after: NormOnce | None) -> ForwardOnce:
        """The weights as a `BlockOnce` has them, between two norms."""
        net, first, last = self.act, self.so3_linear_1, self.so3_linear_2
        assert isinstance(net, GridNet)
        weights = net.weights_of(first)
        left, right = first.of_each(weights.left), first.of_each(weights.right)
        grid = GridOnce(left, right, *net.constants, last.of_each())
        return ForwardOnce(before, grid, weights.scalars, after)

    def _weights(self, net: GridNet, x: torch.Tensor, counted: bool = False) -> ProductWeights:
        """`weights_of` the first layer. Simulations cache them while the weights stay the same."""
        if is_exported() or not is_input_gradient_alone():
            return net.weights_of(self.so3_linear_1, counted)
        return self._kept(self, counted, lambda: net.weights_of(self.so3_linear_1, counted), at=x)


class Block(nn.Module):
    """Maps nodes (N, H D C) to the next ones. They are H arrays (N, D, C): those of earlier depth, and the current one
    last. H is 1 without mixing in depth. With an inner clamp, one more column is `Edges.sent`.

    Args:
        index: which block it is.
    """

    def __init__(self, options: DPA4Options, index: int) -> None:
        super().__init__()
        o, self.options = options, options
        lmax, mmax = o.degrees[index], o.orders[index]
        node_lmax = lmax + o.extra_node_l
        self.sent, self.own = (lmax + 1) ** 2, (node_lmax + 1) ** 2
        after = o.degrees[index + 1] + o.extra_node_l if index + 1 < len(o.degrees) else node_lmax
        self.next = (after + 1) ** 2
        kmax, channels = min(o.kmax, lmax), o.channels
        before_so2, after_so2, before_ffn, after_ffn = o.sandwich_norm

        def norm(there: bool, degree: int, eps: float = 1e-5) -> nn.Module:
            return DegreeNorm(degree, channels, eps=eps) if there else nn.Identity()

        self.pre_so2_norm = norm(before_so2, lmax)
        self.post_so2_norm = norm(after_so2, lmax, 1e-5 if o.edge_norm else 1.0)
        self.so2_conv = Convolution(o, index, lmax, mmax, kmax)
        self.pre_ffn_norms, self.post_ffn_norms = (
            nn.ModuleList(norm(there, node_lmax) for _ in range(o.ffn_blocks))
            for there in (before_ffn, after_ffn)
        )
        kind, branches = o.grid_kind(2)
        on_grid: dict[str, Any] = {"grid": None}
        if o.ffn_so3_grid or o.s2_activation[1]:
            on_grid = {"grid": kind, "branches": branches, "kmax": kmax if o.ffn_so3_grid else None}
        self.ffns = nn.ModuleList(
            FeedForward(
                node_lmax,
                channels,
                o.hidden_width(doubled=on_grid["grid"] is not None or o.glu_activation),
                function=o.activation_function,
                doubled=o.glu_activation,
                bias=o.mlp_bias,
                **on_grid,
            )
            for _ in range(o.ffn_blocks)
        )
        self.adam_ffn_layer_scales = None
        if o.layer_scale:
            self.adam_ffn_layer_scales = nn.ParameterList(
                nn.Parameter(torch.full((channels,), _FIRST_SCALE, dtype=torch.float64))
                for _ in range(o.ffn_blocks)
            )
        for name in ("full_attn_res", "block_attn_res"):
            mode = getattr(o, name)
            mixes = [o.depth_mix(mode) for _ in range(1 + o.ffn_blocks)] if mode != "none" else []
            setattr(self, f"{name}_so2", mixes[0] if mixes else None)
            setattr(self, f"{name}_ffns", nn.ModuleList(mixes[1:]) if mixes else None)
        self._kept: NamedOfWeights[BlockOnce] = NamedOfWeights()
        self.goes_once = self._goes_once()

    def _goes_once(self) -> bool:
        """Whether simulations may run the block as one node of autograd."""
        o = self.options
        is_mixed = o.full_attn_res != "none" or o.block_attn_res != "none"
        rest: Any = self.ffns
        return (
            self.so2_conv.goes_once
            and self.sent == self.own
            and not is_mixed
            and all(f.goes_once for f in rest)
        )

    def _once(self, nodes: torch.Tensor, edges: Edges) -> torch.Tensor:
        """The next nodes, differentiable once."""
        own = self._kept(self, "once", self.constants, at=nodes)
        rows = self.options.rows_of(nodes, self.own)[:, 0]
        given = rows, *self.so2_conv.numbers_of_edges(edges), edges.envelope
        found = traced(partial(own.rows, edges.of_center, edges.of_neighbor), *given)
        return found[:, : self.next].flatten(1)

    def constants(self) -> BlockOnce:
        def norm(given: nn.Module) -> NormOnce | None:
            return NormOnce(*given.constants) if isinstance(given, DegreeNorm) else None

        forwards: Any = zip(self.ffns, self.pre_ffn_norms, self.post_ffn_norms, strict=True)
        return BlockOnce(
            self.so2_conv.constants(norm(self.pre_so2_norm), norm(self.post_so2_norm)),
            tuple(own.constants(norm(before), norm(after)) for own, before, after in forwards),
        )

    def forward(self, nodes: torch.Tensor, local: None, edges: Edges) -> tuple[torch.Tensor, None]:
        """The next nodes."""
        is_usual = edges.once and self.goes_once and edges.sent is edges.atoms is None and not edges.runs
        # Exported programs must not branch on the number of atoms; is_by_pytorch excludes them.
        if is_usual and nodes.device.type == "cpu" and is_by_pytorch() and len(nodes) <= _FEW_ATOMS:
            return self._once(nodes, edges), None
        rows = self.options.rows_of(nodes, self.own)
        x, before = rows[:, -1], list(rows[:, :-1].unbind(1))
        if self.options.full_attn_res != "none":
            found = self._mixed(x, before, edges)
        elif self.options.block_attn_res != "none":
            found = self._mixed_by_blocks(x, before, edges)
        else:
            x = edges.without_ghosts(x) + self._messages(x, edges)
            for k in range(self.options.ffn_blocks):
                x = x + self._within(x, k, edges)
            found = [x]
        new = torch.stack([one[:, : self.next] for one in found], 1).flatten(1)
        if edges.sent is not None:
            new = torch.cat([new, edges.without_ghosts(edges.sent)], 1)
        return new, None

    def _mixed(self, x: torch.Tensor, before: list[torch.Tensor], edges: Edges) -> list[torch.Tensor]:
        """Mixes the outputs of all layers, which are kept one by one, without residuals."""
        x = self._messages(self.full_attn_res_so2(before, x, scalars), edges)
        before = [*map(edges.without_ghosts, before), x]
        for k, mix in enumerate(self.full_attn_res_ffns):
            x = self._within(mix(before, x, scalars), k, edges)
            before = [*before, x]
        return [*before, x]

    def _mixed_by_blocks(
        self, x: torch.Tensor, before: list[torch.Tensor], edges: Edges
    ) -> list[torch.Tensor]:
        """The same, but adds up the outputs of a block."""
        x = total = self._messages(self.block_attn_res_so2(before, x, scalars), edges)
        before = [*map(edges.without_ghosts, before)]
        for k, mix in enumerate(self.block_attn_res_ffns):
            x = self._within(mix([*before, total], x, scalars), k, edges)
            total = total + x
        return [*before, total, x]

    full_attn_res_so2: DepthMix
    full_attn_res_ffns: nn.ModuleList
    block_attn_res_so2: DepthMix
    block_attn_res_ffns: nn.ModuleList

    def _messages(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        """(N, D, C), without ghosts, with zeros in degrees that messages lack."""
        sent = self.pre_so2_norm(x[:, : self.sent, None]).squeeze(2)
        found = self.post_so2_norm(self.so2_conv(sent, edges)[:, :, None]).squeeze(2)
        return found if self.sent == self.own else nn.functional.pad(found, (0, 0, 0, self.own - self.sent))

    def _within(self, x: torch.Tensor, k: int, edges: Edges) -> torch.Tensor:
        def found(x: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.post_ffn_norms[k](self.ffns[k](self.pre_ffn_norms[k](x[:, :, None])))
            return rows.squeeze(2)

        y = edges.of_atoms(found, x)
        return y if self.adam_ffn_layer_scales is None else y * self.adam_ffn_layer_scales[k]


def scalars(x: torch.Tensor) -> torch.Tensor:
    """The scalars (N, C) of rows (N, D, C)."""
    return x[:, 0]
