"""Makes the trees of nets from a graph. Arrays are found by the names of constants, activation functions by the
operations that take the arrays."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph

Tree = dict[str, Any]
Layers = list[Tree]

_PLAIN = {
    "Tanh": "tanh",
    "Relu": "relu",
    "Relu6": "relu6",
    "Softplus": "softplus",
    "Gelu": "gelu",
    "GeluCustom": "gelu",
    "Reshape": "linear",
}
_PRECISIONS = {"float16": "float16", "float32": "float32", "float64": "float64"}


def layers_by_name(
    graph: Graph, pattern: str, number: Callable[[re.Match[str]], int]
) -> dict[tuple[str, ...], Layers]:
    """The layers of nets, from the constants whose names match.

    Args:
        pattern: of names, with the group `kind` (matrix, bias or idt), and groups named `net`, `net_0` and so on, which
            together name the net of a constant.
        number: gives the number of a constant's layer, from 0.

    Raises:
        ModelFileError: a layer is missing, or its arrays do not fit each other.
        UnsupportedModelError: an activation function is not known.
    """
    found: dict[tuple[str, ...], dict[int, Tree]] = {}
    for match, value in graph.constants(pattern):
        groups = match.groupdict()
        net = tuple(groups[name] or "" for name in sorted(groups) if name.startswith("net"))
        found.setdefault(net, {}).setdefault(number(match), {})[groups["kind"]] = (match.group(), value)
    for net, parts in found.items():
        if sorted(parts) != list(range(len(parts))):
            raise ModelFileError(f"layers of the net {'_'.join(filter(None, net))} are missing")
    return {net: [_layer(graph, parts[n]) for n in sorted(parts)] for net, parts in found.items()}


def _layer(graph: Graph, parts: Tree) -> Tree:
    """The arrays of a layer and its activation function."""
    if "matrix" not in parts:
        name = next(iter(parts.values()))[0]
        raise ModelFileError(f"the layer of {name} has no matrix")
    name, weight = parts["matrix"]
    if weight.ndim != 2 or weight.dtype.kind != "f":
        raise ModelFileError(f"{name} is not a matrix of weights")
    bias, timestep = (parts[key][1].reshape(-1) if key in parts else None for key in ("bias", "idt"))
    for vector in (bias, timestep):
        if vector is not None and vector.shape != weight.shape[1:]:
            raise ModelFileError(
                f"{name} has the shape {weight.shape}, which the {vector.size} numbers of its bias or idt do not fit"
            )
    return {"name": name, "w": weight, "b": bias, "idt": timestep, "activation": _activation(graph, name)}


def _activation(graph: Graph, matrix: str) -> str:
    """The name of a layer's activation function, from the operations that take the sum of its product and bias."""
    products = [n for n in graph.forward(matrix) if n.op == "MatMul"]
    if not products:
        raise ModelFileError(f"no operation multiplies anything with {matrix}")
    sums = [n for n in graph.forward(products[0].name) if n.op in ("BiasAdd", "Add", "AddV2")]
    takers = graph.forward((sums or products)[0].name)
    ops = {node.op for node in takers}
    known = [name for op, name in _PLAIN.items() if op in ops]
    if "Less" in ops and "Sigmoid" in ops:
        (less,) = (node for node in takers if node.op == "Less")
        return f"silut:{float(graph.value(less.inputs[1])):g}"
    if "Pow" in ops:
        return "gelu_tf"
    if "Sigmoid" in ops:
        return "silu" if "Mul" in ops else "sigmoid"
    if len(known) == 1:
        return known[0]
    if not ops & {"Tanh", "Sigmoid"} and (not known or known == ["linear"]):
        return "linear"
    raise UnsupportedModelError(
        f"the activation function behind {matrix} is not known: {', '.join(sorted(ops))}"
    )


def precision_of(layers: Layers) -> str:
    return _PRECISIONS.get(layers[0]["w"].dtype.name, "float64")


def embedding_net(layers: Layers) -> Tree:
    """A net in which each layer adds its input if its output is as wide, or twice as wide."""
    parts, precision = [], precision_of(layers)
    for layer in layers:
        inputs, outputs = layer["w"].shape
        adds = outputs in (inputs, 2 * inputs)
        parts.append(layer_node(layer if adds else {**layer, "idt": None}, True, precision))
    return {
        "@class": "EmbeddingNetwork",
        "@version": 2,
        "in_dim": layers[0]["w"].shape[0],
        "neuron": [layer["w"].shape[1] for layer in layers],
        "activation_function": layers[-1]["activation"],
        "resnet_dt": any(part["use_timestep"] for part in parts),
        "bias": layers[-1]["b"] is not None,
        "precision": precision,
        "layers": parts,
    }


def fitting_net(layers: Layers) -> Tree:
    """A net in which each hidden layer except the first adds its input if its output is as wide."""
    parts, precision, hidden = [], precision_of(layers), layers[:-1]
    for k, layer in enumerate(layers):
        inputs, outputs = layer["w"].shape
        adds = 0 < k < len(hidden) and inputs == outputs
        parts.append(layer_node(layer if adds else {**layer, "idt": None}, adds, precision))
    parts[-1]["activation_function"] = "none"
    return {
        "@class": "FittingNetwork",
        "@version": 1,
        "in_dim": layers[0]["w"].shape[0],
        "out_dim": layers[-1]["w"].shape[1],
        "neuron": [layer["w"].shape[1] for layer in hidden],
        "activation_function": hidden[0]["activation"] if hidden else "tanh",
        "resnet_dt": any(part["use_timestep"] for part in parts),
        "precision": precision,
        "bias_out": layers[-1]["b"] is not None,
        "layers": parts,
    }


def layer_node(layer: Tree, resnet: bool, precision: str) -> Tree:
    arrays = {key: layer.get(key) for key in ("w", "b", "idt")}
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": arrays["b"] is not None,
        "use_timestep": arrays["idt"] is not None,
        "activation_function": layer["activation"],
        "resnet": resnet,
        "precision": precision,
        "trainable": True,
        "@variables": arrays,
    }


def zero_net(like: Tree) -> Tree:
    """A net of zeros with the widths of another net."""
    return {
        **like,
        "layers": [
            {
                **layer,
                "@variables": {
                    k: None if v is None else np.zeros_like(v) for k, v in layer["@variables"].items()
                },
            }
            for layer in like["layers"]
        ],
    }
