"""From a serialised header (the JSON of a .dp file, a YAML or JSON document) to a `ModelFile`."""

from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.model_file import ModelFile
from mdops.io.tree import Budget, Leaf, mapping, plain, resolve

_SHOWN = ("software", "version", "time", "backend", "pt_version", "tf_version", "jax_version", "pd_version")


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
    return ModelFile(resolve(tree, leaf, budget, "model"), source)
