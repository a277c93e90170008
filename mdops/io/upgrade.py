"""Bring a serialised model of any known version to one form; raise errors for what is damaged or unknown."""

import copy
from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.models import registry
from mdops.models.schema import OPEN_CLASSES, OPEN_KEYS, PRECISIONS, REQUIRED, Keys

_HEADER = ("@class", "@version", "type")


def upgrade(model: dict[str, Any]) -> dict[str, Any]:
    """A copy of a serialised model in which every node of a known kind has all its keys.

    Options that an older version lacks get the value it implied, precisions their full name, vectors stored as (1, n)
    become (n,), and `trainable` of a fitting becomes a list for its layers. Tables of a compressed model ("compress")
    are dropped, because the file also has the nets they were made from. Raises ModelFileError for missing, unknown or
    impossible keys, weights that are NaN or infinite, and shapes that do not fit each other.
    """
    if not isinstance(model.get("type"), str):
        raise ModelFileError("the model lacks 'type'; its end may be missing")
    kind = registry.known("model", model)
    model = model if kind is None else kind.tree_of_file(model)
    if kind is not None and model.get("@class") != "Model":
        raise ModelFileError(
            f"the '@class' of a {model['type']} model is {model.get('@class')!r}, not 'Model'"
        )
    model = _node(model, "model", "")
    if kind is not None:
        kind.check_tree(model, "model")
    return model


def _node(node: dict[str, Any], place: str, holder: str) -> dict[str, Any]:
    of_kind = registry.of_node(node)
    node = node if of_kind is None else of_kind.tree_of_file(node)
    kind = _kind(node, holder)
    known = registry.nodes().get(kind)
    result = {key: copy.copy(value) for key, value in node.items()}
    if known is not None:
        result = _fill(result, known.keys, place)
    if isinstance(result.get("@variables"), dict):
        result["@variables"] = _variables(result["@variables"], known and known.arrays, place)
    for key, value in result.items():
        if key != "@variables":
            result[key] = _value(value, f"{place}.{key}", key, known is not None and key not in OPEN_KEYS)
    if kind == "Layer":
        _flatten(result["@variables"])
    if known is not None and "precision" in result:
        result["precision"] = PRECISIONS.get(result["precision"], result["precision"])
    sort, _, name = kind.partition(" ")
    return registry.find(sort.lower(), name).completed_tree(result) if known is not None and name else result


def _kind(node: dict[str, Any], holder: str) -> str:
    kind = str(node.get("@class", holder))
    full = f"{kind} {node.get('type')}"
    return full if full in registry.nodes() else kind


def _value(value: Any, place: str, holder: str, known: bool) -> Any:
    """A value of a node under the key `holder`; below a node of known kind, nodes must be of known kind."""
    if isinstance(value, dict):
        kind = _kind(value, holder)
        opened = value.get("@class") in OPEN_CLASSES and isinstance(value.get("type"), str)
        if known and kind not in registry.nodes() and not opened:
            raise ModelFileError(f"{place} is of the unknown class {value.get('@class')!r}")
        return _node(value, place, holder)
    if isinstance(value, list):
        return [_value(part, f"{place}[{i}]", f"{holder}[]", known) for i, part in enumerate(value)]
    return value


def _fill(node: dict[str, Any], keys: Keys, place: str) -> dict[str, Any]:
    """The node with defaults for absent keys, every key checked."""
    unknown = [key for key in node if key not in keys and key not in _HEADER]
    if unknown:
        raise ModelFileError(
            f"{place} has the key {unknown[0]!r}, which this version of mdops does not know "
            f"(the node's version is {node.get('@version', 1)})"
        )
    for key, (check, default) in keys.items():
        if key not in node:
            if default is REQUIRED:
                raise ModelFileError(f"{place} lacks {key!r}")
            node[key] = copy.copy(default)
        elif key == "network_type" and isinstance(node[key], str) and not check(node[key]):
            raise UnsupportedModelError(
                f"{place} has nets of the kind {node[key]}, which mdops does not have: this kind of model is not "
                "supported"
            )
        elif not check(node[key]):
            raise ModelFileError(f"{place}.{key} cannot be {_short(node[key])}")
    for key in ("compress", "embeddings_strip", "env_mat", "ntypes", "quantized", "use_tebd_bias"):
        if key in keys and (node[key] is None or key == "compress"):
            del node[key]
    if "lmax" in keys and node["lmax"] == keys["lmax"][1] == 1:
        del node["lmax"]  # versions before 3.2 do not have this key
    for key in ("cubic_switch", "zero_padding", "shortest_row", "types_in_vacuum"):  # only mdops has these
        if key in node and not node[key]:
            del node[key]
    if "env_mat" in node and "env_protection" in node:
        # Some descriptors are written with 0 there; DeePMD-kit itself uses env_protection.
        node["env_mat"] = {**node["env_mat"], "protection": node["env_protection"]}
    return node


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _variables(variables: dict[str, Any], known: dict[str, bool] | None, place: str) -> dict[str, Any]:
    """The arrays of a node, all finite numbers; None for those that a known kind may lack."""
    if known is not None:
        unknown = [key for key in variables if key not in known]
        missing = [key for key, needed in known.items() if needed and variables.get(key) is None]
        if unknown or missing:
            what = f"has unknown arrays: {unknown}" if unknown else f"lacks {missing[0]!r}"
            raise ModelFileError(f"{place}.@variables {what}")
        variables = {**{key: None for key in known if known[key] is False}, **variables}
    _check_numbers(variables, f"{place}.@variables", known is not None)
    return dict(variables)


def _check_numbers(value: Any, place: str, arrays_only: bool) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_numbers(inner, f"{place}.{key}", arrays_only)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _check_numbers(inner, f"{place}[{i}]", arrays_only)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise ModelFileError(f"{place} holds {value.dtype}, not numbers")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ModelFileError(f"{place} holds NaN or infinite numbers")
    elif arrays_only and value is not None:
        raise ModelFileError(f"{place} is not an array")


def _flatten(variables: dict[str, Any]) -> None:
    for key in ("b", "idt"):
        if variables[key] is not None:
            variables[key] = variables[key].reshape(-1)
