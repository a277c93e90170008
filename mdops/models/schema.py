"""The keys that a node of a serialised model may have, and their defaults: `mdops.io.upgrade` goes by them.

A node of a kind has the keys of its options (`keys_of`), and those that the kind adds (`ModelComponent.NODE`). Here
are the nodes that are not kinds and that several kinds have: nets, layers.

A node whose kind is not known (a model or a descriptor that mdops does not read) is left as it is. DeePMD-kit
raises a node's "@version" when it adds a key. So an older node lacks keys that have a default, and a newer
one is understood as long as it has no key that is not listed; one that has is refused.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from mdops.nn.net import TabulatedNet
from mdops.options import Options

Check = Callable[[Any], bool]


def boolean(value: Any) -> bool:
    return isinstance(value, bool)


def text(value: Any) -> bool:
    return isinstance(value, str)


def integer(value: Any) -> bool:
    return type(value) is int


def count(value: Any) -> bool:
    return type(value) is int and value >= 0


def number(value: Any) -> bool:
    return type(value) in (int, float) and value == value and abs(value) != float("inf")


def not_negative(value: Any) -> bool:
    return number(value) and value >= 0


def positive(value: Any) -> bool:
    return number(value) and value > 0


def node(value: Any) -> bool:
    return isinstance(value, dict)


def anything(_: Any) -> bool:
    return True


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(check(v) for v in value)


def either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def one_of(*words: str) -> Check:
    return lambda value: text(value) and value in words


REQUIRED: Any = object()
NETWORK_TYPES = ("network", "embedding_network", "fitting_network", "sezm_fitting_network")
# DeePMD-kit's other names of precisions; nets may also be bfloat16.
PRECISIONS = {
    "default": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
}
Keys = dict[str, tuple[Check, Any]]


class Node(NamedTuple):
    """The keys of a node.

    Attributes:
        keys: each with the check of its value, and its default or REQUIRED.
        arrays: those of "@variables", and whether they are required; None: it has none, or any.
    """

    keys: Keys
    arrays: dict[str, bool] | None = None


type_map = (optional(list_of(text)), None)
precision = (lambda name: name in PRECISIONS or name in PRECISIONS.values(), "float64")
frozen = (either(boolean, list_of(boolean)), True)
part = (node, REQUIRED)

_NET: Keys = {
    "in_dim": (count, REQUIRED),
    "neuron": (list_of(count), REQUIRED),
    "activation_function": (text, "tanh"),
    "resnet_dt": (boolean, False),
    "precision": precision,
    "layers": (list_of(node), REQUIRED),
}

# The keys of nodes of environment-matrix descriptors, and of models, besides their options.
DESCRIPTOR: Keys = {
    "embeddings": part,
    "env_mat": (optional(node), None),
    "type_map": type_map,
    "ntypes": (count, None),
    "compress": (anything, None),
    "@variables": part,
}
SPIN: Keys = {"spin": (anything, None)}  # DeePMD-kit accepts it for some descriptors alone
STATISTICS = {"davg": True, "dstd": True}
MODEL: Keys = {
    "type_map": (list_of(text), REQUIRED),
    "rcond": (optional(number), None),
    "@variables": part,
}
MODEL_ARRAYS = {"out_bias": True, "out_std": True}

# By "@class".
NODES: dict[str, Node] = {
    "NetworkCollection": Node(
        {
            "ndim": (count, REQUIRED),
            "ntypes": (count, REQUIRED),
            "network_type": (lambda kind: kind in NETWORK_TYPES, REQUIRED),
            "networks": (list_of(optional(node)), REQUIRED),
        },
    ),
    "EmbeddingNetwork": Node({**_NET, "bias": (boolean, True), "trainable": frozen}),
    "FittingNetwork": Node(
        {
            **_NET,
            "out_dim": (count, REQUIRED),
            "bias_out": (boolean, True),
            "trainable": frozen,
        },
    ),
    TabulatedNet.CLASS: Node(
        {
            "in_dim": (count, REQUIRED),
            "neuron": (list_of(count), REQUIRED),
            "precision": precision,
            "@variables": part,
        },
        {"breaks": True, "coefficients": True},
    ),
    "Layer": Node(
        {
            "bias": (boolean, True),
            "use_timestep": (boolean, False),
            "activation_function": (optional(text), None),
            "resnet": (boolean, REQUIRED),
            "precision": precision,
            "trainable": (boolean, True),
            "@variables": part,
        },
        {"w": True, "b": False, "idt": False},
    ),
    "LayerNorm": Node(
        {
            "eps": (positive, REQUIRED),
            "trainable": (boolean, True),
            "precision": precision,
            "@variables": part,
        },
        {"w": True, "b": True},
    ),
    # It carries no "@class"; the key that holds it names it.
    "env_mat": Node(
        {
            "rcut": (positive, REQUIRED),
            "rcut_smth": (not_negative, REQUIRED),
            "protection": (number, 0.0),
            "use_exp_switch": (boolean, False),
        },
    ),
}


def keys_of(options: type[Options]) -> Keys:
    """The keys of a kind's options in a file."""
    hints, keys = typing.get_type_hints(options), Keys()
    for field in options.keys("file"):
        metadata, absent = field.metadata, field.metadata["absent"]
        check = _check_of(metadata["saved"] or hints[field.name], metadata)
        if field.name == "precision":  # files may have others
            check = precision[0]
        missing = absent is ... or absent is dataclasses.MISSING
        keys[field.name] = (optional(check) if absent is None else check, REQUIRED if missing else absent)
    return keys


def _check_of(hint: Any, metadata: Mapping[str, Any]) -> Check:
    """The check of a value by a type hint and its field's range and choices."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return either(*(_check_of(one, metadata) for one in inner))
    if typing.get_origin(hint) is Literal:
        return one_of(*inner)
    if typing.get_origin(hint) is list:
        of_pairs = metadata["of"] == "pairs" and inner[0] is int
        items = list_of(count if of_pairs else _check_of(inner[0], metadata))
        return (lambda value: items(value) and len(value) == 2) if of_pairs else items
    if hint is str and metadata["choices"]:
        return one_of(*metadata["choices"])
    if hint in (int, float):
        return _in_range(integer if hint is int else number, metadata)
    plain: dict[Any, Check] = {
        bool: boolean,
        str: text,
        dict: node,
        types.NoneType: lambda value: value is None,
    }
    return plain[hint]


def _in_range(check: Check, metadata: Mapping[str, Any]) -> Check:
    low, above, below = (metadata[name] for name in ("low", "above", "below"))
    return lambda value: (
        check(value)
        and (low is None or value >= low)
        and (above is None or value > above)
        and (below is None or value < below)
    )


# What a node of known kind may hold without being of known kind: models, descriptors and fittings that mdops does not
# read (their users refuse them by name), values that only training reads, and options that a part repeats
# (`ModelComponent.check_tree` reads them).
OPEN_CLASSES = ("Model", "Descriptor", "Fitting")
OPEN_KEYS = ("preset_out_bias", "spin", "layer_name", "compress", "config")
