"""Energies and their gradients by the spline moments, with the weight gradients of both: the core of training.

Autograd would record the energies, their gradient and that one's gradient as hundreds of small steps. Here the
passes are written out (docs/explanation/training.md, "A step").
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mdops.nn.net import Layer, Net
from mdops.ops.linear import linear, linear_input, linear_weight


def supports(nets: Iterable[Net]) -> bool:
    """Whether the passes written here support these fitting nets: tanh, and a linear layer at the end."""
    return all(
        all(layer.activation_name.lower() == "tanh" for layer in net.layers[:-1])
        and net.layers[-1].activation_name.lower() in ("linear", "none")
        and net.layers[-1].timestep is None
        and not _repeats(net.layers[-1])
        for net in nets
    )


def moment_energy(
    nets: Sequence[Net],
    layers: Sequence[Sequence[Sequence[torch.Tensor | None]]],
    axis: int,
    tables: torch.Tensor,
    moments: torch.Tensor,
    extra: torch.Tensor,
    kinds: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """e = net(D, extra) and de/dA of every atom, from T = A^T C; zero for atoms of no type. D is T^T T_<, or of plain
    sums T.

    Both can be differentiated once, by the tables and the layers; not by the moments.

    Args:
        nets: the fitting net of each type, or one for all; see `supports`.
        layers: weight, bias and timestep of each of their layers, which may have other inputs than the net's own.
        axis: M2; 0 for plain sums.
        tables: C / N_sel of each centre's type, (ntypes, P, M).
        moments: A, (N, P, 4), of plain sums (N, P, 1).
        extra: (N, E), further inputs of the nets.
        kinds: the indices of each type's atoms, int64.

    Returns:
        e (N,), and de/dA, which has the shape of A.
    """
    shapes = [[_repeats(layer) for layer in net.layers] for net in nets]
    weights = [w for net in layers for layer in net for w in layer]
    energy, gradient = _MomentEnergy.apply(moments, extra, axis, shapes, kinds, tables, *weights)
    return energy, gradient


def _repeats(layer: Layer) -> int:
    """How many copies of a layer's input, side by side, are added to its output: 0, 1 or 2."""
    ratio = layer.outputs / layer.inputs
    return int(ratio) if layer.residual and ratio in (1, 2) else 0


