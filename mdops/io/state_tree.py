"""From a PyTorch state dict and the model's definition to the tree that DeePMD-kit would serialise it to.

The definition (the `model` section of the training input) says what the parts are and which options they
have; an option that is absent has the default of DeePMD-kit's PyTorch code. The weights' own shapes say the
rest.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.pickle_data import Tensor
from mdops.io.tree import mapping

Tree = dict[str, Any]

_PRECISIONS = {"default": "float64", "double": "float64", "single": "float32", "half": "float16"}


class State:
    """The tensors below one module, by the rest of their names."""

    def __init__(
        self, tensors: Mapping[str, Tensor], load: Callable[[Tensor], np.ndarray], name: str = ""
    ) -> None:
        self.tensors = tensors
        self.load = load
        self.name = name

    def below(self, name: str) -> "State":
        """The tensors of a module of this one."""
        start = name + "."
        found = {key[len(start) :]: value for key, value in self.tensors.items() if key.startswith(start)}
        return State(found, self.load, f"{self.name}{start}")

    def names(self, ending: str) -> list[str]:
        return [key for key in self.tensors if key.endswith(ending)]

    def array(self, name: str) -> np.ndarray | None:
        tensor = self.tensors.get(name)
        return None if tensor is None else self.load(tensor)

    def required(self, name: str) -> np.ndarray:
        array = self.array(name)
        if array is None:
            raise ModelFileError(f"the weights {self.name}{name} are missing")
        return array

    def modules(self) -> list[str]:
        """The numbered modules of a list of modules, in order."""
        numbers = {key.split(".")[0] for key in self.tensors}
        return sorted((n for n in numbers if n.isdecimal()), key=int)


def model_tree(params: Tree, state: State) -> Tree:
    """The serialised tree of a standard model with an energy fitting.

    `state` names its tensors as the state dict of the model does, without the trainer's "model.Default.".
    Raises UnsupportedModelError for other models, ModelFileError where definition and weights do not fit.
    """
    kind = "spin" if "spin" in params else "zbl" if "use_srtab" in params else params.get("type", "standard")
    if kind != "standard" or str(params.get("bridging_method") or "none").lower() != "none":
        raise UnsupportedModelError(
            f"a {kind} model cannot be read from a PyTorch file; "
            "standard models can. `dp convert-backend` to a .dp file shows what is in it"
        )
    type_map = params.get("type_map")
    if not isinstance(type_map, list) or not all(isinstance(t, str) for t in type_map):
        raise ModelFileError("the model's definition has no type_map")
    state = state.below("atomic_model")
    descriptor, mixed = _descriptor(
        mapping(params.get("descriptor"), "descriptor"), state.below("descriptor"), type_map
    )
    fitting = _fitting(
        mapping(params.get("fitting_net", {}), "fitting_net"), state.below("fitting_net"), type_map, mixed
    )
    fitting["exclude_types"] = params.get("atom_exclude_types") or []
    return {
        "@class": "Model",
        "@version": 2,
        "type": "standard",
        "type_map": type_map,
        "atom_exclude_types": params.get("atom_exclude_types") or [],
        "pair_exclude_types": params.get("pair_exclude_types") or [],
        "rcond": None,
        "preset_out_bias": params.get("preset_out_bias"),
        "@variables": {"out_bias": state.required("out_bias"), "out_std": state.required("out_std")},
        "descriptor": descriptor,
        "fitting": fitting,
    }


# Descriptors


def _descriptor(params: Tree, state: State, type_map: list[str]) -> tuple[Tree, bool]:
    """A descriptor's tree, and whether one fitting net serves all types."""
    kind = params.get("type", "se_e2_a")
    if kind == "hybrid":
        parts = [
            _descriptor(mapping(part, "a descriptor"), state.below(f"descrpt_list.{i}"), type_map)
            for i, part in enumerate(params.get("list", []))
        ]
        tree = {"@class": "Descriptor", "type": "hybrid", "@version": 1, "list": [part for part, _ in parts]}
        return tree, any(mixed for _, mixed in parts)
    for names, build, mixed in _BUILDERS:
        if kind in names:
            return build(params, state, type_map), mixed
    known = ", ".join([*(names[0] for names, _, _ in _BUILDERS), "hybrid"])
    raise UnsupportedModelError(
        f"the descriptor {kind} cannot be read from a PyTorch file (these can: {known})"
    )


