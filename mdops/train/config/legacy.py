"""Inputs of earlier versions of DeePMD-kit: moves keys to their current places, as DeePMD-kit does."""

import warnings
from collections.abc import Mapping
from typing import Any

from mdops.errors import ConfigError
from mdops.train.config.version0 import is_version0, updated0, with_stop_lr

_DATA = ("systems", "set_prefix", "batch_size", "sys_probs", "sys_weights", "auto_prob", "auto_prob_style")
_SELECTED = ("sel_type", "dipole_type", "pol_type")
_WARMUP = ("warmup_steps", "warmup_ratio", "warmup_start_factor")
_OPTIMIZER = {
    name: name
    for name in (
        *("adam_beta1", "adam_beta2", "weight_decay"),
        *("momentum", "muon_momentum", "lr_adjust", "lr_adjust_coeff"),
        *("kf_blocksize", "kf_start_pref_e", "kf_limit_pref_e", "kf_start_pref_f", "kf_limit_pref_f"),
    )
} | {"opt_type": "type"}


def updated(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A training input in the current form. Warns of the keys that it moves, except types of a fitting (`_with_types`).

    DeePMD-kit 0 had all keys on one level (`mdops.train.config.version0`). DeePMD-kit 1 had the keys of `training_data`
    in `training`, 3.0 those of the warm-up, and 3.1 those of the optimizer. Raises ConfigError for a key in both
    places, except for the optimizer's: there the older place counts.
    """
    tree = _with_types(updated0(tree) if is_version0(tree) else tree)
    training = tree.get("training")
    if not isinstance(training, Mapping):
        return tree
    training, result = dict(training), dict(tree)
    if "systems" in training:
        if "training_data" in training:
            raise ConfigError("training.systems: cannot be combined with training_data")
        training["training_data"] = _taken(training, {name: name for name in _DATA}, "training.training_data")
        if isinstance(tree.get("learning_rate"), Mapping):
            result["learning_rate"] = with_stop_lr(tree["learning_rate"], training)
    rate, found = result.get("learning_rate"), [name for name in _WARMUP if name in training]
    if found and isinstance(rate, Mapping):
        twice = [name for name in found if name in rate]
        if twice:
            raise ConfigError(f"training.{twice[0]}: is given twice, here and in learning_rate")
        result["learning_rate"] = {
            **rate,
            **_taken(training, {name: name for name in found}, "learning_rate"),
        }
    elif found:
        warnings.warn(
            f"training.{found[0]}: has no effect without a section learning_rate, to which it belongs now",
            stacklevel=2,
        )
        training = {name: value for name, value in training.items() if name not in found}
    optimizer = tree.get("optimizer") or {}
    if isinstance(optimizer, Mapping) and any(name in training for name in _OPTIMIZER):
        result["optimizer"] = {**optimizer, **_taken(training, _OPTIMIZER, "optimizer")}
    return {**result, "training": training}


def _with_types(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The input with `atom_exclude_types` instead of `sel_type` of a fitting of dipoles or polarizabilities: a key of
    DeePMD-kit's TensorFlow code with the types that have results."""
    model = tree.get("model")
    fitting = model.get("fitting_net") if isinstance(model, Mapping) else None
    names = [name for name in _SELECTED if isinstance(fitting, Mapping) and name in fitting]
    if not isinstance(model, Mapping) or not isinstance(fitting, Mapping) or not names:
        return tree
    chosen, place = fitting[names[0]], f"model.fitting_net.{names[0]}"
    types = range(len(model["type_map"])) if isinstance(model.get("type_map"), list) else None
    if types is None:
        raise ConfigError(f"{place}: needs model.type_map, because it selects types of it")
    if not isinstance(chosen, list) or not chosen or any(kind not in types for kind in chosen):
        raise ConfigError(f"{place}: is {chosen!r}, expected types, 0 .. {len(types) - 1}")
    silent = sorted({*(model.get("atom_exclude_types") or []), *(set(types) - set(chosen))})
    rest = {name: value for name, value in fitting.items() if name not in names}
    return {**tree, "model": {**model, "fitting_net": rest, "atom_exclude_types": silent}}


def _taken(training: dict[str, Any], names: Mapping[str, str], place: str) -> dict[str, Any]:
    """Removes these keys from `training`, with a warning. Returns their values by their current names."""
    found = {new: training.pop(old) for old, new in names.items() if old in training}
    shown = ", ".join(old for old, new in names.items() if new in found)
    warnings.warn(
        f"training: {shown} belong in {place} now, and are read as if they were there", stacklevel=3
    )
    return found
