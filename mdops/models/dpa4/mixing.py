"""Softmaxes of DPA-4: over earlier depth, and over groups of channels."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.nn.equivariant.linear import ChannelLinear, zeros
from mdops.nn.equivariant.norm import ScalarNorm

MODES = ("none", "independent", "dependent")


class DepthMix(nn.Module):
    """A weighted mean of several rows. The weights are a softmax of their scalars times a query. It is trained, or if
    `dependent`, computed from the current row's scalars."""

    def __init__(self, channels: int, dependent: bool, bias: bool, eps: float) -> None:
        super().__init__()
        self.key_norm = ScalarNorm(channels, eps=eps)
        if dependent:
            self.query_proj: ChannelLinear | None = ChannelLinear(channels, channels, bias, zero=True)
        else:
            self.query_proj, self.adamw_pseudo_query = None, zeros(channels)

    def forward(
        self,
        sources: Sequence[torch.Tensor],
        current: torch.Tensor,
        scalars: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """The mean of rows (N, ...); `scalars` gives the (N, C) of each."""
        if len(sources) == 1:
            return sources[0]
        query = self.adamw_pseudo_query if self.query_proj is None else self.query_proj(scalars(current))
        keys = self.key_norm(torch.stack([scalars(one) for one in sources], 1))
        weights = (query.unsqueeze(-2) * keys).sum(-1).softmax(1)
        stacked = torch.stack(list(sources), 1)
        return (weights.view(*weights.shape, *(1 for _ in stacked.shape[2:])) * stacked).sum(1)


def null_mass(raw: torch.Tensor, eps: float) -> torch.Tensor:
    """softplus(raw) + eps, the weight of attending to nothing."""
    return F.softplus(raw) + eps


def focus_shares(logits: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """(E, F), a softmax over F groups of channels, slightly flattened."""
    logits = logits if bias is None else logits + bias
    return logits.softmax(1) * 0.98 + 0.02 / logits.shape[1]


def drawn(weight: torch.Tensor, random: np.random.Generator) -> None:
    """Draws new weights of logits."""
    with torch.no_grad():
        weight.copy_(torch.from_numpy(random.normal(0, 0.01, tuple(weight.shape))))
