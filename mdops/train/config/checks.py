"""Checks of keys of the training input against each other."""

import warnings
from typing import Any

from mdops.data.labels import labels_of
from mdops.data.sampler import blocks_of, most_atoms
from mdops.errors import ConfigError
from mdops.models import registry
from mdops.models.contract import ENERGY
from mdops.models.spin import spin_of
from mdops.train.config.sections import Config
from mdops.train.loss import LOSSES, Loss


def check(config: Config) -> None:
    """Raises ConfigError, which names the place, for keys that conflict."""
    config.model.check("model", config.model.type_map)
    _require_energies(config)
    rate, training = config.learning_rate, config.training
    for name in ("learning_rate", "optimizer"):
        _warn_of_other_types(name, getattr(config, name))
    if None not in (rate.stop_lr, rate.stop_lr_ratio):
        raise ConfigError("learning_rate.stop_lr: cannot be combined with stop_lr_ratio")
    if (rate.decay_rate or 0) > 1:
        raise ConfigError(f"learning_rate.decay_rate: is {rate.decay_rate:g}, expected a factor of at most 1")
    if rate.warmup_steps and rate.warmup_ratio is not None:
        raise ConfigError("learning_rate.warmup_steps: cannot be combined with warmup_ratio")
    if None not in (training.numb_steps, training.numb_epoch):
        raise ConfigError("training.numb_steps: cannot be combined with numb_epoch")
    for name in ("training_data", "validation_data"):
        data = getattr(training, name)
        try:
            if data is not None:
                most_atoms(data.batch_size)
                blocks_of(data.auto_prob)
        except ConfigError as error:
            raise ConfigError(f"training.{name}.{error}") from None
    _check_full_validation(config)
    spin = spin_of(config.model, config.model.type_map)
    labels = labels_of(registry.outputs_of(config.model), spin is not None)
    made = LOSSES[config.loss.KIND].make(config.loss, labels)
    if config.optimizer.type == "LKF":
        _check_filter(config, made)


_FILTERED = ("energy", "forces")  # the labels that LKF trains on


def _check_filter(config: Config, made: Loss) -> None:
    """Raises ConfigError for what LKF cannot train."""
    if config.loss.KIND != "ener":
        raise ConfigError(f"optimizer.type: 'LKF' needs the loss 'ener', not {config.loss.KIND!r}")
    for name in made.terms:
        if name not in _FILTERED:
            keys = " and ".join(made.keys(name))
            raise ConfigError(
                f"optimizer.type: 'LKF' trains on energies and forces, and not on {name}: set {keys} to 0"
            )
    for name in _FILTERED:
        if name not in made.terms:
            keys = " and ".join(made.keys(name))
            raise ConfigError(
                f"optimizer.type: 'LKF' trains on {name}, whatever the loss is: set {keys} above 0"
            )
    if config.training.smoothing:
        raise ConfigError(
            "training.smoothing: changes gradients of a loss, which 'LKF' does not use: set it to 0"
        )
    if config.training.gradient_max_norm:
        warnings.warn("training.gradient_max_norm: has no effect with the optimizer 'LKF'", stacklevel=2)


def _require_energies(config: Config) -> None:
    """Checks that the parts of a sum of models, and models with charges, predict energies."""
    if getattr(config.model, "modifier", None) and registry.outputs_of(config.model) != (ENERGY,):
        raise ConfigError("model.modifier: adds the energy of charges, but this model predicts no energies")
    for i, part in enumerate(getattr(config.model, "models", [config.model])):
        fitting = getattr(part, "fitting_net", None)
        if fitting is None or registry.outputs_of(config.model) != (ENERGY,):
            continue
        if registry.find("fitting", fitting.KIND).LOSS:
            place = "model" if part is config.model else f"model.models[{i}]"
            raise ConfigError(
                f"{place}.fitting_net.type: {fitting.KIND!r} predicts no energies, which a model of type "
                f"{config.model.NAMES[0]!r} needs"
            )


_OF_TYPES = {
    ("exp",): ("decay_steps", "decay_rate", "smooth"),
    ("wsd",): ("decay_phase_ratio", "decay_type"),
    ("AdaMuon", "HybridMuon"): ("momentum", "lr_adjust", "lr_adjust_coeff"),
    ("HybridMuon",): ("muon_mode", "enable_gram", "magma_muon"),
    ("LKF",): ("kf_blocksize", *(f"kf_{end}_pref_{of}" for end in ("start", "limit") for of in "ef")),
    ("Adam", "AdamW", "AdaMuon", "HybridMuon"): ("adam_beta1", "adam_beta2", "weight_decay"),
}


def _warn_of_other_types(name: str, section: Any) -> None:
    """Warns of keys that only another `type` of the section uses. DeePMD-kit refuses them."""
    plain = type(section)()
    for kinds, keys in _OF_TYPES.items():
        for key in keys if section.type not in kinds else ():
            if getattr(section, key, None) != getattr(plain, key, None):
                others = " or ".join(map(repr, kinds))
                warnings.warn(
                    f"{name}.{key}: has no effect with the type {section.type!r}, only with {others}",
                    stacklevel=2,
                )


METRICS = tuple(f"{quantity}:{kind}" for quantity in "EFSV" for kind in ("MAE", "RMSE"))
_PREFACTORS = {"E": "pref_e", "F": "pref_f", "S": "pref_v", "V": "pref_v"}


def _check_full_validation(config: Config) -> None:
    """Checks the metric, which it stores in capitals, and that there are validation data and a loss on the metric."""
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
    if config.loss.KIND != "ener":
        raise ConfigError(f"validating.full_validation: needs the loss 'ener', not {config.loss.KIND!r}")
    name = _PREFACTORS[metric[0]]
    for end in ("start", "limit"):
        if getattr(config.loss, f"{end}_{name}") == 0:
            raise ConfigError(
                f"validating.validation_metric: is {metric!r}, which is not in the loss: loss.{end}_{name} is 0"
            )
