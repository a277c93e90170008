"""Layers with products of low-bit numbers: one for training, and one with only the low-bit numbers."""

import math

import torch
from torch import nn

from mdops.ops.lowbit import gemm_lowbit, lowbit_linear, pack_ternary, quantize


class BitLinear(nn.Module):
    """y = x W^T + b with both factors of the product quantised in every call, and trainable float32 weights.

    The weights are ternary by their mean size, the rows of x int8 by their largest number (BitNet b1.58, Ma et al.,
    arXiv 2402.17764, whose norm before the layer is left to the caller). Gradients go straight through the rounding,
    to any order (`mdops.ops.lowbit_linear`).

    Attributes:
        weight: (outputs, inputs). bias: (outputs,) or None.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        weight_kind: str = "ternary",
        x_kind: str = "int8",
        weight_per: str = "tensor",
        groups: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        """Weights begin as those of `torch.nn.Linear`.

        Args:
            weight_kind, x_kind: "ternary" or "int8" beside "int8"; "e4m3" or "e5m2" beside these.
            weight_per: "tensor", or "column" for a scale an output.
            groups: of the inputs, that many with scales of their own for each output; with "column" alone.
        """
        super().__init__()
        self.weight_kind, self.x_kind, self.weight_per, self.groups = weight_kind, x_kind, weight_per, groups
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))
        self.bias = nn.Parameter(torch.empty(outputs, device=device)) if bias else None
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(max(1, inputs)), 1 / math.sqrt(max(1, inputs)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs), in the dtype of x; each row of x has its own scale."""
        y = lowbit_linear(
            x.reshape(-1, x.shape[-1]),
            self.weight.T,
            x_kind=self.x_kind,
            weight_kind=self.weight_kind,
            weight_per=self.weight_per,
            groups=self.groups,
        )
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], y.shape[-1]).to(x.dtype)

    def frozen(self) -> "LowBitLinear":
        """The same layer with only the low-bit numbers, for inference without training; the same results."""
        values, scale = quantize(self.weight.T, self.weight_kind, per=self.weight_per, groups=self.groups)
        values = pack_ternary(values) if self.weight_kind == "ternary" else values.T.contiguous().T
        return LowBitLinear(
            values, scale, None if self.bias is None else self.bias.detach().clone(), self.x_kind
        )

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, weight_kind={self.weight_kind!r}, x_kind={self.x_kind!r}"


class LowBitLinear(nn.Module):
    """y = x W + b with low-bit weights as they are stored; the rows of x are quantised in every call. No gradients.

    Attributes:
        values: the weights, `b` of `mdops.ops.gemm_lowbit`. scale: their scale. bias: (outputs,) or None.
    """

    values: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        values: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None = None,
        x_kind: str = "int8",
    ) -> None:
        super().__init__()
        self.x_kind = x_kind
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs), in the dtype of x."""
        rows, row_scale = quantize(x.reshape(-1, x.shape[-1]), self.x_kind, per="row")
        y = gemm_lowbit(rows, self.values, row_scale, self.scale)
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], y.shape[-1]).to(x.dtype)
