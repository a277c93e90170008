"""From the operations and constants of a graph to the trees of descriptors.

The operation that makes the environment matrix says the cutoffs and the places of neighbours and names the statistics;
the nets' own shapes and the operations behind them say the rest. What a graph does not show in this way (excluded
types, say) is in the training input that newer graphs carry.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Layers, Tree, collection, embedding_net, layers_by_name, zero_net

RADIAL = ("DescrptSeR", "ProdEnvMatR")
ANGULAR = ("DescrptSeA", "DescrptNorot", "ProdEnvMatA")
MIXED = ("ProdEnvMatAMix",)
ENVIRONMENT = (*RADIAL, *ANGULAR, *MIXED)
_LONGEST = 1000.0  # cutoff, A
_AVERAGE, _DEVIATION = 5, 6  # which inputs of these operations


@dataclasses.dataclass
class Part:
    """A descriptor, or a part of a hybrid.

    Attributes:
        node: its tree.
        width: how many numbers it has of an atom, without an embedding of the atom's type.
        scale: what these are multiplied with.
        mixed: whether neighbours of all types share its places.
    """

    node: Tree
    width: int
    scale: float = 1.0
    mixed: bool = False


@dataclasses.dataclass
class Place:
    """An operation that makes an environment matrix, and what is known of the descriptor on top of it.

    Attributes:
        suffix: behind the names of its scopes, as "_1" of a hybrid's second part.
        stated: the descriptor's section of the training input; empty where there is none.
        type_map.
        types: (ntypes, d), the embedding of the types; None where the model has none.
        width: how many numbers the fitting takes of it, where the graph says it.
    """

    graph: Graph
    operation: Node
    suffix: str
    stated: Tree
    type_map: list[str]
    types: np.ndarray | None
    width: int | None

    @property
    def ntypes(self) -> int:
        return len(self.type_map)

    def environment(self, sel_name: str) -> Tree:
        """What all descriptors have; `sel_name` is the operation's attribute with the places."""
        operation, radial = self.operation, sel_name == "sel"
        names = ("rcut", "rcut_smth") if radial else ("rcut_r", "rcut_r_smth")
        end, start = (np.float32(operation.attribute(name, "f")) for name in names)
        # The operation computes with float32 cutoffs: what counts is their difference, rounded.
        smooth = float(start)
        rcut = smooth + float(end - start)
        if not 0 <= smooth < rcut < _LONGEST:
            raise ModelFileError(f"{operation.name} has the cutoffs {smooth:g} and {rcut:g} A")
        sel = operation.attribute(sel_name, "list i")
        if not sel or min(sel) < 0 or not sum(sel):
            raise ModelFileError(f"{operation.name} has the places {sel[:10]}")
        davg, dstd = (self._statistics(k, sum(sel), 1 if radial else 4) for k in (_AVERAGE, _DEVIATION))
        return {
            "rcut": rcut,
            "rcut_smth": smooth,
            "sel": sel,
            "trainable": True,
            "exclude_types": self.excluded(),
            "env_protection": 0.0,
            "set_davg_zero": bool(self.stated.get("set_davg_zero", not davg.any())),
            "env_mat": {"rcut": rcut, "rcut_smth": smooth, "protection": 0.0, "use_exp_switch": False},
            "type_map": self.type_map,
            "@variables": {"davg": davg, "dstd": dstd},
        }

    def _statistics(self, which: int, slots: int, columns: int) -> np.ndarray:
        if len(self.operation.inputs) <= which:
            raise ModelFileError(f"{self.operation.name} lacks inputs")
        values = self.graph.value(self.operation.inputs[which])
        if values.size != self.ntypes * slots * columns:
            raise ModelFileError(
                f"{self.operation.inputs[which]} has {values.size} numbers, expected {self.ntypes} x {slots} x "
                f"{columns}"
            )
        return values.reshape(self.ntypes, slots, columns)

    def excluded(self) -> list[list[int]]:
        """Pairs of types that do not see each other, as the training input has them."""
        pairs = self.stated.get("exclude_types") or []
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(t in range(self.ntypes) for t in pair)
            for pair in pairs
        ):
            raise ModelFileError(f"the training input in it has the exclude_types {pairs!r:.80}")
        return [list(pair) for pair in pairs]

    def nets(self, types: int, extra: str = "") -> dict[tuple[str, ...], Layers]:
        """The embedding nets with so many types in the names of their constants, by (centre, *types)."""
        numbers = "".join(rf"_(?P<net_{k}>\d+)" for k in range(1, types + 1))
        pattern = rf"filter_type_(?P<net_0>all|\d+){re.escape(self.suffix)}/(?P<kind>matrix|bias|idt)_(?P<layer>\d+)"
        return layers_by_name(self.graph, pattern + numbers + extra, lambda match: int(match["layer"]) - 1)

    def axis(self, channels: int) -> int:
        """Into how many of its columns the moments are multiplied."""
        names = rf"(?:filter_type_(?:all|\d+){re.escape(self.suffix)}/)?Slice(?:_\d+)?/size"
        found = {
            int(value[2])
            for match, value in self.graph.constants(names)
            if value.shape == (3,)
            and value[0] == value[1] == -1
            and value[2] > 0
            and match.group().startswith("filter_type")
        }
        stated = self.stated.get("axis_neuron", self.stated.get("n_axis_neuron"))
        if len(found) == 1:
            axis: Any = found.pop()
        elif stated is not None:
            axis = stated
        elif self.width is not None:
            axis = self.width // channels
        else:
            raise ModelFileError("the width of the descriptor's axis is not in the graph")
        if type(axis) is not int or not 0 < axis <= channels:
            raise ModelFileError(f"the descriptor has the axis {axis!r:.40} of {channels} columns")
        return axis

    def scale(self, sel: list[int]) -> float:
        """By what the moments' squares differ from those that are divided by the number of places: graphs may keep the
        divisor that they had before their places were changed."""
        original = self.graph.optional(f"descrpt_attr{self.suffix}/original_sel")
        places = int(np.sum(original)) if original is not None else sum(sel)
        if places <= 0:
            raise ModelFileError(f"descrpt_attr{self.suffix}/original_sel has {places} places")
        return (sum(sel) / places) ** 2


