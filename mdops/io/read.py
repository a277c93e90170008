"""Choose the reader of a model file by its first bytes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from mdops.errors import HeadError, ModelFileError, UnsupportedModelError
from mdops.files.published import find_model_file, why_no_model_file
from mdops.flags import require_path
from mdops.io import hdf5
from mdops.io.hdf5 import read_hdf5
from mdops.io.heads import require_head
from mdops.io.model_file import ModelFile
from mdops.io.safetensors_file import read_safetensors
from mdops.io.tensorflow.reader import is_graph, is_graph_text, read_graph, read_graph_text
from mdops.io.text import read_json, read_yaml
from mdops.io.torch.reader import read_torch
from mdops.io.upgrade import upgrade

_KNOWN = ".safetensors, .dp, .yaml, .json, .pb, .pbtxt, .pth, .pt, .pt2 and .pte files"
_CONVERT = "convert it with `dp convert-backend {name} model.dp`"
_PICKLE_MAX = 5
# System errors that do not depend on the file's contents. Libraries also raise system errors for damaged files.
_UNREADABLE = (
    errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT, errno.ELOOP, errno.EMFILE, errno.ENFILE,
)  # fmt: skip


def read_model(path: str | os.PathLike[str], head: str | None = None) -> ModelFile:
    """Read a model file of any format that formats.md lists. The format follows from the first bytes, not the name.

    If there is no such file and the path is the name of a published model, its file in the cache is read.

    `head` selects a model of a multi-task file, by its name or an alias; a file of one model needs none.

    No code in the file is run. Weights keep the bits they have in the file.

    Raises:
        HeadError: the file has several models and `head` is none of them, or has one that is not of that name.
        ModelFileError: the file is absent, cut short, damaged, or not a model; the message says which, and
            what to do.
        UnsupportedModelError: it is a PyTorch or TensorFlow file with a model that has unknown parts.
        InputError: `path` is not a path.
    """
    path = require_path("the model file", path)
    try:
        file = find_model_file(path)
        if file != path:
            return read_model(file, head)
        reader = _reader(path)
        found = reader(path, head) if reader is read_torch else reader(path)
        require_head(found.source, head)
        found.model = upgrade(found.model)
        definition = found.source.get("model_def_script")
        if isinstance(definition, dict) and isinstance(definition.get("modifier"), dict):
            found.source["modifier"] = definition["modifier"]
        return found
    except HeadError as error:
        raise HeadError(f"{path}: {error}", error.heads) from error
    except (ModelFileError, UnsupportedModelError) as error:
        raise type(error)(f"{path}: {error}") from error
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise ModelFileError(f"{path}: it is damaged or cut short ({error})") from error
        raise ModelFileError(f"{path}: it cannot be read: {os.strerror(error.errno)}") from error
    except Exception as error:
        # Damage can surface in the libraries underneath as nearly any exception.
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ModelFileError(f"{path}: it is damaged or cut short ({detail})") from error


def _reader(path: Path) -> Callable[..., ModelFile]:
    if path.is_dir():
        raise ModelFileError(
            f"it is a folder. If it is a .savedmodel of DeePMD-kit, {_CONVERT.format(name=path.name)}"
        )
    if not path.is_file():
        raise ModelFileError(why_no_model_file(path))
    with path.open("rb") as file:
        head = file.read(4096)
    if not head:
        raise ModelFileError("it is empty")
    if head.startswith(hdf5.SIGNATURE):
        return read_hdf5
    if head.startswith(b"PK"):
        return read_torch
    if is_graph(head):
        return read_graph
    if head[6:9] == b"\0\0{":  # the length of the header as 8 bytes, then JSON
        return read_safetensors
    _refuse_others(path, head)
    return _text_reader(path, head)


def _refuse_others(path: Path, head: bytes) -> None:
    """Raises ModelFileError for files of other kinds, and for files that are too short."""
    if head[0] == 0x80 and 0 < head[1:2][0:1].ljust(1, b"\0")[0] <= _PICKLE_MAX:
        raise ModelFileError(
            "it is a pickle, which could run any code when opened, so mdops does not open it; save it again "
            "with a PyTorch from after 2020, which writes zip archives"
        )
    if path.suffix == ".pb":
        raise ModelFileError("it is damaged: a TensorFlow graph begins with a node, and this does not")
    if hdf5.SIGNATURE.startswith(head[:8]) or (path.suffix == ".safetensors" and head[:1] != b"{"):
        raise ModelFileError("it is damaged, or cut short after its first bytes")
    if b"\0" in head:
        raise ModelFileError(f"it is not a model file; mdops reads {_KNOWN}")


def _text_reader(path: Path, head: bytes) -> Callable[[Path], ModelFile]:
    if is_graph_text(head):
        return read_graph_text
    if head.lstrip()[:1] == b"{":
        return read_json
    if path.suffix in (".yaml", ".yml") or b"\nmodel:" in b"\n" + head:
        return read_yaml
    raise ModelFileError(f"it is a text file, and not a model; mdops reads {_KNOWN}")
