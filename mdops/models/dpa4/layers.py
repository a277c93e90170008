"""The layers of messages in simulations, with constant weights. Each is one node of autograd."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.grid import GridNet
from mdops.nn.equivariant.linear import OrderLinear
from mdops.nn.equivariant.norm import OrderNorm
from mdops.ops import linear, so2_layer
from mdops.ops._once import OPS, once
from mdops.ops.activation import kernel_code

Norm = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]


class Layer(NamedTuple):
    """A layer of rows x of m = 0 and |m| = 1, (E, 3 L + 1, C), and of rows (E, 2 K, C) of each larger |m|:

        y_lm = x_lm + z_lm sigmoid(s G_l + c_l)   y_00 = x_00 + a f(s)        s = z_00 + b

    where z are products of x, or of x after a norm. Without a gate y = x + z.

    Attributes:
        middle, both: W and [U V], as `so2_layer` takes them. If it cannot apply the layer's gate, the identity is
            subtracted from them, so that it gives z.
        others: [[U, V], [-V, U]] of |m| = 2, 3, ...; plus the identity without a gate.
        gate: G (C, L C), or None.
        scalars: the columns of W for s.
        is_gated: whether `so2_layer` applies the gate: there is no bias and no norm.
        function: f, as a code of `layer_output`; None: silu, by `so2_layer`.
        scale: a (C,), for the function; the weights contain that of other rows.
        bias, gate_bias: b (C,) and c (L C,).
        adds: whether edges have their own biases (E, C) instead of b; they follow the rows.
        norm: the arguments of `degree_norm` after rows.
        groups: of channels; weights between them are zeros.
    """

    middle: torch.Tensor
    both: torch.Tensor
    others: tuple[torch.Tensor, ...] = ()
    gate: torch.Tensor | None = None
    scalars: torch.Tensor | None = None
    is_gated: bool = True
    function: tuple[int, float] | None = None
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    gate_bias: torch.Tensor | None = None
    adds: bool = False
    norm: Norm | None = None
    groups: int = 1

    def of(
        self, rows: Sequence[torch.Tensor], biases: torch.Tensor | None, matmul: str
    ) -> list[torch.Tensor]:
        """y of m = 0 and |m| = 1, and of each larger |m|."""
        if self.gate is not None and (self.others or self.function is not None):
            more = [biases] if self.adds and biases is not None else []
            return list(once(_Gated(self, matmul), *rows, *more))
        first = so2_layer(rows[0], self.middle, self.both, self.gate, matmul, self.groups)
        return [first, *self.of_others(rows[1:])]

    def of_others(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """y of each |m| above 1, without a gate."""
        pairs = zip(rows, self.others, strict=True)
        return [linear(own.flatten(1), weight).view_as(own) for own, weight in pairs]

    def bias_of(self, biases: torch.Tensor | None) -> torch.Tensor | None:
        """The bias that a layer without a gate leaves to add to scalars, (E, C) or (C,)."""
        bias = biases if self.adds else self.bias
        return bias if bias is None or self.scale is None else bias * self.scale


class GridLayer(NamedTuple):
    """y = x + a g(u, v): a layer of rows of m = 0 and |m| = 1. g is `GridNet`'s product of functions on the sphere; u
    and v are products of x, or of x after a norm, with biases of their scalars.

    Attributes:
        left, right: W and [U V] of u and of v, minus the identity.
        to, back: matrices of the grid.
        gate, gate_bias: of the gates, (2 C, C) and (C,), for the scalars of both.
        bias: of u and of v, (2 C,).
        scale, adds, norm: as in `Layer`.
    """

    left: tuple[torch.Tensor, torch.Tensor]
    right: tuple[torch.Tensor, torch.Tensor]
    to: torch.Tensor
    back: torch.Tensor
    gate: torch.Tensor
    gate_bias: torch.Tensor | None
    bias: torch.Tensor | None
    scale: torch.Tensor | None
    adds: bool
    norm: Norm | None

    def of(
        self, rows: Sequence[torch.Tensor], biases: torch.Tensor | None, matmul: str
    ) -> list[torch.Tensor]:
        """As in `Layer`; there are no larger |m|."""
        (x,), more = rows, ([biases] if self.adds and biases is not None else [])
        return [once(_OnGrid(self, matmul), x, *more)]


def through(
    layers: Sequence[Layer | GridLayer], rows: list[torch.Tensor], biases: torch.Tensor | None, matmul: str
) -> list[torch.Tensor]:
    """Rows of m = 0 and |m| = 1, and of each larger |m|, after these layers. biases: of edges, for the first layer."""
    for layer in layers:
        rows = layer.of(rows, biases, matmul)
    return rows


def plus_first(x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """Rows (E, R, C) with (E, C) or (C,) added to the first."""
    first, others = x.split([1, x.shape[1] - 1], 1)
    return torch.cat([first + added[..., None, :], others], 1)


class _Gated(NamedTuple):
    """A layer with a gate and more than `so2_layer` supports."""

    layer: Layer
    matmul: str

    def forward(self, *given: torch.Tensor) -> Any:
        own, (x, *others) = self.layer, given
        bias, c = others.pop() if own.adds else own.bias, x.shape[2]
        assert own.gate is not None and own.scalars is not None
        normed = x if own.norm is None else OPS.degree_norm(x, *own.norm)
        z = OPS.so2_layer(normed, own.middle, own.both, self._gate_of_op(x), self.matmul, own.groups)
        if own.is_gated:
            y, s = z, x.flatten(1)[:, : len(own.scalars)] @ own.scalars
        else:
            y, s = torch.empty_like(x), z[:, 0] if bias is None else z[:, 0] + bias
        logits = s @ own.gate if own.gate_bias is None else torch.addmm(own.gate_bias, s, own.gate)
        factors = logits.sigmoid()
        if not own.is_gated:
            for old, product, new in zip(*map(_gated_rows, (x, z, y)), strict=True):
                torch.addcmul(old, product, factors.view_as(old), out=new)
        if own.function is not None:
            added = OPS.layer_output(s, s[:, :0], *own.function)
            torch.add(x[:, 0], added if own.scale is None else added * own.scale, out=y[:, 0])
        found, products = [y], []
        for k, (old, weight) in enumerate(zip(others, own.others, strict=True)):
            product = linear(old.flatten(1), weight).unflatten(1, (2, -1))
            gates = factors[:, None, (k + 1) * c :]
            found.append(torch.addcmul(old.view_as(product), product, gates).view_as(old))
            products.append(product)
        return tuple(found), [normed, z, s, logits, *products]

    def backward(self, given: Sequence[torch.Tensor], kept: Sequence[Any], *grads: Any) -> Any:
        own, x, (normed, z, s, logits, *products) = self.layer, given[0], kept
        grad, *by_rows = grads
        assert own.gate is not None and own.scalars is not None
        c, by_z, by_logits, by_s = x.shape[2], grad, torch.zeros_like(logits), None
        if own.function is not None:
            by_y = grad[:, 0] if own.scale is None else grad[:, 0] * own.scale
            by_s, _ = OPS.layer_output_backward(by_y, s, 0, *own.function)
            by_z = grad.clone() if own.is_gated else torch.empty_like(grad)
            by_z[:, 0] = 0
        if not own.is_gated:
            factors = logits.sigmoid()
            for by_row, product, new in zip(*map(_gated_rows, (grad, z, by_z)), strict=True):
                by_logits.view_as(by_row).addcmul_(by_row, product)
                torch.mul(by_row, factors.view_as(by_row), out=new)
            by_logits = torch.ops.aten.sigmoid_backward(by_logits, factors)
        by_others = []
        for k, (by_row, product, weight) in enumerate(zip(by_rows, products, own.others, strict=True)):
            gates = slice((k + 1) * c, None)
            by_product, by_gates = OPS.row_gate_backward(
                by_row.reshape(product.shape), product, logits[:, gates]
            )
            by_logits[:, gates] += by_gates
            by_others.append(by_row + OPS.linear_input(by_product.flatten(1), weight).view_as(by_row))
        by_s = by_logits @ own.gate.T if by_s is None else torch.addmm(by_s, by_logits, own.gate.T)
        ends = normed, own.middle, own.both, self._gate_of_op(x), self.matmul, own.groups, z
        if own.is_gated:
            by_x = OPS.so2_layer_backward(by_z, *ends)
            by_x.flatten(1)[:, : len(own.scalars)].addmm_(by_s, own.scalars.T)
            if own.function is not None:
                by_x[:, 0] += grad[:, 0]
        else:
            by_z[:, 0] = by_s
            by_x = OPS.so2_layer_backward(by_z, *ends)
            by_x = by_x if own.norm is None else OPS.degree_norm_backward(by_x, x, *own.norm)
            by_x += grad
        return by_x, *by_others, *([by_s] if own.adds else [])

    def _gate_of_op(self, x: torch.Tensor) -> torch.Tensor:
        own = self.layer
        return own.gate if own.is_gated and own.gate is not None else x.new_empty(0, 0)


class _OnGrid(NamedTuple):
    layer: GridLayer
    matmul: str

    def forward(self, *given: torch.Tensor) -> Any:
        own, (x, *biases) = self.layer, given
        none = x.new_empty(0, 0)
        normed = x if own.norm is None else OPS.degree_norm(x, *own.norm)
        both = [OPS.so2_layer(normed, *weights, none, self.matmul) for weights in (own.left, own.right)]
        bias = biases[0] if own.adds else own.bias
        if bias is not None:
            for one, added in zip(both, bias.chunk(2, -1), strict=True):
                one[:, 0] += added
        scalars = torch.cat([one[:, 0] for one in both], 1)
        gates = linear(scalars, own.gate, own.gate_bias)
        product = OPS.grid_product(own.to, own.to, own.back, *both, False)
        y = OPS.scalar_gate(product, gates, scalars)
        if own.scale is not None:
            y *= own.scale
        return y.add_(x), [normed, *both, scalars, gates, product]

    def backward(self, given: Sequence[torch.Tensor], kept: Sequence[Any], *grads: Any) -> Any:
        (grad,), own, (normed, u, v, scalars, gates, product) = grads, self.layer, kept
        by_y = grad if own.scale is None else grad * own.scale
        by_product, by_gates, by_scalars = OPS.scalar_gate_backward(by_y, product, gates, scalars)
        by_scalars.addmm_(by_gates, own.gate.T)
        by_u = OPS.grid_product(own.back, own.to, own.to, by_product, v, False)
        by_v = OPS.grid_product(own.to, own.back, own.to, u, by_product, False)
        found, none = [], normed.new_empty(0, 0)
        pairs = zip((by_u, by_v), by_scalars.chunk(2, 1), (own.left, own.right), strict=True)
        for one, by_first, weights in pairs:
            one[:, 0] += by_first
            found.append(OPS.so2_layer_backward(one, normed, *weights, none, self.matmul, 1, one))
        by_x = found[0].add_(found[1])
        by_x = by_x if own.norm is None else OPS.degree_norm_backward(by_x, given[0], *own.norm)
        by_biases = [torch.cat([by_u[:, 0], by_v[:, 0]], 1)] if own.adds else []
        return by_x.add_(grad), *by_biases


def _gated_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of m = 0, -1 and 1 without the scalars: (E, L, C) each."""
    return x[:, 1:].unflatten(1, (3, -1)).unbind(1)


