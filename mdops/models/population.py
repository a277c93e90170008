"""The fitting "population": a net from a descriptor to the electrons of an atom, of spin up and down."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mdops.models import schema
from mdops.models.contract import Output
from mdops.models.invariant import InvariantFitting
from mdops.models.net_fitting import ARRAYS, INVARIANT, KEYS, NetFittingOptions
from mdops.models.registry import register
from mdops.options import key


@dataclass(kw_only=True)
class PopulationFittingOptions(NetFittingOptions):
    KIND = "population"

    neuron: list[int] = key(
        [128, 128, 128], "widths of the fitting net's hidden layers", alias=["n_neuron"], low=1, absent=...
    )
    var_name: str = key("population", "what is fitted", choices=("population",), where="file")
    dim_out: int = key(2, "values an atom", choices=(2,), where="file")


@register
class PopulationFitting(InvariantFitting):
    """Electrons of atoms, (alpha, beta): net_t(D_i, parameters) + bias_t."""

    Options = PopulationFittingOptions
    NODE = schema.Node({**KEYS, **INVARIANT}, ARRAYS)
    LOSS: ClassVar[dict[str, Any]] = {"type": "population"}

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        return (Output("population", (2,), extensive=False),)

    def with_statistics(
        self, value: torch.Tensor, kinds: torch.Tensor, bias: torch.Tensor, std: torch.Tensor
    ) -> torch.Tensor:
        """Unchanged: DeePMD-kit adds no averages here."""
        return value
