"""What no key of the training input can tell alone: whether they go together."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mdops.errors import ConfigError

if TYPE_CHECKING:
    from mdops.train.config.sections import Config, ModelConfig


def check(config: "Config") -> None:
    """Raises ConfigError, which names the place, for keys that do not go together."""
    _check_types(config.model)
    descriptor, rate, training = config.model.descriptor, config.learning_rate, config.training
    ntypes = len(config.model.type_map)
    if isinstance(descriptor.sel, str):
        automatic_sel_ratio(descriptor.sel)
    elif len(descriptor.sel) != ntypes:
        raise ConfigError(f"model.descriptor.sel: has {len(descriptor.sel)} numbers for {ntypes} types")
    if not descriptor.rcut_smth < descriptor.rcut:
        raise ConfigError(f"model.descriptor.rcut_smth: is {descriptor.rcut_smth}, expected less than rcut")
    if not descriptor.neuron or descriptor.axis_neuron > descriptor.neuron[-1]:
        raise ConfigError("model.descriptor.axis_neuron: is more than the last of neuron")
    if None not in (rate.stop_lr, rate.stop_lr_ratio):
        raise ConfigError("learning_rate.stop_lr: and stop_lr_ratio exclude each other")
    if rate.warmup_steps and rate.warmup_ratio is not None:
        raise ConfigError("learning_rate.warmup_steps: and warmup_ratio exclude each other")
    if (training.numb_steps is None) == (training.numb_epoch is None):
        raise ConfigError("training.numb_steps: give either this or numb_epoch")
    _check_full_validation(config)
    if isinstance(config.loss.huber_delta, list) and len(config.loss.huber_delta) != 3:
        raise ConfigError("loss.huber_delta: expected one number, or three for energy, force and virial")


METRICS = tuple(f"{quantity}:{kind}" for quantity in "EFSV" for kind in ("MAE", "RMSE"))
_PREFACTORS = {"E": "pref_e", "F": "pref_f", "S": "pref_v", "V": "pref_v"}


def _check_full_validation(config: "Config") -> None:
    """Its metric, in capitals from here on, and what it needs: data to validate on, and a loss on the metric."""
    full, training = config.validating, config.training
    full.validation_metric = metric = full.validation_metric.strip().upper()
    if metric not in METRICS:
        raise ConfigError(f"validating.validation_metric: is {metric!r}, expected {' or '.join(METRICS)}")
    if full.ema_full_validation and not training.enable_ema:
        warnings.warn(
            "validating.ema_full_validation: has no effect without training.enable_ema: there is no average",
            stacklevel=2,
        )
    wanted = full.full_validation or (full.ema_full_validation and training.enable_ema)
    if not wanted or full.full_val_start == 1:
        return
    if training.validation_data is None:
        raise ConfigError("validating.full_validation: needs training.validation_data")
    name = _PREFACTORS[metric[0]]
    for end in ("start", "limit"):
        if getattr(config.loss, f"{end}_{name}") == 0:
            raise ConfigError(
                f"validating.validation_metric: is {metric!r}, which the loss is not of: loss.{end}_{name} is 0"
            )


def _check_types(model: "ModelConfig") -> None:
    """The type map, and what is given by type."""
    names, ntypes = model.type_map, len(model.type_map)
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not names or twice:
        what = f"has {twice[0]} more than once" if twice else "is empty"
        raise ConfigError(f"model.type_map: {what}, expected the name of each element once")
    pairs = {
        "model.descriptor.exclude_types": model.descriptor.exclude_types,
        "model.pair_exclude_types": model.pair_exclude_types,
    }
    for place, kinds in pairs.items():
        for pair in kinds:
            if len(pair) != 2 or not _are_types(pair, ntypes):
                raise ConfigError(f"{place}: has {pair}, expected pairs of types, 0 .. {ntypes - 1}")
    if not _are_types(model.atom_exclude_types, ntypes):
        raise ConfigError(
            f"model.atom_exclude_types: is {model.atom_exclude_types}, expected types, 0 .. {ntypes - 1}"
        )
    energies = len(model.fitting_net.atom_ener)
    if energies > ntypes:
        raise ConfigError(f"model.fitting_net.atom_ener: has {energies} energies for {ntypes} types")
    unknown = set(model.preset_out_bias or {}) - {"energy"}
    if unknown:
        raise ConfigError(
            f"model.preset_out_bias.{min(unknown)}: there is no such key; the only one is 'energy'"
        )


def _are_types(kinds: Sequence[int], ntypes: int) -> bool:
    return all(0 <= kind < ntypes for kind in kinds)


def automatic_sel_ratio(sel: str) -> float:
    """f of "auto:f", 1.1 of "auto"."""
    word, _, ratio = sel.partition(":")
    try:
        if word == "auto":
            return float(ratio or 1.1)
    except ValueError:
        pass
    raise ConfigError(
        f'model.descriptor.sel: is {sel!r}, expected a list, "auto" or "auto:f" with a number f'
    )
