"""The fitting "dos": a net from a descriptor to the density of states of an atom."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from mdops.models import schema
from mdops.models.contract import Output, Tree
from mdops.models.invariant import InvariantFitting
from mdops.models.net_fitting import ARRAYS, INVARIANT, KEYS, NetFittingOptions
from mdops.models.registry import register
from mdops.options import key


@dataclass(kw_only=True)
class DosFittingOptions(NetFittingOptions):
    KIND = "dos"

    numb_dos: int = key(300, "number of points of the density", low=1, where="input")
    dim_out: int = key(300, "values an atom", low=1, where="file", absent=..., of="training")
    var_name: str = key("dos", "what is fitted", choices=("dos",), where="file")


@register
class DosFitting(InvariantFitting):
    """Densities of states of atoms, on the data's energy grid: g_i = net_t(D_i, parameters) + bias_t."""

    Options = DosFittingOptions
    NODE = schema.Node({**KEYS, **INVARIANT}, ARRAYS)
    LOSS: ClassVar[dict[str, Any]] = {"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 1}

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        return (Output("dos", (options.dim_out,)),)

    @classmethod
    def for_axes(cls, options: Any, axes: int) -> Any:
        return dataclasses.replace(options, dim_out=options.numb_dos)

    @classmethod
    def options_of_tree(cls, tree: Tree) -> Any:
        return cls.Options.from_tree(tree, numb_dos=tree["dim_out"])

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        return {**super().definition_of_tree(tree), "numb_dos": tree["dim_out"]}
