"""Write a model in the format that the file's suffix names."""

import glob
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.files.atomic import replace_file
from mdops.flags import require_path
from mdops.io.hdf5 import encode_hdf5
from mdops.io.safetensors_file import encode_safetensors
from mdops.io.text import encode_json, encode_yaml
from mdops.models.registry import of_node
from mdops.nn.net import TabulatedNet

_Encode = Callable[..., bytes | memoryview]  # (model, source)
_FORMATS: dict[str, _Encode] = {
    ".safetensors": encode_safetensors,
    ".dp": encode_hdf5,
    ".yaml": encode_yaml,
    ".yml": encode_yaml,
    ".json": encode_json,
}
SUFFIXES = tuple(_FORMATS)
_DEEPMD = (".dp", ".yaml", ".yml")  # what DeePMD-kit reads


def write_model(
    path: str | os.PathLike[str],
    model: dict[str, Any],
    source: dict[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write a model, whole or not at all.

    Args:
        path: the file to write; it is replaced only once the new one is complete on the disk. Its suffix says the
            format: .safetensors (mdops' own, with a checksum), .dp, .yaml or .yml (DeePMD-kit reads these), or .json
            (the same tree, for other programs).
        model: a serialised tree, as `ModelFile.model` has it. `read_model` gives it back bit for bit.
        source: what `ModelFile.source` should say; plain values only.
        more: arrays by name for other readers, only in .safetensors.

    Raises:
        ModelFileError: the suffix is not one of these, or not .safetensors with `more`; the folder does not exist; the
            tree holds something that is neither a plain value nor a NumPy array of numbers, or that `read_model` would
            refuse: NaN, or infinite.
        OSError: the file cannot be written.
    """
    path = Path(path)
    encode = _encoder(path)
    own = _own_kind(model) if path.suffix in _DEEPMD else None
    if own:
        raise ModelFileError(
            f"{path}: not written: {own}, which DeePMD-kit's files cannot represent; .safetensors and .json "
            "can"
        )
    if path.suffix in _DEEPMD:
        model = _without(model, "shortest_row")  # DeePMD-kit omits it when it converts its graphs
    if more and encode is not encode_safetensors:
        raise ModelFileError(f"{path}: only .safetensors files can hold the data for the C core")
    try:
        plain_source = json.loads(json.dumps(source or {}, allow_nan=False))
        arrays = {name: _checked_array(array, name) for name, array in (more or {}).items()}
        data = encode(_checked(model, "model", False), plain_source, *([arrays] if arrays else []))
    except KeyError as error:
        raise ModelFileError(f"{path}: not written: the model lacks {error}") from error
    except (ModelFileError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: not written: {error}") from error
    replace_file(path, data, beside=_unfinished(path.name, str(os.getpid())))


def _without(node: Any, key: str) -> Any:
    """The tree without this key of its nodes."""
    if isinstance(node, list):
        return [_without(one, key) for one in node]
    if not isinstance(node, dict):
        return node
    return {name: _without(value, key) for name, value in node.items() if name != key}


def _own_kind(node: Any) -> str | None:
    """The part of a tree that DeePMD-kit does not know, or None."""
    if isinstance(node, list):
        return next(filter(None, map(_own_kind, node)), None)
    if not isinstance(node, dict):
        return None
    if node.get("@class") == TabulatedNet.CLASS:
        return "its embedding nets are tables (of a compressed TensorFlow graph)"
    kind = of_node(node)
    if kind is not None and kind.OWN:
        return str(kind.OWN)
    if node.get("zero_padding"):
        return "its absent neighbours have no type, as only in the TensorFlow backend (set_davg_zero false)"
    if node.get("cubic_switch"):
        return "its types or attention fade out as only in the TensorFlow backend (smooth_type_embedding)"
    if node.get("types_in_vacuum"):
        return "its isolated atoms keep their type, as only in the TensorFlow backend (atom_ener)"
    return _own_kind(list(node.values()))


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raises ModelFileError if `write_model` could not write a file of this name: before the work, not after."""
    _encoder(require_path("the model file", path))


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what a killed `write_model` left beside this file. Only for the sole writer: it also removes the file of
    a process that is still writing."""
    path = Path(path)
    for left in path.parent.glob(_unfinished(glob.escape(path.name), "*")):
        left.unlink(missing_ok=True)


def _unfinished(name: str, process: str) -> str:
    return f".{name}.{process}.tmp"


def _encoder(path: Path) -> _Encode:
    if path.suffix not in _FORMATS:
        raise ModelFileError(
            f"{path}: the suffix {path.suffix!r} cannot be written; a model is written as {', '.join(_FORMATS)}"
        )
    if path.is_dir():
        raise ModelFileError(f"{path}: it is a folder")
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: there is no folder {path.parent} to write into")
    return _FORMATS[path.suffix]


def _checked(node: Any, place: str, below_variables: bool) -> Any:
    """A copy of a tree, of plain values and of finite, contiguous arrays in the byte order of this machine."""
    if isinstance(node, dict):
        wrong = [key for key in node if not isinstance(key, str)]
        if wrong:
            raise ModelFileError(f"{place} has the key {wrong[0]!r}, which is not text")
        return {k: _checked(v, f"{place}.{k}", below_variables or k == "@variables") for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [_checked(v, f"{place}[{i}]", below_variables) for i, v in enumerate(node)]
    if isinstance(node, np.generic) and not below_variables:
        node = node.item()
    if isinstance(node, np.ndarray | np.generic):
        return _checked_array(np.asarray(node), place)
    if isinstance(node, float) and not math.isfinite(node):
        raise ModelFileError(f"{place} is {node}")
    if node is None or isinstance(node, str | bool | int | float):
        return node
    raise ModelFileError(f"{place} holds a {type(node).__name__}, which no model file has")


def _checked_array(array: np.ndarray, place: str) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise ModelFileError(f"{place} holds {array.dtype}, not numbers")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ModelFileError(f"{place} holds NaN or infinite numbers")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
