"""Feed-forward nets: the embedding nets of the descriptors and the fitting nets."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from mdops.nn.activation import activation


class Layer(nn.Module):
    """y = idt * phi(x W + b), plus x if the widths are equal, plus (x, x) if the output is twice as wide.

    The last two only where `residual` is set; b and idt (the "timestep") may be absent.
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
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weight, bias and timestep; in the place of one that is absent, what does nothing."""
        weight = self.weight
        bias = weight.new_zeros(self.outputs) if self.bias is None else self.bias
        return weight, bias, weight.new_ones(self.outputs) if self.timestep is None else self.timestep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs)."""
        return self._apply_to(x, self.weight, self.bias, self.timestep)

    def _apply_to(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        timestep: torch.Tensor | None,
    ) -> torch.Tensor:
        y = x @ weight
        if bias is not None:
            y = y + bias
        y = self._activation(y)
        if timestep is not None:
            y = y * timestep
        if self.residual and self.outputs == self.inputs:
            y = y + x
        elif self.residual and self.outputs == 2 * self.inputs:
            y = y + torch.cat([x, x], dim=-1)
        return y

    def alike(self, others: Sequence["Layer"], x: torch.Tensor) -> torch.Tensor:
        """G layers that differ from this one in their numbers alone, as one: (G or 1, R, inputs) to
        (G, R, outputs)."""

        def rows(values: list[torch.Tensor | None]) -> torch.Tensor | None:
            return None if values[0] is None else torch.stack([v for v in values if v is not None])[:, None]

        weight = torch.stack([other.weight for other in others])
        return self._apply_to(x, weight, rows([o.bias for o in others]), rows([o.timestep for o in others]))


class Net(nn.Sequential):
    """Layers one after the other. An embedding net has one input; a fitting net ends in a linear layer."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__(*layers)

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in self if isinstance(layer, Layer)]

    def alike(self, others: Sequence["Net"], x: torch.Tensor) -> torch.Tensor:
        """As `Layer.alike`, for whole nets: a few large steps in the place of many small ones."""
        for layers in zip(self.layers, *(other.layers for other in others), strict=True):
            x = layers[0].alike(layers[1:], x)
        return x

    @property
    def inputs(self) -> int:
        return self.layers[0].inputs

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs
