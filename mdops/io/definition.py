"""From a serialised model to its definition: the `model` section of an input that makes one of the same options."""

from typing import Any

Tree = dict[str, Any]

# What stands in a descriptor's node and is no option of an input, beside nets and arrays.
_NO_OPTIONS = ("@class", "@version", "type_map", "ntypes", "spin")
_FITTING_OPTIONS = (
    "type", "neuron", "resnet_dt", "numb_fparam", "numb_aparam", "dim_case_embd", "default_fparam",
    "activation_function", "precision", "trainable", "use_aparam_as_mask", "atom_ener",
)  # fmt: skip
# Where the definition names the file of a pair table, whose numbers are in the tree.
_TABLE_FILE = "pair_table.txt"


def definition(model: Tree) -> Tree:
    """The definition of a model, or of a part of one; of a kind that is not known here, its type map alone.

    Options that the tree does not keep (seeds, the name of a pair table's file) are left out, or have a name that
    says what belongs there.
    """
    kind = model.get("type")
    shared = {
        key: model[key] for key in ("type_map", "atom_exclude_types", "pair_exclude_types") if model.get(key)
    }
    if kind == "standard":
        return {
            **shared,
            **({"preset_out_bias": model["preset_out_bias"]} if model.get("preset_out_bias") else {}),
            "descriptor": _descriptor(model["descriptor"]),
            "fitting_net": {k: model["fitting"][k] for k in _FITTING_OPTIONS if k in model["fitting"]},
        }
    if kind == "pairtab":
        return {**shared, "type": kind, "tab_file": _TABLE_FILE, "rcut": model["rcut"], "sel": model["sel"]}
    if kind == "linear":
        parts = [definition(part) for part in model["models"]]
        return {**shared, "type": "linear_ener", "weights": model["weights"], "models": parts}
    if kind == "zbl":
        switch = {key: model[key] for key in ("sw_rmin", "sw_rmax", "smin_alpha")}
        return {**definition(model["models"][0]), **shared, "use_srtab": _TABLE_FILE, **switch}
    return shared


def _descriptor(node: Tree) -> Tree:
    if node.get("type") == "hybrid":
        return {"type": "hybrid", "list": [_descriptor(part) for part in node["list"]]}
    return {key: value for key, value in node.items() if key not in _NO_OPTIONS and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, str | bool | int | float)
