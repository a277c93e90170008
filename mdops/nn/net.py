"""Feed-forward nets: the embedding nets of the descriptors and the fitting nets.

`from_tree` and `to_tree` are DeePMD-kit's serialised form (formats.md); `random` gives its initial weights:
normal, with deviation 1/sqrt(inputs + outputs); biases with 1; timesteps 0.1 +- 0.001.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from mdops.errors import UnsupportedModelError
from mdops.ops.activation import activation, identity
from mdops.ops.layer_output import layer_output
from mdops.ops.linear import linear
from mdops.ops.mlp import mlp_value_and_gradient
from mdops.options import saved_precision
from mdops.tracing import is_exported, set_while

Tree = dict[str, Any]
_MOST_LAYERS = 17  # limit of the ops on nets

_needs_input_gradient_alone = ContextVar("needs_input_gradient_alone", default=False)


def input_gradient_alone() -> AbstractContextManager[None]:
    """In this context nets of one output give only the first derivative by their input, which an op computes in the
    same pass as the value (`mdops.ops.mlp_value_and_gradient`; not on a GPU in float64, where its products are those of
    the layers). Training needs more derivatives, so it would not pay there (docs/explanation/evaluators.md)."""
    return set_while(_needs_input_gradient_alone, True)


def is_input_gradient_alone() -> bool:
    """Whether this context is active."""
    return _needs_input_gradient_alone.get()


def _is_differentiated_eagerly() -> bool:
    """Whether autograd records operations, and not a compiler, which would fuse them itself."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_exported()


def _is_for_kernels_of_nets(x: torch.Tensor) -> bool:
    """Whether a GPU has kernels of whole nets for such rows, and no compiler is active."""
    return x.is_cuda and x.dtype == torch.float32 and _is_differentiated_eagerly()