def _options(params: Tree, defaults: Tree) -> Tree:
    """The options that `defaults` names; those whose default is `...` must be there."""
    options = {key: params.get(key, default) for key, default in defaults.items()}
    for key, value in options.items():
        if value is ...:
            raise ModelFileError(f"the model's definition lacks {key}")
    if "precision" in options:
        options["precision"] = _PRECISIONS.get(str(options["precision"]), options["precision"])
    return options


_COMMON: Tree = {
    "rcut": ...,
    "rcut_smth": ...,
    "sel": ...,
    "neuron": [25, 50, 100],
    "resnet_dt": False,
    "set_davg_zero": False,
    "activation_function": "tanh",
    "precision": "float64",
    "exclude_types": [],
    "env_protection": 0.0,
}


def _radial(options: Tree) -> Tree:
    """What stands in every descriptor's tree beside its options."""
    return {
        "env_mat": {
            "rcut": options["rcut"],
            "rcut_smth": options["rcut_smth"],
            "protection": options["env_protection"],
            "use_exp_switch": False,
        },
    }


def _statistics(state: State) -> Tree:
    return {"davg": state.required("mean"), "dstd": state.required("stddev")}


def _se_e2_a(params: Tree, state: State, type_map: list[str]) -> Tree:
    options = _options(params, {**_COMMON, "axis_neuron": 16, "type_one_side": True})
    state = state.below("sea")
    ndim = 1 if options["type_one_side"] else 2
    return {
        "@class": "Descriptor",
        "type": "se_e2_a",
        "@version": 2,
        **options,
        **_radial(options),
        "embeddings": _embeddings(
            state.below("filter_layers"), options, ndim, len(type_map), _trainable(params)
        ),
        "@variables": _statistics(state),
        "type_map": type_map,
        "trainable": True,
        "spin": None,
    }


def _se_e2_r(params: Tree, state: State, type_map: list[str]) -> Tree:
    options = _options(params, _COMMON)
    return {
        "@class": "Descriptor",
        "type": "se_r",
        "@version": 2,
        **options,
        **_radial(options),
        "embeddings": _embeddings(
            state.below("filter_layers"), options, 1, len(type_map), _trainable(params)
        ),
        "@variables": _statistics(state),
        "type_map": type_map,
        "trainable": True,
        "type_one_side": True,
        "spin": None,
    }


def _se_e3(params: Tree, state: State, type_map: list[str]) -> Tree:
    options = _options(params, {**_COMMON, "neuron": [24, 48, 96]})
    state = state.below("seat")
    return {
        "@class": "Descriptor",
        "type": "se_e3",
        "@version": 2,
        **options,
        **_radial(options),
        "embeddings": _embeddings(
            state.below("filter_layers"), options, 2, len(type_map), _trainable(params)
        ),
        "@variables": _statistics(state),
        "type_map": type_map,
        "trainable": _trainable(params),
    }


_ATTENTION: Tree = {
    **_COMMON,
    "set_davg_zero": True,
    "axis_neuron": 16,
    "tebd_dim": 8,
    "attn": 128,
    "attn_layer": 2,
    "attn_dotr": True,
    "scaling_factor": 1.0,
    "normalize": True,
    "temperature": None,
    "trainable_ln": True,
    "ln_eps": 1e-5,
    "type_one_side": False,
    "concat_output_tebd": True,
    "use_econf_tebd": False,
    "use_tebd_bias": False,
}


