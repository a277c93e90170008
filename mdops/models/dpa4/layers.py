"""Layers of a message in simulations, whose weights are constants: each is one node of autograd."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.linear import OrderLinear
from mdops.nn.equivariant.norm import OrderNorm
from mdops.ops import linear, so2_layer
from mdops.ops._once import OPS, once
from mdops.ops.activation import kernel_code


class Layer(NamedTuple):
    """What a layer does to rows x of m = 0 and |m| = 1, (E, 3 L + 1, C), and to rows (E, 2 K, C) of each larger |m|:

        y_lm = x_lm + z_lm sigmoid(s G_l + c_l)   y_00 = x_00 + a f(s)        s = z_00 + b

    where z are products of x, or of what a norm makes of it. Without a gate y = x + z.

    Attributes:
        middle, both: W and [U V], as `so2_layer` takes them. They are less one where it has no gate for the layer's, so
            that what it gives is z.
        others: [[U, V], [-V, U]] of |m| = 2, 3, ...; one more without a gate.
        gate: G (C, L C), or None.
        scalars: the columns of W that make s.
        is_gated: whether `so2_layer` has the gate, as there is neither a bias nor a norm.
        function: f, as `layer_output` knows it; None: silu, which `so2_layer` has.
        scale: a (C,), where there is a function; that of other rows is in their weights.
        bias, gate_bias: b (C,) and c (L C,).
        adds: whether edges have biases (E, C) of their own, which come behind the rows, in the place of b.
        norm: what `degree_norm` takes behind rows.
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
    norm: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool] | None = None

    def of(
        self, rows: Sequence[torch.Tensor], biases: torch.Tensor | None, matmul: str
    ) -> list[torch.Tensor]:
        """y of m = 0 and |m| = 1, and of each larger |m|."""
        if self.gate is not None and (self.others or self.function is not None):
            more = [biases] if self.adds and biases is not None else []
            return list(once(_Gated(self, matmul), *rows, *more))
        first = so2_layer(rows[0], self.middle, self.both, self.gate, matmul)
        return [first, *self.of_others(rows[1:])]

    def of_others(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of |m| above 1 alone, without a gate."""
        pairs = zip(rows, self.others, strict=True)
        return [linear(own.flatten(1), weight).view_as(own) for own, weight in pairs]

    def bias_of(self, biases: torch.Tensor | None) -> torch.Tensor | None:
        """What is left to add to scalars where there is no gate, (E, C) or (C,)."""
        bias = biases if self.adds else self.bias
        return bias if bias is None or self.scale is None else bias * self.scale


def through(
    layers: Sequence[Layer], rows: list[torch.Tensor], biases: torch.Tensor | None, matmul: str
) -> list[torch.Tensor]:
    """Rows of m = 0 and |m| = 1, and of each larger |m|, after these layers. biases: of each edge, for the first."""
    for layer in layers:
        rows = layer.of(rows, biases, matmul)
    return rows


def plus_first(x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """Rows (E, R, C) with (E, C) or (C,) added to the first."""
    first, others = x.split([1, x.shape[1] - 1], 1)
    return torch.cat([first + added[..., None, :], others], 1)


class _Gated(NamedTuple):
    """A layer that has a gate and more than `so2_layer` knows of."""

    layer: Layer
    matmul: str

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> Any:
        own, c = self.layer, x.shape[2]
        others, bias = (given[:-1], given[-1]) if own.adds else (given, own.bias)
        assert own.gate is not None and own.scalars is not None
        normed = x if own.norm is None else OPS.degree_norm(x, *own.norm)
        z = OPS.so2_layer(normed, own.middle, own.both, self._gate_of_op(x), self.matmul)
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

    def backward(
        self, given: Sequence[torch.Tensor], kept: Sequence[Any], grad: torch.Tensor, *grads: torch.Tensor
    ) -> Any:
        own, x, (normed, z, s, logits, *products) = self.layer, given[0], kept
        assert own.gate is not None and own.scalars is not None
        c, by_z, by_logits, by_s = x.shape[2], grad, torch.zeros_like(logits), None
        if own.function is not None:
            by_y = grad[:, 0] if own.scale is None else grad[:, 0] * own.scale
            by_s, _ = OPS.layer_output_backward(by_y, s, 0, *own.function)
            by_z = grad.clone()
            by_z[:, 0] = 0
        if not own.is_gated:
            factors = logits.sigmoid()
            for by_row, product in zip(*map(_gated_rows, (by_z, z)), strict=True):
                by_logits.view_as(by_row).addcmul_(by_row, product)
                by_row *= factors.view_as(by_row)
            by_logits = torch.ops.aten.sigmoid_backward(by_logits, factors)
        by_others = []
        for k, (by_row, product, weight) in enumerate(zip(grads, products, own.others, strict=True)):
            gates = slice((k + 1) * c, None)
            by_product, by_gates = OPS.row_gate_backward(by_row.view_as(product), product, logits[:, gates])
            by_logits[:, gates] += by_gates
            by_others.append(by_row + OPS.linear_input(by_product.flatten(1), weight).view_as(by_row))
        by_s = by_logits @ own.gate.T if by_s is None else torch.addmm(by_s, by_logits, own.gate.T)
        ends = normed, own.middle, own.both, self._gate_of_op(x), self.matmul, z
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


def _gated_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Those of m = 0, -1 and 1 but for the scalars: (E, L, C) each."""
    return x[:, 1:].unflatten(1, (3, -1)).unbind(1)


def layer_of(
    linear: OrderLinear,
    gate: Any,
    norm: nn.Module,
    scale: torch.Tensor | None,
    groups: range,
    width: int,
    function: str,
    adds: bool,
) -> Layer:
    """Of some of the groups of channels, one behind the other, in rows of so many channels.

    Args:
        gate: a `Gate`, or anything else: there is none. norm: an `OrderNorm`, or anything else.
        scale: (F, C), of what is added. function: of the gate. adds: as `Layer` has it.
    """
    c = linear.outputs

    def wide(weight: torch.Tensor) -> torch.Tensor:
        """Of an array of rows, or one row, of all groups."""
        if linear.groups == 1 and width == c:
            return weight
        found = []
        for place, own in enumerate(weight.chunk(linear.groups, -1)[groups.start : groups.stop]):
            around = place * c, width - (place + 1) * c
            if own.dim() == 1:
                found.append(pad(own.view(-1, c), around).flatten())
            else:
                parts = pad(own.reshape(len(own) // c, c, -1, c), (*around, 0, 0, *around))
                found.append(parts.flatten(2).flatten(0, 1))
        return functools.reduce(torch.add, found)

    middle, both, *more = map(wide, (linear.weight_m0, *linear.weight_m))
    scale = None if scale is None else wide(scale.flatten())
    bias = None if linear.bias0 is None else wide(linear.bias0)
    halves = [one.chunk(2, 1) for one in more]
    others = [torch.cat([torch.cat([u, v], 1), torch.cat([-v, u], 1)]) for u, v in halves]
    is_gated = isinstance(gate, Gate)
    scalars = middle[:, :width].contiguous()
    if scale is not None:
        middle, both, *others = (one * scale.repeat(one.shape[1] // width) for one in (middle, both, *others))
    if not is_gated:
        others = [one + torch.eye(len(one)).to(one) for one in others]
        return Layer(middle, both, tuple(others), bias=bias, scale=scale, adds=adds)
    if scale is not None:
        middle = torch.cat([scalars, middle[:, width:]], 1)
    constants = norm.constants_of(groups.start) if isinstance(norm, OrderNorm) else None
    by_op = bias is None and constants is None
    if not by_op:
        middle = middle - torch.eye(len(middle)).to(middle)
        both = both - torch.eye(*both.shape).to(both)
    usual = by_op and scale is None and function == "silu"
    gate_bias = gate.gate_linear.bias
    return Layer(
        middle,
        both,
        tuple(others),
        gate=wide(gate.gate_linear.weight),
        scalars=scalars,
        is_gated=by_op,
        function=None if usual else kernel_code(function),
        scale=scale,
        bias=bias,
        gate_bias=None if gate_bias is None else wide(gate_bias),
        adds=adds,
        norm=constants,
    )
