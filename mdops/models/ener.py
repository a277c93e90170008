"""The fitting "ener": a net from a descriptor to the energy of an atom."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from mdops.errors import ModelFileError
from mdops.models import schema
from mdops.models.contract import ENERGY, Output, Tree
from mdops.models.neighborhood import Neighborhood
from mdops.models.net_fitting import ARRAYS, KEYS, EnergyOptions, NetFitting
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.nn.net import Net, NetCollection
from mdops.nn.quantized import SCHEMES, LowBitLayer, Scheme, rounded_net
from mdops.options import key

_MOST_SHIFT = 100  # of exponents of two that balance low-bit layers


@dataclass(kw_only=True)
class EnergyFittingOptions(EnergyOptions):
    KIND = "ener"

    types_in_vacuum: int = key(
        0,
        "how many numbers, the last that a descriptor has, are the type's in vacuum, as in TensorFlow, and not 0",
        low=0,
        where="file",
    )
    dim_out: int = key(1, "values an atom", low=0, where="file")


def _is_scheme(value: Any) -> bool:
    """Whether it is a low-bit scheme."""
    return schema.text(value) and value in SCHEMES


class EnergyNet(NetFitting):
    """Energies of atoms: e_i = net_t(D_i, parameters) - [net_t(0, parameters)] + bias_t.

    The term in brackets is there for types with `vacuum` True (DeePMD-kit's `atom_ener`): an atom alone then has its
    bias as energy, if its D is 0 except for the features of its type (`types_in_vacuum`).
    """

    outputs: tuple[Output, ...] = (ENERGY,)

    def __init__(self, options: Any, type_map: Sequence[str], nets: Any, *parts: Any) -> None:
        super().__init__(options, type_map, nets, *parts)
        known = [energy is not None for energy in options.atom_ener]
        # With any vacuum energy, DeePMD-kit's shared net subtracts its vacuum for all types.
        self.vacuum = [
            any(known) and (self.shared or t >= len(known) or known[t]) for t in range(len(type_map))
        ]
        self.types_in_vacuum = getattr(options, "types_in_vacuum", 0)

    def answer(self, values: torch.Tensor, near: Neighborhood, axes: torch.Tensor | None) -> torch.Tensor:
        """(N,) in eV."""
        return values.squeeze(1)


@register
class EnergyFitting(EnergyNet):
    """By nets of dense layers. `bias` is (ntypes,)."""

    Options = EnergyFittingOptions
    NODE = schema.Node(
        {**KEYS, "quantized": (schema.optional(schema.node), None)},  # mdops' own (docs/how-to/quantize.md)
        ARRAYS,
    )
    NODES: ClassVar[dict[str, schema.Node]] = {
        "quantized": schema.Node(
            {
                "scheme": (_is_scheme, schema.REQUIRED),
                "@variables": schema.part,
            },
            {"shifts": True},
        ),
    }

    @classmethod
    def new_bias(cls, options: Any, ntypes: int) -> torch.Tensor:
        return torch.zeros(ntypes, dtype=torch.float64)

    @property
    def scheme(self) -> Scheme | None:
        """The low-bit scheme of the hidden layers' products, or None."""
        layer = self.net(0).layers[0]
        return layer.scheme if isinstance(layer, LowBitLayer) else None

    def energy(self, kind: int, features: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        """(n,) in eV, float64, of atoms of one type with these features (n, D) and `extra_inputs`."""
        return self.of_kind(kind, features, extra).squeeze(1)

    def value_and_gradient(
        self, kind: int, features: torch.Tensor, extra: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`energy`, and its gradient by the features (n, D); without a graph."""
        with torch.enable_grad():
            leaf = features.detach().requires_grad_()
            energy = self.energy(kind, leaf, extra)
            (gradient,) = torch.autograd.grad(energy.sum(), leaf)
        return energy.detach(), gradient

    @torch.no_grad()
    def frozen(self) -> "EnergyFitting":
        """A copy with the current weights as constants, with gradients by its input alone."""
        found = copy.deepcopy(self)
        for k, net in enumerate(found.nets.nets):
            found.nets[k] = Net(
                layer.frozen() if isinstance(layer, LowBitLayer) else layer for layer in net.layers
            )
        return found.requires_grad_(False)

    @classmethod
    def nets_of_tree(cls, tree: Tree, dtype: torch.dtype) -> NetCollection:
        nets = super().nets_of_tree(tree, dtype)
        if tree.get("quantized") is not None:
            _round_nets(nets, tree["quantized"])
        return nets

    def to_tree(self) -> Tree:
        tree = {
            **super().to_tree(),
            "atom_ener": list(self.options.atom_ener) or None,
            **self._quantized_to_tree(),
        }
        if not self.types_in_vacuum:
            del tree["types_in_vacuum"]  # not in DeePMD-kit's files
        return tree

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], width: int | None, place: str) -> None:
        super().check_tree(tree, type_map, width, place)
        if "quantized" in tree:
            in_dim = cls.net_inputs_of_tree(tree)
            inputs = sum(in_dim + sum(tree["neuron"][:-1]) for _ in tree["nets"]["networks"])
            shifts = tree["quantized"]["@variables"]["shifts"]
            require_same(
                shifts.shape, (inputs if tree["neuron"] else 0,), f"the shape of {place}.quantized shifts"
            )
            if shifts.dtype.kind != "i" or (abs(shifts.astype(int)) > _MOST_SHIFT).any():
                raise ModelFileError(
                    f"{place}.quantized holds shifts that are not whole numbers from -{_MOST_SHIFT} to {_MOST_SHIFT}"
                )

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        energies = tree["atom_ener"] and [tree["atom_ener"][t] for t in types]
        return {**super().tree_of_types(tree, types, type_map), "atom_ener": energies}

    def _quantized_to_tree(self) -> Tree:
        """The data of low-bit nets besides their weights, which are rounded; none for others."""
        scheme = self.scheme
        if scheme is None:
            return {}
        shifts = [
            layer.shifts for net in self.nets.nets for layer in net.layers if isinstance(layer, LowBitLayer)
        ]
        return {
            "quantized": {"scheme": scheme.name, "@variables": {"shifts": torch.cat(shifts).cpu().numpy()}}
        }

    def summary(self) -> dict[str, str]:
        lines = super().summary()
        scheme = f", {self.scheme.name}: {self.scheme.words}" if self.scheme else ""
        return {**lines, "fitting nets": f"{lines['fitting nets']}{scheme}"}


def _round_nets(nets: NetCollection, node: Tree) -> None:
    """Applies the low-bit scheme of a node to hidden layers."""
    shifts, at = torch.from_numpy(np.array(node["@variables"]["shifts"], dtype=np.int8)), 0
    for k, net in enumerate(nets.nets):
        widths = [layer.inputs for layer in net.layers[:-1]]
        own = list(shifts[at : at + sum(widths)].split(widths))
        nets[k] = rounded_net(net, SCHEMES[node["scheme"]], own)
        at += sum(widths)
