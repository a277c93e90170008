"""The activation functions of DeePMD-kit, by its names."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from mdops.errors import UnsupportedModelError

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): DeePMD-kit means this by both of its names."""
    return F.gelu(x, approximate="tanh")


def identity(x: torch.Tensor) -> torch.Tensor:
    return x


_ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "gelu": _gelu,
    "gelu_tf": _gelu,
    "relu": F.relu,
    "relu6": F.relu6,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "linear": identity,
    "none": identity,
}
_KINKED = ("relu", "relu6")
_SILUT_THRESHOLD = 3.0


def is_smooth(name: str) -> bool:
    """Whether the function's slope is continuous, so that a spline can replace a net with it."""
    return name.lower() not in _KINKED


# The order of `enum class Activation` in source/op/common/activation.h.
_KERNEL_ORDER = ("linear", "tanh", "gelu", "relu", "relu6", "softplus", "sigmoid", "silu", "silut")
CODES = {name: code for code, name in enumerate(_KERNEL_ORDER)}
CODES |= {"none": CODES["linear"], "gelu_tf": CODES["gelu"], "custom_silu": CODES["silut"]}


def kernel_code(name: str) -> tuple[int, float]:
    """The ops' number of an activation function, and its threshold (for silut; others ignore it).

    Raises:
        UnsupportedModelError: no activation function has that name.
    """
    activation(name)
    key, _, argument = name.lower().partition(":")
    return CODES[key], float(argument or _SILUT_THRESHOLD)


def of_code(code: int, threshold: float) -> Activation:
    """The activation function with that number."""
    key = _KERNEL_ORDER[code]
    return activation(f"{key}:{threshold!r}" if key == "silut" else key)


def activation(name: str) -> Activation:
    """The activation function that DeePMD-kit calls `name` (in any case).

    "silut" and "custom_silu" take a threshold after a colon ("silut:10.0"), 3 by default.

    Raises:
        UnsupportedModelError: no activation function has that name.
    """
    key, _, argument = name.lower().partition(":")
    if key in ("silut", "custom_silu"):
        return _with_threshold(name, argument)
    if argument or key not in _ACTIVATIONS:
        known = ", ".join([*_ACTIVATIONS, "silut[:threshold]", "custom_silu[:threshold]"])
        raise UnsupportedModelError(f"activation function {name!r} is not known; supported are {known}")
    return _ACTIVATIONS[key]


def _with_threshold(name: str, argument: str) -> Activation:
    try:
        threshold = float(argument) if argument else _SILUT_THRESHOLD
    except ValueError:
        raise UnsupportedModelError(
            f"activation function {name!r}: {argument!r} is not a threshold"
        ) from None
    sigmoid = 1 / (1 + math.exp(-threshold))
    value, slope = threshold * sigmoid, sigmoid + threshold * sigmoid * (1 - sigmoid)
    return partial(_silut, threshold=threshold, value=value, slope=slope)  # it can be pickled


def _silut(x: torch.Tensor, threshold: float, value: float, slope: float) -> torch.Tensor:
    """SiLU below the threshold; above it a tanh that continues with the same value and slope."""
    return torch.where(x < threshold, F.silu(x), torch.tanh(slope * (x - threshold)) + value)
