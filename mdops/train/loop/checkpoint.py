"""The state of a training in one file, replaced as a whole: it is always complete."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdops.errors import InputError
from mdops.files.atomic import replace_file

_FORMAT = "mdops training 3"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write the state (tensors, arrays and plain values) beside its place, flush it, and put it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, "state": _tensors(state)}, buffer)
    replace_file(path, buffer.getbuffer())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state of a file; no code in it is run. Raises InputError if it is not a checkpoint."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise InputError(f"{path}: is not a checkpoint of a training: {error}") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != _FORMAT:
        other = isinstance(found, str) and found.startswith(_FORMAT.rstrip("0123456789"))
        kind = "a checkpoint of another version of mdops" if other else "no checkpoint of a training"
        raise InputError(f"{path}: is {kind}")
    return content["state"]


def checkpoints(folder: Path, name: str) -> list[Path]:
    """The checkpoints `name-<step>.pt` of a folder, by step; the name may lead into a folder below."""
    place = folder / name
    if not place.parent.is_dir():
        return []
    pattern = re.compile(re.escape(place.name) + r"-(\d+)\.pt")
    found = [(int(m[1]), path) for path in place.parent.iterdir() if (m := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def arrays(node: Any) -> Any:
    """A tree with its tensors as NumPy arrays."""
    if isinstance(node, torch.Tensor):
        return node.numpy()
    if isinstance(node, dict):
        return {name: arrays(value) for name, value in node.items()}
    return [arrays(value) for value in node] if isinstance(node, list | tuple) else node


def _tensors(node: Any) -> Any:
    """A tree with its NumPy arrays as tensors."""
    if isinstance(node, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(node)).reshape(node.shape)
    if isinstance(node, dict):
        return {name: _tensors(value) for name, value in node.items()}
    return [_tensors(value) for value in node] if isinstance(node, list | tuple) else node
