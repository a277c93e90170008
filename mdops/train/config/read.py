"""Reads and checks the training input as a whole, and lists its keys."""

import os
from collections.abc import Mapping
from typing import Any

from mdops.errors import ConfigError
from mdops.models import registry
from mdops.models.virtual_types import with_virtual_types
from mdops.options import KeyHelp, describe_keys, parse, read_tree
from mdops.train import loss
from mdops.train.config.branches import MultiTaskConfig, branch_trees, has_branches, numbers_of
from mdops.train.config.checks import check
from mdops.train.config.defaults import completed
from mdops.train.config.legacy import updated
from mdops.train.config.sections import Config
from mdops.train.config.types import with_type_map


def read_config(path: str | os.PathLike[str]) -> Config:
    """The training input of one model in a file of JSON, or of YAML by its name. Raises ConfigError, which names the
    file and the place in it."""
    found = read_input(path)
    if isinstance(found, MultiTaskConfig):
        raise ConfigError(f"{path}: has {len(found.branches)} models; use `read_input`, which reads several")
    return found


def read_input(path: str | os.PathLike[str]) -> Config | MultiTaskConfig:
    """The training input of a file of JSON, or of YAML by its name, of one model or of several (`model_dict`). Raises
    ConfigError, which names the file and the place in it."""
    tree = read_tree(path)
    try:
        return parse_input(tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(tree: Mapping[str, Any]) -> Config:
    """The training input of one model, from parsed JSON. Missing sections are mdops' own
    (`mdops.train.config.defaults`), and a missing type map has the types of the data.

    Raises ConfigError, which names the path of the wrong key.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the input: is a {type(tree).__name__}, expected sections in braces")
    whole = with_type_map(completed(updated(tree)))
    if isinstance(whole.get("model"), Mapping):
        whole = {**whole, "model": with_virtual_types(whole["model"])}
    config = parse(Config, whole)
    loss.LOSSES[config.loss.KIND].choose(config.model)
    check(config)
    if config.training.gradient_max_norm == 0:
        config.training.gradient_max_norm = None  # 0 switches it off in DeePMD-kit
    return config


def parse_input(tree: Mapping[str, Any]) -> Config | MultiTaskConfig:
    """As `read_input`, from parsed JSON."""
    if not isinstance(tree, Mapping) or not has_branches(tree):
        return parse_config(tree)
    trees, places = branch_trees(tree)
    names, branches, aliases = list(trees), {}, {}
    odds, epochs = (numbers_of(tree, name, names) for name in ("model_prob", "num_epoch_dict"))
    for name, own in trees.items():
        aliases[name] = list(own["model"].pop("model_branch_alias", None) or [])
        own["model"].pop("info", None)  # a description
        if epochs is not None:
            own["training"]["numb_epoch"] = epochs[name]
        try:
            branches[name] = parse_config(own)
        except ConfigError as error:
            raise ConfigError(f"in the model {name}: {error}") from None
        if branches[name].optimizer.type == "LKF":
            raise ConfigError("optimizer.type: 'LKF' trains a single model, not the models of model_dict")
        if getattr(branches[name].model, "lora", None) is not None:
            raise ConfigError(
                f"model.model_dict.{name}.lora: adapters train a single model: train each alone, or without it"
            )
    return MultiTaskConfig(branches, places, odds, epochs, aliases)


def keys() -> list[KeyHelp]:
    """Every key of the input with its type, unit, default and meaning; those of kinds of models and of their parts as
    `model[standard].type_map`, `descriptor[se_e2_a].sel`, and those of losses as `loss[ener].start_pref_e`."""
    found = describe_keys(Config)
    for sort in ("model", "descriptor", "fitting"):
        for kind in dict.fromkeys(registry.kinds(sort).values()):
            section = {"fitting": "fitting_net"}.get(sort, sort)
            found += describe_keys(kind.Options, f"{section}[{kind.Options.NAMES[0]}]")
    for name, kind in loss.LOSSES.items():
        found += describe_keys(kind.Options, f"loss[{name}]")
    return found
