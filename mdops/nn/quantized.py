"""Layers of nets with low-bit weights, by named schemes, and the conversion of a trained net (quantize.md)."""

import dataclasses
from typing import Any

import torch

from mdops.nn.net import Layer, Net, Tree
from mdops.ops.lowbit import fake_quantize, gemm_lowbit, pack_ternary, quantize

_HALVES = ("float16", "bfloat16")
# Shares of the balance between inputs and weights: 0 equalizes weights, 1 inputs, None changes neither.
_SHARES = (None, 0.0, 0.25, 0.5, 0.75, 1.0)
_MOST_SHIFT = 20
_SCALE_BITS = 16


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The numbers in the products of a net's hidden layers.

    Attributes:
        name: in model files and commands.
        weights: the kind of the weights (`mdops.ops.quantize`), with a scale for each output.
        inputs: the kind of the rounded inputs, with a scale for each row; None: floating-point numbers.
        words: a description.
    """

    name: str
    weights: str
    inputs: str | None
    words: str

    @property
    def has_exact_forces(self) -> bool:
        """Whether forces are the exact derivatives of the energy: the derivative of a rounded input is zero or
        infinite, but forces use 1 ("straight through")."""
        return self.inputs is None


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("w8a8", "int8", "int8", "weights and inputs in 8-bit integers"),
        Scheme("fp8", "e4m3", "e4m3", "weights and inputs in float8 (e4m3)"),
        Scheme("ternary", "ternary", "int8", "ternary weights, inputs in 8-bit integers"),
        Scheme("w8", "int8", None, "weights in 8-bit integers, inputs in floating point"),
        Scheme("wfp8", "e4m3", None, "weights in float8 (e4m3), inputs in floating point"),
        Scheme("wternary", "ternary", None, "ternary weights, inputs in floating point"),
    )
}


def low_bit_weights(weight: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (inputs, outputs), int8 or float8, and the scale of each output (outputs,), float32.

    Scales have 16 bits, so that value times scale is exact in float32, and quantising the product again gives the same
    values and scales. The scale of ternary numbers is the mean size of the weights that are not rounded to zero, which
    gives the least error.
    """
    values, scale = quantize(weight, kind, per="column")
    if kind == "ternary":
        kept = values != 0
        mean = (weight.detach().abs().double() * kept).sum(0) / kept.sum(0).clamp(min=1)
        scale = torch.where(kept.any(0), mean.float(), scale)
    fraction, exponent = torch.frexp(scale)
    return values, torch.ldexp((fraction * 2.0**_SCALE_BITS).round(), exponent - _SCALE_BITS)


class LowBitLayer(Layer):
    """A layer that multiplies with low-bit weights: y = (x d) Q(W/d), with d a power of two for each input.

    `weight` is trained: it is rounded in every call, and gradients go straight through the rounding, to any order. A
    file has the rounded weights.

    Attributes:
        scheme: the kinds of numbers.
        balance: d (inputs,).
    """

    balance: torch.Tensor

    def __init__(self, layer: Layer, scheme: Scheme, shifts: torch.Tensor) -> None:
        """Takes the tensors of `layer`, and the exponents of d (inputs,)."""
        bias, timestep = (None if p is None else p.detach() for p in (layer.bias, layer.timestep))
        super().__init__(layer.weight.detach(), bias, timestep, layer.activation_name, layer.residual)
        self.scheme = scheme
        self.register_buffer("balance", torch.exp2(shifts.to(self.weight)))

    @property
    def shifts(self) -> torch.Tensor:
        """The exponents of d, int8."""
        return self.balance.log2().round().to(torch.int8)

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The values and scale of W/d."""
        return low_bit_weights(self.weight.detach() / self.balance[:, None], self.scheme.weights)

    def rounded(self) -> torch.Tensor:
        """The weights from the low-bit numbers, exact in float32; no gradient."""
        values, scale = self.numbers()
        return (values.float() * scale).to(self.weight) * self.balance[:, None]

    @property
    def multiplied(self) -> torch.Tensor:
        """The weights of `rounded`, with the gradient straight through to `weight`."""
        return _StraightThrough.apply(self.weight, self.rounded())

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.inputs is None:
            return x @ self.multiplied
        rows = x.reshape(-1, self.inputs)
        y = _RoundedProduct.apply(rows * self.balance, self.weight / self.balance[:, None], self.scheme)
        return y.reshape(*x.shape[:-1], self.outputs)

    def to_tree(self, precision: str) -> Tree:
        """The node with the rounded weights; half precision cannot hold them and becomes float32."""
        return super().to_tree("float32" if precision in _HALVES else precision)

    def frozen(self) -> "FrozenLayer":
        """The layer with the current low-bit numbers, for inference."""
        return FrozenLayer(self)


class _StraightThrough(torch.autograd.Function):
    """Returns the second argument; the gradient goes to the first."""

    @staticmethod
    def forward(ctx: Any, exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _RoundedProduct(torch.autograd.Function):
    """Q(x) Q(w), by `gemm_lowbit`; for each gradient only the other factor is rounded."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scheme = scheme
        return _low_bit_product(x, *_packed(*low_bit_weights(weight, scheme.weights), scheme), scheme)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            values, scale = low_bit_weights(weight, ctx.scheme.weights)
            grad_x = grad @ _StraightThrough.apply(weight, (values.float() * scale).to(weight)).T
        if ctx.needs_input_grad[1]:
            grad_weight = fake_quantize(x, ctx.scheme.inputs, per="row").to(x).T @ grad
        return grad_x, grad_weight, None


