"""Makes the trees of nets and of their collections from a PyTorch state dict."""

from collections.abc import Callable

from mdops.errors import ModelFileError
from mdops.io.torch.state import State, Tree
from mdops.nn.net import collection_node


def is_trainable(params: Tree) -> bool:
    return bool(params.get("trainable", True))


def net_collection(state: State, ndim: int, ntypes: int, kind: str, build: Callable[[State], Tree]) -> Tree:
    """The nets of all types (ndim 1) or pairs of types (ndim 2), or the one net (ndim 0)."""
    # The same nets are registered under two names, of which TorchScript and older files keep one.
    nets = state.below("networks")
    nets = nets if nets.tensors else state.below("_networks")
    parts = [nets.below(str(i)) for i in range(ntypes**ndim)]
    if set(nets.modules()) - {str(i) for i in range(len(parts))}:
        raise ModelFileError(f"{nets.name} holds more nets than the definition's {len(parts)}")
    return collection_node([build(part) if part.tensors else None for part in parts], ndim, ntypes, kind)


def embedding_collection(state: State, options: Tree, ndim: int, ntypes: int, trainable: bool) -> Tree:
    return net_collection(
        state, ndim, ntypes, "embedding_network", lambda part: embedding_net(part, options, trainable)
    )


def embedding_net(state: State, options: Tree, trainable: bool) -> Tree:
    layers = _layers(state, options, trainable)
    return {
        "@class": "EmbeddingNetwork",
        "@version": 2,
        "in_dim": layers[0]["@variables"]["w"].shape[0],
        "neuron": list(options["neuron"]),
        "activation_function": options["activation_function"],
        "resnet_dt": options["resnet_dt"],
        "bias": layers[0]["bias"],
        "precision": options["precision"],
        "layers": layers,
    }


def fitting_net(state: State, options: Tree, trainable: list[bool]) -> Tree:
    layers = _layers(state, options, True)
    for layer, learns in zip(layers, trainable, strict=False):
        layer["trainable"] = bool(learns)
    last = layers[-1]
    last |= {"activation_function": "none", "resnet": False}
    return {
        "@class": "FittingNetwork",
        "@version": 1,
        "in_dim": layers[0]["@variables"]["w"].shape[0],
        "out_dim": last["@variables"]["w"].shape[-1],
        "neuron": list(options["neuron"]),
        "activation_function": options["activation_function"],
        "resnet_dt": options["resnet_dt"],
        "precision": options["precision"],
        "bias_out": last["bias"],
        "layers": layers,
    }


def _layers(state: State, options: Tree, trainable: bool) -> list[Tree]:
    parts = state.below("layers")
    if not parts.tensors:
        raise ModelFileError(f"the weights {parts.name}* are missing")
    return [
        layer_tree(parts.below(n), options["activation_function"], True, options["precision"], trainable)
        for n in parts.modules()
    ]


def layer_tree(state: State, activation: str, resnet: bool, precision: str, trainable: bool) -> Tree:
    # DeePMD-kit's exportable backend has other names.
    name, bias = ("w", "b") if "w" in state.tensors else ("matrix", "bias")
    matrix = state.required(name)
    weights = {"w": matrix, "b": state.array(bias), "idt": state.array("idt")}
    if matrix.ndim != 2:
        raise ModelFileError(f"the weights {state.name}{name} are not a matrix")
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": weights["b"] is not None,
        "use_timestep": weights["idt"] is not None,
        "activation_function": activation,
        "resnet": resnet,
        "precision": precision,
        "trainable": trainable,
        "@variables": weights,
    }


def type_embedding(state: State, options: Tree, type_map: list[str], trainable: bool) -> Tree:
    """The node of a type embedding, by the keys of its descriptor, and the tensors of `type_embedding.embedding`."""
    net = {
        "neuron": [options["tebd_dim"]],
        "activation_function": "Linear",
        "resnet_dt": False,
        "precision": options["precision"],
    }
    return {
        "@class": "TypeEmbedNet",
        "@version": 2,
        "ntypes": len(type_map),
        **net,
        "trainable": trainable,
        "padding": True,
        "use_econf_tebd": options["use_econf_tebd"],
        "use_tebd_bias": options["use_tebd_bias"],
        "type_map": type_map,
        "embedding": embedding_net(state.below("embedding_net"), net, True),
    }
