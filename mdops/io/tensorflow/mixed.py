"""Makes the trees of se_atten (DPA-1), in which neighbours of all types share their places, and of se_a_ebd_v2, in
which each type has its own, from a graph."""

import re

import numpy as np
import torch

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow import tables
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Layers, Tree, embedding_net, layer_node, precision_of
from mdops.io.tensorflow.places import MIXED, Part, Place, Types
from mdops.models.dpa1 import SHORTEST_ROW
from mdops.models.type_pairs import TypePairs
from mdops.nn.net import collection_node, tensor

_NORM_EPSILON = 1e-3
_PROJECTIONS = ("c_query", "c_key", "c_value")
_OF_TYPES = "_(?:one|two)_side_ebd"  # the end of the names of a type net


def mixed_part(place: Place) -> Part:
    """The tree of a descriptor of mixed types. Raises UnsupportedModelError for an option that mdops does not have."""
    if place.types is None:
        raise ModelFileError("it has a descriptor of mixed types, but no type embedding")
    environment, stated = place.environment("sel_a"), place.stated
    first, strip, one_side = _nets(place, place.types)
    width, channels, precision = place.types.values.shape[1], first["neuron"][-1], first["precision"]
    layers = _attention(place.graph, place.suffix)
    smooth = bool(stated.get("smooth_type_embedding", stated.get("smooth_type_embdding", False)))
    smooth |= stated.get("type") == "se_atten_v2"
    if stated.get("attn_mask") and layers:
        raise UnsupportedModelError("se_atten with attn_mask is not supported")
    has_mean = bool(environment["@variables"]["davg"].any())
    if has_mean and smooth and environment["exclude_types"]:
        raise UnsupportedModelError(
            "se_atten with smooth_type_embedding, exclude_types and set_davg_zero false is not supported"
        )
    axis = place.axis(channels)
    types = {
        "tebd_dim": width,
        "use_econf_tebd": False,
        "use_tebd_bias": place.types.layers[0]["b"] is not None,
        "concat_output_tebd": True,
        "type_embedding": _type_embedding(place.types.layers, place.type_map),
        **({"embeddings_strip": strip} if strip else {}),
    }
    if place.operation.op not in MIXED:
        node = {
            "@class": "Descriptor",
            "@version": 1,
            "type": "se_a_ebd_v2",
            **environment,
            **tables.shared_keys(first),
            **types,
            "axis_neuron": axis,
            "type_one_side": one_side,
            "spin": None,
            "embeddings": collection_node([first], 0, place.ntypes, "embedding_network"),
        }
        return Part(node, channels * axis, place.scale(environment["sel"]), mixed=True)
    hidden = layers[0]["attention_layer"]["in_proj"]["@variables"]["w"].shape[1] // 3 if layers else 128
    attention = {
        "nnei": sum(environment["sel"]),
        "embed_dim": channels,
        "hidden_dim": hidden,
        "dotr": bool(stated.get("attn_dotr", True)),
        "do_mask": False,
        "scaling_factor": 1.0,
        "normalize": True,
        "temperature": 1.0,
    }
    epsilon = layers[0]["attn_layer_norm"]["eps"] if layers else _NORM_EPSILON
    norm = {"trainable_ln": True, "ln_eps": epsilon, "precision": precision}
    node = {
        "@class": "Descriptor",
        "@version": 2,
        "type": "dpa1",
        **environment,
        **tables.shared_keys(first),
        "ntypes": place.ntypes,
        "axis_neuron": axis,
        **types,
        "tebd_input_mode": "strip" if strip else "concat",
        "type_one_side": one_side,
        "attn": hidden,
        "attn_layer": len(layers),
        "attn_dotr": attention["dotr"],
        "attn_mask": False,
        "scaling_factor": 1.0,
        "normalize": True,
        "temperature": 1.0,
        "trainable_ln": True,
        "ln_eps": epsilon,
        "smooth_type_embedding": smooth,
        "cubic_switch": _smooth_length(place, environment) if smooth and (strip or layers) else 0.0,
        "shortest_row": SHORTEST_ROW if layers and attention["dotr"] else 0.0,
        "zero_padding": has_mean and not (strip and smooth),
        "spin": None,
        "embeddings": collection_node([first], 0, place.ntypes, "embedding_network"),
        "attention_layers": {
            "@class": "NeighborGatedAttention",
            "@version": 1,
            "layer_num": len(layers),
            **attention,
            **norm,
            "attention_layers": [_with_options(layer, attention, norm, smooth) for layer in layers],
        },
    }
    return Part(node, channels * axis, place.scale(environment["sel"]), mixed=True)


def strips_types(place: Place) -> bool:
    """Whether the types have a net of their own, whose output multiplies that of the embedding net."""
    return bool(place.nets(0, _OF_TYPES) or tables.operations(place.graph, place.suffix, tables.OF_TYPES))