class FrozenLayer(Layer):
    """A `LowBitLayer` with weights that are rounded and packed once. Only its input gets gradients."""

    def __init__(self, layer: LowBitLayer) -> None:
        super().__init__(layer.rounded(), None, None, layer.activation_name, layer.residual)
        self.weight.requires_grad_(False)
        self.bias, self.timestep = layer.bias, layer.timestep
        self._scheme = layer.scheme
        self._balance = None if bool((layer.balance == 1).all()) else layer.balance
        self._values, self._scale = _packed(*layer.numbers(), layer.scheme)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if self._scheme.inputs is None:
            return x @ self.weight
        return _FrozenProduct.apply(x, self._balance, self._values, self._scale, self.weight, self._scheme)


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, balance: Any, values: Any, scale: Any, weight: Any, scheme: Scheme
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return _low_bit_product(x if balance is None else x * balance, values, scale, scheme)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (weight,) = ctx.saved_tensors
        return grad @ weight.T, None, None, None, None, None


def _packed(values: torch.Tensor, scale: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """`b` and its scale, for `gemm_lowbit`, in the order that it reads without a copy."""
    if scheme.weights == "ternary":
        return pack_ternary(values), scale
    return values.T.contiguous().T, scale


def _low_bit_product(
    x: torch.Tensor, values: torch.Tensor, scale: torch.Tensor, scheme: Scheme
) -> torch.Tensor:
    assert scheme.inputs is not None
    rows, row_scale = quantize(x, scheme.inputs, per="row")
    return gemm_lowbit(rows, values, row_scale, scale).to(x)


# -- From a trained net


def rounded_net(net: Net, scheme: Scheme, shifts: list[torch.Tensor] | None = None) -> Net:
    """The net with its hidden layers in a scheme, without calibration unless it is given."""
    hidden = net.layers[:-1]
    shifts = [torch.zeros(layer.inputs) for layer in hidden] if shifts is None else shifts
    low_bit = [LowBitLayer(layer, scheme, shift) for layer, shift in zip(hidden, shifts, strict=True)]
    return Net([*low_bit, net.layers[-1]])


@torch.no_grad()
def calibrated_net(net: Net, scheme: Scheme, rows: torch.Tensor) -> Net:
    """The net with its hidden layers in a scheme, fitted to sample inputs (n, inputs).

    For each layer the balance between inputs and weights is chosen for the least error of the product, and the bias
    then corrects the mean of that error. So does the last layer's bias.
    """
    if not len(rows):
        return rounded_net(net, scheme)
    exact = x = rows
    layers: list[Layer] = []
    for layer in net.layers[:-1]:
        wanted, found = layer.product(exact), None
        for share in _SHARES:
            candidate = LowBitLayer(layer, scheme, _shifts(layer.weight, exact, share))
            error = wanted - candidate.product(x)
            left = float((error - error.mean(0)).square().mean())
            if found is None or left < found[0]:
                found = left, candidate, error.mean(0)
        assert found is not None
        _, chosen, shift = found
        if chosen.bias is not None:
            chosen.bias.add_(shift)
        layers.append(chosen)
        exact, x = layer(exact), chosen(x)
    last = net.layers[-1]
    if last.bias is not None:
        bias = last.bias + (last(exact) - last(x)).mean(0)
        last = Layer(last.weight.detach(), bias, last.timestep, last.activation_name, last.residual)
    return Net([*layers, last])


def _shifts(weight: torch.Tensor, rows: torch.Tensor, share: float | None) -> torch.Tensor:
    """Exponents of d (inputs,) that make the largest x d and W/d of different inputs more equal.

    As in SmoothQuant (Xiao et al., arXiv 2211.10438), d = max|W|^(1 - share) / max|x|^share, rounded to powers of two,
    which are exact.
    """
    if share is None:
        return torch.zeros(weight.shape[0], device=weight.device)
    tiny = 1e-30
    x, w = rows.abs().amax(0).clamp(min=tiny).log2(), weight.abs().amax(1).clamp(min=tiny).log2()
    wanted = (1 - share) * w - share * x
    return (wanted - wanted.median()).round().clamp(-_MOST_SHIFT, _MOST_SHIFT)
