"""The fitting "ener": a net from a descriptor to the energy of an atom."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from mdops.errors import ConfigError, InputError, ModelFileError, UnsupportedModelError
from mdops.models import schema
from mdops.models.contract import ENERGY, Fitting, Output, Tree, renumbered
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.models.shapes import check_collection, check_types, require_same
from mdops.nn.net import Net, NetCollection, array, tensor
from mdops.nn.quantized import SCHEMES, LowBitLayer, Scheme, rounded_net
from mdops.options import PRECISIONS, Options, key, saved_precision

_STREAM = 1  # of random numbers; descriptors have 0

_MOST_SHIFT = 100  # of exponents of two that balance low-bit layers


@dataclass(kw_only=True)
class EnergyFittingOptions(Options):
    KIND = "ener"
    NAMES = ("ener",)
    NEUTRAL: ClassVar[dict[str, Any]] = {"layer_name": None, "use_aparam_as_mask": False, "dim_case_embd": 0}

    numb_fparam: int = key(0, "how many frame parameters there are", low=0)
    numb_aparam: int = key(0, "how many atomic parameters there are", low=0)
    default_fparam: list[float] | None = key(None, "frame parameters where none are given")
    neuron: list[int] = key(
        [120, 120, 120], "widths of the fitting net's hidden layers", alias=["n_neuron"], low=1, absent=...
    )
    activation_function: str = key("tanh", "of the fitting nets")
    precision: str = key("default", "in which the weights are saved; float64 by default", choices=PRECISIONS)
    resnet_dt: bool = key(True, "a trained factor in front of each residual layer", absent=...)
    trainable: bool | list[bool] = key(
        True,
        "whether the fitting nets are trained; a list must be all true for it",
        of="training",
        absent=None,
    )
    rcond: float | None = key(
        None, "singular values below it are zero in the fit of the types' energies", of="training"
    )
    seed: int | None = key(
        None, "of the random weights; the training's seed unless given", low=0, where="input", of="training"
    )
    atom_ener: list[float | None] = key(
        [], "energies of atoms in vacuum, by type", unit="eV", of="types", absent=None
    )
    dim_case_embd: int = key(0, "width of a constant input", low=0, where="file")
    use_aparam_as_mask: bool = key(False, "atomic parameters are no input", where="file")
    var_name: str = key("energy", "what is fitted", choices=("energy",), where="file")
    dim_out: int = key(1, "values an atom", low=0, where="file")
    exclude_types: list[int] = key([], "types whose atoms have no energy", low=0, where="file", of="set")
    tot_ener_zero: bool = key(False, "", where="file", of="training")

    def check(self, place: str, type_map: Sequence[str]) -> None:
        if len(self.atom_ener) > len(type_map):
            raise ConfigError(
                f"{place}.atom_ener: has {len(self.atom_ener)} energies for {len(type_map)} types"
            )


class Parameters(nn.Module):
    """Frame or atomic parameters, (p - average) * inverse_deviation, in front of the fitting net."""

    average: torch.Tensor
    inverse_deviation: torch.Tensor

    def __init__(self, name: str, average: torch.Tensor, inverse_deviation: torch.Tensor) -> None:
        """`name` is "fparam" or "aparam", for messages; the others are (p,), with p 0 if there are none."""
        super().__init__()
        self.name = name
        self.register_buffer("average", average)
        self.register_buffer("inverse_deviation", inverse_deviation)

    @property
    def size(self) -> int:
        return self.average.shape[0]

    def forward(self, value: torch.Tensor | None, rows: int) -> torch.Tensor:
        """(rows, p), normalised, from a value of that shape, or of shape (p,) for one row or all.

        Raises InputError for a missing value, one of another shape, and any where the model takes none.
        """
        if self.size == 0:
            if value is not None:
                raise InputError(f"{self.name} is given, and the model takes none")
            return self.average.new_empty(rows, 0)
        if value is None:
            raise InputError(f"the model needs {self.name}, {self.size} a row, and none was given")
        value = value.to(self.average)
        if value.shape == (self.size,):
            value = value.expand(rows, -1)
        if value.shape != (rows, self.size):
            raise InputError(f"{self.name} has shape {tuple(value.shape)}, expected {(rows, self.size)}")
        return (value - self.average) * self.inverse_deviation

    @torch.no_grad()
    def set_statistics(self, average: np.ndarray, inverse_deviation: np.ndarray) -> None:
        """Takes those of the data, (p,) each."""
        self.average.copy_(torch.from_numpy(average))
        self.inverse_deviation.copy_(torch.from_numpy(inverse_deviation))


def _is_scheme(value: Any) -> bool:
    """Whether it is a scheme of low-bit numbers."""
    return schema.text(value) and value in SCHEMES


@register
class EnergyFitting(Fitting):
    """Energies of atoms: e_i = net_t(D_i, parameters) - [net_t(0, parameters)] + bias_t.

    The net is of the atom's type, or one for all types. The term in brackets is there for the types of which
    `vacuum` is True (DeePMD-kit's `atom_ener`): an atom alone then has its bias as energy if D is 0 for it.
    """

    Options = EnergyFittingOptions
    NODE = schema.Node(
        {
            "ntypes": (schema.count, schema.REQUIRED),
            "dim_descrpt": (schema.count, schema.REQUIRED),
            "mixed_types": (schema.boolean, schema.REQUIRED),
            "nets": schema.part,
            "type_map": schema.type_map,
            "layer_name": (schema.anything, None),
            "spin": (schema.anything, None),
            "quantized": (schema.optional(schema.node), None),  # mdops' own (docs/how-to/quantize.md)
            "@variables": schema.part,
        },
        {
            "bias_atom_e": True,
            "case_embd": False,
            "fparam_avg": False,
            "fparam_inv_std": False,
            "aparam_avg": False,
            "aparam_inv_std": False,
            "default_fparam_tensor": False,  # the option once more
        },
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
    outputs: tuple[Output, ...] = (ENERGY,)
    bias: torch.Tensor
    default_fparam: torch.Tensor | None
    case_embedding: torch.Tensor

    def __init__(
        self,
        options: EnergyFittingOptions,
        type_map: Sequence[str],
        nets: NetCollection,
        bias: torch.Tensor,
        fparam: Parameters,
        aparam: Parameters,
        case_embedding: torch.Tensor,
    ) -> None:
        """Takes one net a type, or one for all; bias (ntypes,) float64."""
        super().__init__()
        self.options, self.type_map, self.nets = options, list(type_map), nets
        self.fparam, self.aparam = fparam, aparam
        known = [energy is not None for energy in options.atom_ener]
        # With any vacuum energy given, DeePMD-kit's shared net subtracts its vacuum for all types.
        self.vacuum = [
            any(known) and (self.shared or t >= len(known) or known[t]) for t in range(len(type_map))
        ]
        default = options.default_fparam
        self.register_buffer("bias", bias)
        self.register_buffer(
            "default_fparam", None if default is None else torch.tensor(default, dtype=torch.float64)
        )
        self.register_buffer("case_embedding", case_embedding)

    @property
    def shared(self) -> bool:
        """Whether one net serves all types."""
        return self.nets.ndim == 0

    @property
    def captures(self) -> bool:
        return True

    def net(self, kind: int) -> Net:
        """The net of a type of atom."""
        return self.nets.net(kind)

    @property
    def scheme(self) -> Scheme | None:
        """In what low-bit numbers the hidden layers multiply; None: in none."""
        layer = self.net(0).layers[0]
        return layer.scheme if isinstance(layer, LowBitLayer) else None

    @property
    def parameter_sizes(self) -> dict[str, int]:
        return {"fparam": self.fparam.size, "aparam": self.aparam.size}

    def frame_parameters(self, fparam: torch.Tensor | None, systems: int) -> torch.Tensor:
        """(systems, p): the normalised frame parameters, or the default ones."""
        default = self.default_fparam if self.fparam.size else None
        return self.fparam(default if fparam is None else fparam, systems)

    @property
    def extra_size(self) -> int:
        """How many inputs the nets have besides the descriptor."""
        return self.fparam.size + self.aparam.size + self.case_embedding.shape[0]

    def extra_inputs(
        self,
        batch: torch.Tensor,
        systems: int,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> torch.Tensor:
        """(N, extra_size): what the nets see of each atom besides its descriptor; arguments as of
        `forward`."""
        atoms = batch.shape[0]
        frame = self.frame_parameters(fparam, systems)
        parts = [
            frame[batch.long()] if frame.shape[1] else frame.new_empty(atoms, 0),
            self.aparam(aparam, atoms),
            self.case_embedding.expand(atoms, -1),
        ]
        return torch.cat(parts, dim=1)

    def forward(
        self,
        features: torch.Tensor,
        near: Neighborhood,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """energy (N,) in eV, float64, without the model's own bias; 0 for virtual atoms.

        Args:
            features: (N, D), a descriptor's.
            near: whose centres they are of.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).

        Raises:
            InputError: a parameter is missing, has another shape, or is none that the model takes.
        """
        system = near.system
        extra = self.extra_inputs(system.batch, system.count, fparam, aparam)
        if self.shared and not any(self.vacuum):
            energy = self.net(0)(_beside(features, extra)).squeeze(1).double()
            energy = energy + self.bias[near.centers]
            return {"energy": energy.masked_fill(system.types < 0, 0.0)}
        energy = torch.zeros(system.atoms, dtype=torch.float64, device=features.device)
        if system.known_kinds() is None and features.is_cuda and torch.cuda.is_current_stream_capturing():
            # Nobody can be asked which atoms are of which type.
            for kind in range(len(self.type_map)):
                energy = torch.where(system.types == kind, self.energy(kind, features, extra), energy)
            return {"energy": energy}
        for kind, index in enumerate(system.atoms_of_types(len(self.type_map))):
            energy = energy.index_copy(0, index, self.energy(kind, features[index], extra[index]))
        return {"energy": energy}

    def energy(self, kind: int, features: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        """(n,) in eV, float64, of atoms of one type with these features (n, D) and `extra_inputs`."""
        net = self.net(kind)
        out = net(_beside(features, extra)).squeeze(1).double()
        if self.vacuum[kind]:
            nothing = features.new_zeros(features.shape[0], features.shape[1])
            out = out - net(_beside(nothing, extra)).squeeze(1).double()
        return out + self.bias[kind]

    def value_and_gradient(
        self, kind: int, features: torch.Tensor, extra: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `energy` gives, and its gradient by the features (n, D); without a graph."""
        with torch.enable_grad():
            leaf = features.detach().requires_grad_()
            energy = self.energy(kind, leaf, extra)
            (gradient,) = torch.autograd.grad(energy.sum(), leaf)
        return energy.detach(), gradient

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "EnergyFitting":
        """Raises UnsupportedModelError for an option that is not implemented."""
        if tree.get("spin") is not None:
            raise UnsupportedModelError("a model with spin is not supported")
        options, variables = EnergyFittingOptions.from_tree(tree), tree["@variables"]
        sizes = {"fparam": options.numb_fparam, "aparam": options.numb_aparam}
        if options.use_aparam_as_mask:
            sizes["aparam"] = 0
        parameters = [
            Parameters(
                name,
                _optional(variables.get(f"{name}_avg"), size, dtype),
                _optional(variables.get(f"{name}_inv_std"), size, dtype),
            )
            for name, size in sizes.items()
        ]
        nets = NetCollection.from_tree(tree["nets"], dtype)
        if tree.get("quantized") is not None:
            _round_nets(nets, tree["quantized"])
        return cls(
            options,
            type_map,
            nets,
            tensor(variables["bias_atom_e"], torch.float64).reshape(len(type_map)),
            parameters[0],
            parameters[1],
            _optional(variables.get("case_embd"), options.dim_case_embd, dtype),
        )

    def to_tree(self) -> Tree:
        o, nets, ntypes = self.options, self.nets, len(self.type_map)
        precision = saved_precision(o.precision)
        values = {"case_embd": self.case_embedding}
        for part in (self.fparam, self.aparam):
            values |= {f"{part.name}_avg": part.average, f"{part.name}_inv_std": part.inverse_deviation}
        return {
            "@class": "Fitting",
            "@version": 4,
            "type": o.KIND,
            "ntypes": ntypes,
            "dim_descrpt": nets.nets[0].inputs - self.extra_size,
            **o.to_tree(),
            "atom_ener": list(o.atom_ener) or None,
            "mixed_types": self.shared,
            "nets": nets.to_tree(precision, o.resnet_dt),
            **self._quantized_to_tree(),
            "type_map": list(self.type_map),
            "layer_name": None,
            "spin": None,
            "@variables": {
                "bias_atom_e": array(self.bias[:, None]),
                **{name: array(value) if value.numel() else None for name, value in values.items()},
            },
        }

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        """It says of each layer whether that is trained."""
        trainable = tree["trainable"]
        if isinstance(trainable, list):
            return tree
        return {**tree, "trainable": [trainable is not False] * (len(tree["neuron"]) + 1)}

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], width: int | None, place: str) -> None:
        if width is not None:
            require_same(tree["dim_descrpt"], width, f"{place}.dim_descrpt")
        ntypes = len(type_map)
        require_same(tree["ntypes"], ntypes, f"{place}.ntypes")
        if tree["type_map"] is not None:
            require_same(tree["type_map"], type_map, f"{place}.type_map")
        check_types(tree["exclude_types"], ntypes, f"{place}.exclude_types")
        require_same(
            tree["@variables"]["bias_atom_e"].size,
            ntypes * tree["dim_out"],
            f"the size of {place}.@variables.bias_atom_e",
        )
        check_collection(tree["nets"], tree, 0 if tree["mixed_types"] else 1, ntypes, f"{place}.nets")
        in_dim = tree["dim_descrpt"] + tree["numb_fparam"] + tree["dim_case_embd"]
        in_dim += 0 if tree["use_aparam_as_mask"] else tree["numb_aparam"]
        for i, net in enumerate(tree["nets"]["networks"]):
            if net is not None:
                require_same(
                    (net["in_dim"], net.get("out_dim")),
                    (in_dim, tree["dim_out"]),
                    f"(in_dim, out_dim) of {place}.nets[{i}]",
                )
        sizes = {"fparam": tree["numb_fparam"], "aparam": tree["numb_aparam"]}
        for name, size in sizes.items():
            for array_name in (f"{name}_avg", f"{name}_inv_std"):
                array = tree["@variables"][array_name]
                if (array is not None and size) or (array is None and size):
                    require_same(
                        0 if array is None else array.size,
                        size,
                        f"the size of {place}.@variables.{array_name}",
                    )
        if "quantized" in tree:
            inputs = sum(in_dim + sum(tree["neuron"][:-1]) for _ in tree["nets"]["networks"])
            shifts = tree["quantized"]["@variables"]["shifts"]
            require_same(
                shifts.shape, (inputs if tree["neuron"] else 0,), f"the shape of {place}.quantized shifts"
            )
            if shifts.dtype.kind != "i" or (abs(shifts.astype(int)) > _MOST_SHIFT).any():
                raise ModelFileError(f"{place}.quantized holds shifts that are none")
        default = tree["default_fparam"]
        if default is not None:
            require_same(len(default), tree["numb_fparam"], f"the length of {place}.default_fparam")

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        if not tree["mixed_types"]:
            return super().tree_of_types(tree, types, type_map)
        variables = tree["@variables"]
        return {
            **tree,
            "type_map": list(type_map),
            "ntypes": len(types),
            "nets": {**tree["nets"], "ntypes": len(types)},
            "exclude_types": renumbered(tree["exclude_types"], types),
            "atom_ener": tree["atom_ener"] and [tree["atom_ener"][t] for t in types],
            "@variables": {**variables, "bias_atom_e": variables["bias_atom_e"][list(types)]},
        }

    def _quantized_to_tree(self) -> Tree:
        """What there is beside the weights of low-bit nets, which are rounded there; nothing for others."""
        scheme = self.scheme
        if scheme is None:
            return {}
        shifts = [
            layer.shifts for net in self.nets.nets for layer in net.layers if isinstance(layer, LowBitLayer)
        ]
        return {
            "quantized": {"scheme": scheme.name, "@variables": {"shifts": torch.cat(shifts).cpu().numpy()}}
        }

    @classmethod
    def random(
        cls,
        options: EnergyFittingOptions,
        type_map: Sequence[str],
        width: int,
        mixed_types: bool,
        seed: int,
        dtype: torch.dtype,
    ) -> "EnergyFitting":
        """A new one for a descriptor of that width; `mixed_types`: with one net for all types."""
        ntypes = len(type_map)
        nets = NetCollection.random(
            [width + options.numb_fparam + options.numb_aparam, *options.neuron],
            options,
            ndim=0 if mixed_types else 1,
            ntypes=ntypes,
            seed=[seed if options.seed is None else options.seed, _STREAM],
            dtype=dtype,
            outputs=1,
        )
        sizes = {"fparam": options.numb_fparam, "aparam": options.numb_aparam}
        parameters = [
            Parameters(name, torch.zeros(size, dtype=dtype), torch.ones(size, dtype=dtype))
            for name, size in sizes.items()
        ]
        options = copy.deepcopy(options)
        bias = torch.zeros(ntypes, dtype=torch.float64)
        fparam, aparam = parameters
        return cls(options, type_map, nets, bias, fparam, aparam, torch.empty(0, dtype=dtype))

    def summary(self) -> dict[str, str]:
        hidden = "-".join(str(layer.outputs) for layer in self.net(0).layers[:-1])
        sizes = self.parameter_sizes
        scheme = f", {self.scheme.name}: {self.scheme.words}" if self.scheme else ""
        return {
            "fitting nets": f"{hidden}, {'one for all types' if self.shared else 'one a type'}{scheme}",
            "frame, atomic": f"{sizes['fparam']} frame and {sizes['aparam']} atomic parameters",
        }


def _beside(features: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    """What a net takes. A model without other inputs is spared copies in each derivative."""
    return torch.cat([features, extra], dim=1) if extra.shape[1] else features


def _round_nets(nets: NetCollection, node: Tree) -> None:
    """Puts the hidden layers of nets into the scheme of a node."""
    shifts, at = torch.from_numpy(np.array(node["@variables"]["shifts"], dtype=np.int8)), 0
    for k, net in enumerate(nets.nets):
        widths = [layer.inputs for layer in net.layers[:-1]]
        own = list(shifts[at : at + sum(widths)].split(widths))
        nets[k] = rounded_net(net, SCHEMES[node["scheme"]], own)
        at += sum(widths)


def _optional(values: np.ndarray | None, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The array as (size,), empty where the model has none."""
    return torch.empty(0, dtype=dtype) if values is None or size == 0 else tensor(values, dtype).reshape(size)
