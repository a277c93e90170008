"""Whether two models are the same."""

import hashlib
import json
from typing import Any

import numpy as np

from mdops.potential import Potential


def digest(potential: Potential) -> str:
    """A hexadecimal number for the model's options and current weights; it changes if any of these changes.

    It covers the options and every weight in the precision of the computation (`dtype`), not the file,
    the device, `overflow` or the splines.
    """
    found = hashlib.sha256(json.dumps(_options(potential.model.to_tree()), sort_keys=True).encode())
    for name, value in sorted(potential.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _options(node: Any) -> Any:
    """The tree without its arrays, which the digest of the current weights covers."""
    if isinstance(node, dict):
        return {name: _options(value) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [_options(value) for value in node]
    return None if isinstance(node, np.ndarray | np.generic) else node
