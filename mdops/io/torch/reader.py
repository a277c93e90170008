"""PyTorch files of DeePMD-kit: checkpoints (.pt), frozen models (.pth) and compiled ones (.pt2, .pte), read as data."""

import json
from pathlib import Path
from typing import Any

from mdops.errors import ModelFileError
from mdops.io.heads import chosen_head, heads_of
from mdops.io.model_file import ModelFile
from mdops.io.text import model_of_document
from mdops.io.torch.archive import TorchArchive
from mdops.io.torch.model import State, model_tree
from mdops.io.torch.pickle_data import Object, Tensor
from mdops.io.tree import Budget, mapping, plain

_MAX_DEPTH = 60
_TREE, _SCRIPT = "extra/model.json", "extra/model_def_script.json"  # of a compiled model


def read_torch(path: Path, head: str | None = None) -> ModelFile:
    """Read a checkpoint or a frozen model; of several models that of the `head`. Raises ModelFileError, HeadError,
    UnsupportedModelError."""
    size = path.stat().st_size
    with TorchArchive(path) as archive:
        if "data.pkl" not in archive.members and "byteorder" in archive.members:
            return _compiled(archive)
        root = archive.load()
        if isinstance(root, Object):
            script, tensors, source = _frozen(root)
        else:
            script, tensors, source = _checkpoint(mapping(root, "the checkpoint"))
        params = mapping(plain(script, Budget(size)), "the model's definition")
        state, name = State(tensors, archive.array), "Default"
        if "model_dict" in params:
            heads = heads_of(params)
            name = chosen_head(heads, head)
            params = mapping(params["model_dict"][name], f"model_dict.{name}")
            source |= {"head": name, **({"head_aliases": heads[name]} if heads[name] else {})}
        if not isinstance(root, Object):
            state = state.below(f"model.{name}")
        model = model_tree(params, state)
        source["software"] = "deepmd-kit"
        source["backend"] = "PyTorch"
        source["model_def_script"] = params
        distance = state.array("min_nbor_dist")
        if distance is None:  # as the exportable backend calls it
            distance = state.array("_min_nbor_dist")
        if distance is not None and distance.size == 1 and distance.item() > 0:
            source["min_nbor_dist"] = float(distance.item())
        if any(
            state.array(name) is not None and state.required(name).size
            for name in state.names("compress_data.0")
        ):
            source["compressed"] = True
        return ModelFile(model, plain(source, Budget(size)))


def _compiled(archive: TorchArchive) -> ModelFile:
    """A compiled model. Its code is not read: DeePMD-kit's exportable backend also writes the tree as text."""
    if _TREE not in archive.members:
        raise ModelFileError(
            "it is a compiled program, whose weights have no names, so it cannot be read; load the file that it was "
            "made from: for a DPA-4 that `dp --pt freeze` compiled, the checkpoint (.pt)"
        )
    text = archive.read(_TREE)
    definition = archive.read(_SCRIPT) if _SCRIPT in archive.members else b"{}"
    document, script = mapping(json.loads(text), _TREE), json.loads(definition)
    if script:
        document["model_def_script"] = script
    found = model_of_document(document, len(text) + len(definition), "compiled model (.pt2, .pte)")
    distance = document.get("min_nbor_dist")
    if isinstance(distance, float) and distance > 0:
        found.source["min_nbor_dist"] = distance
    return found


def _frozen(root: Object) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """The definition and the tensors of a TorchScript module, whose attributes are the module tree."""
    backbone = root.attributes.get(
        "backbone_model"
    )  # of a model with spins, which has no definition of its own
    text = (backbone if isinstance(backbone, Object) else root).attributes.get("model_def_script")
    if not isinstance(text, str) or not text:
        raise ModelFileError(
            "it is a TorchScript file, but not a model frozen by DeePMD-kit: it has no model_def_script"
        )
    tensors: dict[str, Tensor] = {}
    _collect(root, "", tensors, Budget(100_000), 0)
    return json.loads(text), tensors, {"format": "frozen TorchScript (.pth)"}


def _collect(node: Any, name: str, into: dict[str, Tensor], budget: Budget, depth: int) -> None:
    """Name every tensor below a module as PyTorch's state dict does."""
    budget.spend()
    if depth > _MAX_DEPTH:
        raise ModelFileError("its modules are nested deeper than any model's")
    if isinstance(node, Tensor):
        into[name] = node
    elif isinstance(node, Object):
        for key, value in node.attributes.items():
            if isinstance(value, Tensor | Object):
                _collect(value, f"{name}.{key}" if name else str(key), into, budget, depth + 1)


def _checkpoint(root: dict[str, Any]) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """The definition and the tensors of a training checkpoint."""
    if str(root.get("format")).startswith("mdops training"):
        raise ModelFileError(
            "it is a checkpoint of mdops' training, not a model file. Load model.safetensors in the folder of the "
            "training (for several models, in the folder of each), which is written with every checkpoint; `mdops "
            "train ... --restart` continues the training"
        )
    state = mapping(root.get("model", root), "the checkpoint's 'model'")
    extra = state.get("_extra_state")
    if not isinstance(extra, dict) or "model_params" not in extra:
        raise ModelFileError(
            "it is a PyTorch file, but not a checkpoint of DeePMD-kit: it has no model_params"
        )
    tensors = {
        key: value for key, value in state.items() if isinstance(key, str) and isinstance(value, Tensor)
    }
    source: dict[str, Any] = {"format": "checkpoint (.pt)"}
    if isinstance(extra.get("train_infos"), dict):
        source["train_infos"] = extra["train_infos"]
    return extra["model_params"], tensors, source
