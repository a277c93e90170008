"""The format of mdops: arrays in `.safetensors`, the tree as JSON in its metadata, a checksum over both."""

import glob
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from mdops.errors import ModelFileError
from mdops.io.atomic import replace_file
from mdops.io.model_file import ModelFile
from mdops.io.tree import mapping

_VERSION = "1"
_REFERENCE = "@tensor"


def write_model(
    path: str | os.PathLike[str], model: dict[str, Any], source: dict[str, Any] | None = None
) -> None:
    """Write a model as `.safetensors`, whole or not at all.

    Args:
        path: the file to write; it is replaced only once the new one is complete on the disk.
        model: a serialised tree, as `ModelFile.model` has it. `read_model` gives it back bit for bit.
        source: what `ModelFile.source` should say; plain values only.

    Raises:
        ModelFileError: the tree holds something that is neither a plain value nor a NumPy array, or weights that
            `read_model` would refuse: NaN, or infinite; or there is no such folder.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ModelFileError(f"{path}: a model is written as .safetensors only; give the file that suffix")
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: there is no folder {path.parent} to write into")
    arrays: dict[str, np.ndarray] = {}
    try:
        texts = {
            "model": json.dumps(_references(model, "model", arrays), allow_nan=False),
            "source": json.dumps(source or {}, allow_nan=False),
        }
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: not written: {error}") from error
    for place, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelFileError(f"{path}: not written: {place} holds NaN or infinite numbers")
    metadata = {"format": "mdops", "version": _VERSION, **texts, "sha256": _digest(texts, arrays)}
    replace_file(path, save(arrays, metadata), beside=_unfinished(path.name, str(os.getpid())))


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what `write_model` left beside this file where it was killed. For who alone writes it: the file of a
    process that is still at it goes, too."""
    path = Path(path)
    for left in path.parent.glob(_unfinished(glob.escape(path.name), "*")):
        left.unlink(missing_ok=True)


def _unfinished(name: str, process: str) -> str:
    return f".{name}.{process}.tmp"


def read_safetensors(path: Path) -> ModelFile:
    """Read what `write_model` wrote. Raises ModelFileError."""
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != "mdops":
            raise ModelFileError("it is a .safetensors file, but not a model written by mdops")
        if metadata.get("version") != _VERSION:
            raise ModelFileError(
                f"it is of version {metadata.get('version')}; this mdops reads version {_VERSION}"
            )
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    texts = {key: metadata.get(key, "") for key in ("model", "source")}
    if _digest(texts, arrays) != metadata.get("sha256"):
        raise ModelFileError("its contents do not have the checksum written with them: it is damaged")
    source = mapping(json.loads(texts["source"]), "source")
    if "format" in source:
        source["imported_from"] = source.get("imported_from", source["format"])
    source["format"] = "mdops (.safetensors)"
    return ModelFile(_resolve(mapping(json.loads(texts["model"]), "the model"), arrays), source)


def _references(node: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """The tree with every array replaced by a reference to its place, under which `arrays` gets it."""
    if isinstance(node, dict):
        return {key: _references(value, f"{place}.{key}", arrays) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_references(value, f"{place}.{i}", arrays) for i, value in enumerate(node)]
    if isinstance(node, np.ndarray | np.generic):
        array = np.asarray(node)
        arrays[place] = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
        return {_REFERENCE: place}
    return node


def _resolve(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, dict):
        if node.keys() == {_REFERENCE}:
            return arrays[node[_REFERENCE]]
        return {key: _resolve(value, arrays) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolve(value, arrays) for value in node]
    return node


def _digest(texts: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in ("model", "source"):
        digest.update(texts[key].encode())
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key} {array.dtype.name} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
