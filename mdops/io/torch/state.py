"""A PyTorch state dict below one module, and the options of the part that it belongs to."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.torch.pickle_data import Tensor

Tree = dict[str, Any]

_PRECISIONS = {"default": "float64", "double": "float64", "single": "float32", "half": "float16"}


class State:
    """The tensors below one module, by the rest of their names."""

    def __init__(
        self, tensors: Mapping[str, Tensor], load: Callable[[Tensor], np.ndarray], name: str = ""
    ) -> None:
        self.tensors = tensors
        self.load = load
        self.name = name

    def below(self, name: str) -> "State":
        """The tensors of a module of this one."""
        start = name + "."
        found = {key[len(start) :]: value for key, value in self.tensors.items() if key.startswith(start)}
        return State(found, self.load, f"{self.name}{start}")

    def names(self, ending: str) -> list[str]:
        return [key for key in self.tensors if key.endswith(ending)]

    def array(self, name: str) -> np.ndarray | None:
        tensor = self.tensors.get(name)
        return None if tensor is None else self.load(tensor)

    def required(self, name: str) -> np.ndarray:
        array = self.array(name)
        if array is None:
            raise ModelFileError(f"the weights {self.name}{name} are missing")
        return array

    def modules(self) -> list[str]:
        """The numbered modules of a list of modules, in order."""
        numbers = {key.split(".")[0] for key in self.tensors}
        return sorted((n for n in numbers if n.isdecimal()), key=int)


def options_of(params: Tree, defaults: Tree) -> Tree:
    """The options that `defaults` names; those whose default is `...` must be there."""
    options = {key: params.get(key, default) for key, default in defaults.items()}
    for key, value in options.items():
        if value is ...:
            raise ModelFileError(f"the model's definition lacks {key}")
    if "precision" in options:
        options["precision"] = _PRECISIONS.get(str(options["precision"]), options["precision"])
    return options
