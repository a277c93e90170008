"""Gated nets of two products without biases, used by descriptors of DPA-4's family."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.nn.net import array, tensor
from mdops.ops.linear import linear

Tree = dict[str, Any]
_MULTIPLE = 8  # hidden widths are multiples of it


def hidden_width(width: int) -> int:
    """8/3 of an input's width, rounded up to a multiple of 8, so that a gated net has as many weights as one of the
    fourfold width without a gate (N. Shazeer, arXiv:2002.05202)."""
    return _MULTIPLE * -(-8 * width // (3 * _MULTIPLE))


class SwiGLU(nn.Module):
    """y = scale (silu(g) v) W_1, with the halves [g, v] of x W_0."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor, scale: float = 1.0) -> None:
        """Takes W_0 (inputs, 2 H) and W_1 (H, outputs)."""
        super().__init__()
        self.first, self.second, self.scale = nn.Parameter(first), nn.Parameter(second), scale

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """(R, H) of (R, inputs)."""
        gate, value = linear(x, self.first, None).chunk(2, dim=1)
        return F.silu(gate) * value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(R, outputs) of (R, inputs)."""
        y = linear(self.hidden(x), self.second, None)
        return y if self.scale == 1 else y * self.scale

    @property
    def widths(self) -> list[int]:
        """The widths of the input, after the gate, and of the output."""
        return [self.first.shape[0], *self.second.shape]

    @classmethod
    def random(
        cls,
        widths: Sequence[int],
        random: np.random.Generator,
        precision: str,
        dtype: torch.dtype,
        scale: float = 1.0,
    ) -> "SwiGLU":
        """New weights of these three widths, rounded to `precision`."""
        inputs, hidden, outputs = widths
        first = random_product(inputs, 2 * hidden, random, precision, dtype)
        return cls(first, random_product(hidden, outputs, random, precision, dtype), scale)

    def to_tree(self, precision: str) -> Tree:
        """The node, with arrays of that dtype."""
        weights = {"0.matrix": self.first, "1.matrix": self.second}
        return {
            "@class": "SwiGLUMLP",
            "@version": 1,
            "mlp_layers": self.widths,
            "output_scale": self.scale,
            "precision": precision,
            "trainable": True,
            "@variables": {name: array(value, precision) for name, value in weights.items()},
        }


def random_product(
    inputs: int, outputs: int, random: np.random.Generator, precision: str, dtype: torch.dtype
) -> torch.Tensor:
    """New weights of a product: normal, with deviation 1/sqrt(inputs + outputs)."""
    drawn = random.normal(0.0, 1 / np.sqrt(inputs + outputs), (inputs, outputs))
    return tensor(drawn.astype(precision), dtype)