def layer_of(
    product: OrderLinear,
    gate: nn.Module,
    norm: nn.Module,
    scale: torch.Tensor | None,
    adds: bool,
    groups: range,
    width: int,
    function: str,
) -> Layer | GridLayer:
    """The layer for some groups of channels, in equal parts of rows of `width` channels, padded with zeros.

    Args:
        gate: a `Gate`, a `GridNet`, or any other module: no gate. norm: an `OrderNorm`, or any other module.
        scale: (F, C), the layer scale. adds: as in `Layer`. function: of the gate.
    """
    c, part_width = product.inputs, width // len(groups)

    def wide(weight: torch.Tensor, parts: int = 1, part: int = 0) -> torch.Tensor:
        """A matrix or a row for all groups; of several parts of outputs, this one."""
        if product.groups == parts == 1 and width == c:
            return weight
        found, of_groups = [], weight.unflatten(-1, (product.groups, -1, parts, c))[..., part, :]
        for place, own in enumerate(of_groups.unbind(-3)[groups.start : groups.stop]):
            around = place * part_width, width - place * part_width - c
            if own.dim() == 2:
                found.append(pad(own, around).flatten())
            else:
                rows = pad(own.unflatten(0, (-1, c)), (*around, 0, 0, *around))
                found.append(rows.flatten(2).flatten(0, 1))
        return functools.reduce(torch.add, found)

    of_norm = norm.constants_of(groups.start) if isinstance(norm, OrderNorm) else None
    scale = None if scale is None else wide(scale.flatten())
    if isinstance(gate, GridNet):
        weights = [[wide(one, 2, k) for one in (product.weight_m0, product.weight_m[0])] for k in range(2)]
        left, right = ((_less_one(middle), _less_one(both)) for middle, both in weights)
        of_both = None if product.bias0 is None else torch.cat([wide(product.bias0, 2, k) for k in range(2)])
        to, back, *_, weight = gate.constants
        gate_bias = None if gate.scalar_gate.bias is None else wide(gate.scalar_gate.bias)
        return GridLayer(left, right, to, back, wide(weight), gate_bias, of_both, scale, adds, of_norm)
    middle, both, *more = map(wide, (product.weight_m0, *product.weight_m))
    halves = [one.chunk(2, 1) for one in more]
    others = [torch.cat([torch.cat([u, v], 1), torch.cat([-v, u], 1)]) for u, v in halves]
    bias = None if product.bias0 is None else wide(product.bias0)
    scalars = middle[:, :width].contiguous()
    if scale is not None:
        middle, both, *others = (one * scale.repeat(one.shape[1] // width) for one in (middle, both, *others))
    if not isinstance(gate, Gate):
        others = [one + torch.eye(len(one)).to(one) for one in others]
        return Layer(middle, both, tuple(others), bias=bias, scale=scale, adds=adds)
    if scale is not None:
        middle = torch.cat([scalars, middle[:, width:]], 1)
    is_gated, gates = bias is None and of_norm is None, gate.gate_linear
    usual = is_gated and scale is None and function == "silu"
    return Layer(
        middle if is_gated else _less_one(middle),
        both if is_gated else _less_one(both),
        tuple(others),
        gate=wide(gates.weight),
        scalars=scalars,
        is_gated=is_gated,
        function=None if usual else kernel_code(function),
        scale=scale,
        bias=bias,
        gate_bias=None if gates.bias is None else wide(gates.bias),
        adds=adds,
        norm=of_norm,
        groups=len(groups),
    )


def _less_one(weight: torch.Tensor) -> torch.Tensor:
    """W, or [U V], with the identity subtracted from W or U."""
    return weight - torch.eye(*weight.shape).to(weight)
