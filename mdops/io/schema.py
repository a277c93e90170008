"""The keys that a node of a serialised model may have, and their defaults: `upgrade` goes by them.

Those of models, descriptors and fittings are the options of their kinds (mdops.models), where they stand once; here is
what their nodes hold beside options, and the nodes that are no kinds: nets, layers, tables.

A node whose kind is not here (a model or a descriptor that mdops does not read) is left as it is. DeePMD-kit
raises a node's "@version" when it adds a key. So an older node lacks keys that have a default, and a newer
one is understood as long as it has no key that is not listed here; one that has is refused.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

from mdops.models import registry
from mdops.nn.quantized import SCHEMES
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


def scheme(value: Any) -> bool:
    """Whether it is a scheme of low-bit numbers."""
    return text(value) and value in SCHEMES


REQUIRED: Any = object()
NETWORK_TYPES = ("network", "embedding_network", "fitting_network")
# Names of a precision that DeePMD-kit takes as another's; nets may also be bfloat16.
PRECISIONS = {
    "default": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
}
Keys = dict[str, tuple[Check, Any]]

type_map = (optional(list_of(text)), None)
precision = (lambda name: name in PRECISIONS or name in PRECISIONS.values(), "float64")
frozen = (either(boolean, list_of(boolean)), True)
part = (node, REQUIRED)

_ATTENTION_LAYER: Keys = {
    "nnei": (count, REQUIRED),
    "embed_dim": (count, REQUIRED),
    "hidden_dim": (count, REQUIRED),
    "dotr": (boolean, False),
    "do_mask": (boolean, False),
    "scaling_factor": (number, 1.0),
    "normalize": (boolean, True),
    "temperature": (optional(number), None),
    "precision": precision,
    "trainable_ln": (boolean, True),
    "ln_eps": (optional(positive), 1e-5),
}

_NET: Keys = {
    "in_dim": (count, REQUIRED),
    "neuron": (list_of(count), REQUIRED),
    "activation_function": (text, "tanh"),
    "resnet_dt": (boolean, False),
    "precision": precision,
    "layers": (list_of(node), REQUIRED),
}

_SPIN: Keys = {"spin": (anything, None)}  # DeePMD-kit takes the key of some descriptors alone
_DESCRIPTOR: Keys = {
    "embeddings": part,
    "env_mat": (optional(node), None),
    "type_map": type_map,
    "ntypes": (count, None),
    "compress": (anything, None),
    "@variables": part,
}
_ATTENTION: Keys = {
    **_DESCRIPTOR,
    **_SPIN,
    "attn_mask": (boolean, False),
    "attention_layers": part,
    "type_embedding": part,
}
_MODEL: Keys = {
    "type_map": (list_of(text), REQUIRED),
    "rcond": (optional(number), None),
    "@variables": part,
}
_COMPOSED: Keys = {**_MODEL, "models": (list_of(node), REQUIRED)}

# By "@class" and "type": what the node of a kind has beside its options.
_KINDS: dict[str, Keys] = {
    "Model standard": {**_MODEL, "descriptor": part, "fitting": part},
    "Model linear": _COMPOSED,
    "Model zbl": {
        **_COMPOSED,
        "weights": (either(one_of("mean", "sum"), list_of(number)), "mean"),
    },  # of no use
    "Model pairtab": {**_MODEL, "tab": part},
    "Descriptor se_e2_a": {**_DESCRIPTOR, **_SPIN},
    "Descriptor se_r": {**_DESCRIPTOR, **_SPIN, "type_one_side": (boolean, REQUIRED)},
    "Descriptor se_e3": _DESCRIPTOR,
    "Descriptor se_e3_tebd": {
        **_DESCRIPTOR,
        "type_embedding": part,
        "embeddings_strip": (optional(node), None),
    },
    "Descriptor dpa1": {**_ATTENTION, "embeddings_strip": (optional(node), None)},
    "Descriptor se_atten_v2": {**_ATTENTION, "embeddings_strip": part},
    "Descriptor hybrid": {"list": (list_of(node), REQUIRED)},
    "Fitting ener": {
        "ntypes": (count, REQUIRED),
        "dim_descrpt": (count, REQUIRED),
        "mixed_types": (boolean, REQUIRED),
        "nets": part,
        "type_map": type_map,
        "layer_name": (anything, None),
        "spin": (anything, None),
        "quantized": (optional(node), None),  # mdops' own (docs/quantize.md)
        "@variables": part,
    },
}

# By "@class" alone.
_NODES: dict[str, Keys] = {
    "PairTab": {
        "rmin": (not_negative, REQUIRED),
        "rmax": (positive, REQUIRED),
        "hh": (positive, REQUIRED),
        "ntypes": (count, REQUIRED),
        "rcut": (positive, REQUIRED),
        "nspline": (count, REQUIRED),
        "@variables": part,
    },
    "NetworkCollection": {
        "ndim": (count, REQUIRED),
        "ntypes": (count, REQUIRED),
        "network_type": (lambda kind: kind in NETWORK_TYPES, REQUIRED),
        "networks": (list_of(optional(node)), REQUIRED),
    },
    "EmbeddingNetwork": {**_NET, "bias": (boolean, True), "trainable": frozen},
    "FittingNetwork": {
        **_NET,
        "out_dim": (count, REQUIRED),
        "bias_out": (boolean, True),
        "trainable": frozen,
    },
    "Layer": {
        "bias": (boolean, True),
        "use_timestep": (boolean, False),
        "activation_function": (optional(text), None),
        "resnet": (boolean, REQUIRED),
        "precision": precision,
        "trainable": (boolean, True),
        "@variables": part,
    },
    "LayerNorm": {
        "eps": (positive, REQUIRED),
        "trainable": (boolean, True),
        "precision": precision,
        "@variables": part,
    },
    "NeighborGatedAttention": {
        **_ATTENTION_LAYER,
        "layer_num": (count, REQUIRED),
        "attention_layers": (list_of(node), REQUIRED),
    },
    "TypeEmbedNet": {
        "ntypes": (count, REQUIRED),
        "neuron": (list_of(count), REQUIRED),
        "resnet_dt": (boolean, False),
        "precision": precision,
        "activation_function": (optional(text), "tanh"),
        "trainable": (boolean, True),
        "padding": (boolean, False),
        "use_econf_tebd": (boolean, False),
        "use_tebd_bias": (boolean, True),  # version 1 always had the bias
        "type_map": type_map,
        "embedding": part,
    },
    # These five carry no "@class"; the key that holds them names them.
    "attention_layers[]": {
        **_ATTENTION_LAYER,
        "attention_layer": part,
        "attn_layer_norm": part,
    },
    "attention_layer": {
        **{k: v for k, v in _ATTENTION_LAYER.items() if k not in ("trainable_ln", "ln_eps")},
        "num_heads": (count, 1),
        "bias": (boolean, True),
        "smooth": (boolean, True),
        "in_proj": part,
        "out_proj": part,
    },
    "quantized": {
        "scheme": (scheme, REQUIRED),
        "@variables": part,
    },
    "env_mat": {
        "rcut": (positive, REQUIRED),
        "rcut_smth": (not_negative, REQUIRED),
        "protection": (number, 0.0),
        "use_exp_switch": (boolean, False),
    },
}


@lru_cache(maxsize=1)
def nodes() -> Mapping[str, Keys]:
    """The keys of every known node, by "@class" and "type" joined by a space, or by "@class" alone."""
    found = dict(_NODES)
    for name, others in _KINDS.items():
        sort, kind = name.split()
        found[name] = {**_keys_of(registry.find(sort.lower(), kind).Options), **others}
    return found


def _keys_of(options: type[Options]) -> Keys:
    """The keys of a kind's options in a file."""
    hints, keys = typing.get_type_hints(options), Keys()
    for field in options.keys("file"):
        metadata, absent = field.metadata, field.metadata["absent"]
        check = _check_of(metadata["saved"] or hints[field.name], metadata)
        if field.name == "precision":  # files may have more of them
            check = precision[0]
        missing = absent is ... or absent is dataclasses.MISSING
        keys[field.name] = (optional(check) if absent is None else check, REQUIRED if missing else absent)
    return keys