def part_of(place: Place) -> Part:
    """The tree of one descriptor. Raises UnsupportedModelError for a kind that is not known."""
    if place.operation.op in RADIAL:
        return _radial(place)
    if place.operation.op in MIXED:
        raise UnsupportedModelError("se_atten")
    if place.nets(2):
        return _three_body(place)
    return _angular(place)


def _typed_nets(place: Place) -> tuple[list[list[Tree | None]], bool]:
    """The nets (ntypes, ntypes) of each centre and neighbour, None of pairs that have none, and whether they are the
    same for all centres."""
    found, n = place.nets(1), place.ntypes
    if found:
        one_side = {center for center, _ in found} == {"all"}
        if not one_side and "all" in {center for center, _ in found}:
            raise ModelFileError("it has nets for all centres, and nets for some")
        trees = {net: embedding_net(layers) for net, layers in found.items()}
        rows = [[trees.get(("all" if one_side else str(c), str(t))) for t in range(n)] for c in range(n)]
        return rows, one_side
    common = place.nets(0)
    if place.types is None or list(common) != [("all",)]:
        raise ModelFileError(f"it has no embedding nets with the suffix {place.suffix!r}")
    return _with_types(common[("all",)], place.types)


def _with_types(layers: Layers, types: np.ndarray) -> tuple[list[list[Tree | None]], bool]:
    """The nets of each centre and neighbour, from one net that takes s and their embeddings: what the embeddings add to
    the first layer is a part of its bias."""
    weight, width = layers[0]["w"], types.shape[1]
    one_side = weight.shape[0] == 1 + width
    if not one_side and weight.shape[0] != 1 + 2 * width:
        raise ModelFileError(
            f"the embedding net takes {weight.shape[0]} numbers, and the types have {width} each"
        )
    n = len(types)

    def net(center: int, neighbor: int) -> Tree:
        inputs = np.concatenate([types[neighbor], *([] if one_side else [types[center]])])
        first = layers[0]
        bias = inputs.astype(weight.dtype) @ weight[1:] + (0 if first["b"] is None else first["b"])
        if weight.shape[1] not in (weight.shape[0], 2 * weight.shape[0]):
            return embedding_net([{**first, "w": weight[:1], "b": bias}, *layers[1:]])
        # The layer adds its input: a linear one before it makes this of s.
        start = np.concatenate([np.zeros(1, weight.dtype), inputs.astype(weight.dtype)])
        rise = np.zeros((1, len(start)), weight.dtype)
        rise[0, 0] = 1
        return embedding_net([{"w": rise, "b": start, "idt": None, "activation": "linear"}, *layers])

    return [[net(c, t) for t in range(n)] for c in range(n)], one_side


