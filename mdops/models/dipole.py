"""The fitting "dipole": a net from a descriptor to the dipole of an atom."""

from dataclasses import dataclass
from typing import Any

import torch

from mdops.models import schema
from mdops.models.contract import Output
from mdops.models.neighborhood import Neighborhood
from mdops.models.net_fitting import ARRAYS, KEYS, AxesFitting, AxesFittingOptions
from mdops.models.registry import register
from mdops.options import key


@dataclass(kw_only=True)
class DipoleFittingOptions(AxesFittingOptions):
    KIND = "dipole"

    r_differentiable: bool = key(True, "whether derivatives by positions are answers", where="file")
    c_differentiable: bool = key(True, "whether derivatives by strain are answers", where="file")
    var_name: str = key("dipole", "what is fitted", choices=("dipole",), where="file")


@register
class DipoleFitting(AxesFitting):
    """Dipoles of atoms: mu_i = sum_m net_tm(D_i, parameters) T_im, with the descriptor's M vectors T_im."""

    Options = DipoleFittingOptions
    NODE = schema.Node(KEYS, ARRAYS)

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        differs = options.r_differentiable and options.c_differentiable
        return (Output("dipole", (3,), "e A", differentiated=differs),)

    @classmethod
    def net_outputs(cls, options: Any) -> int:
        found: int = options.embedding_width
        return found

    def with_statistics(
        self, value: torch.Tensor, kinds: torch.Tensor, bias: torch.Tensor, std: torch.Tensor
    ) -> torch.Tensor:
        """Unchanged: a type has no direction."""
        return value

    def answer(self, values: torch.Tensor, near: Neighborhood, axes: torch.Tensor | None) -> torch.Tensor:
        """(N, 3)."""
        assert axes is not None
        return (axes.double() @ values[:, :, None]).squeeze(2)
