"""Inputs of DeePMD-kit 0: all keys stand on one level."""

import warnings
from collections.abc import Mapping
from typing import Any

from mdops.errors import ConfigError

# The current names of the keys, by section.
_DESCRIPTOR = {
    "sel_a": "sel", "rcut": "rcut", "rcut_smth": "rcut_smth", "filter_neuron": "neuron",
    "axis_neuron": "axis_neuron", "n_axis_neuron": "axis_neuron", "seed": "seed", "filter_resnet_dt": "resnet_dt",
}  # fmt: skip
_FRAMES = {name: name for name in ("rcut", "sel_a", "sel_r", "axis_rule")}  # without use_smooth
_FITTING = {
    "fitting_neuron": "neuron", "n_neuron": "neuron", "seed": "seed", "resnet_dt": "resnet_dt",
    "fitting_resnet_dt": "resnet_dt", "numb_fparam": "numb_fparam",
}  # fmt: skip
_RATE = {name: name for name in ("decay_steps", "decay_rate", "start_lr")}
_LOSS = {
    f"{end}_pref_{name}": f"{end}_pref_{name}" for end in ("start", "limit") for name in ("e", "f", "v", "ae")
}
_DATA = {name: name for name in ("systems", "set_prefix", "batch_size")}
_TRAINING = {
    name: name
    for name in (
        *("stop_batch", "seed", "disp_file", "disp_freq", "numb_test", "save_freq", "save_ckpt"),
        *("disp_training", "time_training", "profiling", "profiling_file", "load_ckpt"),
    )
}
# The last two had no effect in DeePMD-kit 1 either.
_IGNORED = (
    *("use_smooth", "with_distrib", "type_map", "sel_r", "axis_rule", "restart", "init_model"),
    *("coord_norm", "type_fitting_net"),
)


def is_version0(tree: Mapping[str, Any]) -> bool:
    """Whether this is an input of DeePMD-kit 0."""
    return "model" not in tree and "training" not in tree and "sel_a" in tree


def updated0(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The input in the current form; warns that it is old.

    Raises ConfigError for keys that it does not know.
    """
    sections = (_DESCRIPTOR, _FITTING, _RATE, _LOSS, _DATA, _TRAINING)
    known = {name for section in sections for name in section} | set(_IGNORED)
    unknown = [name for name in tree if name not in known and name[:1] != "_"]
    if unknown:
        raise ConfigError(f"{unknown[0]}: there is no such key in an input of DeePMD-kit 0")
    missing = [name for name in ("sel_a", "rcut", "systems") if name not in tree]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing")
    warnings.warn("the input is of DeePMD-kit 0; its keys are translated to the current ones", stacklevel=3)
    if tree.get("use_smooth"):
        descriptor = {"type": "se_e2_a", "rcut_smth": tree["rcut"], "resnet_dt": False}
        descriptor |= _of(tree, _DESCRIPTOR)
    else:
        descriptor = {"type": "loc_frame", "axis_rule": [], **_of(tree, _FRAMES)}
    types = {"type_map": tree["type_map"]} if tree.get("type_map") else {}
    training = _of(tree, _TRAINING)
    return {
        "model": {
            **types,
            "descriptor": descriptor,
            "fitting_net": {"resnet_dt": True, **_of(tree, _FITTING)},
        },
        "learning_rate": with_stop_lr({"type": "exp", **_of(tree, _RATE)}, training),
        "loss": {"type": "ener", **_of(tree, _LOSS)},
        "training": {"training_data": _of(tree, _DATA), **training},
    }


def with_stop_lr(rate: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """The section `learning_rate` of DeePMD-kit 0 or 1 with the last rate instead of `decay_rate`, as DeePMD-kit
    translates it: the rate had no lower bound. Unchanged if a number is missing or wrong."""
    steps = next((training[name] for name in ("stop_batch", "numb_steps") if name in training), None)
    numbers: list[Any] = [rate.get("start_lr"), rate.get("decay_rate"), rate.get("decay_steps"), steps]
    if not all(isinstance(x, int | float) and 0 < x < float("inf") for x in numbers) or numbers[1] > 1:
        return dict(rate)
    start, decay, interval, steps = numbers
    rest = {name: value for name, value in rate.items() if name != "decay_rate"}
    return {**rest, "stop_lr": start * decay ** (steps / interval)}


def _of(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: tree[old] for old, new in names.items() if old in tree}