def _check_of(hint: Any, metadata: Mapping[str, Any]) -> Check:
    """What a type hint, with the range and the choices of its field, says of a value."""
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


# What may stand below a node of known kind without being of known kind: models, descriptors and fittings that mdops
# does not read (their users refuse them by name), and values that only training looks at.
OPEN_CLASSES = ("Model", "Descriptor", "Fitting")
OPEN_KEYS = ("preset_out_bias", "spin", "layer_name", "compress")

MODELS = ("standard", "linear", "zbl", "pairtab")

# The arrays of each kind, with whether they must be there.
VARIABLES: dict[str, dict[str, bool]] = {
    **{f"Model {kind}": {"out_bias": True, "out_std": True} for kind in MODELS},
    "PairTab": {"vdata": True, "tab_info": True, "tab_data": True},
    **{
        f"Descriptor {kind}": {"davg": True, "dstd": True}
        for kind in ("se_e2_a", "se_r", "se_e3", "se_e3_tebd")
    },
    **{
        f"Descriptor {kind}": {"davg": True, "dstd": True, "degree_gain_raw": False}
        for kind in ("dpa1", "se_atten_v2")
    },
    "Fitting ener": {
        "bias_atom_e": True,
        "case_embd": False,
        "fparam_avg": False,
        "fparam_inv_std": False,
        "aparam_avg": False,
        "aparam_inv_std": False,
    },
    "Layer": {"w": True, "b": False, "idt": False},
    "LayerNorm": {"w": True, "b": True},
    "quantized": {"shifts": True},
}
