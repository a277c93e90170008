"""Inputs of several models that are trained together: DeePMD-kit's multi-task inputs."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mdops.errors import ConfigError
from mdops.train.config.sections import Config, TrainingConfig

_PARTS = ("descriptor", "fitting_net")
_OF_BRANCHES = ("data_dict", "model_prob", "num_epoch_dict")


@dataclass(frozen=True)
class Place:
    """A part that several models share: its branch, "descriptor" or "fitting_net", and, in a hybrid descriptor, its
    number there."""

    branch: str
    part: str
    member: int | None = None


@dataclass
class MultiTaskConfig:
    """A whole training input of several models.

    Attributes:
        branches: the input of each model, as if it was trained alone.
        shared: groups of places with the same weights, by the keys of `shared_dict`.
        odds: the relative probability that a step trains a branch; None: by its number of systems.
        epochs: the number of epochs of each branch; they determine the odds and the number of steps.
        aliases: other names of each branch.
    """

    branches: dict[str, Config]
    shared: dict[str, list[Place]]
    odds: dict[str, float] | None
    epochs: dict[str, float] | None
    aliases: dict[str, list[str]]

    @property
    def training(self) -> TrainingConfig:
        """The keys for all branches."""
        return next(iter(self.branches.values())).training


def has_branches(tree: Mapping[str, Any]) -> bool:
    """Whether an input has several models."""
    model = tree.get("model")
    return isinstance(model, Mapping) and "model_dict" in model


def branch_trees(tree: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, list[Place]]]:
    """The input of each branch as if it was trained alone, and what they share.

    Raises ConfigError, naming the place, for missing or unknown names.
    """
    model, training = _section(tree, "model"), _section(tree, "training")
    given = {name: part for name, part in _section(model, "model_dict", "model.").items() if name[:1] != "_"}
    if not given:
        raise ConfigError("model.model_dict: has no models")
    strange = [name for name in given if not name or name.strip(".") == "" or "/" in name]
    if strange:
        raise ConfigError(
            f"model.model_dict: {strange[0]!r} cannot name a model, whose files go to a folder of its name"
        )
    shared = _section(model, "shared_dict", "model.") if "shared_dict" in model else {}
    common = {name: value for name, value in model.items() if name not in ("model_dict", "shared_dict")}
    data = _section(training, "data_dict", "training.")
    losses = _section(tree, "loss_dict") if "loss_dict" in tree else {}
    for place, section in (("training.data_dict", data), ("loss_dict", losses)):
        unknown = [name for name in section if name not in given and name[:1] != "_"]
        if unknown:
            raise ConfigError(f"{place}.{unknown[0]}: there is no such model in model.model_dict")
    rest = {name: value for name, value in tree.items() if name not in ("model", "training", "loss_dict")}
    whole = {name: value for name, value in training.items() if name not in _OF_BRANCHES}
    if training.get("num_epoch_dict"):
        whole |= {"numb_epoch": 1}  # replaced by the number of each branch
    trees, places = {}, dict[str, list[Place]]()
    for name, part in given.items():
        if name not in data:
            raise ConfigError(f"training.data_dict.{name}: is missing")
        own = _taken({**common, **part}, name, shared, places)
        trees[name] = {
            **rest,
            "model": own,
            "training": {**whole, **_section(data, name, "training.data_dict.")},
        }
        if name in losses:
            trees[name]["loss"] = losses[name]
    return trees, places


def _taken(
    part: Mapping[str, Any], name: str, shared: Mapping[str, Any], places: dict[str, list[Place]]
) -> dict[str, Any]:
    """The section of a branch with the parts of `shared_dict` that it names; adds these to `places`."""

    def of(key: str, place: str, where: Place | None) -> Any:
        own, _, level = key.partition(":")
        if own not in shared:
            raise ConfigError(f"{place}: is {key!r}, which model.shared_dict lacks")
        if level not in ("", "0"):
            raise ConfigError(f"{place}: is {key!r}; only level 0 is supported: parts are shared as a whole")
        if where is not None:
            places.setdefault(own, []).append(where)
        return copy.deepcopy(shared[own])

    found, path = dict(part), f"model.model_dict.{name}"
    for key in ("type_map", *_PARTS):
        value, where = found.get(key), Place(name, key) if key in _PARTS else None
        if isinstance(value, str):
            found[key] = of(value, f"{path}.{key}", where)
        elif key == "descriptor" and isinstance(value, Mapping) and isinstance(value.get("list"), list):
            parts = [
                of(item, f"{path}.descriptor.list[{i}]", Place(name, key, i))
                if isinstance(item, str)
                else item
                for i, item in enumerate(value["list"])
            ]
            found[key] = {**value, "list": parts}
    return found


def _section(tree: Mapping[str, Any], name: str, before: str = "") -> Mapping[str, Any]:
    value = tree.get(name)
    if not isinstance(value, Mapping):
        what = "is missing" if value is None else f"is {value!r}, expected a section in braces"
        raise ConfigError(f"{before}{name}: {what}")
    return value


def numbers_of(tree: Mapping[str, Any], name: str, branches: list[str]) -> dict[str, float] | None:
    """`model_prob` or `num_epoch_dict` of an input, a number for each branch; None if the input lacks it."""
    given = tree["training"].get(name)
    if not given:
        return None
    found = {}
    for branch in branches:
        value = given.get(branch) if isinstance(given, Mapping) else None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise ConfigError(
                f"training.{name}.{branch}: is {value!r}, expected a number that is not negative"
            )
        found[branch] = float(value)
    unknown = [key for key in given if key not in branches and key[:1] != "_"]
    if unknown:
        raise ConfigError(f"training.{name}.{unknown[0]}: there is no such model in model.model_dict")
    if not sum(found.values()):
        raise ConfigError(f"training.{name}: all numbers are 0, so there is nothing to do")
    return found
