"""Makes the trees of fittings from a PyTorch state dict."""

import math
from collections.abc import Callable

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.torch.nets import fitting_net, net_collection
from mdops.io.torch.state import State, Tree, options_of
from mdops.models import registry
from mdops.models.dpa4.fitting import DPA4Fitting, GatedNet, GatedNets
from mdops.models.net_fitting import NetFitting

_OPTIONS: Tree = {
    "neuron": [128, 128, 128],
    "resnet_dt": True,
    "numb_fparam": 0,
    "numb_aparam": 0,
    "dim_case_embd": 0,
    "default_fparam": None,
    "activation_function": "tanh",
    "precision": "float64",
    "rcond": None,
    "use_aparam_as_mask": False,
}
_DEFAULTS: dict[str, Tree] = {
    "sezm_ener": {"resnet_dt": False, "activation_function": "silu", "precision": "float32"}
}
# Its arguments: the definition, the tensors, the number of outputs of the nets, and the number of types.
Reader = Callable[[Tree, State, int, int], Tree]
_READERS: dict[str, Reader] = {}


def reads(kind: str) -> Callable[[Reader], Reader]:
    """A decorator: the function gives the keys of this kind's nodes beyond those of all fittings."""

    def known(reader: Reader) -> Reader:
        _READERS[kind] = reader
        return reader

    return known


def fitting_tree(params: Tree, state: State, type_map: list[str], mixed: bool) -> Tree:
    """The node of a fitting, by its kind; `mixed`: one net serves all types.

    Raises UnsupportedModelError for a kind that is not read, ModelFileError where definition and weights do not fit.
    """
    kind = params.get("type", "ener")
    known = registry.kinds("fitting").get(kind)
    if known is None or known.Options.KIND not in _READERS:
        raise UnsupportedModelError(
            f"the fitting {kind} cannot be read from a PyTorch file (these can: {', '.join(_READERS)})"
        )
    found: type[NetFitting] = registry.find("fitting", kind)
    kind = found.Options.KIND
    options = options_of(params, {**_OPTIONS, **_DEFAULTS.get(kind, {})})
    count, train = len(type_map), params.get("trainable", True)
    train = train if isinstance(train, list) else [bool(train)] * (len(options["neuron"]) + 1)
    layers = state.below("filter_layers")
    gated = kind == DPA4Fitting.Options.KIND
    nets = net_collection(
        layers if layers.tensors else state.below("nets"),  # as the exportable backend calls them
        0 if mixed else 1,
        count,
        GatedNets.TYPE if gated else "fitting_network",
        lambda part: _gated_net(part, params, options) if gated else fitting_net(part, options, train),
    )
    first = next((net for net in nets["networks"] if net), None)
    if first is None:
        raise ModelFileError("the weights of the fitting are missing")
    extra = options["numb_fparam"] + (0 if params.get("case_film_embd") else options["dim_case_embd"])
    extra += 0 if options["use_aparam_as_mask"] else options["numb_aparam"]
    names = ("case_embd", "fparam_avg", "fparam_inv_std", "aparam_avg", "aparam_inv_std")
    own = _READERS[kind](params, state, first["out_dim"], count)
    return {
        "@class": "Fitting",
        "@version": found.VERSION,
        "type": kind,
        "ntypes": count,
        "dim_descrpt": first["in_dim"] - extra,
        **options,
        "mixed_types": mixed,
        "nets": nets,
        "type_map": type_map,
        "tot_ener_zero": False,
        "trainable": [all(train)] * len(train),
        "layer_name": None,
        "spin": None,
        **own,
        "@variables": {
            "bias_atom_e": state.required("bias_atom_e"),
            **{name: state.array(name) for name in names},
            **own.get("@variables", {}),
        },
    }


def _gated_net(state: State, params: Tree, options: Tree) -> Tree:
    weights = {name: state.required(name) for name in state.tensors}
    first = state.required("hidden_layers.0.linear.matrix" if options["neuron"] else "output_layer.matrix")
    films, inputs = bool(params.get("case_film_embd")) and options["dim_case_embd"] > 0, first.shape[0]
    extra = options["numb_fparam"] + (0 if options["use_aparam_as_mask"] else options["numb_aparam"])
    shared = ("neuron", "activation_function", "resnet_dt", "precision", "dim_case_embd")
    return {
        "@class": GatedNet.CLASS,
        "@version": 1,
        "in_dim": inputs,
        "out_dim": state.required("output_layer.matrix").shape[1],
        "bias_out": state.array("output_layer.bias") is not None,
        "descriptor_dim": inputs - extra - (0 if films else options["dim_case_embd"]),
        "case_film_embd": films,
        **{name: options[name] for name in shared},
        "@variables": weights,
    }


@reads("sezm_ener")
def _dpa4_ener(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    films = bool(params.get("case_film_embd")) and params.get("dim_case_embd", 0) > 0
    return {**_ener(params, state, width, ntypes), "case_film_embd": films}


@reads("ener")
def _ener(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    return {"var_name": "energy", "dim_out": 1, "atom_ener": params.get("atom_ener")}


@reads("dipole")
def _dipole(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    return {
        "var_name": "dipole",
        "embedding_width": width,
        **options_of(params, {"r_differentiable": True, "c_differentiable": True}),
    }


@reads("polar")
def _polar(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    own = options_of(params, {"fit_diag": True, "shift_diag": True})
    # Checkpoints have neither array: both follow from the definition.
    scale, constant = state.array("scale"), state.array("constant_matrix")
    if scale is None:
        given = params.get("scale")
        scale = np.full((ntypes, 1), 1.0)
        scale[:, 0] = 1.0 if given is None else given
    return {
        "var_name": "polar",
        "embedding_width": width if own["fit_diag"] else math.isqrt(width),
        **own,
        "@variables": {
            "scale": scale,
            "constant_matrix": np.zeros(ntypes) if constant is None else constant,
        },
    }


@reads("dos")
def _dos(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    return {"var_name": "dos", "dim_out": width, "atom_ener": None}


@reads("property")
def _property(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    return {
        "var_name": options_of(params, {"property_name": ...})["property_name"],
        "dim_out": width,
        "atom_ener": None,
        "task_dim": width,
        **options_of(params, {"intensive": False, "distinguish_types": True}),
    }


@reads("population")
def _population(params: Tree, state: State, width: int, ntypes: int) -> Tree:
    return {"var_name": "population", "dim_out": width, "atom_ener": None}