class _LayerPasses:
    """y = timestep * h + (x, ..), h = tanh(x W + b), forward, backward, for a tangent, and for its adjoint.

    With the loss L, u = dL/de and v = dL/d(de/dA), the weights' gradients are those of u e + D_v e, where D_v is the
    derivative along v. So forward and backward (which gives de/dA) are followed by the forward pass of the tangents
    x', and the reverse of both. In this reverse the adjoint of a tangent is the saved gradient of the first backward
    pass: `grad_y` after and `delta` before the tanh.
    """

    def __init__(self, weight: Any, bias: Any, timestep: Any, repeats: int) -> None:
        self.weight, self.bias, self.timestep, self.repeats = weight, bias, timestep, repeats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y."""
        self.x, self.h = x, linear(x, self.weight, self.bias).tanh_()
        return self._output(self.h, x)

    def backward(self, grad_y: torch.Tensor) -> torch.Tensor:
        """de/dx from de/dy."""
        self.slope = 1 - self.h * self.h
        self.grad_y = grad_y
        self.delta = grad_y * self.slope
        if self.timestep is not None:
            self.delta *= self.timestep
        return self._input_gradient(self.delta, grad_y)

    def tangent(self, dx: torch.Tensor) -> torch.Tensor:
        """y' from x'."""
        self.dx, self.dh = dx, linear(dx, self.weight).mul_(self.slope)
        return self._output(self.dh, dx)

    def adjoint(self, adjoint_y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """The adjoint of x from that of y, and the gradients of weight, bias and timestep."""
        # tanh'' z' = -2 h tanh' z' = -2 h h'
        adjoint_z = adjoint_y * self.slope
        curved = (self.h * self.dh).mul_(self.grad_y)
        adjoint_z = adjoint_z.sub_(curved, alpha=2)
        grad_timestep = None
        if self.timestep is not None:
            adjoint_z *= self.timestep
            grad_timestep = (adjoint_y * self.h).addcmul_(self.grad_y, self.dh).sum(0)
        grad_weight, grad_bias = linear_weight(self.x, adjoint_z)
        grad_weight += linear_weight(self.dx, self.delta, False)[0]
        grads = [grad_weight, None if self.bias is None else grad_bias, grad_timestep]
        return self._input_gradient(adjoint_z, adjoint_y), grads

    def _output(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = h.clone() if self.timestep is None else h * self.timestep
        if self.repeats:
            y.unflatten(1, (self.repeats, -1)).add_(x[:, None])
        return y

    def _input_gradient(self, delta: torch.Tensor, grad_y: torch.Tensor) -> torch.Tensor:
        grad_x = linear_input(delta, self.weight)
        if self.repeats:
            grad_x += grad_y.unflatten(1, (self.repeats, -1)).sum(1)
        return grad_x


class _SumPasses:
    """T = A^T C in the same four passes, enough for plain sums; rows of T (n, M) are those of A (n, P)."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.a = a
        return a @ self.table

    def backward(self, grad_t: torch.Tensor) -> torch.Tensor:
        """de/dA, (n, P)."""
        self.grad_t = grad_t
        return grad_t @ self.table.t()

    def tangent(self, da: torch.Tensor) -> torch.Tensor:
        self.da = da
        return da @ self.table

    def adjoint(self, adjoint_t: torch.Tensor) -> torch.Tensor:
        """The gradient of the table."""
        return (self.a.t() @ adjoint_t).addmm_(self.da.t(), self.grad_t)


