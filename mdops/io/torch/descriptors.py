"""From a PyTorch state dict to the trees of descriptors."""

from collections.abc import Callable

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.io.torch.nets import embedding_collection, embedding_net, is_trainable, layer_tree
from mdops.io.torch.state import State, Tree, options_of
from mdops.models import registry


def descriptor_tree(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The node of a descriptor, by its kind (`Descriptor.tree_of_state`).

    Raises UnsupportedModelError for a kind that is not read, ModelFileError where definition and weights do not fit.
    """
    name = params.get("type", "se_e2_a")
    kinds = registry.kinds("descriptor")
    try:
        if name in kinds:
            return kinds[name].tree_of_state(params, state, type_map)
    except ConfigError as error:
        raise ModelFileError(str(error)) from error
    for names, build in _BUILDERS:
        if name in names:
            return build(params, state, type_map)
    known = dict.fromkeys(
        [*(kind.Options.NAMES[0] for kind in kinds.values()), *(n[0] for n, _ in _BUILDERS)]
    )
    raise UnsupportedModelError(
        f"the descriptor {name} cannot be read from a PyTorch file (these can: {', '.join(known)})"
    )


def is_mixed(descriptor: Tree) -> bool:
    """Whether one fitting net serves all types on top of this descriptor's node."""
    if descriptor["type"] == "hybrid":
        return any(map(is_mixed, descriptor["list"]))
    kind = registry.kinds("descriptor").get(descriptor["type"])
    return any(descriptor["type"] in names for names, _ in _BUILDERS) if kind is None else kind.mixed


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


_ANGLES: Tree = {
    **_COMMON,
    "neuron": [2, 4, 8],
    "set_davg_zero": True,
    "tebd_dim": 8,
    "tebd_input_mode": "concat",
    "concat_output_tebd": True,
    "use_econf_tebd": False,
    "use_tebd_bias": False,
    "smooth": True,
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
    options = options_of(params, _ATTENTION)
    options["sel"] = [options["sel"]] if isinstance(options["sel"], int) else options["sel"]
    options["ln_eps"] = 1e-5 if options["ln_eps"] is None else options["ln_eps"]
    block, count, train = state.below("se_atten"), len(type_map), is_trainable(params)
    return {
        "@class": "Descriptor",
        "type": "se_atten_v2",
        "@version": 2,
        **options,
        **_radial(options),
        "ntypes": count,
        "attn_mask": False,
        "embeddings": embedding_collection(block.below("filter_layers"), options, 0, count, train),
        "embeddings_strip": embedding_collection(
            block.below("filter_layers_strip"), options, 0, count, train
        ),
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


def _se_e3_tebd(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The descriptor of angles whose net also takes the types of both neighbours."""
    options = options_of(params, _ANGLES)
    bias = options.pop("use_tebd_bias")  # the tree has it in the type embedding alone
    options["sel"] = [options["sel"]] if isinstance(options["sel"], int) else options["sel"]
    block, count, train = state.below("se_ttebd"), len(type_map), is_trainable(params)
    tree = {
        "@class": "Descriptor",
        "type": "se_e3_tebd",
        "@version": 1,
        **options,
        **_radial(options),
        "ntypes": count,
        "embeddings": embedding_collection(block.below("filter_layers"), options, 0, count, train),
        "type_embedding": _type_embedding(
            state.below("type_embedding.embedding"), {**options, "use_tebd_bias": bias}, type_map, train
        ),
        "@variables": _statistics(block),
        "type_map": type_map,
        "trainable": train,
    }
    if options["tebd_input_mode"] == "strip":
        strip = block.below("filter_layers_strip")
        tree["embeddings_strip"] = embedding_collection(strip, options, 0, count, train)
    return tree


_BUILDERS: list[tuple[tuple[str, ...], Callable[[Tree, State, list[str]], Tree]]] = [
    (("se_e3_tebd",), _se_e3_tebd),
    (("dpa1", "se_atten"), _dpa1),
    (("se_atten_v2",), _se_atten_v2),
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
                "in_proj": layer_tree(inner.below("in_proj"), **linear),
                "out_proj": layer_tree(inner.below("out_proj"), **linear),
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
        "embedding": embedding_net(state.below("embedding_net"), net, True),
    }
