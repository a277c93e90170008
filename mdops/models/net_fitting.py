"""The base of fittings by nets: their options, their inputs, and their nodes in files."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from mdops.errors import ConfigError, InputError, UnsupportedModelError
from mdops.models import schema
from mdops.models.contract import Fitting, Output, Tree, renumbered
from mdops.models.keys import precision_key, seed_key
from mdops.models.neighborhood import Neighborhood
from mdops.models.shapes import check_collection, check_types, require_same
from mdops.nn.net import Net, NetCollection, array, tensor
from mdops.options import Options, key, saved_precision
from mdops.system import System

_STREAM = 1  # of random numbers; descriptors have 0


@dataclass(kw_only=True)
class NetFittingOptions(Options):
    """The common options."""

    NEUTRAL: ClassVar[dict[str, Any]] = {"layer_name": None}
    IGNORED: ClassVar[tuple[str, ...]] = ("coord_norm", "type_fitting_net")  # of no effect in DeePMD-kit 1

    numb_fparam: int = key(0, "number of frame parameters", low=0)
    numb_aparam: int = key(0, "number of atomic parameters", low=0)
    default_fparam: list[float] | None = key(None, "default frame parameters")
    neuron: list[int] = key(
        [120, 120, 120], "widths of the fitting net's hidden layers", alias=["n_neuron"], low=1, absent=...
    )
    activation_function: str = key("tanh", "activation function of the fitting nets")
    precision: str = precision_key()
    resnet_dt: bool = key(True, "a trained factor in front of each residual layer", absent=...)
    trainable: bool | list[bool] = key(
        True,
        "whether the fitting nets are trained; of a list, all values must be true",
        of="training",
        absent=None,
    )
    rcond: float | None = key(
        None,
        "relative threshold below which singular values are zero in the fit of the types' energies",
        of="training",
    )
    seed: int | None = seed_key(where="input")
    dim_case_embd: int = key(
        0, "width of a constant input that distinguishes models with a shared net", low=0
    )
    use_aparam_as_mask: bool = key(
        False, "atomic parameters are a mask of the atoms that exist, not inputs of the nets"
    )
    exclude_types: list[int] = key([], "types whose atoms have no answer", low=0, where="file", of="training")
    tot_ener_zero: bool = key(False, "", where="file", of="training")

    def __post_init__(self) -> None:
        # DeePMD-kit's files have `trainable` for each layer, and inputs one for all.
        if isinstance(self.trainable, list) and len(set(self.trainable)) == 1:
            self.trainable = self.trainable[0]

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], **others: Any) -> Self:
        """Without parameters, DeePMD-kit ignores their default."""
        unread = {} if tree["numb_fparam"] else {"default_fparam": None}
        return super().from_tree({**tree, **unread}, **others)

    def check(self, place: str, type_map: Sequence[str]) -> None:
        if self.default_fparam is not None and len(self.default_fparam) != self.numb_fparam:
            raise ConfigError(
                f"{place}.default_fparam: has {len(self.default_fparam)} numbers, and numb_fparam is {self.numb_fparam}"
            )

    @property
    def parameter_sizes(self) -> dict[str, int]:
        """How many frame and atomic parameters the nets take."""
        return {"fparam": self.numb_fparam, "aparam": 0 if self.use_aparam_as_mask else self.numb_aparam}


@dataclass(kw_only=True)
class EnergyOptions(NetFittingOptions):
    """The options of nets for atoms' energies."""

    atom_ener: list[float | None] = key(
        [], "energies of isolated atoms, for each type", unit="eV", of="types", absent=None
    )
    var_name: str = key("energy", "what is fitted", choices=("energy",), where="file")

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if len(self.atom_ener) > len(type_map):
            raise ConfigError(
                f"{place}.atom_ener: has {len(self.atom_ener)} energies for {len(type_map)} types"
            )


class Parameters(nn.Module):
    """Frame or atomic parameters, (p - average) * inverse_deviation, in front of the fitting net."""

    average: torch.Tensor
    inverse_deviation: torch.Tensor

    def __init__(self, name: str, average: torch.Tensor, inverse_deviation: torch.Tensor) -> None:
        """`name` is "fparam" or "aparam", for messages; the others are (p,); p may be 0."""
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
                raise InputError(f"{self.name} is given, but the model takes none")
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


