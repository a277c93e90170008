"""Walks over trees of dicts and lists from files that may be damaged or malicious."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mdops.errors import ModelFileError

# `leaf` gets a value below "@variables" and the name of its place; it returns the array (or a plain
# value).
Leaf = Callable[[Any, str], Any]


class Budget:
    """Counts down the nodes a tree may have.

    A file of n bytes cannot spell out more than n nodes; only references (YAML aliases, pickle memos) can
    give more, and a few hundred bytes of them give billions.
    """

    def __init__(self, file_size: int) -> None:
        self.left = file_size + 1000

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ModelFileError(
                "it unfolds to far more data than the file is long; it is damaged, or made to do harm"
            )


def resolve(node: Any, leaf: Leaf, budget: Budget, place: str = "", below_variables: bool = False) -> Any:
    """Copy a tree; values below "@variables", and arrays spelled out as dicts, go through `leaf`."""
    budget.spend()
    if isinstance(node, dict):
        if node.get("@is_variable") is True:
            return leaf(node, place)
        return {
            _text(key): resolve(value, leaf, budget, f"{place}.{key}", below_variables or key == "@variables")
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [resolve(v, leaf, budget, f"{place}[{i}]", below_variables) for i, v in enumerate(node)]
    if below_variables and node is not None:
        return leaf(node, place)
    if node is None or isinstance(node, str | bool | int | float | np.ndarray):
        return node
    raise ModelFileError(f"{place} holds a {type(node).__name__}, which no model has there")


def plain(node: Any, budget: Budget) -> Any:
    """Copy a tree of plain values (numbers, text, None, dicts, lists); anything else becomes text."""
    budget.spend()
    if isinstance(node, dict):
        return {str(key): plain(value, budget) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value, budget) for value in node]
    if node is None or isinstance(node, str | bool | int | float):
        return node
    return repr(node)[:200]


def with_digits(node: Any, read: Any, dtype: type[np.floating]) -> Any:
    """A tree with the arrays of another one, `read`, in place of those that equal them rounded to `dtype`."""
    if isinstance(node, dict) and isinstance(read, dict):
        return {key: with_digits(value, read.get(key), dtype) for key, value in node.items()}
    if isinstance(node, list) and isinstance(read, list) and len(node) == len(read):
        return [with_digits(*pair, dtype) for pair in zip(node, read, strict=True)]
    if not (isinstance(node, np.ndarray) and isinstance(read, np.ndarray) and node.dtype == read.dtype):
        return node
    return read if np.array_equal(read.astype(dtype), node) else node


def mapping(node: Any, what: str) -> dict[str, Any]:
    """The node itself if it is a dict, an error that names it otherwise."""
    if not isinstance(node, dict):
        raise ModelFileError(f"{what} should be a mapping, and is {type(node).__name__}")
    return node


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise ModelFileError(f"a key of the model is {key!r}, not text")
    return key


def model_head(kind: str, version: int, type_map: list[str]) -> dict[str, Any]:
    """The keys of every model's tree besides its arrays and parts."""
    return {
        "@class": "Model",
        "@version": version,
        "type": kind,
        "type_map": type_map,
        "atom_exclude_types": [],
        "pair_exclude_types": [],
        "rcond": None,
        "preset_out_bias": None,
    }


def with_type_names(node: Any, names: Mapping[str, str]) -> Any:
    """The tree with the types in `names` renamed in all of its type maps."""
    if isinstance(node, list):
        return [with_type_names(one, names) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: with_type_names(value, names) for key, value in node.items()}
    if isinstance(node.get("type_map"), list):
        found["type_map"] = [names.get(name, name) for name in node["type_map"]]
    return found
