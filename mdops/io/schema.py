"""The keys that a node of a serialised model may have, and their defaults: `upgrade` goes by them.

A node whose kind is not here (a model or a descriptor that mdops does not read) is left as it is. DeePMD-kit
raises a node's "@version" when it adds a key. So an older node lacks keys that have a default, and a newer
one is understood as long as it has no key that is not listed here; one that has is refused.
"""

from collections.abc import Callable
from typing import Any

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

types: tuple[Check, Any] = (list_of(count), [])
type_pairs: tuple[Check, Any] = (
    list_of(lambda pair: isinstance(pair, list) and len(pair) == 2 and list_of(count)(pair)),
    [],
)
widths = (list_of(lambda width: type(width) is int and width > 0), REQUIRED)
type_map = (optional(list_of(text)), None)
precision = (lambda name: name in PRECISIONS or name in PRECISIONS.values(), "float64")
frozen = (either(boolean, list_of(boolean)), True)
part = (node, REQUIRED)

_DESCRIPTOR: Keys = {
    "rcut": (positive, REQUIRED),
    "rcut_smth": (not_negative, REQUIRED),
    "sel": (either(count, list_of(count)), REQUIRED),
    "neuron": widths,
    "resnet_dt": (boolean, False),
    "set_davg_zero": (boolean, False),
    "activation_function": (text, "tanh"),
    "precision": precision,
    "exclude_types": type_pairs,
    "env_protection": (number, 0.0),
    "embeddings": part,
    "env_mat": (optional(node), None),
    "type_map": type_map,
    "trainable": frozen,
    "ntypes": (count, None),
    "compress": (anything, None),
    "@variables": part,
}

_SPIN: Keys = {"spin": (anything, None)}  # DeePMD-kit takes the key of some descriptors alone
_ATTENTION: Keys = {
    **_DESCRIPTOR,
    **_SPIN,
    "axis_neuron": (count, REQUIRED),
    "tebd_dim": (count, REQUIRED),
    "attn": (count, REQUIRED),
    "attn_layer": (count, REQUIRED),
    "attn_dotr": (boolean, True),
    "attn_mask": (boolean, False),
    "scaling_factor": (number, 1.0),
    "normalize": (boolean, True),
    "temperature": (optional(number), None),
    "trainable_ln": (boolean, True),
    "ln_eps": (optional(positive), 1e-5),
    "type_one_side": (boolean, REQUIRED),
    "concat_output_tebd": (boolean, True),
    "use_econf_tebd": (boolean, False),
    "use_tebd_bias": (boolean, True),  # version 1 always had the bias
    "attention_layers": part,
    "type_embedding": part,
    "lmax": (optional(count), None),  # 1 where it is absent, as in what versions before 3.2 can read
}

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

_MODEL: Keys = {
    "type_map": (list_of(text), REQUIRED),
    "atom_exclude_types": types,
    "pair_exclude_types": type_pairs,
    "rcond": (optional(number), None),
    "preset_out_bias": (anything, None),
    "@variables": part,
}
_COMPOSED: Keys = {
    **_MODEL,
    "models": (list_of(node), REQUIRED),
    "weights": (either(one_of("mean", "sum"), list_of(number)), "mean"),
}

# By "@class" and "type" joined by a space, or by "@class" alone.
NODES: dict[str, Keys] = {
    "Model standard": {**_MODEL, "descriptor": part, "fitting": part},
    "Model linear": _COMPOSED,
    "Model zbl": {
        **_COMPOSED,
        "sw_rmin": (not_negative, REQUIRED),
        "sw_rmax": (positive, REQUIRED),
        "smin_alpha": (positive, 0.1),
    },
    "Model pairtab": {
        **_MODEL,
        "tab": part,
        "rcut": (positive, REQUIRED),
        "sel": (count, REQUIRED),
    },
    "PairTab": {
        "rmin": (not_negative, REQUIRED),
        "rmax": (positive, REQUIRED),
        "hh": (positive, REQUIRED),
        "ntypes": (count, REQUIRED),
        "rcut": (positive, REQUIRED),
        "nspline": (count, REQUIRED),
        "@variables": part,
    },
    "Descriptor se_e2_a": {
        **_DESCRIPTOR,
        **_SPIN,
        "axis_neuron": (count, REQUIRED),
        "type_one_side": (boolean, REQUIRED),
    },
    "Descriptor se_r": {**_DESCRIPTOR, **_SPIN, "type_one_side": (boolean, REQUIRED)},
    "Descriptor se_e3": _DESCRIPTOR,
    "Descriptor se_e3_tebd": {
        **_DESCRIPTOR,
        "tebd_dim": (count, REQUIRED),
        "tebd_input_mode": (one_of("concat", "strip"), REQUIRED),
        "concat_output_tebd": (boolean, True),
        "use_econf_tebd": (boolean, False),
        "use_tebd_bias": (optional(boolean), None),  # DeePMD-kit leaves it to the type embedding's own
        "type_embedding": part,
        "embeddings_strip": (optional(node), None),
        "smooth": (boolean, True),
    },
    "Descriptor dpa1": {
        **_ATTENTION,
        "tebd_input_mode": (one_of("concat", "strip"), REQUIRED),
        "smooth_type_embedding": (boolean, True),
        "embeddings_strip": (optional(node), None),
    },
    "Descriptor se_atten_v2": {**_ATTENTION, "embeddings_strip": part},
    "Descriptor hybrid": {"list": (list_of(node), REQUIRED)},
    "Fitting ener": {
        "var_name": (one_of("energy"), "energy"),
        "ntypes": (count, REQUIRED),
        "dim_descrpt": (count, REQUIRED),
        "dim_out": (count, 1),
        "neuron": (list_of(count), REQUIRED),
        "resnet_dt": (boolean, REQUIRED),
        "numb_fparam": (count, 0),
        "numb_aparam": (count, 0),
        "dim_case_embd": (count, 0),
        "default_fparam": (optional(list_of(number)), None),
        "activation_function": (text, "tanh"),
        "precision": precision,
        "mixed_types": (boolean, REQUIRED),
        "nets": part,
        "rcond": (optional(number), None),
        "exclude_types": types,
        "type_map": type_map,
        "tot_ener_zero": (boolean, False),
        "trainable": (optional(either(boolean, list_of(boolean))), None),
        "layer_name": (anything, None),
        "use_aparam_as_mask": (boolean, False),
        "spin": (anything, None),
        "atom_ener": (optional(list_of(optional(number))), None),
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
    # These four carry no "@class" in DeePMD-kit; the key that holds them names them.
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
    "env_mat": {
        "rcut": (positive, REQUIRED),
        "rcut_smth": (not_negative, REQUIRED),
        "protection": (number, 0.0),
        "use_exp_switch": (boolean, False),
    },
}

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
}
