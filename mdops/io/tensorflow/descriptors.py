"""Makes the trees of descriptors from the operations and constants of a graph.

The operation of the environment matrix has the cutoffs and sel, and names the statistics. The rest follows from the
nets' shapes and the operations after them. Other options (such as excluded types) are only in the training input, which
newer graphs have.
"""

from collections.abc import Callable

import numpy as np
import torch

from mdops.errors import ModelFileError
from mdops.io.tensorflow import tables
from mdops.io.tensorflow.mixed import mixed_part, strips_types
from mdops.io.tensorflow.nets import Layers, Tree, embedding_net, zero_net
from mdops.io.tensorflow.places import CLUSTERS, LOCAL, MIXED, RADIAL, Part, Place
from mdops.nn.net import NetCollection, TabulatedNet, collection_node


def part_of(place: Place) -> Part:
    """The tree of one descriptor."""
    if place.operation.op in LOCAL:
        node = {"@class": "Descriptor", "@version": 1, "type": "loc_frame", **place.local()}
        return Part(node, node["@variables"]["davg"].shape[1])
    if place.operation.op in RADIAL:
        return _radial(place)
    if place.operation.op in MIXED or strips_types(place):
        return mixed_part(place)
    if place.nets(2) or tables.operations(place.graph, place.suffix, tables.THREE_BODY):
        return _three_body(place)
    return _angular(place)


def _typed_nets(place: Place, sel: list[int], columns: int) -> tuple[list[list[Tree | None]], bool]:
    """The nets (ntypes, ntypes) of each centre and neighbour, None for pairs without one, and whether they are the same
    for all centres."""
    found, n = place.nets(1), place.ntypes
    trees = {net: embedding_net(layers) for net, layers in found.items()} or _tables(place, sel, columns)
    centers = {center for center, _ in trees}
    if trees:
        one_side = centers == {"all"}
        if not one_side and "all" in centers:
            raise ModelFileError("it has embedding nets for all types of centres, and for single ones")
        rows = [[trees.get(("all" if one_side else str(c), str(t))) for t in range(n)] for c in range(n)]
        return rows, one_side
    common = place.nets(0)
    if place.types is None or list(common) != [("all",)]:
        raise ModelFileError(f"it has no embedding nets with the suffix {place.suffix!r}")
    return _with_types(common[("all",)], place.types.values)


def _tables(place: Place, sel: list[int], columns: int) -> dict[tuple[str, ...], Tree]:
    """The tables of a compressed graph, by (centre, neighbour)."""
    ends = np.cumsum([0, *sel]).tolist()
    places = {(ends[t], sel[t]): str(t) for t in range(len(sel))}
    found: dict[tuple[str, ...], Tree] = {}
    ops = tables.RADIAL if columns == 1 else tables.ANGULAR
    for center, operation in tables.operations(place.graph, place.suffix, ops):
        if len(operation.inputs) < 3:
            raise ModelFileError(f"{operation.name} lacks inputs")
        of = tables.slots_of(place.graph, operation.inputs[2], columns)
        if of not in places or (center, places[of]) in found:
            raise ModelFileError(f"{operation.name} takes the neighbours {of}, which are not of one type")
        found[center, places[of]] = tables.table_node(place.graph, operation)
    return found


def _with_types(layers: Layers, types: np.ndarray) -> tuple[list[list[Tree | None]], bool]:
    """The nets of each centre and neighbour, from one net whose inputs are s and the embeddings of their types: the
    embeddings' contribution to the first layer becomes a part of its bias."""
    weight, width = layers[0]["w"], types.shape[1]
    one_side = weight.shape[0] == 1 + width
    if not one_side and weight.shape[0] != 1 + 2 * width:
        raise ModelFileError(
            f"the embedding net has {weight.shape[0]} inputs, which do not fit type embeddings of width {width}"
        )
    n = len(types)

    def net(center: int, neighbor: int) -> Tree:
        inputs = np.concatenate([types[neighbor], *([] if one_side else [types[center]])])
        first = layers[0]
        bias = inputs.astype(weight.dtype) @ weight[1:] + (0 if first["b"] is None else first["b"])
        if weight.shape[1] not in (weight.shape[0], 2 * weight.shape[0]):
            return embedding_net([{**first, "w": weight[:1], "b": bias}, *layers[1:]])
        # The layer adds its input, which a linear layer before it makes from s.
        start = np.concatenate([np.zeros(1, weight.dtype), inputs.astype(weight.dtype)])
        rise = np.zeros((1, len(start)), weight.dtype)
        rise[0, 0] = 1
        return embedding_net([{"w": rise, "b": start, "idt": None, "activation": "linear"}, *layers])

    return [[net(c, t) for t in range(n)] for c in range(n)], one_side


