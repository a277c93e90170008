"""The format of mdops: arrays in `.safetensors`, the tree as JSON in its metadata, a checksum over both."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from mdops.errors import ModelFileError
from mdops.io.model_file import ModelFile
from mdops.io.tree import mapping

_VERSION = "1"
_REFERENCE = "@tensor"


def encode_safetensors(
    model: dict[str, Any], source: dict[str, Any], more: Mapping[str, np.ndarray] | None = None
) -> bytes:
    """The bytes of a file from which `read_safetensors` reads the model and the source. `more` has arrays by name for
    other readers."""
    arrays: dict[str, np.ndarray] = dict(more or {})
    texts = {"model": json.dumps(_references(model, "model", arrays)), "source": json.dumps(source)}
    metadata = {"format": "mdops", "version": _VERSION, **texts, "sha256": _digest(texts, arrays)}
    return _in_order(save(arrays, metadata))


def _in_order(file: bytes) -> bytes:
    """The bytes with the metadata sorted by name: the order of safetensors differs between processes."""
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + file[8 + size :]


def read_safetensors(path: Path) -> ModelFile:
    """Read a file of `encode_safetensors`. Raises ModelFileError."""
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != "mdops":
            raise ModelFileError("it is a .safetensors file, but not a model written by mdops")
        if metadata.get("version") != _VERSION:
            raise ModelFileError(
                f"its format has the version {metadata.get('version')}, and this mdops reads version {_VERSION}: "
                "use the mdops that wrote it"
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
    if isinstance(node, list):
        return [_references(value, f"{place}.{i}", arrays) for i, value in enumerate(node)]
    if isinstance(node, np.ndarray):
        arrays[place] = node
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
