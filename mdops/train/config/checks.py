"""What no key of the training input can tell alone: whether they go together."""

from typing import TYPE_CHECKING

from mdops.errors import ConfigError

if TYPE_CHECKING:
    from mdops.train.config.sections import Config


def check(config: "Config") -> None:
    """Raises ConfigError, which names the place, for keys that do not go together."""
    config.model.check("model", config.model.type_map)
    rate, training = config.learning_rate, config.training
    if None not in (rate.stop_lr, rate.stop_lr_ratio):
        raise ConfigError("learning_rate.stop_lr: and stop_lr_ratio exclude each other")
    if rate.warmup_steps and rate.warmup_ratio is not None:
        raise ConfigError("learning_rate.warmup_steps: and warmup_ratio exclude each other")
    if (training.numb_steps is None) == (training.numb_epoch is None):
        raise ConfigError("training.numb_steps: give either this or numb_epoch")
    if isinstance(config.loss.huber_delta, list) and len(config.loss.huber_delta) != 3:
        raise ConfigError("loss.huber_delta: expected one number, or three for energy, force and virial")