def _net_collection(
    place: Place, environment: Tree, stand_in: Callable[[Tree, bool], Tree]
) -> tuple[Tree, bool, list[list[int]]]:
    """The collection of the nets, whether they are one-sided, and the excluded pairs of types. `stand_in` makes the net
    of an excluded pair, from its net in the graph (or another net if it has none) and whether nets are one-sided."""
    columns = environment["@variables"]["davg"].shape[2]
    rows, one_side = _typed_nets(place, environment["sel"], columns)
    present = [net for row in rows for net in row if net is not None]
    if not present:
        raise ModelFileError("it has no embedding nets")
    if "exclude_types" in place.stated or one_side:
        excluded = {tuple(sorted(pair)) for pair in place.excluded()}
    else:  # old graphs have no training input: excluded pairs have no nets
        pairs = [(c, t) for c in range(place.ntypes) for t in range(c, place.ntypes)]
        excluded = {(c, t) for c, t in pairs if rows[c][t] is None and rows[t][c] is None}
    for c, row in enumerate(rows):
        for t, net in enumerate(row):
            if tuple(sorted((c, t))) in excluded:
                row[t] = stand_in(net or present[0], one_side)
            elif net is None:
                raise ModelFileError(f"the embedding net of the types {c} and {t} is missing")
    kind, n = "embedding_network", place.ntypes
    if one_side and not excluded:
        return collection_node([net for net in rows[0] if net], 1, n, kind), True, []
    nets = [rows[i % n][i // n] for i in range(n * n)]
    return (
        collection_node([net for net in nets if net], 2, n, kind),
        False,
        [list(pair) for pair in sorted(excluded)],
    )


def _nothing(net: Tree) -> Tree:
    """A net that gives zeros for any input."""
    if net["@class"] == TabulatedNet.CLASS or not _keeps_zero(net):
        return tables.constant_table(net, np.zeros(net["neuron"][-1]))
    return zero_net(net)


def _constant(net: Tree) -> Tree:
    """A net that gives this one's output at zero for any input."""
    if net["@class"] != TabulatedNet.CLASS and not _adds_input(net):
        first = net["layers"][0]
        arrays = {**first["@variables"], "w": np.zeros_like(first["@variables"]["w"])}
        return {**net, "layers": [{**first, "@variables": arrays}, *net["layers"][1:]]}
    values = NetCollection.from_tree(collection_node([net], 0, 1, "embedding_network"), torch.float64).net()
    with torch.no_grad():
        return tables.constant_table(net, values(torch.zeros(1, 1, dtype=torch.float64))[0].numpy())


def _keeps_zero(net: Tree) -> bool:
    """Whether it gives zero with zero weights."""
    names = {layer["activation_function"].partition(":")[0] for layer in net["layers"]}
    return not _adds_input(net) and not names & {"sigmoid", "softplus"}


def _adds_input(net: Tree) -> bool:
    return net["neuron"][0] in (1, 2)


def _angular(place: Place) -> Part:
    environment = place.environment("sel_a")
    has_mean = environment["@variables"]["davg"].any()
    # Without a mean, the net's values are multiplied by rows of zeros.
    nets, one_side, excluded = _net_collection(
        place, environment, lambda net, _: _nothing(net) if has_mean else net
    )
    first = nets["networks"][0]
    channels = first["neuron"][-1]
    axis = place.axis(channels)
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_a_mask" if place.operation.op in CLUSTERS else "se_e2_a",
        **environment,
        **tables.shared_keys(first),
        "exclude_types": excluded,
        "axis_neuron": axis,
        "type_one_side": one_side,
        "spin": None,
        "embeddings": nets,
    }
    return Part(node, channels * axis, place.scale(environment["sel"]))


def _radial(place: Place) -> Part:
    environment = place.environment("sel")
    # With one-sided nets, excluded neighbours and empty places have s = 0; otherwise they add nothing.
    nets, one_side, excluded = _net_collection(
        place, environment, lambda net, one_side: _constant(net) if one_side else _nothing(net)
    )
    first = nets["networks"][0]
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_r",
        **environment,
        **tables.shared_keys(first),
        "exclude_types": excluded,
        "type_one_side": one_side,
        "spin": None,
        "embeddings": nets,
    }
    return Part(node, first["neuron"][-1])


def _three_body(place: Place) -> Part:
    environment, n = place.environment("sel_a"), place.ntypes
    pairs = [(t, u) for t in range(n) for u in range(t, n)]
    trees = {(int(t), int(u)): embedding_net(layers) for (_, t, u), layers in place.nets(2).items()}
    if not trees:
        operations = tables.operations(place.graph, place.suffix, tables.THREE_BODY)
        if len(operations) != len(pairs):
            raise ModelFileError(f"it has {len(operations)} tables for {len(pairs)} pairs of types")
        trees = {
            pair: tables.table_node(place.graph, operation, mirrored=True)
            for pair, (_, operation) in zip(pairs, operations, strict=True)
        }
    missing = [pair for pair in pairs if pair not in trees]
    if missing:
        raise ModelFileError(f"the embedding net of the types {missing[0]} is missing")
    first = trees[0, 0]
    # For two types, only the net in this order is used.
    nets = [trees[min(i % n, i // n), max(i % n, i // n)] for i in range(n * n)]
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_e3",
        **environment,
        **tables.shared_keys(first),
        "embeddings": collection_node(nets, 2, n, "embedding_network"),
    }
    return Part(node, first["neuron"][-1])
