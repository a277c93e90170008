"""Fittings of numbers that do not change when the system is turned, and that have no derivatives among the answers."""

from mdops.models.contract import Tree
from mdops.models.net_fitting import NetFitting


class InvariantFitting(NetFitting):
    """Base of those: what the nets give is the one output, whose options have `dim_out`."""

    def to_tree(self) -> Tree:
        return {**super().to_tree(), "atom_ener": None}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        found = super().definition_of_tree(tree)
        return {name: value for name, value in found.items() if name != "atom_ener"}
