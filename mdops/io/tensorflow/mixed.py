"""From a graph to the tree of se_atten (DPA-1), whose neighbours of all types share places."""

import re

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph
from mdops.io.tensorflow.nets import Layers, Tree, collection, embedding_net, layer_node, precision_of
from mdops.io.tensorflow.places import Part, Place

_NORM_EPSILON = 1e-3
_SHORTEST_ROW = 1e-6  # the root of what tf.nn.l2_normalize takes as the least square
_PROJECTIONS = ("c_query", "c_key", "c_value")


def mixed_part(place: Place) -> Part:
    """The tree of a descriptor of mixed types. Raises UnsupportedModelError for an option that mdops does not have."""
    if place.types is None:
        raise ModelFileError("it has a descriptor of mixed types, and no embedding of types")
    environment, stated = place.environment("sel_a"), place.stated
    nets = place.nets(0)
    strip = place.nets(0, "_two_side_ebd")
    if list(nets) != [("all",)]:
        raise UnsupportedModelError(
            "a compressed se_atten is not read from TensorFlow graphs; the graph before is"
        )
    first, precision = embedding_net(nets["all",]), precision_of(nets["all",])
    width, channels = place.types.values.shape[1], first["neuron"][-1]
    one_side = not strip and first["in_dim"] == 1 + width
    if first["in_dim"] not in ({1} if strip else {1 + width, 1 + 2 * width}):
        raise ModelFileError(
            f"the embedding net takes {first['in_dim']} numbers, and the types have {width} each"
        )
    layers = _attention(place.graph, place.suffix)
    smooth = bool(stated.get("smooth_type_embedding", stated.get("smooth_type_embdding", False)))
    smooth |= stated.get("type") == "se_atten_v2"
    if stated.get("attn_mask") and layers:
        raise UnsupportedModelError("se_atten with attn_mask is not supported")
    has_mean = bool(environment["@variables"]["davg"].any())
    if has_mean and smooth and environment["exclude_types"]:
        raise UnsupportedModelError("se_atten that is smooth, with exclude_types and set_davg_zero false")
    axis = place.axis(channels)
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
        **{key: first[key] for key in ("neuron", "resnet_dt", "activation_function", "precision")},
        "ntypes": place.ntypes,
        "axis_neuron": axis,
        "tebd_dim": width,
        "tebd_input_mode": "strip" if strip else "concat",
        "use_econf_tebd": False,
        "use_tebd_bias": place.types.layers[0]["b"] is not None,
        "concat_output_tebd": True,
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
        "shortest_row": _SHORTEST_ROW if layers and attention["dotr"] else 0.0,
        "zero_padding": has_mean and not (strip and smooth),
        "spin": None,
        "embeddings": collection([first], 0, place.ntypes, "embedding_network"),
        "attention_layers": {
            "@class": "NeighborGatedAttention",
            "@version": 1,
            "layer_num": len(layers),
            **attention,
            **norm,
            "attention_layers": [_with_options(layer, attention, norm, smooth) for layer in layers],
        },
        "type_embedding": _type_embedding(place.types.layers, place.type_map),
    }
    if strip:
        types = embedding_net(strip["all",])
        # Whatever the options say, these nets take the types of both sides.
        if types["in_dim"] != 2 * width or types["neuron"] != first["neuron"]:
            raise ModelFileError(
                f"the net of types takes {types['in_dim']} numbers for types of {width} each"
            )
        types["resnet_dt"] = first["resnet_dt"]
        node["embeddings_strip"] = collection([types], 0, place.ntypes, "embedding_network")
    return Part(node, channels * axis, place.scale(environment["sel"]), mixed=True)


def _smooth_length(place: Place, environment: Tree) -> float:
    """rcut_smth, which the fading takes as the training input has it, and not in float32."""
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
    """What is added to variances."""
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
