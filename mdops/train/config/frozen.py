"""The part "frozen" of a linear model: a model from a file, which is not trained."""

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch

from mdops.errors import ConfigError, UnsupportedModelError
from mdops.io import read_model
from mdops.models import AtomicModel, model_of_tree
from mdops.models.contract import Output, Tree
from mdops.models.registry import register
from mdops.models.standard import ModelOptions
from mdops.options import key

_TRAINED = ("Descriptor", "Fitting")


@dataclass(kw_only=True)
class FrozenOptions(ModelOptions):
    KIND = "frozen"
    is_frozen: ClassVar[bool] = True

    model_file: str = key(
        doc="the file of the model, of any format that mdops reads", where="input", of="training"
    )

    def check(self, place: str, type_map: Any) -> None:
        if place == "model":
            raise ConfigError(
                f"{place}.type: 'frozen' can only be a part of a linear_ener model; to train the model of a file "
                "further, use --init-model"
            )

    @property
    def cutoff(self) -> float:
        return _model(self.model_file).cutoff


@register
class FrozenModel(AtomicModel):
    """A model file in a training input. Its options make the model of the file."""

    Options = FrozenOptions

    @classmethod
    def random(cls, options: Any, seed: int, dtype: torch.dtype) -> Any:
        """The model of the file, with weights that are not trained."""
        return model_of_tree(_untrained(read_model(options.model_file).model), dtype)

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        return _model(options.model_file).outputs

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> Any:
        raise UnsupportedModelError(
            "a model file with a part 'frozen' is not supported: that part is in another file"
        )


def _model(path: str) -> AtomicModel:
    return _kept(path, os.stat(path).st_mtime_ns if os.path.exists(path) else 0)


@lru_cache(maxsize=8)
def _kept(path: str, time: int) -> AtomicModel:
    return model_of_tree(read_model(path).model)


def _untrained(node: Any) -> Any:
    """The tree with `trainable` off in every descriptor and fitting."""
    if isinstance(node, list):
        return [_untrained(part) for part in node]
    if not isinstance(node, dict):
        return node
    found = {name: _untrained(value) for name, value in node.items()}
    return {**found, "trainable": False} if "trainable" in node and node.get("@class") in _TRAINED else found