class Layer(nn.Module):
    """y = idt * phi(x W + b), plus x if the widths are equal, plus (x, x) if the output is twice as wide.

    The last two only if `residual` is set; b and idt (the "timestep") may be absent.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        timestep: torch.Tensor | None,
        activation_name: str,
        residual: bool,
    ) -> None:
        """Takes weight (inputs, outputs), and bias and timestep (outputs,)."""
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.timestep = None if timestep is None else nn.Parameter(timestep)
        self.activation_name = activation_name
        self.residual = residual
        self._activation = activation(activation_name)

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "Layer":
        """Raises UnsupportedModelError for an unknown activation function."""
        arrays = tree["@variables"]
        bias, timestep = (
            None if arrays.get(name) is None else tensor(arrays[name], dtype).reshape(-1)
            for name in ("b", "idt")
        )
        name = tree["activation_function"] or "none"
        return cls(tensor(arrays["w"], dtype), bias, timestep, name, bool(tree["resnet"]))

    def to_tree(self, precision: str) -> Tree:
        """The node, with arrays of that dtype."""
        arrays = {"w": self.multiplied, "b": self.bias, "idt": self.timestep}
        return {
            "@class": "Layer",
            "@version": 2,
            "bias": self.bias is not None,
            "use_timestep": self.timestep is not None,
            "activation_function": self.activation_name,
            "resnet": self.residual,
            "precision": precision,
            "trainable": True,
            "@variables": {name: array(value, precision) for name, value in arrays.items()},
        }

    @classmethod
    def random(
        cls,
        inputs: int,
        outputs: int,
        activation_name: str,
        *,
        random: np.random.Generator,
        precision: str,
        dtype: torch.dtype,
        timestep: bool = False,
        residual: bool = True,
        bias: bool = True,
    ) -> "Layer":
        """New weights, rounded to `precision`, in which they are saved; there is a `timestep` only if the layer adds
        its input."""

        def draw(mean: float, deviation: float, *shape: int) -> torch.Tensor:
            return tensor(random.normal(mean, deviation, shape).astype(precision), dtype)

        weight = draw(0, 1 / np.sqrt(inputs + outputs), inputs, outputs)
        adds = residual and outputs in (inputs, 2 * inputs)
        return cls(
            weight,
            draw(0, 1, outputs) if bias else None,
            draw(0.1, 0.001, outputs) if timestep and adds else None,
            activation_name,
            residual,
        )

    @property
    def inputs(self) -> int:
        return self.weight.shape[0]

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    @property
    def adds_input(self) -> bool:
        return self.residual and self.outputs in (self.inputs, 2 * self.inputs)

    @property
    def multiplied(self) -> torch.Tensor:
        """The weights in products: `weight`, rounded in some subclasses."""
        return self.weight

    @property
    def added(self) -> torch.Tensor:
        """The bias, or zeros if it is absent."""
        return self.weight.new_zeros(self.outputs) if self.bias is None else self.bias

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weight, bias and timestep; an absent bias is zeros, an absent timestep ones."""
        weight = self.multiplied
        return weight, self.added, weight.new_ones(self.outputs) if self.timestep is None else self.timestep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs)."""
        if type(self) is Layer and x.dim() == 2 and _is_differentiated_eagerly():
            return self._by_op(x)
        return self._after_product(self.product(x), x, self.bias, self.timestep)

    def _by_op(self, x: torch.Tensor) -> torch.Tensor:
        """The same for rows in fewer passes, and in far fewer backward passes."""
        z = linear(x, self.weight, self.bias)
        if self._activation is identity and self.timestep is None and not self.adds_input:
            return z
        if self.timestep is None:
            return layer_output(z, x if self.adds_input else None, self.activation_name)
        return self._around(layer_output(z, None, self.activation_name) * self.timestep, x)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W."""
        return x @ self.weight

    def _after_product(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        timestep: torch.Tensor | None,
    ) -> torch.Tensor:
        if bias is not None:
            y = y + bias
        y = self._activation(y)
        if timestep is not None:
            y = y * timestep
        return self._around(y, x)

    def _around(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """y plus the residual of the input, if any."""
        if not self.adds_input:
            return y
        return y + (x if self.outputs == self.inputs else torch.cat([x, x], dim=-1))

    def alike(self, others: Sequence["Layer"], x: torch.Tensor) -> torch.Tensor:
        """G layers that differ only in their weights, evaluated as one: (G or 1, R, inputs) to
        (G, R, outputs)."""

        def rows(values: list[torch.Tensor | None]) -> torch.Tensor | None:
            return None if values[0] is None else torch.stack([v for v in values if v is not None])[:, None]

        y = x @ torch.stack([other.weight for other in others])
        return self._after_product(y, x, rows([o.bias for o in others]), rows([o.timestep for o in others]))


class Net(nn.Sequential):
    """Layers one after the other. An embedding net has one input; a fitting net ends in a linear layer."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__(*layers)

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "Net":
        return cls(Layer.from_tree(layer, dtype) for layer in tree["layers"])

    def to_tree(self, kind: str, precision: str, resnet_dt: bool) -> Tree:
        """The node of an "EmbeddingNetwork" or a "FittingNetwork"."""
        layers, is_fitting = self.layers, kind == "FittingNetwork"
        hidden = layers[:-1] if is_fitting else layers
        has_bias = layers[-1].bias is not None
        own: Tree = {"bias_out": has_bias, "out_dim": self.outputs} if is_fitting else {"bias": has_bias}
        return {
            "@class": kind,
            "@version": 1 if is_fitting else 2,
            "in_dim": self.inputs,
            "neuron": [layer.outputs for layer in hidden],
            "activation_function": (hidden or layers)[-1].activation_name,
            "resnet_dt": resnet_dt,
            "precision": precision,
            "trainable": True,
            **own,
            "layers": [layer.to_tree(precision) for layer in layers],
        }

    @classmethod
    def random(
        cls,
        widths: Sequence[int],
        activation_name: str,
        *,
        resnet_dt: bool,
        random: np.random.Generator,
        precision: str,
        dtype: torch.dtype,
        outputs: int | None = None,
        bias: bool = True,
    ) -> "Net":
        """Layers of these widths, the input's first; with `outputs`, a linear layer of that width at the end."""
        common: Tree = {"random": random, "precision": precision, "dtype": dtype, "bias": bias}
        layers = [
            Layer.random(a, b, activation_name, timestep=resnet_dt, **common)
            for a, b in itertools.pairwise(widths)
        ]
        if outputs is not None:
            layers.append(Layer.random(widths[-1], outputs, "none", residual=False, **common))
        return cls(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs)."""
        if is_input_gradient_alone() and x.requires_grad and self._is_for_op(x):
            return _ValueAndGradient.apply(x, self)
        value: torch.Tensor = super().forward(x)
        return value

    def _is_for_op(self, x: torch.Tensor) -> bool:
        last = self.layers[-1]
        return (
            (x.device.type == "cpu" or _is_for_kernels_of_nets(x))
            and x.dim() == 2
            and self.outputs == 1
            and len(self) <= _MOST_LAYERS
            and all(type(layer) is Layer for layer in self)
            and last.activation_name.lower() in ("linear", "none")
            and last.timestep is None
            and not last.adds_input
        )

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in self if isinstance(layer, Layer)]

    @property
    def widths(self) -> list[int]:
        """The widths of the layers' outputs."""
        return [layer.outputs for layer in self.layers]

    @property
    def described(self) -> str:
        """The layers' widths, for people."""
        return "-".join(map(str, self.widths))

    @property
    def activations(self) -> list[str]:
        """The names of the layers' activation functions."""
        return [layer.activation_name for layer in self.layers]

    def alike(self, others: Sequence["Net"], x: torch.Tensor) -> torch.Tensor:
        """As `Layer.alike`, for whole nets: a few large steps instead of many small ones."""
        if any(isinstance(other, TabulatedNet) for other in others):
            return torch.stack([net(x[k if len(x) > 1 else 0]) for k, net in enumerate(others)])
        for layers in zip(self.layers, *(other.layers for other in others), strict=True):
            x = layers[0].alike(layers[1:], x)
        return x

    @property
    def inputs(self) -> int:
        return self.layers[0].inputs

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs


class TabulatedNet(Net):
    """y_k(x) = sum_p c_kp (x - b)^p on the piece of x that begins at b; beyond the ends the tangent.

    It has one input and no trainable parameters: the form of embedding nets in compressed TensorFlow graphs.

    Attributes:
        breaks: (P + 1,), where the P pieces begin, rising, and where the last one ends.
        coefficients: (P, M, 6), of rising powers. Both are float64 for any compute dtype: rounded, the pieces would
            not be continuous.
    """

    CLASS = "TabulatedNetwork"  # in model files; mdops' own name
    POWERS = 6
    breaks: torch.Tensor
    coefficients: torch.Tensor

    def __init__(self, breaks: torch.Tensor, coefficients: torch.Tensor) -> None:
        super().__init__([])
        self.register_buffer("breaks", breaks)
        self.register_buffer("coefficients", coefficients)

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "TabulatedNet":
        breaks, coefficients = (tree["@variables"][name] for name in ("breaks", "coefficients"))
        return cls(tensor(breaks, torch.float64), tensor(coefficients, torch.float64))

    def to_tree(self, kind: str, precision: str, resnet_dt: bool) -> Tree:
        return {
            "@class": self.CLASS,
            "@version": 1,
            "in_dim": self.inputs,
            "neuron": self.widths,
            "precision": precision,
            "@variables": {"breaks": array(self.breaks), "coefficients": array(self.coefficients, precision)},
        }

    @property
    def inputs(self) -> int:
        return 1

    @property
    def outputs(self) -> int:
        return self.coefficients.shape[1]

    @property
    def widths(self) -> list[int]:
        return [self.outputs]

    @property
    def described(self) -> str:
        return f"{self.outputs}, tables of {len(self.coefficients)} pieces"

    @property
    def activations(self) -> list[str]:
        return []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1).to(self.breaks)
        within = flat.clamp(self.breaks[0], self.breaks[-1])
        piece = torch.searchsorted(self.breaks, within.detach(), right=True) - 1
        piece = piece.clamp(0, len(self.coefficients) - 1)
        t = (within - self.breaks[piece])[:, None]
        c = F.embedding(piece, self.coefficients.flatten(1)).view(-1, self.outputs, self.POWERS).unbind(-1)
        y, slope = c[-1], (self.POWERS - 1) * c[-1]
        for power in range(self.POWERS - 2, -1, -1):
            y = y * t + c[power]
            slope = slope * t + power * c[power] if power else slope
        y = y + slope * (flat - within)[:, None]
        return y.view(*x.shape[:-1], self.outputs).to(x)


