"""From a PyTorch state dict to the trees of descriptors."""

from collections.abc import Callable

from mdops.errors import UnsupportedModelError
from mdops.io.torch.nets import embedding_collection, is_trainable
from mdops.io.torch.state import State, Tree, options_of
from mdops.io.tree import mapping


def descriptor_tree(params: Tree, state: State, type_map: list[str]) -> tuple[Tree, bool]:
    """A descriptor's tree, and whether one fitting net serves all types."""
    kind = params.get("type", "se_e2_a")
    if kind == "hybrid":
        parts = [
            descriptor_tree(mapping(part, "a descriptor"), state.below(f"descrpt_list.{i}"), type_map)
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


def _of_distances(
    kind: str, params: Tree, state: State, options: Tree, ndim: int, type_map: list[str]
) -> Tree:
    """What the trees of the descriptors share whose nets take a distance, or an angle, and no types."""
    return {
        "@class": "Descriptor",
        "type": kind,
        "@version": 2,
        **options,
        **_radial(options),
        "embeddings": embedding_collection(
            state.below("filter_layers"), options, ndim, len(type_map), is_trainable(params)
        ),
        "@variables": _statistics(state),
        "type_map": type_map,
    }


def _se_e2_a(params: Tree, state: State, type_map: list[str]) -> Tree:
    options = options_of(params, {**_COMMON, "axis_neuron": 16, "type_one_side": True})
    ndim = 1 if options["type_one_side"] else 2
    tree = _of_distances("se_e2_a", params, state.below("sea"), options, ndim, type_map)
    return {**tree, "trainable": True, "spin": None}


def _se_e2_r(params: Tree, state: State, type_map: list[str]) -> Tree:
    tree = _of_distances("se_r", params, state, options_of(params, _COMMON), 1, type_map)
    return {**tree, "trainable": True, "type_one_side": True, "spin": None}


def _se_e3(params: Tree, state: State, type_map: list[str]) -> Tree:
    options = options_of(params, {**_COMMON, "neuron": [24, 48, 96]})
    tree = _of_distances("se_e3", params, state.below("seat"), options, 2, type_map)
    return {**tree, "trainable": is_trainable(params)}


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


def _of_kind(params: Tree, state: State, type_map: list[str]) -> Tree:
    """By the kind's own reader."""
    from mdops.models.registry import find

    tree: Tree = find("descriptor", params["type"]).tree_of_state(params, state, type_map)
    return tree


def _se_e3_tebd(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The descriptor of angles whose net also takes the types of both neighbours."""
    from mdops.models.type_embedding import tree_of_state as type_embedding

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
        "type_embedding": type_embedding(
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


_BUILDERS: list[tuple[tuple[str, ...], Callable[[Tree, State, list[str]], Tree], bool]] = [
    (("se_e2_a", "se_a"), _se_e2_a, False),
    (("se_e2_r", "se_r"), _se_e2_r, False),
    (("se_e3", "se_at", "se_a_3be", "se_t"), _se_e3, False),
    (("se_e3_tebd",), _se_e3_tebd, True),
    (("dpa1", "se_atten"), _of_kind, True),
    (("se_atten_v2",), _of_kind, True),
]
