"""Type embeddings: a few trained numbers for each type of atom, in descriptors with the same nets for all types, and
their base."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from ase.data import chemical_symbols
from torch import nn

from mdops.errors import ConfigError, UnsupportedModelError
from mdops.models import schema
from mdops.models.environment import EnvironmentOptions, rounded
from mdops.models.keys import sel_key
from mdops.models.shapes import check_net, require_same
from mdops.nn.net import Net, NetCollection, Tree
from mdops.options import PRECISIONS, key, saved_precision

_ELEMENTS = chemical_symbols[1:119]
# Shells in the order of the vectors, with their numbers of spin orbitals.
_SHELLS = [
    f"{n}{kind}"
    for n, kinds in enumerate(("s", "sp", "spd", "spdf", "spdf", "spd", "sp"), 1)
    for kind in kinds
]
_PLACES = {shell: 2 * (2 * "spdf".index(shell[1]) + 1) for shell in _SHELLS}
# Ground states that differ from the order of n + l, then n: electrons in another shell.
_MOVED = {
    **dict.fromkeys(("Cr", "Cu"), "4s 3d"),
    **dict.fromkeys(("Nb", "Mo", "Ru", "Rh", "Ag"), "5s 4d"),
    "Pd": "5s 4d 5s 4d",
    **dict.fromkeys(("La", "Ce", "Gd"), "4f 5d"),
    **dict.fromkeys(("Pt", "Au"), "6s 5d"),
    **dict.fromkeys(("Ac", "Pa", "U", "Np", "Cm"), "5f 6d"),
    "Th": "5f 6d 5f 6d",
    **dict.fromkeys(("Ds", "Rg"), "7s 6d"),
}


def check_elements(place: str, type_map: Sequence[str]) -> None:
    """Raises ConfigError, naming the place, where `use_econf_tebd` has types that are not elements."""
    try:
        electron_configurations(type_map)
    except ConfigError as error:
        raise ConfigError(f"{place}.use_econf_tebd: {error}") from error


def electron_configurations(type_map: Sequence[str]) -> np.ndarray:
    """(ntypes, 118): the ground state of each element, +1 for a spin orbital that has an electron and -1 for an
    empty one, over sqrt(118); shells by n, then l, filled by Hund's rule.

    Raises ConfigError for a type that is not an element.
    """
    unknown = [name for name in type_map if name not in _ELEMENTS]
    if unknown:
        raise ConfigError(
            f"use_econf_tebd needs the electron configurations of elements, and {', '.join(unknown)} is not an element"
        )
    rows = np.array([_configuration(name) for name in type_map], dtype=np.float64)
    return rows / np.sqrt(rows.shape[1])


def _configuration(element: str) -> list[int]:
    left, electrons = _ELEMENTS.index(element) + 1, dict.fromkeys(_SHELLS, 0)
    for shell in sorted(_SHELLS, key=lambda name: (int(name[0]) + "spdf".index(name[1]), name)):
        electrons[shell] = min(left, _PLACES[shell])
        left -= electrons[shell]
    for origin, target in re.findall(r"(\w+) (\w+)", _MOVED.get(element, "")):
        electrons[origin] -= 1
        electrons[target] += 1
    result = []
    for shell in _SHELLS:
        orbitals = _PLACES[shell] // 2
        pairs = max(0, electrons[shell] - orbitals)
        single = electrons[shell] - 2 * pairs
        result += [1, 1] * pairs + [-1, 1] * single + [-1, -1] * (orbitals - pairs - single)
    return result


@dataclass(kw_only=True)
class MixedTypesOptions(EnvironmentOptions):
    """Those of descriptors with type embeddings as nets' inputs and places for neighbours of all types."""

    sel: list[int] | int | str = sel_key(  # type: ignore[assignment]
        "all types (several numbers are summed)", of="sum"
    )
    tebd_dim: int = key(8, "width of the type embedding", low=1, absent=...)
    use_econf_tebd: bool = key(False, "distinguish types by their electron configurations")
    use_tebd_bias: bool = key(False, "a bias in the type embedding", absent=True)  # as in version 1
    concat_output_tebd: bool = key(True, "append the centre's type embedding to the descriptor")

    @property
    def strips_types(self) -> bool:
        """Whether the types have a net of their own."""
        raise NotImplementedError

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if self.use_econf_tebd:
            check_elements(place, type_map)

    def check_sel(self, place: str, type_map: Sequence[str]) -> None:
        """Any number of rows is valid."""

    def automatic_sel(self, of_types: Sequence[int], together: int, ratio: float) -> int:
        return rounded(together * ratio)


