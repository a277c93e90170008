"""The output of a net of two types as a table of pairs."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from mdops.models import schema
from mdops.models.shapes import require_same
from mdops.nn.net import array, tensor

Tree = dict[str, Any]


class TypePairs(nn.Module):
    """(n + 1, n + 1, M) numbers for each centre and neighbour of n types; the last type is that of absent atoms.

    Compressed TensorFlow graphs have them in place of the net. They are not trained.
    """

    CLASS = "TypePairs"  # in model files; mdops' own name
    NODE: ClassVar[schema.Node] = schema.Node(
        {
            "ntypes": (schema.count, schema.REQUIRED),
            "neuron": (schema.list_of(schema.count), schema.REQUIRED),
            "precision": schema.precision,
            "@variables": schema.part,
        },
        {"values": True},
    )
    values: torch.Tensor

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "TypePairs":
        return cls(tensor(tree["@variables"]["values"], dtype))

    def to_tree(self, precision: str, resnet_dt: bool = False) -> Tree:
        """The node, without the residuals of nets."""
        n, _, width = self.values.shape
        return {
            "@class": self.CLASS,
            "@version": 1,
            "ntypes": n - 1,
            "neuron": [width],
            "precision": precision,
            "@variables": {"values": array(self.values, precision)},
        }

    @staticmethod
    def check_tree(tree: Tree, ntypes: int, width: int, place: str) -> None:
        """Raises ModelFileError."""
        require_same((tree["ntypes"], tree["neuron"]), (ntypes, [width]), f"(ntypes, neuron) of {place}")
        shape = (ntypes + 1, ntypes + 1, width)
        require_same(tree["@variables"]["values"].shape, shape, f"the shape of {place}.@variables.values")

    @staticmethod
    def tree_of_types(tree: Tree, types: Sequence[int]) -> Tree:
        """See `ModelComponent.tree_of_types`."""
        chosen = [*types, tree["ntypes"]]
        values = tree["@variables"]["values"][chosen][:, chosen]
        return {**tree, "ntypes": len(types), "@variables": {"values": values}}

    def of(self, types: torch.Tensor) -> torch.Tensor:
        """(n * n, M), of the pairs of n types with these numbers, centre after centre."""
        return self.values[types][:, types].flatten(0, 1)
