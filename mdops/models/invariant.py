"""Fittings of numbers that do not change when the system is turned, and that have no derivatives among the answers."""

import torch

from mdops.models.contract import Tree
from mdops.models.neighborhood import Neighborhood
from mdops.models.net_fitting import NetFitting


class InvariantFitting(NetFitting):
    """Base of those: what the nets give is the one output, whose options have `dim_out`."""

    def forward(
        self,
        features: torch.Tensor,
        near: Neighborhood,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The output (N, W), float64; arguments as of `EnergyFitting.forward`."""
        return {self.outputs[0].name: self.net_values(features, near, fparam, aparam)}

    def to_tree(self) -> Tree:
        return {**super().to_tree(), "atom_ener": None}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        found = super().definition_of_tree(tree)
        return {name: value for name, value in found.items() if name != "atom_ener"}
