"""Whether a training can continue from its checkpoint with the new input."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mdops.errors import ConfigError
from mdops.train.config.branches import MultiTaskConfig
from mdops.train.config.sections import Config

# Keys that the checkpoint fixes: a change would be ignored, or would mix two runs.
_HELD = (
    *("model", "optimizer"),
    *("training.seed", "training.precision", "training.spline", "training.enable_ema"),
)
_LOSS = "model.active_mode"  # follows from loss.type


def require_unchanged(before: Mapping[str, Any], config: Config | MultiTaskConfig, name: str) -> None:
    """Raises ConfigError, which names the keys, if a key that a restart cannot change differs.

    Args:
        before: the input of the checkpoint, as a tree.
        config: the new input.
        name: of the checkpoint.
    """
    tree = asdict(config)
    several = [part.get("branches", {}).keys() for part in (before, tree)]
    if several[0] != several[1]:
        raise ConfigError(
            f"{name} is of a training of {', '.join(several[0]) or 'one model'}, and the input is of "
            f"{', '.join(several[1]) or 'one model'}"
        )
    changed = _changes(before, tree, "")
    for branch in several[0]:
        changed += _changes(before["branches"][branch], tree["branches"][branch], f"{branch}: ")
    if changed:
        raise ConfigError(
            f"{name} is of a training with another input: {'; '.join(changed)}. A restart cannot change "
            "these: restore them, or begin a new training with this model's weights (--init-model)"
        )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], of: str) -> list[str]:
    """The differing keys that a restart cannot change."""
    was, now = dict(_leaves(before)), dict(_leaves(after))
    return [
        f"{of}loss.type is {now.get(key) or 'another'} and was {was.get(key) or 'another'}"
        if key == _LOSS
        else f"{of}{key} is {now.get(key)!r} and was {was.get(key)!r}"
        for key in sorted(was.keys() | now.keys())
        if was.get(key) != now.get(key) and any(key == held or key.startswith(f"{held}.") for held in _HELD)
    ]


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of the sections, by its path."""
    for name, value in node.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            yield from _leaves(value, place)
        else:
            yield place, value
