"""The tables of compressed graphs: quintic polynomials that replace embedding nets."""

import math
import re

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Tree
from mdops.nn.net import TabulatedNet

RADIAL, ANGULAR = ("TabulateFusionSeR",), ("TabulateFusion", "TabulateFusionSeA")
THREE_BODY, OF_TYPES = ("TabulateFusionSeT",), ("TabulateFusionSeAtten",)
# The keys for nets in the node of a descriptor that has tables instead.
_TABULATED: Tree = {"activation_function": "tanh", "resnet_dt": False}
_LARGEST = 1e6  # largest input of a net


def operations(graph: Graph, suffix: str, ops: tuple[str, ...]) -> list[tuple[str, Node]]:
    """The operations of a descriptor's tables, each with the type of its centre, or "all", in the order in which they
    were made."""
    pattern = re.compile(rf"filter_type_(all|\d+){re.escape(suffix)}/\w+?(?:_(\d+))?")
    found = []
    for node in graph.of_op(*ops):
        match = pattern.fullmatch(node.name)
        if match:
            found.append((match[1], int(match[2] or 0), node))
    return [(center, node) for center, _, node in sorted(found, key=lambda one: one[:2])]


def table_node(graph: Graph, operation: Node, *, mirrored: bool = False) -> Tree:
    """The tree of a tabulated net. `mirrored`: there are coarse pieces below the fine ones, too.

    A table has a row for each piece of x. The pieces have one stride from `lower` to `upper`, and another one from
    there to `end`.
    """
    if len(operation.inputs) < 2:
        raise ModelFileError(f"{operation.name} lacks inputs")
    values, info = (graph.value(name) for name in operation.inputs[:2])
    width = operation.attribute("last_layer_size", "i")
    if values.ndim != 2 or width < 1 or values.shape[1] != TabulatedNet.POWERS * width or info.size < 5:
        raise ModelFileError(
            f"the table of {operation.name} has the shape {values.shape} for {width} columns"
        )
    if info.dtype.kind != "f":
        raise ModelFileError(f"the range of the table of {operation.name} is {info.dtype}, not floats")
    # TensorFlow divides in the precision of these numbers, on which the row of a piece depends.
    lower, upper, end, fine, coarse = info.reshape(-1)[:5]
    edges = [-end, lower, upper, end] if mirrored else [lower, upper, end]
    strides = [coarse, fine, coarse] if mirrored else [fine, coarse]
    if not (
        np.isfinite(edges).all() and sorted(edges) == edges and edges[-1] < _LARGEST and min(strides) > 0
    ):
        raise ModelFileError(
            f"the table of {operation.name} has impossible ranges of x, {[float(x) for x in edges]}, or strides, "
            f"{[float(x) for x in strides]}"
        )
    breaks, rows, first = [], [], 0
    for start, stop, stride in zip(edges[:-1], edges[1:], strides, strict=True):
        with np.errstate(over="ignore"):
            count = float((stop - start) / stride)
        if count > len(values) + 1:
            raise ModelFileError(
                f"the table of {operation.name} has {len(values)} rows for {count:.0f} pieces"
            )
        pieces = np.arange(math.ceil(count))
        starts = start + pieces.astype(info.dtype) * stride
        pieces = pieces[starts < stop]
        breaks.append(starts[starts < stop])
        rows.append(first + pieces)
        first += int(count)
    row = np.concatenate(rows)
    if not len(row) or row[-1] >= len(values):
        raise ModelFileError(f"the table of {operation.name} has {len(values)} rows for {len(row)} pieces")
    coefficients = values.reshape(len(values), width, TabulatedNet.POWERS)[row]
    return tabulated(np.concatenate([*breaks, [end]]), coefficients)


def type_factors(graph: Graph, operation: Node) -> np.ndarray:
    """(rows, M): the outputs of a type net, by which an operation with a table multiplies, for the type of each
    neighbour, or of each centre and neighbour. The last type is that of absent atoms."""
    if len(operation.inputs) < 5:
        raise ModelFileError(f"{operation.name} lacks inputs")
    node = graph.origin(operation.inputs[4])
    if node.op == "Mul" and node.inputs:  # with the switch
        node = graph.origin(node.inputs[0])
    if node.op not in ("GatherV2", "Gather") or not node.inputs:
        raise ModelFileError(f"{operation.name} should take rows of a constant, and takes {node.op}")
    values, width = graph.value(node.inputs[0]), operation.attribute("last_layer_size", "i")
    if values.ndim != 2 or values.shape[1] != width:
        raise ModelFileError(f"{node.inputs[0]} has the shape {values.shape} for {width} columns")
    return values


def tabulated(breaks: np.ndarray, coefficients: np.ndarray) -> Tree:
    return {
        "@class": TabulatedNet.CLASS,
        "@version": 1,
        "in_dim": 1,
        "neuron": [coefficients.shape[1]],
        "precision": coefficients.dtype.name,
        "@variables": {"breaks": breaks.astype(np.float64), "coefficients": coefficients},
    }


def shared_keys(net: Tree) -> Tree:
    """The options of nets that a descriptor's node repeats."""
    if net["@class"] == TabulatedNet.CLASS:
        return {**_TABULATED, "neuron": net["neuron"], "precision": net["precision"]}
    return {key: net[key] for key in ("neuron", "resnet_dt", "activation_function", "precision")}


def constant_table(like: Tree, values: np.ndarray) -> Tree:
    """A table of the same values (M,) everywhere."""
    coefficients = np.zeros((1, len(values), TabulatedNet.POWERS), like["precision"])
    coefficients[0, :, 0] = values
    return tabulated(np.array([0.0, 1.0]), coefficients)


def slots_of(graph: Graph, name: str, columns: int) -> tuple[int, int]:
    """The first of the neighbours' places that a table's operation takes, and their number. `name` is a slice of the
    environment matrix, which has `columns` columns for each place."""
    for _ in range(2):
        node = graph.origin(name, ("Reshape", "Identity", "Cast"))
        if node.op != "Slice" or len(node.inputs) != 3:
            break
        begin, size = (graph.value(one).reshape(-1) for one in node.inputs[1:])
        if len(begin) == len(size) == 2 and (begin[1] != 0 or size[1] not in (1,) or columns == 1):
            if begin[1] % columns == size[1] % columns == 0 and size[1] >= 0 <= begin[1]:
                return int(begin[1]) // columns, int(size[1]) // columns
            break
        name = node.inputs[0]
    raise ModelFileError(f"{name} is not a part of the environment matrix")
