"""Converts a `ModelFile` to the header of DeePMD-kit's files (JSON of a .dp file, YAML or JSON), and back."""

import datetime
import json
from importlib.metadata import version
from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.model_file import ModelFile
from mdops.io.tree import Budget, Leaf, mapping, plain, resolve
from mdops.models.registry import definition, of_node

_SHOWN = ("software", "version", "time", "backend", "pt_version", "tf_version", "jax_version", "pd_version")
_OWN = "mdops"  # for keys of a source that DeePMD-kit's files lack
# The key of the fittings' low-bit data. Nets are stored rounded, so that other readers can use them without it.
_QUANTIZED = "mdops_quantized"


def model_file_from(header: dict[str, Any], leaf: Leaf, budget: Budget, format_name: str) -> ModelFile:
    """The model and its source from a header; `leaf` turns a reference into the array."""
    if "model" not in header:
        if "base_code" in header and "program" in header:
            raise UnsupportedModelError(
                "it is a program that DeePMD-kit's Paddle backend froze, which neither mdops nor DeePMD-kit's other "
                "backends read: take the .dp or .yaml that it was made of"
            )
        raise ModelFileError("it has no 'model': it is not a model of DeePMD-kit, or its end is missing")
    tree = mapping(header["model"], "'model'")
    if "@class" not in tree and "fitting_net" in tree:
        raise ModelFileError(
            "it is a training input, not a trained model; freeze the training's result with `dp freeze`"
        )
    source: dict[str, Any] = {"format": format_name}
    source |= {key: plain(header[key], budget) for key in _SHOWN if key in header}
    if "model_def_script" in header:
        source["model_def_script"] = plain(header["model_def_script"], budget)
    variables = header.get("@variables")
    if isinstance(variables, dict) and variables.get("min_nbor_dist") is not None:
        distance = resolve(variables["min_nbor_dist"], leaf, budget, "min_nbor_dist", below_variables=True)
        source["min_nbor_dist"] = float(np.asarray(distance).reshape(()))
    if isinstance(header.get(_OWN), dict):
        source = {**plain(header[_OWN], budget), **source}
    model = resolve(tree, leaf, budget, "model")
    if _QUANTIZED in header:
        _attach(model, resolve(mapping(header[_QUANTIZED], _QUANTIZED), leaf, budget, _QUANTIZED))
    return ModelFile(model, source)


def header_of(model: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """The content of DeePMD-kit's files, with NumPy arrays below "@variables"; `model_file_from` reads it.

    Software, version and time are those of the source if it has them, else of mdops now. DeePMD-kit cannot freeze a
    model without `model_def_script`, the input that makes such a model: if the source has none, it is made from the
    model's options.
    """
    distance = source.get("min_nbor_dist")
    known = {*_SHOWN, "format", "imported_from", "min_nbor_dist", "model_def_script", "modifier"}
    modifier = {"modifier": source["modifier"]} if source.get("modifier") else {}
    own = {key: value for key, value in source.items() if key not in known}
    origin = source.get("imported_from", source.get("format"))
    if origin is not None:
        own["imported_from"] = origin
    model, quantized = _detached(model, "model")
    now = str(datetime.datetime.now(tz=datetime.UTC))
    return {
        "software": "mdops",
        "version": version("mdops"),
        "time": now,
        **{key: source[key] for key in _SHOWN if key in source},
        **({_OWN: own} if own else {}),
        **({_QUANTIZED: quantized} if quantized else {}),
        "@variables": {} if distance is None else {"min_nbor_dist": np.asarray(distance, np.float64)},
        "model": _as_filed(model),
        "model_def_script": {
            **(source.get("model_def_script") or json.loads(json.dumps(definition("model", model)))),
            **modifier,
        },
    }


def _as_filed(node: Any) -> Any:
    """A tree as in DeePMD-kit's files."""
    if isinstance(node, list):
        return [_as_filed(part) for part in node]
    if not isinstance(node, dict):
        return node
    node = {key: value if key == "@variables" else _as_filed(value) for key, value in node.items()}
    kind = of_node(node)
    return node if kind is None else kind.file_of_tree(node)


def _detached(model: dict[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model without the key `quantized` of its fittings, which DeePMD-kit does not know; and these by place."""
    found: dict[str, Any] = {}
    if isinstance(model.get("fitting"), dict) and "quantized" in model["fitting"]:
        fitting = dict(model["fitting"])
        found[f"{place}.fitting"] = fitting.pop("quantized")
        model = {**model, "fitting": fitting}
    if isinstance(model.get("models"), list):
        parts = [_detached(part, f"{place}.models[{i}]") for i, part in enumerate(model["models"])]
        model = {**model, "models": [part for part, _ in parts]}
        for _, others in parts:
            found |= others
    return model, found


def _attach(model: dict[str, Any], quantized: dict[str, Any], place: str = "model") -> None:
    """Puts back the result of `_detached`. Raises ModelFileError for an unknown place."""
    if isinstance(model.get("fitting"), dict) and f"{place}.fitting" in quantized:
        model["fitting"]["quantized"] = quantized.pop(f"{place}.fitting")
    for i, part in enumerate(model["models"] if isinstance(model.get("models"), list) else []):
        if isinstance(part, dict):
            _attach(part, quantized, f"{place}.models[{i}]")
    if place == "model" and quantized:
        raise ModelFileError(f"{_QUANTIZED} names {min(quantized)}, which is not a fitting of the model")
