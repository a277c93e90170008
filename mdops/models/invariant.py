"""Fittings of outputs that are invariant under rotations and have no derivatives among the results."""

from mdops.models.contract import Tree
from mdops.models.net_fitting import NetFitting


class InvariantFitting(NetFitting):
    """Their base: the nets' result is the one output; the options have `dim_out`."""

    def to_tree(self) -> Tree:
        return {**super().to_tree(), "atom_ener": None}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        found = super().definition_of_tree(tree)
        return {name: value for name, value in found.items() if name != "atom_ener"}
