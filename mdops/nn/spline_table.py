"""The tables of `mdops.ops.spline_training`, with their weight gradients in few large steps: autograd's way through
`mdops.nn.spline.coefficients` takes some hundred small ones, a tenth of a training step's time."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mdops.nn.fused import model_table, padded_table
from mdops.nn.net import Net
from mdops.nn.se_e2_a import SeE2A
from mdops.nn.spline import SplineGrid, bending_gradient, bending_weights, collocation_on, embedding_inputs


def trained_table(d: SeE2A, grid: SplineGrid) -> torch.Tensor:
    """`mdops.nn.fused.model_table`, once differentiable; the gradients of nets of tanh layers are written out."""
    step = grid.s_max / grid.intervals
    x, inverse = collocation_on(grid.intervals, d.mean.device, d.mean.dtype)
    nets, inputs = embedding_inputs(d, x * step)
    if not all(layer.activation_name.lower() == "tanh" for net in nets for layer in net.layers):
        return model_table(d, grid)
    bending = bending_weights(d, step) * d.smoothing if d.smoothing else None
    weights = [w for net in nets for layer in net.layers for w in (layer.weight, layer.bias, layer.timestep)]
    table: torch.Tensor = _Table.apply(inputs, inverse, bending, d.ntypes, nets, *weights)
    return padded_table(d, table)


class _Table(torch.autograd.Function):
    """C (ntypes, ntypes, B, M) from the nets' weights; backwards with the bending's gradient, as `coefficients`."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, inverse: Any, bending: Any, ntypes: int, nets: Sequence[Net], *weights: Any
    ) -> torch.Tensor:
        ctx.layers = []
        depth = len(nets[0].layers)
        for n in range(depth):
            layer = _Layer(
                nets[0].layers[n].residual,
                weights[3 * n :: 3 * depth],
                weights[3 * n + 1 :: 3 * depth],
                weights[3 * n + 2 :: 3 * depth],
            )
            x = layer.forward(x)
            ctx.layers.append(layer)
        values = x.view(ntypes, ntypes, inverse.shape[1], -1).transpose(0, 1)
        table = torch.matmul(inverse, values)
        ctx.inverse, ctx.bending, ctx.shape = inverse, bending, x.shape
        ctx.table = None if bending is None else table.detach()
        return table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if ctx.bending is not None:
            grad = grad + bending_gradient(ctx.table, ctx.bending)
        grad = torch.matmul(ctx.inverse.t(), grad).transpose(0, 1).reshape(ctx.shape)
        found: list[list[tuple[Any, Any, Any]]] = []
        for layer in reversed(ctx.layers):
            grad, own = layer.backward(grad)
            found.insert(0, own)
        weights = [w for net in range(len(found[0])) for own in found for w in own[net]]
        return None, None, None, None, None, *weights


class _Layer:
    """One layer of G nets, (G or 1, R, inputs) to (G, R, outputs): y = timestep * tanh(x W + b), plus the residual."""

    def __init__(self, residual: bool, weights: Any, biases: Any, timesteps: Any) -> None:
        self.weight = torch.stack(weights)
        self.bias = None if biases[0] is None else torch.stack(biases)[:, None]
        self.timestep = None if timesteps[0] is None else torch.stack(timesteps)[:, None]
        ratio = self.weight.shape[2] / self.weight.shape[1]
        self.repeats = int(ratio) if residual and ratio in (1, 2) else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x
        z = torch.matmul(x, self.weight)
        self.h = (z if self.bias is None else z.add_(self.bias)).tanh_()
        y = self.h.clone() if self.timestep is None else self.h * self.timestep
        if self.repeats:
            y.unflatten(2, (self.repeats, -1)).add_(x[:, :, None])
        return y

    def backward(self, grad: torch.Tensor) -> tuple[torch.Tensor, list[tuple[Any, Any, Any]]]:
        """The gradient by x, and those by weight, bias and timestep of each net."""
        by_h = grad if self.timestep is None else grad * self.timestep
        by_z = torch.ops.aten.tanh_backward(by_h, self.h)
        count = len(by_z)
        x = self.x.expand(count, -1, -1)
        weight = torch.bmm(x.transpose(1, 2), by_z).unbind(0)
        bias = [None] * count if self.bias is None else by_z.sum(1).unbind(0)
        timestep = [None] * count if self.timestep is None else (grad * self.h).sum(1).unbind(0)
        by_x = torch.bmm(by_z, self.weight.transpose(1, 2))
        if self.repeats:
            by_x += grad.unflatten(2, (self.repeats, -1)).sum(2)
        return by_x, list(zip(weight, bias, timestep, strict=True))