def _nets(place: Place, types: Types) -> tuple[Tree, Tree | None, bool]:
    """The embedding net; the node for the types' own net (None if they have none); and whether only the neighbour's
    type counts."""
    width = types.values.shape[1]
    found = tables.operations(place.graph, place.suffix, tables.OF_TYPES)
    if found:
        return _tables(place, found[0][1])
    nets, strip = place.nets(0), place.nets(0, _OF_TYPES)
    if list(nets) != [("all",)]:
        raise ModelFileError(f"it has no embedding nets with the suffix {place.suffix!r}")
    first = embedding_net(nets["all",])
    if not strip:
        if first["in_dim"] not in (1 + width, 1 + 2 * width):
            raise ModelFileError(
                f"the embedding net has {first['in_dim']} inputs, which do not fit type embeddings of width {width}"
            )
        return first, None, first["in_dim"] == 1 + width
    of_types = embedding_net(strip["all",])
    wanted = first["in_dim"], of_types["neuron"]
    if wanted != (1, first["neuron"]) or of_types["in_dim"] not in (width, 2 * width):
        raise ModelFileError(
            f"the type net, with {of_types['in_dim']} inputs, does not fit the embedding net, or type embeddings of "
            f"width {width}"
        )
    of_types["resnet_dt"] = first["resnet_dt"]
    return (
        first,
        collection_node([of_types], 0, place.ntypes, "embedding_network"),
        of_types["in_dim"] == width,
    )


def _tables(place: Place, operation: Node) -> tuple[Tree, Tree, bool]:
    """As `_nets`, for a compressed graph, whose type net is stored as values for pairs of types or for neighbours."""
    table, n = tables.table_node(place.graph, operation), place.ntypes + 1
    values = tables.type_factors(place.graph, operation)
    if len(values) not in (n, n * n):
        raise ModelFileError(f"it has {len(values)} rows of numbers for {place.ntypes} types")
    pairs = np.broadcast_to(values.reshape(-1, n, values.shape[1]), (n, n, values.shape[1]))
    return table, TypePairs(tensor(pairs, torch.float64)).to_tree(table["precision"]), False


def _smooth_length(place: Place, environment: Tree) -> float:
    """rcut_smth for the switch: it is that of the training input, not the one rounded to float32."""
    stated, rounded = place.stated.get("rcut_smth"), float(environment["rcut_smth"])
    same = isinstance(stated, int | float) and float(np.float32(stated)) == rounded
    return float(stated) if same and stated is not None else rounded


def _type_embedding(layers: Layers, type_map: list[str]) -> Tree:
    net = embedding_net(layers)
    return {
        "@class": "TypeEmbedNet",
        "@version": 2,
        "ntypes": len(type_map),
        **{key: net[key] for key in ("neuron", "resnet_dt", "activation_function", "precision")},
        "trainable": True,
        "padding": True,
        "use_econf_tebd": False,
        "use_tebd_bias": layers[0]["b"] is not None,
        "type_map": type_map,
        "embedding": net,
    }


def _attention(graph: Graph, suffix: str) -> list[Tree]:
    """The layers' projections and norms."""
    scope = rf"attention_layer_(\d+){re.escape(suffix)}/"
    found: dict[int, dict[str, np.ndarray]] = {}
    for match, value in graph.constants(scope + r"(c_query|c_key|c_value|c_out)/(matrix|bias)"):
        found.setdefault(int(match[1]), {})[f"{match[2]}/{match[3]}"] = value
    for match, value in graph.constants(scope + r"layer_normalization(?:_\d+)?/(gamma|beta)"):
        found.setdefault(int(match[1]), {})[match[2]] = value
    if sorted(found) != list(range(len(found))):
        raise ModelFileError(f"layers of attention are missing: there are {sorted(found)}")
    epsilon = _epsilon(graph, scope) if found else _NORM_EPSILON
    return [_layer(found[k], epsilon) for k in sorted(found)]


def _epsilon(graph: Graph, scope: str) -> float:
    """The number that is added to variances."""
    for node in graph.of_op("FusedBatchNormV3"):
        if re.match(scope, node.name):
            return float(node.attribute("epsilon", "f"))
    for _, value in graph.constants(scope + r"layer_normalization(?:_\d+)?/add/y"):
        return float(value.reshape(-1)[0])
    return _NORM_EPSILON


def _layer(arrays: dict[str, np.ndarray], epsilon: float) -> Tree:
    wanted = [f"{name}/{kind}" for name in (*_PROJECTIONS, "c_out") for kind in ("matrix", "bias")]
    missing = [name for name in (*wanted, "gamma", "beta") if name not in arrays]
    if missing:
        raise ModelFileError(f"a layer of attention lacks {missing[0]}")
    projection = {
        "w": np.concatenate([arrays[f"{name}/matrix"] for name in _PROJECTIONS], axis=-1),
        "b": np.concatenate([arrays[f"{name}/bias"].reshape(-1) for name in _PROJECTIONS]),
        "activation": "none",
    }
    out = {"w": arrays["c_out/matrix"], "b": arrays["c_out/bias"].reshape(-1), "activation": "none"}
    precision = precision_of([projection])
    return {
        "attention_layer": {
            "num_heads": 1,
            "bias": True,
            "in_proj": layer_node(projection, False, precision),
            "out_proj": layer_node(out, False, precision),
        },
        "attn_layer_norm": {
            "@class": "LayerNorm",
            "@version": 1,
            "eps": epsilon,
            "trainable": True,
            "precision": precision,
            "@variables": {"w": arrays["gamma"].reshape(-1), "b": arrays["beta"].reshape(-1)},
        },
    }


def _with_options(layer: Tree, attention: Tree, norm: Tree, smooth: bool) -> Tree:
    inner = {**attention, "smooth": smooth, "precision": norm["precision"], **layer["attention_layer"]}
    return {**attention, **norm, **layer, "attention_layer": inner}
