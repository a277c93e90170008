"""Checks that arrays of nets and lists of types in a serialised model fit each other and the options."""

from typing import Any

import numpy as np

from mdops.errors import ConfigError, ModelFileError
from mdops.nn.net import TabulatedNet
from mdops.options import Options

Tree = dict[str, Any]


def check_types(types: list[int], ntypes: int, place: str) -> None:
    """Raises ModelFileError for an unknown type."""
    if any(t >= ntypes for t in types):
        raise ModelFileError(f"{place} names a type beyond the {ntypes} of the type map: {types}")


def check_pairs(pairs: list[list[int]], ntypes: int, place: str) -> None:
    """Raises ModelFileError for a pair with an unknown type."""
    for pair in pairs:
        check_types(pair, ntypes, place)


def require_same(found: Any, wanted: Any, place: str) -> None:
    """Raises ModelFileError, naming the place, unless what was found matches the rest of the model."""
    if found != wanted:
        raise ModelFileError(f"{place} is {found}, and by the rest of the model it should be {wanted}")


def check_options(options: Options, tree: Tree, type_map: list[str], place: str) -> None:
    """Raises ModelFileError if a descriptor node's options, or its types, do not fit each other."""
    try:
        options.check(place, type_map)
    except ConfigError as error:
        raise ModelFileError(str(error)) from error
    check_type_map(tree, type_map, place)


def check_type_map(tree: Tree, type_map: list[str], place: str) -> None:
    """Raises ModelFileError if the types of a descriptor's node, or of its type embedding, are not the model's."""
    for part in (tree, tree.get("type_embedding", tree)):
        if part["type_map"] is not None:
            require_same(part["type_map"], type_map, f"the type_map of {place}")
    require_same(tree.get("ntypes", len(type_map)), len(type_map), f"{place}.ntypes")


def check_collection(nets: Tree, options: Tree, ndim: int, ntypes: int, place: str) -> None:
    """Checks nets by so many types each, which repeat neuron, resnet_dt and activation of node `options`. Raises
    ModelFileError."""
    if "networks" not in nets:
        raise ModelFileError(f"{place} is no collection of nets")
    require_same((nets["ndim"], nets["ntypes"]), (ndim, ntypes), f"(ndim, ntypes) of {place}")
    require_same(len(nets["networks"]), ntypes**ndim, f"the number of nets of {place}")
    for i, net in enumerate(nets["networks"]):
        if net is not None:
            at = f"{place}.networks[{i}]"
            for key in ("resnet_dt", "activation_function"):
                # Without hidden layers, no function is used.
                if key in net and (key != "activation_function" or options["neuron"]):
                    require_same(net[key], options[key], f"{at}.{key}")
            if net.get("@class") == TabulatedNet.CLASS:
                _check_tabulated(net, options["neuron"][-1], at)
            elif "layers" in net:
                check_net(net, options["neuron"], at)


def check_net(net: Tree, neuron: list[int], place: str) -> None:
    """A net of such widths. Raises ModelFileError."""
    require_same(net["neuron"], neuron, f"{place}.neuron")
    widths = [net["in_dim"], *neuron]
    if "out_dim" in net:
        widths.append(net["out_dim"])
    require_same(len(net["layers"]), len(widths) - 1, f"the number of layers of {place}")
    for i, layer in enumerate(net["layers"]):
        check_layer(layer, widths[i], widths[i + 1], f"{place}.layers[{i}]")
        if i < len(neuron):
            activation = f"{place}.layers[{i}].activation_function"
            if layer["activation_function"] != "linear":  # such a one may lead to the others
                require_same(layer["activation_function"], net["activation_function"], activation)
        elif str(layer["activation_function"]).lower() not in ("none", "linear"):
            raise ModelFileError(f"the last layer of {place} has an activation function")


def _check_tabulated(net: Tree, width: int, place: str) -> None:
    breaks, coefficients = (net["@variables"][name] for name in ("breaks", "coefficients"))
    require_same((net["in_dim"], net["neuron"]), (1, [width]), f"(in_dim, neuron) of {place}")
    pieces = max(breaks.size - 1, 1)
    require_same(coefficients.shape, (pieces, width, TabulatedNet.POWERS), f"the coefficients of {place}")
    if breaks.ndim != 1 or (np.diff(breaks) <= 0).any():
        raise ModelFileError(f"the breaks of {place} do not rise")


def check_layer(layer: Tree, width_in: int, width_out: int, place: str) -> None:
    """Raises ModelFileError."""
    arrays: dict[str, np.ndarray | None] = layer["@variables"]
    shapes = {"w": (width_in, width_out), "b": (width_out,), "idt": (width_out,)}
    for name, shape in shapes.items():
        array = arrays[name]
        if array is not None:
            require_same(array.shape, shape, f"the shape of {place}.@variables.{name}")
    require_same(arrays["b"] is not None, layer["bias"], f"whether {place} has a bias")
    require_same(arrays["idt"] is not None, layer["use_timestep"], f"whether {place} has a timestep")


def check_product(layer: Tree, inputs: int, outputs: int, place: str) -> None:
    """Raises ModelFileError unless the layer is only a product of that shape."""
    check_layer(layer, inputs, outputs, place)
    require_same(layer["use_timestep"], False, f"{place}.use_timestep")
    if layer["resnet"] and outputs in (inputs, 2 * inputs):
        raise ModelFileError(f"{place} adds its input")
    if str(layer["activation_function"]).lower() not in ("none", "linear"):
        raise ModelFileError(f"{place} has an activation function")


def check_residuals(weights: Tree, wanted: dict[str, tuple[int, int]], place: str) -> None:
    """Raises ModelFileError unless there are so many trained weights of messages, of that width, by name."""
    for name, (count, width) in wanted.items():
        found = [value.shape for value in weights.get(name) or []]
        require_same(found, [(width,)] * count, f"the shapes of {place}.@variables.{name}")


def check_statistics(arrays: Tree, shape: tuple[int, ...], place: str) -> None:
    """Raises ModelFileError unless davg and dstd have that shape, and deviations are positive."""
    for name in ("davg", "dstd"):
        require_same(arrays[name].shape, shape, f"the shape of {place}.@variables.{name}")
    if (arrays["dstd"] <= 0).any():
        raise ModelFileError(f"{place}.@variables.dstd holds deviations that are not positive")