class DescriptorPasses(_SumPasses):
    """The same followed by D = T^T T_<, with four rows of T and A per atom."""

    def __init__(self, table: torch.Tensor, axis: int) -> None:
        super().__init__(table)
        self.axis = axis

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.t = super().forward(a).view(-1, 4, self.table.shape[1])
        return torch.bmm(self.t.transpose(1, 2), self.t[:, :, : self.axis]).flatten(1)

    def backward(self, grad_d: torch.Tensor) -> torch.Tensor:
        self.grad_d = grad_d.unflatten(1, (-1, self.axis))
        return super().backward(self._gradient(self.grad_d, self.t).flatten(0, 1))

    def tangent(self, da: torch.Tensor) -> torch.Tensor:
        self.dt = super().tangent(da).view_as(self.t)
        d = torch.bmm(self.dt.transpose(1, 2), self.t[:, :, : self.axis])
        return d.baddbmm_(self.t.transpose(1, 2), self.dt[:, :, : self.axis]).flatten(1)

    def adjoint(self, adjoint_d: torch.Tensor) -> torch.Tensor:
        adjoint_t = self._gradient(adjoint_d.unflatten(1, (-1, self.axis)), self.t)
        adjoint_t += self._gradient(self.grad_d, self.dt)
        return super().adjoint(adjoint_t.flatten(0, 1))

    def _gradient(self, grad_d: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The gradient by t (n, 4, M) of <grad_d, t^T t_<>."""
        grad = torch.bmm(t[:, :, : self.axis], grad_d.transpose(1, 2))
        grad[:, :, : self.axis] += torch.bmm(t, grad_d)
        return grad


class _NetPasses:
    """The passes for the atoms of one net: the descriptors of its types, one after another, hidden layers and the
    linear layer at the end. Atoms are sorted by type."""

    def __init__(
        self, tables: Sequence[torch.Tensor], axis: int, repeats: list[int], weights: Sequence[Any]
    ) -> None:
        parts = zip(weights[::3], weights[1::3], weights[2::3], repeats, strict=True)
        *self.hidden, self.last = (_LayerPasses(*part) for part in parts)
        self.descriptors: list[Any] = [
            DescriptorPasses(table, axis) if axis else _SumPasses(table) for table in tables
        ]
        self.components = 4 if axis else 1

    def first(
        self, rows: Sequence[torch.Tensor], extra: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """e (n,) and each type's de/dA, from A (4 n_t, P), of plain sums (n_t, P)."""
        self.counts = [len(part) // self.components for part in rows]
        x = _joined([d.forward(part) for d, part in zip(self.descriptors, rows, strict=True)])
        self.features, self.extras = x.shape[1], extra.shape[1]
        x = torch.cat([x, extra], 1) if self.extras else x
        for layer in self.hidden:
            x = layer.forward(x)
        self.x = x
        energy = (x @ self.last.weight)[:, 0]
        if self.last.bias is not None:
            energy += self.last.bias
        grad = self.last.weight.t().expand(len(energy), -1)
        for layer in reversed(self.hidden):
            grad = layer.backward(grad)
        parts = grad[:, : self.features].split(self.counts)
        return energy, [d.backward(part) for d, part in zip(self.descriptors, parts, strict=True)]

    def second(
        self, u: torch.Tensor, v: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """The gradients of the tables and of all weights, from u (n,) and each type's v, in the shape of A."""
        dx = _joined([d.tangent(part) for d, part in zip(self.descriptors, v, strict=True)])
        dx = torch.nn.functional.pad(dx, (0, self.extras)) if self.extras else dx
        for layer in self.hidden:
            dx = layer.tangent(dx)
        column = u[:, None]
        bias = None if self.last.bias is None else column.sum(0)
        found = [dx.sum(0)[:, None].addmm_(self.x.t(), column), bias, None]
        adjoint = column @ self.last.weight.t()
        for layer in reversed(self.hidden):
            adjoint, gradients = layer.adjoint(adjoint)
            found = [*gradients, *found]
        parts = adjoint[:, : self.features].split(self.counts)
        return [d.adjoint(part) for d, part in zip(self.descriptors, parts, strict=True)], found


class _MomentEnergy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, moments: Any, extra: Any, axis: int, shapes: Any, kinds: Any, tables: Any, *weights: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        energy, gradient = moments.new_zeros(len(moments)), blank_moments(moments, kinds)
        ctx.passes, at = [], 0
        of_net = len(kinds) // len(shapes)  # types
        for n, repeats in enumerate(shapes):
            types = slice(n * of_net, (n + 1) * of_net)
            passes = _NetPasses(tables[types], axis, repeats, weights[at : at + 3 * len(repeats)])
            at += 3 * len(repeats)
            atoms = _joined(kinds[types])
            ctx.passes.append((passes, kinds[types], atoms))
            energy[atoms], found = passes.first(
                [moment_rows(moments, index) for index in kinds[types]], extra[atoms]
            )
            for index, rows in zip(kinds[types], found, strict=True):
                gradient[index] = rows.unflatten(0, (-1, moments.shape[2])).transpose(1, 2)
        return energy, gradient

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_energy: torch.Tensor, grad_gradient: torch.Tensor) -> tuple[Any, ...]:
        tables, found = [], []
        for passes, kinds, atoms in ctx.passes:
            of_types, gradients = passes.second(
                grad_energy[atoms], [moment_rows(grad_gradient, index) for index in kinds]
            )
            tables += of_types
            found += gradients
        return None, None, None, None, None, torch.stack(tables), *found


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def moment_rows(moments: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(C n, P) for these atoms, from (N, P, C)."""
    return moments.transpose(1, 2).index_select(0, index).flatten(0, 1)


def blank_moments(moments: torch.Tensor, kinds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Like `moments`; zeros, or uninitialized if every atom has a kind and will be written."""
    whole = sum(len(index) for index in kinds) == len(moments)
    return torch.empty_like(moments) if whole else torch.zeros_like(moments)
