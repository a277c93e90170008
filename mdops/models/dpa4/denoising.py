"""The heads of a dpa4 model that the loss `dens` trains: energies, forces that are no derivatives of these, and noise.

In training, noise moves some atoms. The model is told the forces that these had before, and finds the noise.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from mdops.errors import ModelFileError
from mdops.models import schema
from mdops.models.contract import Tree
from mdops.models.dpa4.descriptor import DPA4
from mdops.models.dpa4.fitting import DPA4Fitting
from mdops.models.neighborhood import Neighborhood
from mdops.models.variables import load_variables, variables_of
from mdops.nn.equivariant.indices import coefficients, degree_index
from mdops.nn.equivariant.linear import DegreeLinear, draw_weights
from mdops.nn.equivariant.rotation import spherical_harmonics
from mdops.options import saved_precision
from mdops.system import Noise

NODE = schema.Node(
    {"energy": schema.part, "turned": (schema.boolean, False), "@variables": schema.part}
)  # of these heads in a tree
RMS = "dens_force_rmsd"  # DeePMD-kit's name, among the variables of the model
CLASS = "DenoisingHeads"
_ENERGY, _NETS = "energy_head.", "energy_head.filter_layers.networks."  # DeePMD-kit's, in a state dict
_STREAM = 3  # of random numbers
_PER_COMPONENT = 1 / math.sqrt(3)


class ForceEmbedding(nn.Module):
    """Coefficients (N, D, C) of a force F: W_l sqrt((2l + 1) / 4 pi) Y_lm(F) |F| / sqrt(3), and a bias of l = 0."""

    scale: torch.Tensor

    def __init__(self, lmax: int, channels: int) -> None:
        super().__init__()
        self.lmax, self.proj = lmax, DegreeLinear(lmax, 1, channels, bias=True)
        degrees = degree_index(coefficients(lmax)).double()
        self.register_buffer("scale", ((2 * degrees + 1) / (4 * math.pi)).sqrt(), persistent=False)

    def forward(self, forces: torch.Tensor) -> torch.Tensor:
        length = forces.norm(dim=1, keepdim=True)
        harmonics = spherical_harmonics(torch.where(length > 0, forces, 1.0), self.lmax)
        found: torch.Tensor = self.proj((harmonics * self.scale * length * _PER_COMPONENT)[:, :, None, None])
        return found[:, :, 0]


class VectorHead(nn.Module):
    """Vectors (N, 3) from coefficients (N, D, C): those of l = 1 are (-y, z, -x)."""

    def __init__(self, lmax: int, channels: int) -> None:
        super().__init__()
        self.proj = DegreeLinear(lmax, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z, x = (x[:, 1:4] @ self.proj.weight[1])[:, :, 0].unbind(1)
        return math.sqrt(4 * math.pi / 3) * torch.stack([-x, -y, z], 1)


class DenoisingHeads(nn.Module):
    """Energies and noise in units of their deviations, and forces.

    Attributes:
        force_rms: (), eV/A, the unit of forces: the root of the mean square of their lengths in the data; 0 where no
            data was seen.
        turned: whether vectors have the axes that DeePMD-kit 3.2 takes for those of its coefficients; these are turned
            by half a turn about y, so that its forces do not turn with the atoms.
    """

    force_rms: torch.Tensor

    def __init__(self, descriptor: DPA4, energy: DPA4Fitting, turned: bool = False) -> None:
        super().__init__()
        o, self.turned = descriptor.options, turned
        self.energy_head = energy
        self.force_embedding = ForceEmbedding(o.first_node_degree, o.channels)
        self.direct_force_head, self.denoising_head = (
            VectorHead(o.last_node_degree, o.channels) for _ in range(2)
        )
        self.register_buffer("force_rms", torch.zeros((), dtype=torch.float64))

    @property
    def _own(self) -> nn.ModuleDict:
        """The heads but that of energies."""
        names = ("force_embedding", "direct_force_head", "denoising_head")
        return nn.ModuleDict({name: getattr(self, name) for name in names})

    def forward(
        self,
        descriptor: DPA4,
        near: Neighborhood,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> dict[str, torch.Tensor]:
        """`energy` (N,) in deviations, without averages of types; `forces` (N, 3), eV/A; with `System.noise`, and where
        gradients are enabled, also `noise` (N, 3), in units of the deviation of each component. All float64."""
        noise, added = near.system.noise, None
        if noise is None and torch.is_grad_enabled():
            # As in DeePMD-kit, gradients of what only noise needs are 0 then, and not absent.
            none = torch.zeros_like(near.system.positions)
            noise = Noise(none[:, 0] > 0, none, none)
        if noise is not None:
            embedded = self.force_embedding(self._with_axes(noise.forces).to(near.displacements.dtype))
            added = embedded * noise.moved[:, None, None]
        values, x = descriptor.with_coefficients(near, added)
        found: dict[str, torch.Tensor] = self.energy_head(values, near, fparam, aparam)
        found["forces"] = self.force_rms * self._with_axes(self.direct_force_head(x).double())
        if noise is not None:
            found["noise"] = self._with_axes(self.denoising_head(x).double())
        return found

    def _with_axes(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors (N, 3) of the atoms' axes from those of the coefficients', and the reverse."""
        return vectors * vectors.new_tensor([-1.0, 1.0, -1.0]) if self.turned else vectors

    def set_trained(self) -> None:
        self.energy_head.set_trained()
        given = self.energy_head.options.trainable
        self._own.requires_grad_(all(given) if isinstance(given, list) else bool(given))

    @classmethod
    def random(cls, descriptor: Any, fitting: Any, type_map: Sequence[str], seed: int) -> Self:
        """New heads, of energies as the model's fitting. `seed` holds where its options have none."""
        options = fitting.options
        random = np.random.default_rng([seed if options.seed is None else options.seed, _STREAM])
        given, dtype = dataclasses.replace(options, seed=None), next(descriptor.parameters()).dtype
        energy = DPA4Fitting.random(
            given, type_map, descriptor.width, True, int(random.integers(2**31)), dtype
        )
        energy.fparam, energy.aparam = fitting.fparam, fitting.aparam  # averages of the data
        made = cls(descriptor, energy)
        draw_weights(made._own, random)
        rounded = torch.float32 if saved_precision(options.precision) == "float32" else dtype
        made._own.to(rounded).to(dtype)
        return made

    @classmethod
    def from_tree(cls, tree: Tree, descriptor: Any, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        made = cls(descriptor, DPA4Fitting.from_tree(tree["energy"], type_map, dtype), tree["turned"])
        given = {name: value for name, value in tree["@variables"].items() if name != RMS}
        load_variables(made._own, given, "the heads that the loss dens trains")
        made._own.to(dtype)
        made.force_rms.fill_(float(tree["@variables"][RMS]))
        return made

    def to_tree(self) -> Tree:
        precision = saved_precision(self.energy_head.options.precision)
        variables = {**variables_of(self._own, precision), RMS: self.force_rms.cpu().numpy()}
        own = {"@class": CLASS, "@version": 1, "turned": self.turned, "@variables": variables}
        return {**own, "energy": self.energy_head.to_tree()}


def tree_of_heads(node: Tree, fitting: Tree, force_rms: Any) -> Tree:
    """The node of heads, from DeePMD-kit's, which has all arrays by their names in a state dict. `fitting` is that of
    the model, of which these energies have the options.

    Raises ModelFileError for a missing array."""
    given = node.get("@variables")
    if not isinstance(given, Mapping):
        raise ModelFileError("the heads that the loss dens trains have no arrays")

    def array(name: str) -> Any:
        if given.get(name) is None:
            raise ModelFileError(f"the heads that the loss dens trains lack {name!r}")
        return given[name]

    nets = [
        {**net, "@variables": {name: array(f"{_NETS}{k}.{name}") for name in net["@variables"]}}
        for k, net in enumerate(fitting["nets"]["networks"])
    ]
    of_energy = {name: given.get(f"{_ENERGY}{name}") for name in fitting["@variables"]}
    energy = {
        **fitting,
        "nets": {**fitting["nets"], "networks": nets},
        "@variables": of_energy | {"bias_atom_e": array(f"{_ENERGY}bias_atom_e")},
    }
    own = {name: value for name, value in given.items() if ".proj." in name}
    own[RMS] = np.asarray(1.0 if force_rms is None else force_rms)
    return {"@class": CLASS, "@version": 1, "turned": True, "energy": energy, "@variables": own}
