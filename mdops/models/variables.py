"""Converts parameters and buffers of modules to arrays of a node with the same names, and back."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from mdops.errors import ModelFileError
from mdops.models.shapes import require_same
from mdops.nn.net import array, tensor


@torch.no_grad()
def load_variables(module: nn.Module, variables: Mapping[str, np.ndarray], place: str) -> None:
    """Takes the numbers of all parameters and buffers by their names.

    Raises ModelFileError for one that is missing, of another shape, or an index that is another."""
    for name, own in module.state_dict(keep_vars=True).items():
        given = variables.get(name)
        if given is None:
            raise ModelFileError(f"{place} lacks {name!r}")
        if not isinstance(given, np.ndarray):
            raise ModelFileError(f"{name} of {place} is no array")
        require_same(given.shape, tuple(own.shape), f"the shape of {name} of {place}")
        if own.is_floating_point():
            own.copy_(tensor(given, own.dtype))
        elif not np.array_equal(given, own.cpu().numpy()):
            raise ModelFileError(f"{name} of {place} is another index than the options make")


def variables_of(module: nn.Module, precision: str) -> dict[str, np.ndarray]:
    """The arrays, real ones in that precision."""
    found: dict[str, np.ndarray] = {}
    for name, value in module.state_dict().items():
        numbers = array(value, precision) if value.is_floating_point() else value.cpu().numpy()
        assert numbers is not None
        found[name] = numbers
    return found
