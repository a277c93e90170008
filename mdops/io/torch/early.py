"""DPA-1 in PyTorch files that were written before DeePMD-kit 3.0, whose modules had other names and options."""

import dataclasses
import re

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.torch.pickle_data import Tensor
from mdops.io.torch.state import State, Tree

# Options that later versions lack, and the value of each that has no effect.
_GONE = {"attn_mask": False, "post_ln": True, "ffn": False, "head_num": 1, "activation": "tanh"}
_TABLE = "type_embedding.embedding.weight"
_NAMES = (
    (re.compile(r"filter_layers\.(\d+)\.deep_layers\."), r"filter_layers.networks.\1.layers."),
    (re.compile(r"attn_layer_norm\.weight$"), "attn_layer_norm.matrix"),
    (re.compile(rf"^{re.escape(_TABLE)}$"), "type_embedding.embedding.embedding_net.layers.0.matrix"),
)
_PRECISIONS = {np.dtype(np.float64): "float64", np.dtype(np.float32): "float32"}


def is_early(state: State) -> bool:
    """Whether these are the tensors of such a descriptor."""
    return _TABLE in state.tensors


def as_today(params: Tree, state: State, ntypes: int) -> tuple[Tree, State]:
    """The definition and the tensors under the names of DeePMD-kit 3.

    Raises UnsupportedModelError for an option that DeePMD-kit 3 does not have.
    """
    for key, value in _GONE.items():
        if params.get(key, value) != value:
            raise UnsupportedModelError(
                f"its descriptor was written before DeePMD-kit 3.0 with {key} {params[key]}, which later versions "
                f"do not have; {value} can be read"
            )
    if params.get("activation_function", "tanh") != "tanh" or state.names("idt"):
        raise UnsupportedModelError(
            "its descriptor was written before DeePMD-kit 3.0 with an activation function other than tanh, or with "
            "resnet_dt; those without can be read"
        )
    table = state.tensors[_TABLE]
    if len(table.shape) != 2 or table.shape[0] != ntypes + 1:
        raise ModelFileError(f"its type embedding has the shape {table.shape}, expected {ntypes + 1} rows")
    renamed = {_name_today(name): _shape_today(name, tensor) for name, tensor in state.tensors.items()}
    today = State(renamed, state.load, state.name)
    net = today.required("se_atten.filter_layers.networks.0.layers.0.matrix")
    if net.dtype not in _PRECISIONS:
        raise UnsupportedModelError(f"its embedding net holds {net.dtype}; float64 and float32 can be read")
    # Those versions took the precision of the descriptor from the environment, whatever the definition says.
    fixed = {"precision": _PRECISIONS[net.dtype], "smooth_type_embedding": True, "type_one_side": False}
    return {**params, **fixed}, today


def _name_today(name: str) -> str:
    for pattern, today in _NAMES:
        name = pattern.sub(today, name)
    return name


def _shape_today(name: str, tensor: Tensor) -> Tensor:
    if name == _TABLE:  # the last row is for absent atoms, and zero
        return dataclasses.replace(tensor, shape=(tensor.shape[0] - 1, tensor.shape[1]))
    if name.endswith(".bias") and len(tensor.shape) == 2 and tensor.shape[0] == 1:
        return dataclasses.replace(tensor, shape=tensor.shape[1:], strides=tensor.strides[1:])
    return tensor
