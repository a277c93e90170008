"""From a PyTorch state dict and the model's definition to the tree that DeePMD-kit would serialise it to.

The definition (the `model` section of the training input) says what the parts are and which options they
have; an option that is absent has the default of DeePMD-kit's PyTorch code. The weights' own shapes say the
rest.
"""

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.torch.descriptors import descriptor_tree
from mdops.io.torch.nets import fitting_net, net_collection
from mdops.io.torch.state import State, Tree, options_of
from mdops.io.tree import mapping

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
    descriptor, mixed = descriptor_tree(
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


def _fitting(params: Tree, state: State, type_map: list[str], mixed: bool) -> Tree:
    kind = params.get("type", "ener")
    if kind != "ener":
        raise UnsupportedModelError(
            f"the fitting {kind} cannot be read from a PyTorch file; the energy fitting (ener) can"
        )
    options = options_of(params, _FITTING)
    count, train = len(type_map), params.get("trainable", True)
    train = train if isinstance(train, list) else [bool(train)] * (len(options["neuron"]) + 1)
    nets = net_collection(
        state.below("filter_layers"),
        0 if mixed else 1,
        count,
        "fitting_network",
        lambda part: fitting_net(part, options, train),
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