def _net_collection(place: Place, zeroed: Callable[[Tree, bool], Tree]) -> tuple[Tree, bool, list[list[int]]]:
    """The collection of the nets, whether they are one-sided, and the pairs of types that do not see each other.
    `zeroed` gives what stands for the net of such a pair."""
    rows, one_side = _typed_nets(place)
    present = [net for row in rows for net in row if net is not None]
    if "exclude_types" in place.stated or one_side:
        excluded = {tuple(sorted(pair)) for pair in place.excluded()}
    else:  # old graphs have no training input: pairs that do not see each other have no nets
        pairs = [(c, t) for c in range(place.ntypes) for t in range(c, place.ntypes)]
        excluded = {(c, t) for c, t in pairs if rows[c][t] is None and rows[t][c] is None}
    if not present:
        raise ModelFileError("it has no embedding nets")
    for c, row in enumerate(rows):
        for t, net in enumerate(row):
            if tuple(sorted((c, t))) in excluded:
                row[t] = zeroed(net or present[0], one_side)
            elif net is None:
                raise ModelFileError(f"the embedding net of the types {c} and {t} is missing")
    kind, n = "embedding_network", place.ntypes
    if one_side and not excluded:
        return collection([net for net in rows[0] if net], 1, n, kind), True, []
    nets = [rows[i % n][i // n] for i in range(n * n)]
    return (
        collection([net for net in nets if net], 2, n, kind),
        False,
        [list(pair) for pair in sorted(excluded)],
    )


def _shared(net: Tree) -> Tree:
    """What a descriptor's node says once more of its nets."""
    return {key: net[key] for key in ("neuron", "resnet_dt", "activation_function", "precision")}


def _angular(place: Place) -> Part:
    environment = place.environment("sel_a")
    nets, one_side, excluded = _net_collection(place, lambda net, _: zero_net(net))
    first = nets["networks"][0]
    channels = first["neuron"][-1]
    axis = place.axis(channels)
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_e2_a",
        **environment,
        **_shared(first),
        "exclude_types": excluded,
        "axis_neuron": axis,
        "type_one_side": one_side,
        "spin": None,
        "embeddings": nets,
    }
    return Part(node, channels * axis, place.scale(environment["sel"]))


def _radial(place: Place) -> Part:
    environment = place.environment("sel")
    nets, one_side, excluded = _net_collection(place, _constant_net)
    first = nets["networks"][0]
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_r",
        **environment,
        **_shared(first),
        "exclude_types": excluded,
        "type_one_side": one_side,
        "spin": None,
        "embeddings": nets,
    }
    return Part(node, first["neuron"][-1])


def _constant_net(net: Tree, one_side: bool) -> Tree:
    """Of neighbours that are excluded: with nets by their type alone they have s = 0, else they add nothing."""
    if not one_side:
        return zero_net(net)
    first = net["layers"][0]
    arrays = {**first["@variables"], "w": np.zeros_like(first["@variables"]["w"])}
    return {**net, "layers": [{**first, "@variables": arrays}, *net["layers"][1:]]}


def _three_body(place: Place) -> Part:
    environment, n = place.environment("sel_a"), place.ntypes
    found = place.nets(2)
    trees = {net[1:]: embedding_net(layers) for net, layers in found.items()}
    missing = [(t, u) for t in range(n) for u in range(t, n) if (str(t), str(u)) not in trees]
    if missing:
        raise ModelFileError(f"the embedding net of the types {missing[0]} is missing")
    first = trees["0", "0"]
    nets = [trees[str(i % n), str(i // n)] if i % n <= i // n else zero_net(first) for i in range(n * n)]
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_e3",
        **environment,
        **_shared(first),
        "embeddings": collection(nets, 2, n, "embedding_network"),
    }
    return Part(node, first["neuron"][-1])
