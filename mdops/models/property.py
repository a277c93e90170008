"""The fitting "property": a net from a descriptor to values of an atom; the system has their sum or mean."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mdops.models import schema
from mdops.models.contract import Output, Tree
from mdops.models.invariant import InvariantFitting
from mdops.models.net_fitting import ARRAYS, INVARIANT, KEYS, NetFittingOptions
from mdops.models.registry import register
from mdops.options import key


@dataclass(kw_only=True)
class PropertyFittingOptions(NetFittingOptions):
    KIND = "property"

    property_name: str = key(doc="name of the property in the data files", where="input")
    task_dim: int = key(1, "number of components of the property", low=1)
    intensive: bool = key(False, "the system's value is the mean over its atoms, not the sum")
    distinguish_types: bool = key(
        True, "separate averages and standard deviations for each type", absent=False
    )
    var_name: str = key("property", "what is fitted", where="file", of="training")
    dim_out: int = key(1, "values an atom", low=1, where="file", of="training")


@register
class PropertyFitting(InvariantFitting):
    """Properties of atoms: p_i = std_t net_t(D_i, parameters) + average_t, which are the model's `out_std` and
    `out_bias`."""

    Options = PropertyFittingOptions
    VERSION = 6
    NODE = schema.Node({**KEYS, **INVARIANT}, ARRAYS)
    LOSS: ClassVar[dict[str, Any]] = {"type": "property"}

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        way = {"extensive": not options.intensive, "intensive": options.intensive}
        return (Output(options.property_name, (options.dim_out,), **way, by_type=options.distinguish_types),)

    def with_statistics(
        self, value: torch.Tensor, kinds: torch.Tensor, bias: torch.Tensor, std: torch.Tensor
    ) -> torch.Tensor:
        if not self.options.distinguish_types:
            kinds = torch.zeros_like(kinds)
        return value * std[kinds] + bias[kinds]

    @classmethod
    def for_axes(cls, options: Any, axes: int) -> Any:
        return dataclasses.replace(options, dim_out=options.task_dim, var_name=options.property_name)

    @classmethod
    def options_of_tree(cls, tree: Tree) -> Any:
        return cls.Options.from_tree(tree, property_name=tree["var_name"])

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        names = ("task_dim", "intensive", "distinguish_types")
        own = {"property_name": tree["var_name"], **{name: tree[name] for name in names}}
        return {**super().definition_of_tree(tree), **own}