class TypeEmbedding(nn.Module):
    """A net on each type's own vector, or on its element's electron configuration.

    Attributes:
        net: to (tebd_dim,); one linear layer in models that were made for PyTorch.
        inputs: (ntypes, n), its input for each type.
    """

    NODE: ClassVar[schema.Node] = schema.Node(
        {
            "ntypes": (schema.count, schema.REQUIRED),
            "neuron": (schema.list_of(schema.count), schema.REQUIRED),
            "resnet_dt": (schema.boolean, False),
            "precision": schema.precision,
            "activation_function": (schema.optional(schema.text), "tanh"),
            "trainable": (schema.boolean, True),
            "padding": (schema.boolean, False),
            "use_econf_tebd": (schema.boolean, False),
            "use_tebd_bias": (schema.boolean, True),  # version 1 always had the bias
            "type_map": schema.type_map,
            "embedding": schema.part,
        }
    )

    inputs: torch.Tensor

    def __init__(self, net: Net, type_map: Sequence[str], use_econf_tebd: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.type_map, self.use_econf_tebd = net, list(type_map), use_econf_tebd
        # Not in the state: it follows from the options.
        rows = self.inputs_of(type_map, use_econf_tebd)
        self.register_buffer("inputs", torch.from_numpy(rows).to(dtype), persistent=False)

    @staticmethod
    def inputs_of(type_map: Sequence[str], use_econf_tebd: bool) -> np.ndarray:
        """(ntypes, n), the net's input for each type."""
        return electron_configurations(type_map) if use_econf_tebd else np.eye(len(type_map))

    def forward(self) -> torch.Tensor:
        """(ntypes, tebd_dim)."""
        return self.net(self.inputs)

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "TypeEmbedding":
        """Raises UnsupportedModelError where the net does not fit the types."""
        net = Net.from_tree(tree["embedding"], dtype)
        found = cls(net, type_map, bool(tree["use_econf_tebd"]), dtype)
        if net.inputs != found.inputs.shape[1]:
            raise UnsupportedModelError(
                f"a type embedding of {net.inputs} numbers a type is not supported, {found.inputs.shape[1]} is"
            )
        return found

    def to_tree(self, precision: str) -> Tree:
        """The node, with arrays of that dtype."""
        layers = self.net.layers
        resnet_dt = any(layer.timestep is not None for layer in layers)
        embedding = self.net.to_tree("EmbeddingNetwork", precision, resnet_dt)
        return {
            "@class": "TypeEmbedNet",
            "@version": 2,
            "ntypes": len(self.type_map),
            "neuron": embedding["neuron"],
            "resnet_dt": resnet_dt,
            "precision": precision,
            "activation_function": embedding["activation_function"],
            "trainable": True,
            "padding": True,
            "use_econf_tebd": self.use_econf_tebd,
            "use_tebd_bias": layers[0].bias is not None,
            "type_map": list(self.type_map),
            "embedding": embedding,
        }

    @staticmethod
    def check_tree(tree: Tree, width: int, ntypes: int, place: str) -> None:
        """Raises ModelFileError for a node whose parts do not fit each other, of a descriptor with that `tebd_dim`."""
        require_same(tree["ntypes"], ntypes, f"{place}.ntypes")
        require_same(tree["neuron"][-1:], [width], f"{place}.neuron")
        net = tree["embedding"]
        for name in ("activation_function", "resnet_dt"):
            require_same(net[name], tree[name], f"{place}.embedding.{name}")
        check_net(net, tree["neuron"], f"{place}.embedding")

    @staticmethod
    def tree_of_types(tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        """See `ModelComponent.tree_of_types`."""
        net = tree["embedding"] if tree["use_econf_tebd"] else _net_of_types(tree["embedding"], types)
        return {**tree, "type_map": list(type_map), "ntypes": len(types), "embedding": net}

    @classmethod
    def random(
        cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype
    ) -> "TypeEmbedding":
        """A new one, of options with tebd_dim, use_econf_tebd, use_tebd_bias and precision."""
        inputs = sum(_PLACES.values()) if options.use_econf_tebd else len(type_map)
        net = Net.random(
            [inputs, options.tebd_dim],
            "Linear",
            resnet_dt=False,
            random=np.random.default_rng(seed),
            precision=saved_precision(options.precision),
            dtype=dtype,
            bias=options.use_tebd_bias,
        )
        return cls(net, type_map, options.use_econf_tebd, dtype)


def _net_of_types(net: Tree, types: Sequence[int]) -> Tree:
    """The type embedding's net with one-hot input, for these types."""
    first = dict(net["layers"][0])
    weight = np.array(first["@variables"]["w"])
    known, width = weight.shape

    def marks(n: int) -> np.ndarray | float:
        """The residual term, for each type, of a layer with n inputs."""
        adds = first["resnet"] and width in (n, 2 * n)
        return np.tile(np.eye(n), width // n) if adds else 0.0

    before, after = marks(known), marks(len(types))
    if not np.isscalar(before) or not np.isscalar(after):
        if str(first["activation_function"]).lower() not in ("linear", "none"):
            raise UnsupportedModelError(
                "a type embedding that adds its input and is not linear cannot be one of fewer types"
            )
        weight = weight + before
    first["@variables"] = {**first["@variables"], "w": weight[list(types)] - after}
    return {**net, "in_dim": len(types), "layers": [first, *net["layers"][1:]]}


def share_types(parts: Sequence[Any]) -> None:
    """Makes descriptors share one type embedding, also in training, if theirs are the same."""
    own = [part.type_embedding for part in parts if hasattr(part, "type_embedding")]
    states = [module.state_dict() for module in own]
    if all(
        state.keys() == states[0].keys() and all(torch.equal(state[k], states[0][k]) for k in state)
        for state in states[1:]
    ):
        for part in parts:
            if hasattr(part, "type_embedding"):
                part.type_embedding = own[0]


def section_with_types(section: Any, width: int, place: str, kinds: Mapping[str, type]) -> Any:
    """The section of a descriptor in a model with an embedding of types of that width; `kinds` are those there are.

    Raises ConfigError for a descriptor that takes none."""
    if not isinstance(section, Mapping):
        return section  # which is refused as what it is
    kind = kinds.get(section.get("type", "se_e2_a"))
    if kind is None or not hasattr(kind, "with_types"):
        name = section.get("type")
        raise ConfigError(
            f"{place}.type: {name!r} takes no embedding of types (the model's section type_embedding)"
        )
    return kind.with_types(section, width, place, kinds)


@dataclass(kw_only=True)
class TypeEmbeddingOptions:
    """Of a net from types to a few numbers each."""

    neuron: list[int] = key([8], "widths of the layers", low=1)
    activation_function: str = key("tanh", "activation function of each layer")
    resnet_dt: bool = key(False, "a trained factor in layers that add their input")
    precision: str = key("default", "precision of the weights", choices=PRECISIONS)
    use_econf_tebd: bool = key(False, "distinguish types by their electron configurations")
    use_tebd_bias: bool = key(False, "a bias in the layers")
    trainable: bool = key(True, "whether it is trained", choices=(True,))
    seed: int | None = key(None, "seed of its initial weights")

    @classmethod
    def width_of(cls, section: Any) -> int:
        """That of a section of an input."""
        neuron = section.get("neuron") if isinstance(section, Mapping) else None
        found: int = neuron[-1] if isinstance(neuron, list) and neuron else cls().neuron[-1]
        return found

    def embedding(self, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> TypeEmbedding:
        """A new one."""
        net = Net.random(
            [TypeEmbedding.inputs_of(type_map, self.use_econf_tebd).shape[1], *self.neuron],
            self.activation_function,
            resnet_dt=self.resnet_dt,
            random=np.random.default_rng([seed[0] if self.seed is None else self.seed, *seed[1:]]),
            precision=saved_precision(self.precision),
            dtype=dtype,
            bias=self.use_tebd_bias,
        )
        return TypeEmbedding(net, type_map, self.use_econf_tebd, dtype)


Nets = tuple[NetCollection, NetCollection | None, TypeEmbedding]


class TypedNets:
    """The common parts of descriptors with type embeddings."""

    options: Any
    embeddings: NetCollection
    type_embedding: TypeEmbedding

    @property
    def channels(self) -> int:
        """M, the width of the embedding."""
        return self.embeddings.net().outputs

    @property
    def activations(self) -> list[str]:
        """In the net of distances or angles."""
        return self.embeddings.net().activations

    def constants(self) -> torch.Tensor | None:
        """The type embeddings, if they are part of the descriptor."""
        return self.type_embedding() if self.options.concat_output_tebd else None


def nets_of_tree(tree: Tree, options: MixedTypesOptions, type_map: Sequence[str], dtype: torch.dtype) -> Nets:
    """The net of a descriptor, that of its types if these are stripped, and the type embedding."""
    strip = tree["embeddings_strip"] if options.strips_types else None
    return (
        NetCollection.from_tree(tree["embeddings"], dtype),
        None if strip is None else NetCollection.from_tree(strip, dtype),
        TypeEmbedding.from_tree(tree["type_embedding"], type_map, dtype),
    )


def check_type_nets(tree: Tree, options: Any, types: int, place: str) -> None:
    """Raises ModelFileError for nets whose inputs do not match the options: a number with embeddings of so many
    types, or these in their own nets."""
    strips, widths = options.strips_types, types * options.tebd_dim
    require_same("embeddings_strip" in tree, strips, f"whether {place} has embeddings_strip")
    for name, inputs in (("embeddings", 1 if strips else 1 + widths), ("embeddings_strip", widths)):
        for i, net in enumerate(tree.get(name, {}).get("networks", [])):
            if net is not None and "in_dim" in net:
                require_same(net["in_dim"], inputs, f"in_dim of {place}.{name}.networks[{i}]")


def random_nets(
    options: Any, types: int, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype
) -> Nets:
    """New nets for a number and the embeddings of so many types."""
    widths, ntypes = types * options.tebd_dim, len(type_map)

    def net(inputs: int, stream: int) -> NetCollection:
        layers = [inputs, *options.neuron]
        return NetCollection.random(layers, options, ndim=0, ntypes=ntypes, seed=[*seed, stream], dtype=dtype)

    strips = options.strips_types
    return (
        net(1 if strips else 1 + widths, 0),
        net(widths, 1) if strips else None,
        TypeEmbedding.random(options, type_map, [*seed, 2], dtype),
    )
