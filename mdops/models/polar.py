"""The fitting "polar": a net from a descriptor to the polarizability of an atom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mdops.errors import ConfigError
from mdops.models import schema
from mdops.models.contract import Output, Tree
from mdops.models.neighborhood import Neighborhood
from mdops.models.net_fitting import ARRAYS, KEYS, AxesFitting, AxesFittingOptions
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.nn.net import array, tensor
from mdops.options import key


@dataclass(kw_only=True)
class PolarFittingOptions(AxesFittingOptions):
    KIND = "polar"

    fit_diag: bool = key(True, "the net gives the diagonal of a matrix, not the whole matrix")
    scale: float | list[float] = key(
        1.0,
        "factor of polarizabilities: one number, or one for each type",
        where="input",
        of="types",
    )
    shift_diag: bool = key(True, "add the types' averages to the diagonal")
    var_name: str = key("polar", "what is fitted", choices=("polar",), where="file")

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if isinstance(self.scale, list) and len(self.scale) != len(type_map):
            raise ConfigError(f"{place}.scale: has {len(self.scale)} numbers for {len(type_map)} types")


@register
class PolarFitting(AxesFitting):
    """Polarizabilities of atoms: s_t (T_i P_i T_i^T + c_t), with the descriptor's M vectors T_i (3, M).

    P_i is the symmetric part of the net's output, or a diagonal matrix of it (`fit_diag`); c_t is a constant of the
    type, added to the diagonal with `shift_diag`.

    Attributes:
        scale: (ntypes,) float64, s.
        constant: (ntypes,) float64, c without the part in the model's `out_bias`.
    """

    Options = PolarFittingOptions
    VERSION = 5
    NODE = schema.Node(KEYS, {**ARRAYS, "scale": True, "constant_matrix": False})
    scale: torch.Tensor
    constant: torch.Tensor

    def __init__(self, options: Any, type_map: Sequence[str], *rest: Any) -> None:
        super().__init__(options, type_map, *rest)
        scale = torch.as_tensor(options.scale, dtype=torch.float64).expand(len(type_map)).clone()
        self.register_buffer("scale", scale)
        self.register_buffer("constant", torch.zeros_like(scale))

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        return (Output("polarizability", (3, 3)),)

    @classmethod
    def net_outputs(cls, options: Any) -> int:
        width: int = options.embedding_width
        return width if options.fit_diag else width * width

    def with_statistics(
        self, value: torch.Tensor, kinds: torch.Tensor, bias: torch.Tensor, std: torch.Tensor
    ) -> torch.Tensor:
        if not self.options.shift_diag:
            return value
        shift = self.scale * (bias.diagonal(dim1=-2, dim2=-1).mean(-1) + self.constant)
        return value + shift[kinds, None, None] * torch.eye(3, dtype=value.dtype, device=value.device)

    def answer(self, values: torch.Tensor, near: Neighborhood, axes: torch.Tensor | None) -> torch.Tensor:
        """(N, 3, 3)."""
        assert axes is not None
        values, axes = values * self.scale[near.centers, None], axes.double()
        if self.options.fit_diag:
            turned = axes * values[:, None]
        else:
            matrix = values.view(-1, axes.shape[2], axes.shape[2])
            turned = axes @ ((matrix + matrix.transpose(1, 2)) / 2)
        return turned @ axes.transpose(1, 2)

    @classmethod
    def options_of_tree(cls, tree: Tree) -> Any:
        return cls.Options.from_tree(tree, scale=tree["@variables"]["scale"].ravel().tolist())

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "PolarFitting":
        found = super().from_tree(tree, type_map, dtype)
        constant = tree["@variables"]["constant_matrix"]
        if constant is not None:
            found.constant.copy_(tensor(constant, torch.float64).ravel())
        return found

    def to_tree(self) -> Tree:
        tree = super().to_tree()
        own = {"scale": array(self.scale[:, None]), "constant_matrix": array(self.constant)}
        return {**tree, "@variables": {**tree["@variables"], **own}}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        own = {"fit_diag": tree["fit_diag"], "shift_diag": tree["shift_diag"]}
        return {
            **super().definition_of_tree(tree),
            **own,
            "scale": tree["@variables"]["scale"].ravel().tolist(),
        }

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], width: int | None, place: str) -> None:
        super().check_tree(tree, type_map, width, place)
        for name in ("scale", "constant_matrix"):
            values = tree["@variables"][name]
            if values is not None:
                require_same(values.size, len(type_map), f"the size of {place}.@variables.{name}")

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        found = super().tree_of_types(tree, types, type_map)
        own = {name: tree["@variables"][name] for name in ("scale", "constant_matrix")}
        chosen = {name: None if value is None else value[list(types)] for name, value in own.items()}
        return {**found, "@variables": {**found["@variables"], **chosen}}