class _ValueAndGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, net: Net) -> torch.Tensor:
        layers = net.layers
        value, gradient = mlp_value_and_gradient(
            x,
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            activation=[layer.activation_name for layer in layers[:-1]],
            timesteps=[layer.timestep for layer in layers[:-1]],
            residual=[layer.residual for layer in layers[:-1]],
        )
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None


def collection_node(nets: Sequence[Tree | None], ndim: int, ntypes: int, kind: str) -> Tree:
    """The node of the nets of all types (ndim 1) or pairs of types (ndim 2), or of the one net (ndim 0), in files."""
    return {
        "@class": "NetworkCollection",
        "@version": 1,
        "ndim": ndim,
        "ntypes": ntypes,
        "network_type": kind,
        "networks": list(nets),
    }


class NetCollection(nn.ModuleList):
    """The nets of a model's part: one for all types (`ndim` 0), one a type (1), or one a pair of types (2).

    Attributes:
        ndim, ntypes: there are ntypes^ndim nets.
        network_type: "embedding_network" or "fitting_network".
    """

    def __init__(self, nets: Iterable[Net], ndim: int, ntypes: int, network_type: str) -> None:
        super().__init__(nets)
        self.ndim, self.ntypes, self.network_type = ndim, ntypes, network_type

    def net(self, *types: int) -> Net:
        """The net of these types, of which the last `ndim` count: for (centre, neighbour) a one-sided collection uses
        only the neighbour."""
        chosen = types[len(types) - self.ndim :]
        found = self[sum(kind * self.ntypes**k for k, kind in enumerate(chosen))]
        assert isinstance(found, Net)
        return found

    @property
    def nets(self) -> list[Net]:
        return [net for net in self if isinstance(net, Net)]

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "NetCollection":
        """Raises UnsupportedModelError if nets are absent."""
        if any(net is None for net in tree["networks"]):
            raise UnsupportedModelError("a model without the nets of some types is not supported")
        kinds = {TabulatedNet.CLASS: TabulatedNet}
        nets = [kinds.get(net.get("@class"), Net).from_tree(net, dtype) for net in tree["networks"]]
        return cls(nets, tree["ndim"], tree["ntypes"], tree["network_type"])

    def to_tree(self, precision: str, resnet_dt: bool) -> Tree:
        kinds = {"embedding_network": "EmbeddingNetwork", "fitting_network": "FittingNetwork"}
        kind = kinds[self.network_type]
        nets = [net.to_tree(kind, precision, resnet_dt) for net in self.nets]
        return collection_node(nets, self.ndim, self.ntypes, self.network_type)

    @classmethod
    def random(
        cls,
        widths: Sequence[int],
        options: Any,
        *,
        ndim: int,
        ntypes: int,
        seed: Sequence[int],
        dtype: torch.dtype,
        outputs: int | None = None,
    ) -> "NetCollection":
        """New nets with the activation function, `resnet_dt` and precision of `options`; fitting nets if `outputs` is
        given. Each has its own random numbers, from `seed` and its place."""
        nets = [
            Net.random(
                widths,
                options.activation_function,
                resnet_dt=options.resnet_dt,
                random=np.random.default_rng([*seed, k]),
                precision=saved_precision(options.precision),
                dtype=dtype,
                outputs=outputs,
            )
            for k in range(ntypes**ndim)
        ]
        return cls(nets, ndim, ntypes, "embedding_network" if outputs is None else "fitting_network")


def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """An array of a serialised tree; torch.from_numpy does not take bfloat16 arrays of ml_dtypes, but every
    precision fits into float64."""
    return torch.from_numpy(np.array(values, dtype=np.float64)).to(dtype)


def array(value: torch.Tensor | None, precision: str = "float64") -> np.ndarray | None:
    """A tensor as an array of a serialised tree."""
    return None if value is None else value.detach().cpu().double().numpy().astype(precision)


def arrays(values: Mapping[str, torch.Tensor | None], precision: str = "float64") -> Tree:
    return {name: array(value, precision) for name, value in values.items()}
