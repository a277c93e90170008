"""Between a `ModelFile` and the header of DeePMD-kit's files (the JSON of a .dp file, a YAML or JSON document)."""

import datetime
import json
from importlib.metadata import version
from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.definition import definition
from mdops.io.model_file import ModelFile
from mdops.io.tree import Budget, Leaf, mapping, plain, resolve

_SHOWN = ("software", "version", "time", "backend", "pt_version", "tf_version", "jax_version", "pd_version")
_OWN = "mdops"  # holds what a source has and DeePMD-kit's files have no key for


def model_file_from(header: dict[str, Any], leaf: Leaf, budget: Budget, format_name: str) -> ModelFile:
    """The model, and what is worth showing, out of a header; `leaf` turns a reference into the array."""
    if "model" not in header:
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
    return ModelFile(resolve(tree, leaf, budget, "model"), source)


def header_of(model: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """What DeePMD-kit's files hold, with NumPy arrays below "@variables"; `model_file_from` gives it back.

    Software, version and time are those of the model where the source has them, else of this writing. DeePMD-kit cannot
    freeze a model without `model_def_script`, the input that makes such a model: where the source has none, it is made
    from the model's options.
    """
    distance = source.get("min_nbor_dist")
    known = {*_SHOWN, "format", "imported_from", "min_nbor_dist", "model_def_script"}
    own = {key: value for key, value in source.items() if key not in known}
    origin = source.get("imported_from", source.get("format"))
    if origin is not None:
        own["imported_from"] = origin
    now = str(datetime.datetime.now(tz=datetime.UTC))
    return {
        "software": "mdops",
        "version": version("mdops"),
        "time": now,
        **{key: source[key] for key in _SHOWN if key in source},
        **({_OWN: own} if own else {}),
        "@variables": {} if distance is None else {"min_nbor_dist": np.asarray(distance, np.float64)},
        "model": model,
        "model_def_script": source.get("model_def_script") or json.loads(json.dumps(definition(model))),
    }
