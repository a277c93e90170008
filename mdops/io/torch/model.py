"""Makes the tree of a model, as DeePMD-kit would serialise it, from a PyTorch state dict and the model's definition.

The definition (the `model` section of the training input) says what the parts are and which options they
have; an option that is absent has the default of DeePMD-kit's PyTorch code. The rest follows from the shapes of the
weights.
"""

from collections.abc import Callable

import numpy as np

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.io.torch.descriptors import cutoff_and_places, descriptor_tree, is_mixed
from mdops.io.torch.fittings import fitting_tree
from mdops.io.torch.state import State, Tree, options_of
from mdops.io.tree import mapping, model_head
from mdops.models.dpa4.denoising import RMS
from mdops.models.dpa4.model import DPA4ModelOptions
from mdops.models.dpa4.options import automatic_width
from mdops.models.spin import is_native, spin_of_types
from mdops.models.virtual_types import with_virtual_types


def model_tree(params: Tree, state: State) -> Tree:
    """The serialised tree of a standard, linear or ZBL model.

    `state` names its tensors as the state dict of the model does, without the trainer's "model.Default.".
    Raises UnsupportedModelError for other models, ModelFileError where definition and weights do not fit.
    """
    spin = params.get("spin")
    if spin is not None:
        wrapped = not is_native(spin) and params.get("type") not in DPA4ModelOptions.NAMES
        try:
            params, state = with_virtual_types(params), state.below("backbone_model") if wrapped else state
        except ConfigError as error:
            raise ModelFileError(f"the definition of the model in it is wrong: {error}") from None
    kind = "zbl" if "use_srtab" in params else params.get("type", "standard")
    bridged = str(params.get("bridging_method") or "none").lower() != "none"
    if kind not in _BUILDERS or (bridged and kind not in DPA4ModelOptions.NAMES):
        raise UnsupportedModelError(
            f"a {kind} model cannot be read from a PyTorch file; "
            f"{', '.join(_BUILDERS)} models can. `dp convert-backend` to a .dp file shows what is in it"
        )
    tree = _BUILDERS[kind](params, state.below("atomic_model"), _type_map(params))
    tree["atom_exclude_types"] = params.get("atom_exclude_types") or []
    tree["pair_exclude_types"] = params.get("pair_exclude_types") or tree["pair_exclude_types"]
    if "fitting" in tree:
        tree["fitting"]["exclude_types"] = tree["atom_exclude_types"]
        tree["preset_out_bias"] = params.get("preset_out_bias")
    if spin is not None:
        tree["spin"] = spin_of_types(spin, tree["type_map"]).to_tree()
    return tree


def _type_map(params: Tree) -> list[str]:
    type_map = params.get("type_map")
    if not isinstance(type_map, list) or not all(isinstance(t, str) for t in type_map):
        raise ModelFileError("the model's definition has no type_map")
    return type_map


def _model(kind: str, version: int, state: State, type_map: list[str]) -> Tree:
    """The keys of every model's tree."""
    if "out_bias" in state.tensors or "out_std" in state.tensors:
        bias, std = state.required("out_bias"), state.required("out_std")
    else:  # before DeePMD-kit 3.0 there was only the fitting's bias
        bias, std = np.zeros((1, len(type_map), 1)), np.ones((1, len(type_map), 1))
    return {**model_head(kind, version, type_map), "@variables": {"out_bias": bias, "out_std": std}}


def _standard(params: Tree, state: State, type_map: list[str]) -> Tree:
    given = mapping(params.get("descriptor"), "descriptor")
    if is_native(params.get("spin")):
        given = {**given, "use_spin": params["spin"]["use_spin"]}
    descriptor = descriptor_tree(given, state.below("descriptor"), type_map)
    params = mapping(params.get("fitting_net", {}), "fitting_net")
    fitting = fitting_tree(params, state.below("fitting_net"), type_map, is_mixed(descriptor))
    return {**_model("standard", 2, state, type_map), "descriptor": descriptor, "fitting": fitting}


def _pair_table(params: Tree, state: State, type_map: list[str]) -> Tree:
    """A table of pair energies; `params` has its `rcut` and `sel`.

    A PyTorch file only has the coefficients of the cubic splines, with all their bits. The table is the splines' values
    at the knots: each is a coefficient, except for the last, which is a sum and exact to rounding.
    """
    info, splines = state.required("tab_info"), state.required("tab_data")
    options = options_of(params, {"rcut": ..., "sel": ...})
    sel = sum(options["sel"]) if isinstance(options["sel"], list) else options["sel"]
    if info.shape != (4,) or splines.size != 4 * info[2] * info[3] ** 2 or not splines.size:
        raise ModelFileError(f"the pair table {state.name}tab_data does not fit its tab_info")
    rmin, step, intervals, ntypes = float(info[0]), float(info[1]), int(info[2]), int(info[3])
    splines = splines.reshape(ntypes, ntypes, intervals, 4)
    ends = splines[:, :, -1:, ::-1].sum(-1)
    values = np.concatenate([splines[..., 3], ends], -1)[np.triu_indices(ntypes)]
    distances = rmin + step * np.arange(intervals + 1)
    return {
        **_model("pairtab", 2, state, type_map),
        "tab": {
            "@class": "PairTab",
            "@version": 1,
            "rmin": rmin,
            "rmax": float(distances[-1]),
            "hh": step,
            "ntypes": ntypes,
            "rcut": float(options["rcut"]),
            "nspline": intervals,
            "@variables": {
                "vdata": np.concatenate([distances[None], values]).T,
                "tab_info": info,
                "tab_data": splines.reshape(-1),
            },
        },
        "rcut": float(options["rcut"]),
        "sel": sel,
    }