def _se_atten_v2(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The attention descriptor with stripped type embedding."""
    if params.get("lmax", 1) != 1:
        raise UnsupportedModelError(f"the option lmax = {params['lmax']} of the descriptor is not supported")
    options = _options(params, _ATTENTION)
    options["sel"] = [options["sel"]] if isinstance(options["sel"], int) else options["sel"]
    options["ln_eps"] = 1e-5 if options["ln_eps"] is None else options["ln_eps"]
    block, count, train = state.below("se_atten"), len(type_map), _trainable(params)
    return {
        "@class": "Descriptor",
        "type": "se_atten_v2",
        "@version": 2,
        **options,
        **_radial(options),
        "ntypes": count,
        "attn_mask": False,
        "embeddings": _embeddings(block.below("filter_layers"), options, 0, count, train),
        "embeddings_strip": _embeddings(block.below("filter_layers_strip"), options, 0, count, train),
        "attention_layers": _attention(block.below("dpa1_attention.attention_layers"), options, train),
        "type_embedding": _type_embedding(state.below("type_embedding.embedding"), options, type_map, train),
        "@variables": _statistics(block),
        "type_map": type_map,
        "trainable": train,
        "spin": None,
    }


def _dpa1(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The attention descriptor; its type embedding is an input of the net ("concat") or stripped."""
    tree = _se_atten_v2(params, state, type_map)
    stripped = params.get("stripped_type_embedding")  # the option's name before tebd_input_mode
    mode = params.get("tebd_input_mode", "concat") if stripped is None else "strip" if stripped else "concat"
    tree |= {"type": "dpa1", "tebd_input_mode": mode}
    tree["smooth_type_embedding"] = params.get("smooth_type_embedding", True)
    if mode != "strip":
        del tree["embeddings_strip"]
    for layer in tree["attention_layers"]["attention_layers"]:
        layer["attention_layer"]["smooth"] = tree["smooth_type_embedding"]
    return tree


_BUILDERS: list[tuple[tuple[str, ...], Callable[[Tree, State, list[str]], Tree], bool]] = [
    (("se_e2_a", "se_a"), _se_e2_a, False),
    (("se_e2_r", "se_r"), _se_e2_r, False),
    (("se_e3", "se_at", "se_a_3be", "se_t"), _se_e3, False),
    (("dpa1", "se_atten"), _dpa1, True),
    (("se_atten_v2",), _se_atten_v2, True),
]


def _attention(state: State, options: Tree, trainable: bool) -> Tree:
    shared = {
        "nnei": sum(options["sel"]),
        "embed_dim": options["neuron"][-1],
        "hidden_dim": options["attn"],
        "dotr": options["attn_dotr"],
        "do_mask": False,
        "scaling_factor": options["scaling_factor"],
        "normalize": options["normalize"],
        "temperature": options["temperature"],
    }
    norm = {
        "trainable_ln": options["trainable_ln"],
        "ln_eps": options["ln_eps"],
        "precision": options["precision"],
    }

    def layer(part: State) -> Tree:
        inner, layer_norm = part.below("attention_layer"), part.below("attn_layer_norm")
        linear: Tree = {
            "activation": "none",
            "resnet": False,
            "precision": options["precision"],
            "trainable": trainable,
        }
        return {
            **shared,
            **norm,
            "attention_layer": {
                **shared,
                "num_heads": 1,
                "bias": "in_proj.bias" in inner.tensors,
                "smooth": True,
                "precision": options["precision"],
                "in_proj": _layer(inner.below("in_proj"), **linear),
                "out_proj": _layer(inner.below("out_proj"), **linear),
            },
            "attn_layer_norm": {
                "@class": "LayerNorm",
                "@version": 1,
                "eps": options["ln_eps"],
                "trainable": options["trainable_ln"],
                "precision": options["precision"],
                "@variables": {"w": layer_norm.required("matrix"), "b": layer_norm.array("bias")},
            },
        }

    layers = [layer(state.below(str(i))) for i in range(options["attn_layer"])]
    head = {"@class": "NeighborGatedAttention", "@version": 1, "layer_num": options["attn_layer"]}
    return {**head, **shared, **norm, "attention_layers": layers}


def _type_embedding(state: State, options: Tree, type_map: list[str], trainable: bool) -> Tree:
    net = {
        "neuron": [options["tebd_dim"]],
        "activation_function": "Linear",
        "resnet_dt": False,
        "precision": options["precision"],
    }
    return {
        "@class": "TypeEmbedNet",
        "@version": 2,
        "ntypes": len(type_map),
        **net,
        "trainable": trainable,
        "padding": True,
        "use_econf_tebd": options["use_econf_tebd"],
        "use_tebd_bias": options["use_tebd_bias"],
        "type_map": type_map,
        "embedding": _embedding_net(state.below("embedding_net"), net, True),
    }


# Fitting

_FITTING: Tree = {
    "neuron": [128, 128, 128],
    "resnet_dt": True,
    "numb_fparam": 0,
    "numb_aparam": 0,
    "dim_case_embd": 0,
    "default_fparam": None,
    "activation_function": "tanh",
    "precision": "float64",
    "rcond": None,
    "atom_ener": None,
    "use_aparam_as_mask": False,
}


def _fitting(params: Tree, state: State, type_map: list[str], mixed: bool) -> Tree:
    kind = params.get("type", "ener")
    if kind != "ener":
        raise UnsupportedModelError(
            f"the fitting {kind} cannot be read from a PyTorch file; the energy fitting (ener) can"
        )
    options = _options(params, _FITTING)
    count, train = len(type_map), params.get("trainable", True)
    train = train if isinstance(train, list) else [bool(train)] * (len(options["neuron"]) + 1)
    nets = _collection(
        state.below("filter_layers"),
        0 if mixed else 1,
        count,
        "fitting_network",
        lambda part: _fitting_net(part, options, train),
    )
    first = next((net for net in nets["networks"] if net), None)
    if first is None:
        raise ModelFileError("the weights of the fitting are missing")
    extra = options["numb_fparam"] + options["dim_case_embd"]
    extra += 0 if options["use_aparam_as_mask"] else options["numb_aparam"]
    names = ("case_embd", "fparam_avg", "fparam_inv_std", "aparam_avg", "aparam_inv_std")
    return {
        "@class": "Fitting",
        "@version": 4,
        "type": "ener",
        "var_name": "energy",
        "dim_out": 1,
        "ntypes": count,
        "dim_descrpt": first["in_dim"] - extra,
        **options,
        "mixed_types": mixed,
        "nets": nets,
        "@variables": {
            "bias_atom_e": state.required("bias_atom_e"),
            **{name: state.array(name) for name in names},
        },
        "type_map": type_map,
        "tot_ener_zero": False,
        "trainable": [all(train)] * len(train),
        "layer_name": None,
        "spin": None,
    }


# Nets


def _trainable(params: Tree) -> bool:
    return bool(params.get("trainable", True))


def _collection(state: State, ndim: int, ntypes: int, kind: str, build: Callable[[State], Tree]) -> Tree:
    """The nets of all types (ndim 1) or pairs of types (ndim 2), or the one net (ndim 0)."""
    # The same nets are registered under two names, of which TorchScript and older files keep one.
    nets = state.below("networks")
    nets = nets if nets.tensors else state.below("_networks")
    parts = [nets.below(str(i)) for i in range(ntypes**ndim)]
    if set(nets.modules()) - {str(i) for i in range(len(parts))}:
        raise ModelFileError(f"{nets.name} holds more nets than the definition's {len(parts)}")
    return {
        "@class": "NetworkCollection",
        "@version": 1,
        "ndim": ndim,
        "ntypes": ntypes,
        "network_type": kind,
        "networks": [build(part) if part.tensors else None for part in parts],
    }


def _embeddings(state: State, options: Tree, ndim: int, ntypes: int, trainable: bool) -> Tree:
    return _collection(
        state, ndim, ntypes, "embedding_network", lambda part: _embedding_net(part, options, trainable)
    )


def _embedding_net(state: State, options: Tree, trainable: bool) -> Tree:
    layers = _layers(state, options, trainable)
    return {
        "@class": "EmbeddingNetwork",
        "@version": 2,
        "in_dim": layers[0]["@variables"]["w"].shape[0],
        "neuron": list(options["neuron"]),
        "activation_function": options["activation_function"],
        "resnet_dt": options["resnet_dt"],
        "bias": layers[0]["bias"],
        "precision": options["precision"],
        "layers": layers,
    }


def _fitting_net(state: State, options: Tree, trainable: list[bool]) -> Tree:
    layers = _layers(state, options, True)
    for layer, learns in zip(layers, trainable, strict=False):
        layer["trainable"] = bool(learns)
    last = layers[-1]
    last |= {"activation_function": "none", "resnet": False}
    return {
        "@class": "FittingNetwork",
        "@version": 1,
        "in_dim": layers[0]["@variables"]["w"].shape[0],
        "out_dim": last["@variables"]["w"].shape[-1],
        "neuron": list(options["neuron"]),
        "activation_function": options["activation_function"],
        "resnet_dt": options["resnet_dt"],
        "precision": options["precision"],
        "bias_out": last["bias"],
        "layers": layers,
    }


def _layers(state: State, options: Tree, trainable: bool) -> list[Tree]:
    parts = state.below("layers")
    if not parts.tensors:
        raise ModelFileError(f"the weights {parts.name}* are missing")
    return [
        _layer(parts.below(n), options["activation_function"], True, options["precision"], trainable)
        for n in parts.modules()
    ]


def _layer(state: State, activation: str, resnet: bool, precision: str, trainable: bool) -> Tree:
    matrix = state.required("matrix")
    weights = {"w": matrix, "b": state.array("bias"), "idt": state.array("idt")}
    if matrix.ndim != 2:
        raise ModelFileError(f"the weights {state.name}matrix are not a matrix")
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": weights["b"] is not None,
        "use_timestep": weights["idt"] is not None,
        "activation_function": activation,
        "resnet": resnet,
        "precision": precision,
        "trainable": trainable,
        "@variables": weights,
    }