KEYS: schema.Keys = {
    "ntypes": (schema.count, schema.REQUIRED),
    "dim_descrpt": (schema.count, schema.REQUIRED),
    "mixed_types": (schema.boolean, schema.REQUIRED),
    "nets": schema.part,
    "type_map": schema.type_map,
    "layer_name": (schema.anything, None),
    "spin": (schema.anything, None),
    "@variables": schema.part,
}
# Of invariant outputs, beside the others.
INVARIANT: schema.Keys = {"atom_ener": (schema.optional(schema.list_of(schema.anything)), None)}
ARRAYS = {
    "bias_atom_e": True,
    "case_embd": False,
    "fparam_avg": False,
    "fparam_inv_std": False,
    "aparam_avg": False,
    "aparam_inv_std": False,
    "default_fparam_tensor": False,  # the option once more
}


class NetFitting(Fitting):
    """Outputs of atoms from net_t(D_i, parameters) - [net_t(0, parameters)] + bias_t, as each kind defines.

    The net is of the atom's type, or one for all types. The term in brackets is there for the types of which
    `vacuum` is True; the last `types_in_vacuum` numbers of D_i stay in it.

    Attributes:
        bias: (ntypes, W), float64, for the nets' W outputs; (ntypes,) for some kinds.
    """

    VERSION: ClassVar[int] = 4  # of its node
    outputs: tuple[Output, ...]
    bias: torch.Tensor
    default_fparam: torch.Tensor | None
    case_embedding: torch.Tensor

    def __init__(
        self,
        options: Any,
        type_map: Sequence[str],
        nets: NetCollection,
        bias: torch.Tensor,
        fparam: Parameters,
        aparam: Parameters,
        case_embedding: torch.Tensor,
    ) -> None:
        """Takes one net a type, or one for all; bias float64."""
        super().__init__()
        self.options, self.type_map, self.nets = options, list(type_map), nets
        self.fparam, self.aparam = fparam, aparam
        self.outputs = self.outputs_of(options)
        self.vacuum, self.types_in_vacuum = [False] * len(type_map), 0
        default = options.default_fparam
        self.register_buffer("bias", bias)
        self.register_buffer(
            "default_fparam", None if default is None else torch.tensor(default, dtype=torch.float64)
        )
        self.register_buffer("case_embedding", case_embedding)

    @classmethod
    def net_outputs(cls, options: Any) -> int:
        """W."""
        found: int = options.dim_out
        return found

    @classmethod
    def for_axes(cls, options: Any, axes: int) -> Any:
        return copy.deepcopy(options)

    @property
    def shared(self) -> bool:
        """Whether one net serves all types."""
        return self.nets.ndim == 0

    captures = True

    def net(self, kind: int) -> Net:
        """The net of a type of atom."""
        return self.nets.net(kind)

    @property
    def parameter_sizes(self) -> dict[str, int]:
        return {"fparam": self.fparam.size, "aparam": self.aparam.size}

    def frame_parameters(self, fparam: torch.Tensor | None, systems: int) -> torch.Tensor:
        """(systems, p): the normalised frame parameters, or the default ones."""
        default = self.default_fparam if self.fparam.size else None
        return self.fparam(default if fparam is None else fparam, systems)

    @property
    def extra_size(self) -> int:
        """The number of the nets' inputs besides features."""
        return self.fparam.size + self.aparam.size + self.case_embedding.shape[0]

    def extra_inputs(
        self,
        batch: torch.Tensor,
        systems: int,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> torch.Tensor:
        """(N, extra_size): the nets' inputs for each atom besides features; arguments as of
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
        axes: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The output (N, ...), float64, without the model's own bias; 0 for virtual atoms.

        Args:
            features: (N, D), a descriptor's.
            near: with them as centres.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).
            axes: (N, 3, M), where it `needs_axes`.

        Raises:
            InputError: a parameter is missing, has another shape, or is not one that the model takes.
        """
        values = self.net_values(features, near, fparam, aparam)
        return {self.outputs[0].name: self.answer(values, near, axes)}

    def answer(self, values: torch.Tensor, near: Neighborhood, axes: torch.Tensor | None) -> torch.Tensor:
        """The output from the nets' (N, W), float64."""
        return values

    def net_values(
        self,
        features: torch.Tensor,
        near: Neighborhood,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> torch.Tensor:
        """(N, W), float64: what the nets give, with `bias`; 0 for virtual atoms. Arguments as of `forward`."""
        system = near.system
        extra = self.extra_inputs(system.batch, system.count, fparam, aparam)
        bias = self.bias.view(len(self.bias), -1)
        if self.shared and not any(self.vacuum):
            found = self.net(0)(_beside(features, extra)).double() + bias[near.centers]
            return found.masked_fill(system.types[:, None] < 0, 0.0)
        values = torch.zeros(system.atoms, bias.shape[1], dtype=torch.float64, device=features.device)
        if (
            system.known_atoms_by_type() is None
            and features.is_cuda
            and torch.cuda.is_current_stream_capturing()
        ):
            # The atoms of each type cannot be read.
            for kind in range(len(self.type_map)):
                own = system.types[:, None] == kind
                values = torch.where(own, self.of_kind(kind, features, extra), values)
            return values
        for kind, index in enumerate(system.atoms_of_types(len(self.type_map))):
            values = values.index_copy(0, index, self.of_kind(kind, features[index], extra[index]))
        return values

    def of_kind(self, kind: int, features: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        """(n, W), float64, of atoms of one type with these features (n, D) and `extra_inputs`."""
        net = self.net(kind)
        out: torch.Tensor = net(_beside(features, extra)).double()
        if self.vacuum[kind]:
            nothing = features.clone()
            nothing[:, : features.shape[1] - self.types_in_vacuum] = 0.0
            out = out - net(_beside(nothing, extra)).double()
        return out + self.bias[kind]

    def last_hidden(
        self,
        features: torch.Tensor,
        system: System,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(N, H): what the last layer of each atom's net gets; 0 for virtual atoms. Arguments as of `forward`."""
        extra = self.extra_inputs(system.batch, system.count, fparam, aparam)
        seen: list[torch.Tensor] = []
        kinds = system.atoms_of_types(len(self.type_map))
        for kind, index in enumerate(kinds):
            *_, last = self.nets.net(kind).children()
            with last.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
                self.net(kind)(_beside(features[index], extra[index]))
        found = seen[0].new_zeros(system.atoms, seen[0].shape[1])
        return found.index_copy(0, torch.cat(kinds), torch.cat(seen))

    @classmethod
    def options_of_tree(cls, tree: Tree) -> Any:
        return cls.Options.from_tree(tree)

    @classmethod
    def nets_of_tree(cls, tree: Tree, dtype: torch.dtype) -> NetCollection:
        return NetCollection.from_tree(tree["nets"], dtype)

    @classmethod
    def new_bias(cls, options: Any, ntypes: int) -> torch.Tensor:
        """Zeros of the shape of `bias`."""
        return torch.zeros(ntypes, cls.net_outputs(options), dtype=torch.float64)

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        """Raises UnsupportedModelError for an option that is not implemented."""
        if tree.get("spin") is not None:
            raise UnsupportedModelError("a model with spin is not supported")
        options, variables = cls.options_of_tree(tree), tree["@variables"]
        parameters = [
            Parameters(
                name,
                _optional(variables.get(f"{name}_avg"), size, dtype),
                _optional(variables.get(f"{name}_inv_std"), size, dtype),
            )
            for name, size in options.parameter_sizes.items()
        ]
        bias = cls.new_bias(options, len(type_map))
        require_same(variables["bias_atom_e"].size, bias.numel(), f"{tree['type']}: the size of bias_atom_e")
        return cls(
            options,
            type_map,
            cls.nets_of_tree(tree, dtype),
            tensor(variables["bias_atom_e"], torch.float64).reshape(bias.shape),
            parameters[0],
            parameters[1],
            _optional(variables.get("case_embd"), options.dim_case_embd, dtype),
        )

    def to_tree(self) -> Tree:
        o, nets = self.options, self.nets
        values = {"case_embd": self.case_embedding}
        for part in (self.fparam, self.aparam):
            values |= {f"{part.name}_avg": part.average, f"{part.name}_inv_std": part.inverse_deviation}
        return {
            "@class": "Fitting",
            "@version": self.VERSION,
            "type": o.KIND,
            "ntypes": len(self.type_map),
            "dim_descrpt": nets.nets[0].inputs - self.extra_size,
            **o.to_tree(),
            "mixed_types": self.shared,
            "nets": nets.to_tree(saved_precision(o.precision), o.resnet_dt),
            "type_map": list(self.type_map),
            "layer_name": None,
            "spin": None,
            "@variables": {
                "bias_atom_e": array(self.bias.reshape(len(self.type_map), -1)),
                **{name: array(value) if value.numel() else None for name, value in values.items()},
            },
        }

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        """It has `trainable` for each layer."""
        trainable = tree["trainable"]
        if isinstance(trainable, list):
            return tree
        return {**tree, "trainable": [trainable is not False] * (len(tree["neuron"]) + 1)}

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], width: int | None, place: str) -> None:
        if width is not None:
            require_same(tree["dim_descrpt"], width, f"{place}.dim_descrpt")
        ntypes, outputs = len(type_map), cls.net_outputs(cls.options_of_tree(tree))
        require_same(tree["ntypes"], ntypes, f"{place}.ntypes")
        if tree["type_map"] is not None:
            require_same(tree["type_map"], type_map, f"{place}.type_map")
        check_types(tree["exclude_types"], ntypes, f"{place}.exclude_types")
        require_same(
            tree["@variables"]["bias_atom_e"].size,
            ntypes * outputs,
            f"the size of {place}.@variables.bias_atom_e",
        )
        check_collection(tree["nets"], tree, 0 if tree["mixed_types"] else 1, ntypes, f"{place}.nets")
        in_dim = cls.net_inputs_of_tree(tree)
        for i, net in enumerate(tree["nets"]["networks"]):
            if net is not None:
                require_same(
                    (net["in_dim"], net.get("out_dim")),
                    (in_dim, outputs),
                    f"(in_dim, out_dim) of {place}.nets[{i}]",
                )
        for name, size in cls.options_of_tree(tree).parameter_sizes.items():
            for array_name in (f"{name}_avg", f"{name}_inv_std"):
                array = tree["@variables"][array_name]
                if (array is not None and size) or (array is None and size):
                    require_same(
                        0 if array is None else array.size,
                        size,
                        f"the size of {place}.@variables.{array_name}",
                    )
        default = tree["default_fparam"]
        if default is not None and tree["numb_fparam"]:
            require_same(len(default), tree["numb_fparam"], f"the length of {place}.default_fparam")

    @staticmethod
    def net_inputs_of_tree(tree: Tree) -> int:
        """The number of inputs of the nets of such a node."""
        found: int = tree["dim_descrpt"] + tree["numb_fparam"] + tree["dim_case_embd"]
        return found + (0 if tree["use_aparam_as_mask"] else tree["numb_aparam"])

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
            "@variables": {**variables, "bias_atom_e": variables["bias_atom_e"][list(types)]},
        }

    @classmethod
    def random(
        cls,
        options: Any,
        type_map: Sequence[str],
        width: int,
        mixed_types: bool,
        seed: int,
        dtype: torch.dtype,
        axes: int = 0,
    ) -> Self:
        """A new one for a descriptor of that width and with so many axes; `mixed_types`: with one net for all types."""
        options = cls.for_axes(options, axes)
        nets = NetCollection.random(
            [width + sum(options.parameter_sizes.values()) + options.dim_case_embd, *options.neuron],
            options,
            ndim=0 if mixed_types else 1,
            ntypes=len(type_map),
            seed=[seed if options.seed is None else options.seed, _STREAM],
            dtype=dtype,
            outputs=cls.net_outputs(options),
        )
        return cls(options, type_map, nets, *cls.new_parameters(options, type_map, dtype))

    @classmethod
    def new_parameters(
        cls, options: Any, type_map: Sequence[str], dtype: torch.dtype
    ) -> tuple[torch.Tensor, Parameters, Parameters, torch.Tensor]:
        """Bias, frame and atomic parameters, and case embedding of a new one."""
        fparam, aparam = (
            Parameters(name, torch.zeros(size, dtype=dtype), torch.ones(size, dtype=dtype))
            for name, size in options.parameter_sizes.items()
        )
        case = torch.zeros(options.dim_case_embd, dtype=dtype)
        return cls.new_bias(options, len(type_map)), fparam, aparam, case

    def summary(self) -> dict[str, str]:
        hidden = "-".join(str(layer.outputs) for layer in self.net(0).layers[:-1])
        sizes = self.parameter_sizes
        return {
            "fitting nets": f"{hidden}, {'one for all types' if self.shared else 'one a type'}",
            "frame, atomic": f"{sizes['fparam']} frame and {sizes['aparam']} atomic parameters",
        }


def _beside(features: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    """A net's input. Without other inputs, derivatives need no copies."""
    return torch.cat([features, extra], dim=1) if extra.shape[1] else features


def _optional(values: np.ndarray | None, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The array as (size,), empty where the model has none."""
    return torch.empty(0, dtype=dtype) if values is None or size == 0 else tensor(values, dtype).reshape(size)


@dataclass(kw_only=True)
class AxesFittingOptions(NetFittingOptions):
    embedding_width: int = key(
        0, "how many vectors the descriptor has", low=1, where="file", absent=..., of="training"
    )


class AxesFitting(NetFitting):
    """Base of fittings of vectors and tensors, from the descriptor's vectors."""

    needs_axes = True
    LOSS: ClassVar[dict[str, Any]] = {"type": "tensor", "pref": 1, "pref_atomic": 1}

    @classmethod
    def for_axes(cls, options: Any, axes: int) -> Any:
        return dataclasses.replace(options, embedding_width=axes)