def _linear(params: Tree, state: State, type_map: list[str]) -> Tree:
    parts = params.get("models")
    if not isinstance(parts, list) or params.get("shared_dict"):  # DeePMD-kit writes an empty shared_dict
        raise UnsupportedModelError(
            "a linear model whose parts share weights cannot be read from a PyTorch file"
        )
    models = [
        _part({"type_map": type_map, **mapping(part, "a part of the model")}, state.below(f"models.{i}"))
        for i, part in enumerate(parts)
    ]
    return {
        **_model("linear", 3, state, type_map),
        "models": models,
        "weights": params.get("weights", "mean"),
    }


def _part(params: Tree, state: State) -> Tree:
    """A part of a linear model: a standard model or a pair table."""
    if "descriptor" in params:
        return _standard(params, state, _type_map(params))
    if params.get("type") != "pairtab":
        raise UnsupportedModelError(
            f"a linear model with a part of type {params.get('type')} cannot be read from a PyTorch file"
        )
    return _pair_table(params, state, _type_map(params))


def _zbl(params: Tree, state: State, type_map: list[str]) -> Tree:
    """A net, and a pair table that takes over at short distances."""
    net = _standard(params, state.below("models.0"), type_map)
    cutoff, sel = cutoff_and_places(net["descriptor"])
    table = {"rcut": cutoff, "sel": sel}
    switch = options_of(params, {"sw_rmin": ..., "sw_rmax": ...})
    return {
        **_model("zbl", 2, state, type_map),
        "models": [net, _pair_table(table, state.below("models.1"), type_map)],
        "weights": "mean",
        **switch,
        "smin_alpha": 0.1,  # DeePMD-kit's PyTorch code takes no other, whatever the definition says
    }


def _dpa4(params: Tree, state: State, type_map: list[str]) -> Tree:
    """A descriptor dpa4 and a fitting. Widths of its layers that are 0 follow from the descriptor's."""
    descriptor = {"type": "dpa4", **mapping(params.get("descriptor", {}), "descriptor")}
    if "pair_exclude_types" in params:
        descriptor["exclude_types"] = params["pair_exclude_types"] or []
    bridging = {
        "bridging_method": str(params.get("bridging_method") or "none").lower(),
        **options_of(params, {"bridging_r_inner": 0.5, "bridging_r_outer": 0.8}),
    }
    if bridging["bridging_method"] != "none":
        for end in ("inner", "outer"):
            descriptor[f"inner_clamp_r_{end}"] = bridging[f"bridging_r_{end}"]
    if is_native(params.get("spin")):
        descriptor["use_spin"] = params["spin"]["use_spin"]
    fitting = {"type": "dpa4_ener", **mapping(params.get("fitting_net", {}), "fitting_net")}
    tree = descriptor_tree(descriptor, state.below("descriptor"), type_map)
    inputs = tree["channels"] + fitting.get("numb_fparam", 0)
    inputs += 0 if fitting.get("use_aparam_as_mask") else fitting.get("numb_aparam", 0)
    inputs += 0 if fitting.get("case_film_embd") else fitting.get("dim_case_embd", 0)
    fitting["neuron"] = [width or automatic_width(inputs, 8 / 3) for width in fitting.get("neuron", [0])]
    found = {
        **_model("SeZM", 1, state, type_map),
        **bridging,
        "pair_exclude_types": tree["exclude_types"],
        "descriptor": tree,
        "fitting": fitting_tree(fitting, state.below("fitting_net"), type_map, mixed=True),
    }
    heads = state.below("dens_fitting_net")
    if not heads.tensors:
        return found
    # As in DeePMD-kit, these heads answer where there are some.
    own = {"@variables": {name: heads.required(name) for name in heads.tensors}}
    found["@variables"][RMS] = state.array(RMS)
    return {**found, "active_mode": "dens", "dens_fitting": own}


_BUILDERS: dict[str, Callable[[Tree, State, list[str]], Tree]] = {
    "standard": _standard,
    "linear_ener": _linear,
    "zbl": _zbl,
    **dict.fromkeys(DPA4ModelOptions.NAMES, _dpa4),
}
